"""Hooks of MkDocs: the navigation of docs/README.md, and pages from beside `docs`.

The documents are written to be read as plain Markdown, so they link to files of the repository. Of
these the pages of the project (changelog, contributing ...) become pages of the site; of any other
the name is shown.

The theme has pages load a script from another server, which search needs where pages are opened as
files. Here it is a file of the site, so that nothing comes from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
#: Pages beside `docs`, and where the site has them.
PROJECT = {f"{name}.md": f"project/{name.lower()}.md" for name in (
    "README", "CHANGELOG", "CONTRIBUTING", "SECURITY")}  # fmt: skip
#: What the theme has pages load from elsewhere, and where the site has it.
SHIM_URL, SHIM = "https://unpkg.com/iframe-worker/shim", "assets/javascripts/iframe_worker.js"
#: Files beside this one, and where the site has them.
OWN_FILES = {"iframe_worker.js": SHIM, "site.css": "assets/stylesheets/site.css"}
#: The kinds of documents (diataxis.fr); what operators do is of the second one.
KINDS = ("Tutorial", "How to", "Reference", "Explanation")
OPERATIONS = "Operations"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
#: A fence with words after its language: what the tests do with it.
_FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_CODE = re.compile(r"<code>[^<]*</code>")
_DOT = re.compile(r"(?<=[\w\]])\.(?=\w)")
_SECTION = re.compile(r"^\*\*(.+)\*\*$")


def sections(index: str) -> dict[str, list[dict[str, Any]]]:
    """Return the pages of each section of the index, in its order: [{title: path}]."""
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    for line in index.splitlines():
        if section := _SECTION.match(line):
            name = section[1]
            found[name] = []
        elif line.startswith("* "):
            found[name] += [{text: target} for text, target, _ in _LINK.findall(line)]
    return found


def navigation(index: str) -> list[Any]:
    """Return the navigation: the index, the four kinds, the pages of the project."""
    parts = sections(index)
    operations = parts.pop(OPERATIONS)
    if sorted(parts) != sorted(KINDS):
        raise ValueError(
            f"docs/README.md has other sections than {', '.join(KINDS)}: {list(parts)}"
        )
    parts["How to"].append({OPERATIONS: operations})
    kinds = [{kind: parts[kind]} for kind in KINDS]
    project = [{Path(source).stem.capitalize(): target} for source, target in PROJECT.items()]
    return [{"Fairlead": "README.md"}, *kinds, {"Project": project}]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the index."""
    config.nav = navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the project, and what is beside this module."""
    from mkdocs.structure.files import File

    for source, target in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=text))
    for name, target in OWN_FILES.items():
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=text))
    return files


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Let a page load everything from the site."""
    return with_own_shim(output, page.file.dest_uri)


def on_post_template(output_content: str, template_name: str, **_: object) -> str:
    """The same of pages that are no documents."""
    return with_own_shim(output_content, template_name)


def on_page_content(html: str, **_: object) -> str:
    """Let the paths of fields in tables break after a dot."""
    return with_breaks(html)


def with_breaks(html: str) -> str:
    """Return a page in which code in tables may break after the dots within it."""
    return _CELL.sub(lambda cell: _CODE.sub(_with_breaks, cell[0]), html)


def _with_breaks(code: re.Match[str]) -> str:
    return _DOT.sub(".<wbr>", code[0])


def with_own_shim(html: str, here: str) -> str:
    """Return the page at this path of the site with the script from the site itself."""
    return html.replace(SHIM_URL, posixpath.relpath(SHIM, posixpath.dirname(here) or "."))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links that leave `docs` lead to a page of the site, or be the name of a file, and fences
    have their language alone: with more the extension takes them for text, and `#!` for a heading.
    """
    return with_links(with_plain_fences(markdown), page.file.src_uri)


def with_plain_fences(markdown: str) -> str:
    """Return the text with nothing but the language after the ticks of a fence."""
    return _FENCE.sub(r"\1", markdown)


def with_links(markdown: str, here: str) -> str:
    """Return the text of the page at this path of the site, with links that lead to others."""
    original = {target: source for source, target in PROJECT.items()}.get(here, f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(original), target))
        there = path.removeprefix("docs/") if path.startswith("docs/") else PROJECT.get(path, "")
        if not there:
            return text if text.strip("`") == path else f"{text} (`{path}`)"
        return f"[{text}]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{anchor})"

    return _LINK.sub(link, markdown)
