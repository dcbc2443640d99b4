"""The site of the documents: its navigation is that of the index, its links stay in it."""

from __future__ import annotations

import pytest
from tests.tidy.sources import ROOT
from tools.release.site import (
    KINDS,
    SHIM_URL,
    navigation,
    with_breaks,
    with_links,
    with_own_shim,
    with_plain_fences,
)

INDEX = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


def test_the_navigation_has_four_kinds_and_every_page_of_the_index() -> None:
    index, *kinds, project = navigation(INDEX)
    assert index == {"Fairlead": "README.md"}
    assert tuple(name for kind in kinds for name in kind) == KINDS
    assert "project/changelog.md" in str(project)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f"'{page}'" not in str([index, *kinds])] == []


def test_a_section_of_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="other sections than Tutorial, How to"):
        navigation(INDEX + "\n**Stories**\n\n* [One](one.md)\n")


@pytest.mark.parametrize(
    ("link", "here", "becomes"),
    [
        ("[a](jobs.md#b)", "design/arrays.md", "[a](jobs.md#b)"),
        ("[a](../../SECURITY.md)", "design/arrays.md", "[a](../project/security.md)"),
        ("[a](docs/howto/web.md)", "project/readme.md", "[a](../howto/web.md)"),
        ("[a](../../Makefile)", "design/arrays.md", "a (`Makefile`)"),
        ("[`LICENSE`](LICENSE)", "project/readme.md", "`LICENSE`"),
        ("[a](https://example.com/x)", "README.md", "[a](https://example.com/x)"),
    ],
    ids=["inside", "of-the-project", "from-the-project", "a-file", "named", "elsewhere"],
)
def test_links_stay_in_the_site(link: str, here: str, becomes: str) -> None:
    assert with_links(link, here) == becomes


def test_a_fence_keeps_its_language_and_loses_what_the_tests_read_after_it() -> None:
    page = "```sh file=train.sh\n#!/bin/sh\n```\n\n  ```console cluster\n  $ true\n  ```\n"
    plain = "```sh\n#!/bin/sh\n```\n\n  ```console\n  $ true\n  ```\n"
    assert with_plain_fences(page) == plain
    assert with_plain_fences(plain) == plain


def test_the_path_of_a_field_in_a_table_may_break_after_a_dot() -> None:
    cell = "<td><code>spec.roles[].name</code> of v1.2 <code>a.b</code></td>"
    broken = "<td><code>spec.<wbr>roles[].<wbr>name</code> of v1.2 <code>a.<wbr>b</code></td>"
    beside = "<p><code>spec.roles</code></p>"
    assert with_breaks(cell + beside) == broken + beside


def test_a_page_loads_nothing_from_another_server() -> None:
    html = f'<script src="{SHIM_URL}"></script>'
    for here, path in (
        ("index.html", "assets/javascripts/iframe_worker.js"),
        ("design/jobs.html", "../assets/javascripts/iframe_worker.js"),
    ):
        assert with_own_shim(html, here) == f'<script src="{path}"></script>'
