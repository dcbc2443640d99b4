"""Output of programs for a terminal: what is kept, what is dropped, wherever the chunks are cut."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.cli.formats.program_output import TerminalFilter

PIECES = (
    "\x1b", "\x9b", "[", "]", "P", "\\", "\x07", "\x9c", "\x9d", "0;", "?", "25", "1049", "h", "m",
    "K", "D", "A", "n", "c", " ", "\n", "\r", "\t", "\b", "x", "é", "\x00", "\x18", "(", "B",
)  # fmt: skip
KEPT = re.compile(r"\x1b\[[0-9;:]{0,64}[mKCDG]")


def shown(data: bytes, *cuts: int) -> str:
    """What a terminal gets of data that comes in chunks."""
    filter_, out, start = TerminalFilter(), "", 0
    for cut in sorted(min(each, len(data)) for each in cuts):
        out += filter_.feed(data[start:cut])
        start = cut
    return out + filter_.feed(data[start:]) + filter_.feed(b"", is_last=True)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"plain\n", "plain\n"),
        (b"\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),
        (b"\x1b[38:2::1:2:3mrgb\x1b[m\n", "\x1b[38:2::1:2:3mrgb\x1b[m\n"),
        (b"\r 50%|##  |\x1b[K\t\b", "\r 50%|##  |\x1b[K\t\b"),
        (b"a\x1b[2D\x1b[1Gb", "a\x1b[2D\x1b[1Gb"),
        (b"\x1b]0;title\x07after\n", "after\n"),
        (b"\x1b]52;c;ZXZpbA==\x1b\\after\n", "after\n"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
        (b"\xc2\x9d0;title\xc2\x9cafter\n", "after\n"),
        (b"\x1b]0;never ended\nnext line\n", "\nnext line\n"),
        (b"\x1bPq#0;2;0;0\x1b\\after", "after"),
        (b"\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\after", "after"),
        (b"\x1b[6n\x1b[c\x1b[>c\x1b[?1049h\x1b[?2004h\x1b[?1000hafter", "after"),
        (b"\x1b[2J\x1b[H\x1b[5Aafter", "after"),
        (b"\xc2\x9b31mred\xc2\x9b0m", "\x1b[31mred\x1b[0m"),
        (b"\x9b31mraw", "\N{REPLACEMENT CHARACTER}31mraw"),
        (b"\x1bc\x1b7\x1b(0\x0eafter\x0f\x07\x05\x00\x7f", "after"),
        (b"\x1b[>4;2mafter", "after"),
        (b"\x1b[1mbold to the end", "\x1b[1mbold to the end\x1b[0m"),
        (b"half \xc3", "half \N{REPLACEMENT CHARACTER}"),
        (b"\x1b[" + b"1;" * 500 + b"H", "1;" * 468 + "H"),
        ("損失 é\n".encode(), "損失 é\n"),
    ],
)  # fmt: skip
def test_a_terminal_gets_text_colours_and_progress_bars_alone(written: bytes, kept: str) -> None:
    assert shown(written) == kept
    assert shown(written, *range(len(written))) == kept


@given(
    data=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
@example(data="\x1b]0;a\x1b", cuts=[5])
def test_cuts_change_nothing_and_no_other_control_passes(data: str, cuts: list[int]) -> None:
    raw = data.encode(errors="replace")
    whole = shown(raw)
    assert shown(raw, *cuts) == whole
    rest = KEPT.sub("", whole)
    assert [c for c in rest if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\t\n\r\b"] == []


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_pass_no_control(data: bytes) -> None:
    rest = KEPT.sub("", shown(data))
    assert [c for c in rest if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\t\n\r\b"] == []


def test_what_waits_for_its_rest_is_bounded() -> None:
    filter_ = TerminalFilter()
    filter_.feed(b"\x1b]")
    for _ in range(1000):
        assert filter_.feed(b"x" * 1000) == ""
    assert filter_.feed(b"\x07after\x1b[") == "after"
    assert len(filter_.feed(b"1" * 10_000)) > 9_000


SCRIPT = """
from fairlead.cli.formats.program_output import ProgramOutput
with ProgramOutput() as output:
    output.write(b"\\x1b]0;title\\x07\\x1b[31mtext")
"""


def test_a_pipe_gets_the_bytes_and_a_terminal_what_is_fit_for_it() -> None:
    run = [sys.executable, "-c", SCRIPT]
    piped = subprocess.run(run, stdout=subprocess.PIPE, check=True)
    assert piped.stdout == b"\x1b]0;title\x07\x1b[31mtext"
    ours, theirs = pty.openpty()
    try:
        subprocess.run(run, stdout=theirs, check=True)
        assert os.read(ours, 1000) == b"\x1b[31mtext\x1b[0m"
    finally:
        os.close(ours)
        os.close(theirs)
