"""Documents point at things that exist, and name no machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.tidy.sources import ROOT

_MODULE = re.compile(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*/[a-z_0-9]+\.py)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_TEST = re.compile(r"`(test_\w+)`")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`]+\1|^    .*$", re.MULTILINE)
_TAG = re.compile(r"<[A-Za-z/][^<>\n]*>")
_LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ANCHORED = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]*)#([^)\s]+)\)")
_DEFINED = re.compile(r"\bdef (test_\w+)\(")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def test_relative_links_resolve() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in _documents()
        for target in _LINK.findall(document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the site and GitHub make them."""
    found: Counter[str] = Counter()
    out: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        plain = _LINKED.sub(r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        out.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return out


def test_anchors_of_links_between_pages_are_headings_there() -> None:
    anchors: dict[Path, set[str]] = {}
    broken: list[str] = []
    count = 0
    for document in _documents():
        for target, anchor in _ANCHORED.findall(_FENCED.sub("", document.read_text())):
            page = (document.parent / target).resolve() if target else document
            if "://" in target or page.suffix != ".md" or not page.exists():
                continue
            if page not in anchors:
                anchors[page] = _anchors(page.read_text())
            count += 1
            if anchor not in anchors[page]:
                broken.append(f"{document.relative_to(ROOT)}: {target}#{anchor}")
    assert count > 300
    assert broken == []


def test_no_text_is_taken_for_a_tag() -> None:
    """A page shows nothing of `<name>` that is not code."""
    lost = [
        f"{document.relative_to(ROOT)}: {tag}"
        for document in _documents()
        if document.is_relative_to(ROOT / "docs") or document.parent == ROOT
        for tag in _TAG.findall(_CODE.sub("", _FENCED.sub("", document.read_text())))
    ]
    assert lost == []


def test_modules_that_the_design_names_exist() -> None:
    """Of a module as `folder/module.py`; a page may show the files of an example of its own."""
    missing = [
        f"{document.relative_to(ROOT)}: {module}"
        for document in _documents()
        if document.parent == ROOT / "docs" / "design" or document.parent == ROOT
        if document.name not in ("adding-a-controller.md", "CHANGELOG.md")
        for module in _MODULE.findall(document.read_text())
        if not any((ROOT / base / module).exists() for base in ("", "src/fairlead", "src"))
    ]
    assert missing == []


def test_tests_that_documents_name_exist() -> None:
    named = [
        (document, name)
        for document in _documents()
        for name in _TEST.findall(document.read_text())
    ]
    wanted = {name for _, name in named}
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    defined = {
        node.name
        for text in texts
        if not wanted.isdisjoint(_DEFINED.findall(text))  # what may have one is parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(named) > 100
    missing = [f"{path.relative_to(ROOT)}: {name}" for path, name in named if name not in defined]
    assert missing == []


def test_figures_that_other_pages_quote_are_those_that_were_measured() -> None:
    measured = (ROOT / "docs" / "design" / "performance.md").read_text()
    pages = [ROOT / "docs" / page for page in ("design/comparison.md", "operations/limits.md")]
    quoted = [
        figure
        for page in pages
        for line in page.read_text().splitlines() if line.startswith("| ")
        for figure in _BOLD.findall(line)
    ]  # fmt: skip
    assert len(quoted) > 15
    assert [figure for figure in quoted if figure not in measured] == []


def test_every_design_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))
    assert [page for page in pages if page != "README.md" and page not in index] == []
