"""What a release checks: licences, notes, and that nothing is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.release.audit import UNKNOWN, VULNERABLE, report
from tools.release.bare_machine import ROOT, Failed, check, commands
from tools.release.build import Unfit, fit, notes, run
from tools.release.licences import is_allowed, main, packages, rows

CHANGELOG = """# Changelog

## Unreleased

* not yet

## 0.2.0 (2026-12-01)

### Added

* this

## 0.1.0

* that
"""


def test_every_package_has_a_licence_that_is_allowed_and_is_on_the_page() -> None:
    assert len(rows()) > 20
    assert main(["--check"]) == 0


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT AND BSD-3-Clause) OR GPL-2.0-only", True),
        ("GPL-3.0-or-later", False),
        ("", False),
    ],
    ids=["one", "either", "both", "nested", "none", "unknown"],
)
def test_one_side_of_an_expression_has_to_be_allowed(expression: str, *, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


def test_packages_of_other_machines_are_not_looked_for() -> None:
    lock = "a==1 \\\n    --hash=sha256:00\nb==2 ; sys_platform == 'win32' \\\n# via c==3\n"
    assert list(packages(lock)) == [("a", "1")]


def test_an_audit_names_what_is_known_and_is_no_all_clear_where_the_index_is_silent() -> None:
    clean = {"name": "click", "version": "8.5.1", "vulns": []}
    silent = {"name": "yarl", "skip_reason": "Dependency not found on PyPI"}
    entry = {"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["3.1"], "description": "x"}
    sick = {"name": "jinja2", "version": "3.0", "vulns": [entry]}
    assert report({"dependencies": [clean]}) == (0, ["1 of 1 packages were audited"])
    assert report({"dependencies": [clean, silent]}) == (
        UNKNOWN, ["1 of 2 packages were audited", "the index said nothing of yarl"]
    )  # fmt: skip
    assert report({"dependencies": [sick, silent]}) == (
        VULNERABLE,
        ["jinja2 3.0: PYSEC-1, CVE-2; mended in 3.1", "1 of 2 packages were audited",
         "the index said nothing of yarl"],
    )  # fmt: skip
    assert report({"dependencies": []})[0] == UNKNOWN, "a lock that was not read"


def test_notes_are_the_section_of_the_version() -> None:
    assert notes(CHANGELOG, "0.2.0") == "### Added\n\n* this\n"
    assert notes(CHANGELOG, "0.1.0") == "* that\n"
    with pytest.raises(Unfit, match=r"has no section '## 0\.3\.0'"):
        notes(CHANGELOG, "0.3.0")


def test_what_a_release_lacks_shows_before_its_tests_run(tmp_path: Path) -> None:
    run(["git", "init", "--quiet"], tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    with pytest.raises(Unfit, match="changes that are not committed"):
        fit("0.2.0", tmp_path)
    run(["git", "add", "."], tmp_path)
    me = ("-c", "user.name=a", "-c", "user.email=a@b")
    run(["git", *me, "commit", "--quiet", "--message", "all"], tmp_path)
    assert fit("0.1.0", tmp_path) == "* that\n"
    with pytest.raises(Unfit, match=r"name what is under Unreleased so"):
        fit("0.3.0", tmp_path)
    made = (ROOT / "Makefile").read_text()
    assert "\nrelease: release-fit lint test " in made, "in this order"


def test_a_bare_machine_types_what_readme_says_and_looks_at_what_comes_out() -> None:
    typed = commands((ROOT / "README.md").read_text())
    assert typed[0] == ". .venv/bin/activate"
    assert "fairlead submit examples/digits/train.sh -- --steps 600" in typed
    assert typed[-1] == "fairlead down"
    assert not [line for line in typed if "#" in line]
    trained = "rank 0: accuracy 0.9556 on 360 test digits\n"
    check(trained + "train-1   4   Succeeded   1m\n")
    with pytest.raises(Failed, match="the job that ended is not in the output"):
        check(trained + "train-1   4   Running   1m\n")
    with pytest.raises(Failed, match="has no commands"):
        commands("# Fairlead\n\n    make demo\n")
