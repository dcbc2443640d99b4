"""Documents point at things that exist, and name no machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from tests.tidy.sources import ROOT

_MODULE = re.compile(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*/[a-z_0-9]+\.py)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_TEST = re.compile(r"`(test_\w+)`")
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
    defined = {
        node.name
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = [
        (document, name)
        for document in _documents()
        for name in _TEST.findall(document.read_text())
    ]
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
