"""The lock of an attempt on its checkpoint directory: one attempt at a time, on a steady clock."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.member.attempt_lock import LEASE_SECONDS, AttemptLock, Superseded, acquire
from fairlead.member.progress import report


def begun(directory: Path, attempt: int, rank: int = 0) -> AttemptLock:
    lock = AttemptLock(directory, "uid-1", attempt, rank)
    lock.begin()
    return lock


def test_a_first_attempt_waits_for_nothing(tmp_path: Path) -> None:
    first, second = begun(tmp_path, 1, 0), begun(tmp_path, 1, 1)
    assert not first.has_earlier_members(0.0)
    assert not second.has_earlier_members(0.0)


def test_a_later_attempt_waits_for_members_that_renew_and_ends_them(tmp_path: Path) -> None:
    lost = begun(tmp_path, 1, 1)
    later = AttemptLock(tmp_path, "uid-1", 2, 0)
    now = 100.0
    for _ in range(3):  # alive, and not yet aware of the attempt that follows
        assert later.has_earlier_members(now)
        now += LEASE_SECONDS - 1
        lost.renew()
    later.begin()
    assert later.has_earlier_members(now)
    with pytest.raises(Superseded):
        lost.renew()
    lost.end()
    assert not later.has_earlier_members(now)


def test_a_member_that_was_cut_off_is_waited_for_as_long_as_its_lease(tmp_path: Path) -> None:
    begun(tmp_path, 1, 1)
    later = begun(tmp_path, 2, 0)
    assert later.has_earlier_members(0.0)
    assert later.has_earlier_members(LEASE_SECONDS - 0.1)
    assert not later.has_earlier_members(LEASE_SECONDS)
    third = begun(tmp_path, 2, 1)
    assert not third.has_earlier_members(0.0), "its file is removed"


def test_a_member_that_starts_late_does_not_take_the_directory_back(tmp_path: Path) -> None:
    later = begun(tmp_path, 10)
    with pytest.raises(Superseded):
        begun(tmp_path, 9)
    later.renew()
    assert not later.has_earlier_members(0.0)


def test_jobs_that_share_a_directory_do_not_lock_each_other(tmp_path: Path) -> None:
    begun(tmp_path, 7)
    other = AttemptLock(tmp_path, "uid-2", 1, 0)
    other.begin()
    assert not other.has_earlier_members(0.0)


def test_a_directory_that_cannot_be_written_to_is_used_without_a_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".fairlead").write_text("in the way")
    acquire(AttemptLock(tmp_path, "uid-1", 1, 0), lambda: None)
    assert "is not locked" in capsys.readouterr().err


def test_a_member_that_waits_ends_when_a_later_attempt_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, 1, 1)
    monkeypatch.setattr("time.sleep", lambda _seconds: begun(tmp_path, 3))
    with pytest.raises(Superseded):
        acquire(AttemptLock(tmp_path, "uid-1", 2, 0), lambda: None)


class Hiccup(AttemptLock):
    """Its directory does not answer once."""

    is_away = False

    def renew(self) -> None:
        if self.is_away:
            self.is_away = False
            raise OSError(errno.ESTALE, "Stale file handle")
        super().renew()


def test_a_renewal_that_fails_once_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.member.attempt_lock.RENEW_SECONDS", 0.001)
    lock, superseded = Hiccup(tmp_path, "uid-1", 1, 0), threading.Event()
    acquire(lock, superseded.set)
    lock.is_away = True
    begun(tmp_path, 2)
    assert superseded.wait(PATIENCE_SECONDS)


def test_a_report_repeats_the_latest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_PROGRESS_FILE", str(tmp_path / "progress"))
    for step in (10, 20):
        report(step, checkpoint=True)
    report(25)
    report(26)
    lines = (tmp_path / "progress").read_text().splitlines()
    assert [json.loads(line).get("checkpointStep") for line in lines] == [None, None, 20, 20]


PROGRAM = """
import sys
from fairlead.member.progress import checkpoint_directory
directory = checkpoint_directory()
own = directory / ".fairlead" / "uid-1" / "member-3-2"
assert own.exists()
own.unlink()
checkpoint_directory()
assert not own.exists(), "a member takes it once"
own.touch()
"""


def ended(directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "FAIRLEAD_CHECKPOINT_DIR": str(directory), "FAIRLEAD_JOB_UID": "uid-1",
        "FAIRLEAD_ATTEMPT": "3", "RANK": "2",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def test_programs_take_the_lock_with_the_directory_and_give_it_back_at_their_end(
    tmp_path: Path,
) -> None:
    first = ended(tmp_path)
    assert first.returncode == 0, first.stderr
    assert [path.name for path in (tmp_path / ".fairlead" / "uid-1").iterdir()] == ["current"]
    begun(tmp_path, 4)
    assert ended(tmp_path).returncode == 75
