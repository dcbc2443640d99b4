"""What is recorded of a git repository, and what never is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fairlead.api.jobs.run_facts import DIFF_BYTES_MAX, RunSource
from fairlead.cli.job_request.flag_groups.run_flags import GitRecord
from fairlead.cli.submitting.git_source import git_source

GIT_SECONDS_MAX = 60


def git(directory: Path, *words: str) -> str:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    return subprocess.run(
        ["git", *words], cwd=directory, env=environment, check=True, capture_output=True,
        text=True, timeout=GIT_SECONDS_MAX,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    for name, text in (("train.py", "a\n"), ("prod.env", "KEY=1\n"), ("sub/my.pem", "k\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def asked(directory: Path, record: GitRecord) -> tuple[RunSource | None, list[str]]:
    notes: list[str] = []
    return git_source(str(directory), record, notes.append), notes


def test_a_clean_repository_has_its_commit_and_branch(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    for record in (GitRecord.COMMIT, GitRecord.DIFF):
        assert asked(repository, record) == (RunSource(head, "main"), [])
    assert asked(repository, GitRecord.OFF) == (None, [])
    assert asked(repository / "sub", GitRecord.COMMIT) == (RunSource(head, "main"), [])


def test_changes_are_named_and_shown_only_where_that_is_asked_for(repository: Path) -> None:
    (repository / "train.py").write_text("b\n")
    (repository / "untracked.txt").write_text("not recorded")
    plain, _ = asked(repository, GitRecord.COMMIT)
    assert plain is not None
    assert (plain.files, plain.diff) == (("train.py",), "")
    full, notes = asked(repository / "sub", GitRecord.DIFF)
    assert full is not None
    assert "\n-a\n+b\n" in full.diff
    assert "not recorded" not in full.diff
    assert notes == []


def test_files_that_hold_secrets_by_their_names_are_never_shown(repository: Path) -> None:
    for name in ("prod.env", "sub/my.pem", "train.py"):
        (repository / name).write_text("changed-secret-or-not\n")
    (repository / "api_SECRET.txt").write_text("changed-secret-or-not\n")
    git(repository, "add", "api_SECRET.txt")
    found, _ = asked(repository, GitRecord.DIFF)
    assert found is not None
    assert found.diff.count("changed-secret-or-not") == 1
    assert found.files == ("api_SECRET.txt", "prod.env", "sub/my.pem", "train.py")


def test_a_large_difference_is_left_out_and_that_is_said(repository: Path) -> None:
    (repository / "train.py").write_text("x" * (DIFF_BYTES_MAX + 1))
    found, [note] = asked(repository, GitRecord.DIFF)
    assert found is not None
    assert (found.files, found.diff) == (("train.py",), "")
    assert "is not recorded; at most 16,384 are" in note


def test_programs_that_the_repository_names_are_not_run(repository: Path) -> None:
    ran, hook = repository / "ran", repository / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\ncat $1 2>/dev/null\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.x.textconv", "diff.x.command"):
        git(repository, "config", key, str(hook))
    (repository / ".git/info/attributes").write_text("*.py diff=x\n")
    (repository / "train.py").write_text("b\n")
    git(repository, "-c", "core.fsmonitor=false", "diff", "HEAD")
    assert ran.exists(), "git runs it where it may"
    ran.unlink()
    found, _ = asked(repository, GitRecord.DIFF)
    assert found is not None
    assert "+b" in found.diff
    assert not ran.exists()


def test_without_a_repository_with_a_commit_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert asked(tmp_path, GitRecord.COMMIT) == (None, [])
    found, [note] = asked(tmp_path, GitRecord.DIFF)
    assert found is None
    assert "there is no git repository" in note
    git(tmp_path, "init", "-q")
    assert asked(tmp_path, GitRecord.COMMIT) == (None, [])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asked(tmp_path, GitRecord.COMMIT) == (None, [])
