"""Local logs: bounded in size, number and age, and read as one over their parts."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.embedded.local import logfiles
from fairlead.embedded.local.logfiles import LogLimits, live_mark, parts, prune
from fairlead.embedded.local.processes import shim
from fairlead.embedded.logs.tail import Tail


def writer(log: Path, **limits: Any) -> shim.RunLog:
    given = {"logBytes": 1_000, "logFiles": 3, "reserveBytes": 0, **limits}
    return shim.RunLog({"log": str(log), **given})


def line(number: int) -> bytes:
    return f"line {number:05d}\n".encode()


def all_of(tail: Tail) -> bytes:
    return b"".join(iter(tail.read, b""))


@pytest.mark.parametrize("chunk_lines", [1, 7, 500])
def test_a_log_is_rotated_between_lines_and_keeps_the_latest(
    tmp_path: Path, chunk_lines: int
) -> None:
    log = tmp_path / "x.log"
    written = writer(log)
    for first in range(0, 1_000, chunk_lines):
        written.write(b"".join(line(i) for i in range(first, min(first + chunk_lines, 1_000))))
    assert [part.name for part in parts(log)] == ["x.log.2", "x.log.1", "x.log"]
    assert all(part.stat().st_size <= 1_011 for part in parts(log))
    kept = all_of(Tail(log))
    count = kept.count(b"\n")
    assert 180 <= count <= 273
    assert kept == b"".join(line(i) for i in range(1_000 - count, 1_000))
    assert all_of(Tail(log, tail_lines=3)) == b"".join(line(i) for i in (997, 998, 999))
    assert all_of(Tail(log, tail_lines=150)) == b"".join(line(i) for i in range(850, 1_000))
    assert all_of(Tail(log, tail_lines=5_000)) == kept


def test_a_line_without_end_is_cut_into_files_too(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    writer(log).write(b"x" * 1_000_000)
    assert sum(part.stat().st_size for part in parts(log)) <= 3 * (1_000 + shim.CHUNK_BYTES)


def test_of_one_file_only_the_latest_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    written = writer(log, logFiles=1)
    for number in range(300):
        written.write(line(number))
    assert parts(log) == [log]
    assert all_of(Tail(log)).endswith(line(299))


def test_who_follows_a_log_that_is_rotated_misses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    written, tail, seen = writer(log), Tail(log), b""
    for first in range(0, 1_000, 20):
        written.write(b"".join(line(i) for i in range(first, first + 20)))
        if first % 60 == 0:
            seen += all_of(tail)
    assert seen + all_of(tail) == b"".join(line(i) for i in range(1_000))


def test_the_parts_of_a_run_before_a_restart_go_aside_with_it(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    written = writer(log)
    for number in range(300):
        written.write(line(number))
    tail = Tail(log)
    assert all_of(tail)
    logfiles.put_aside(log)
    writer(log).write(line(1))
    assert all_of(tail) == line(1)
    assert parts(log) == [log]
    assert len(parts(logfiles.previous_log(log))) == 3
    logfiles.put_aside(log)
    assert all_of(Tail(logfiles.previous_log(log))) == line(1)


def test_what_the_disk_does_not_take_is_dropped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.log"
    written = writer(log, logBytes=10_000)
    written.write(line(1))
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shim.os, "write", full)
    for number in range(2, 12):
        written.write(line(number))
    monkeypatch.setattr(shim.os, "write", real)
    written.write(line(12))
    note = b"\n[fairlead: 110 bytes of output are missing: the disk was full]\n"
    assert log.read_bytes() == line(1) + note + line(12)


def test_the_last_of_the_disk_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.log"
    written = writer(log, logBytes=10_000, reserveBytes=3_000)
    real = os.fstatvfs(written.descriptor)

    def with_free(free_bytes: int, size_bytes: int) -> None:
        fields = list(real)
        fields[0] = fields[1] = 1  # sizes of blocks
        fields[2], fields[4] = size_bytes, free_bytes
        monkeypatch.setattr(shim.os, "fstatvfs", lambda _: os.statvfs_result(fields))

    with_free(3_011, 1 << 40)
    written.write(line(1))
    with_free(3_010, 1 << 40)
    written.write(line(2))
    assert log.read_bytes() == line(1)
    with_free(3_010, 20_000)  # of a small disk a tenth is enough
    written.write(line(3))
    note = b"\n[fairlead: 11 bytes of output are missing: the disk was full]\n"
    assert log.read_bytes() == line(1) + note + line(3)


DAY = 86_400.0
NOW = 1_000 * DAY


def ended(path: Path, days_ago: float, size: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (NOW - days_ago * DAY,) * 2)
    return path


def test_logs_that_ended_long_ago_are_removed_and_living_ones_never(tmp_path: Path) -> None:
    old = ended(tmp_path / "ns/job/1/worker-0.log", 31)
    older_part = ended(tmp_path / "ns/job/1/worker-0.log.1", 40)
    (tmp_path / "ns/job/.uid").write_text("u")
    alive = ended(tmp_path / "ns/slow/1/worker-0.log", 90)
    alive_part = ended(tmp_path / "ns/slow/1/worker-0.log.1", 95)
    live_mark(alive).touch()
    new = ended(tmp_path / "ns/pods/p.log", 29)
    link = tmp_path / "ns/.index/job-1-worker-0/main"
    link.parent.mkdir(parents=True)
    link.symlink_to(old)
    assert prune(tmp_path, LogLimits(), NOW) == 2
    assert not old.exists()
    assert not older_part.exists()
    assert not link.is_symlink()
    assert not (tmp_path / "ns/job").exists()
    assert alive.exists()
    assert alive_part.exists()
    assert new.exists()
    assert prune(tmp_path, LogLimits(), NOW) == 0


def test_a_log_that_may_grow_is_kept_whatever_the_name_of_its_pod(tmp_path: Path) -> None:
    for name in ("p", "my.log", "my.logger", "p.log.1"):
        alive = ended(tmp_path / f"ns/pods/{name}.log", 90)
        rotated = ended(tmp_path / f"ns/pods/{name}.log.1", 95)
        live_mark(alive).touch()
        over = ended(tmp_path / f"ns/other/{name}.log", 90)
        over_part = ended(tmp_path / f"ns/other/{name}.log.1", 95)
        assert prune(tmp_path, LogLimits(), NOW) == 2
        assert alive.exists()
        assert rotated.exists()
        assert not over.exists()
        assert not over_part.exists()


def test_above_the_total_the_oldest_go_first(tmp_path: Path) -> None:
    logs = [ended(tmp_path / f"ns/job-{i}/1/worker-0.log", 20 - i) for i in range(10)]
    live_mark(logs[0]).touch()
    assert prune(tmp_path, LogLimits(total_bytes_max=450), NOW) == 6
    assert [log.exists() for log in logs] == [True] + [False] * 6 + [True] * 3
