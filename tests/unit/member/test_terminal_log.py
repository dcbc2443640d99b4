"""What a terminal shows, as lines of a log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_SECONDS

from fairlead.embedded.local.processes import shim_session
from fairlead.member import terminal_log
from fairlead.member.terminal_log import PlainLines, SessionLog, first_output, plain

MEMBER = {"FAIRLEAD_JOB_UID": "u-1", "FAIRLEAD_ATTEMPT": "1", "FAIRLEAD_ROLE": "worker",
          "FAIRLEAD_INDEX": "0"}  # fmt: skip
WAITS = "import sys; sys.stdin.read()"


def has_begun(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process shows its environment: Popen returns an instant before, within exec."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"\x1b[01;32muser\x1b[0m$ ls\r", "user$ ls"),
        (b"\x1b]0;title\x07done\r", "done"),
        (b"\x1b]0;title\x1b\\done", "done"),
        (b"10%\r50%\r100%\r", "100%"),
        (b"sl\x08\x08ls\x1b[K", "ls"),
        (b"\x1bP+q544e\x1b\\a\tb\x00\x07", "a\tb"),
        ("grün \u202egnol".encode(), "grün gnol"),
        (b"\xff", "\ufffd"),
        (b"\x1b", ""),
        (b"x" * 5000, "x" * terminal_log.LINE_LENGTH_MAX),
    ],
)
def test_a_line_is_the_text_that_stood_there_in_the_end(raw: bytes, line: str) -> None:
    assert plain(raw) == line


def test_a_screen_that_is_drawn_is_one_line_wherever_it_is_split() -> None:
    whole = b"$ vi\r\nbefore\x1b[?1049h\x1b[2Jtext of\r\na file\x1b[?1049lafter\r\n$ "
    for at in range(len(whole)):
        lines = PlainLines()
        found = [*lines.feed(whole[:at]), *lines.feed(whole[at:]), *lines.end()]
        assert found == ["$ vi", "before", "(a program drew on the whole screen)", "after", "$"]


@given(st.lists(st.binary(max_size=2000), max_size=30))
def test_no_output_becomes_what_a_terminal_obeys_or_grows_without_bound(
    pieces: list[bytes],
) -> None:
    lines = PlainLines()
    found = [line for piece in pieces for line in lines.feed(piece * 10)] + lines.end()
    assert all(each.replace("\t", "").isprintable() for each in found)
    assert all(len(each) <= terminal_log.LINE_LENGTH_MAX for each in found)
    assert sum(map(len, found)) <= sum(len(each) * 10 for each in pieces) + 40 * (len(found) + 1)


def test_a_bar_that_is_drawn_for_hours_is_its_last_state() -> None:
    lines = PlainLines()
    assert [each for at in range(20_000) for each in lines.feed(b"\rstep %d" % at)] == []
    assert lines.feed(b"\r\n") == ["step 19999"]


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """What has a pipe as its output and is a member."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], env=MEMBER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        has_begun(process)
        yield process


def of(process: subprocess.Popen[bytes], **changed: str) -> dict[str, str]:
    return {**MEMBER, terminal_log.FIRST_PROGRAM: str(process.pid), **changed}


def test_lines_reach_the_log_of_the_job_under_the_name_of_the_session(
    program: subprocess.Popen[bytes],
) -> None:
    path, why = first_output(of(program))
    assert (path, why) == (f"/proc/{program.pid}/fd/1", "")
    log = SessionLog(path, "7")
    log.feed(b"$ hostn\x07ame\r\nnode-1\r\n$ ")
    log.close()
    assert program.stdout is not None
    wanted = b"[session 7] $ hostname\n[session 7] node-1\n[session 7] $\n"
    assert os.read(program.stdout.fileno(), 4096) == wanted


def test_only_a_pipe_of_the_member_s_own_program_is_taken(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Neither another's process, as process 1 of the machine, nor a file of the job's results."""
    for other in (of(program, FAIRLEAD_JOB_UID="u-2"), of(program, FAIRLEAD_INDEX="1"),
                  {**MEMBER, terminal_log.FIRST_PROGRAM: str(os.getpid())}):  # fmt: skip
        assert first_output(other)[0] == ""
        assert "is not the container's first program" in first_output(other)[1]
    assert first_output({}) == ("", "this is no member of a job")
    assert "No such file" in first_output(of(program), str(tmp_path))[1]
    with (tmp_path / "results").open("wb") as results, subprocess.Popen(
        [sys.executable, "-c", WAITS], env=MEMBER, stdin=subprocess.PIPE, stdout=results
    ) as redirected:  # fmt: skip
        has_begun(redirected)
        refused = first_output(of(redirected))
    assert refused == ("", "the job's program has sent its output elsewhere")


def test_a_log_that_is_not_read_stops_nothing_and_says_how_much_it_lacks(
    program: subprocess.Popen[bytes],
) -> None:
    log = SessionLog(first_output(of(program))[0], "7")
    for _ in range(60):
        log.feed(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 100)
    assert program.stdout is not None
    text = b""
    while True:
        text += os.read(program.stdout.fileno(), 1 << 20)
        log.flush()
        if not log._waiting:
            break
    log.feed(b"more\n")
    text += os.read(program.stdout.fileno(), 1 << 20)
    assert b"(lines that the log did not take: " in text
    assert text.endswith(b"[session 7] more\n")
    assert all(line.startswith(b"[session 7] ") for line in text.splitlines())


def test_a_session_fills_so_much_of_the_log_and_no_more(
    program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_log, "LOG_BYTES_MAX", 200)
    log = SessionLog(first_output(of(program))[0], "7")
    log.feed(b"0123456789\n" * 1000)
    log.feed(b"later\n")
    assert program.stdout is not None
    text = os.read(program.stdout.fileno(), 1 << 20)
    assert text.endswith(b"[session 7] (the rest of the session is not kept)\n")
    assert len(text) < 300


def test_the_local_node_names_the_first_program_as_the_holder_looks_for_it() -> None:
    assert shim_session.FIRST_PROGRAM == terminal_log.FIRST_PROGRAM
