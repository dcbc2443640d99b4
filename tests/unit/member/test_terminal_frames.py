"""Messages between a viewer and a holder, modes of terminals, and what older Pythons can read."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.sessions.held_terminal import WAY, LeaveKey
from fairlead.member import terminal_frames, terminal_holder, terminal_log, terminal_way
from fairlead.member.terminal_frames import FRAME_BYTES_MAX, HEAD, Frames, Modes, frame

KINDS = st.binary(min_size=1, max_size=1)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends)]


@given(st.lists(st.tuples(KINDS, st.binary(max_size=40))), st.lists(st.integers(0, 400)))
def test_messages_are_the_same_wherever_the_stream_is_cut(
    sent: list[tuple[bytes, bytes]], places: list[int]
) -> None:
    frames = Frames()
    stream = b"".join(frame(kind, data) for kind, data in sent)
    assert [each for piece in cut(stream, places) for each in frames.feed(piece)] == sent


def test_a_message_that_is_too_long_is_refused_before_it_is_kept() -> None:
    with pytest.raises(ValueError, match="too long"):
        Frames().feed(HEAD.pack(b"o", FRAME_BYTES_MAX + 1))


SCREEN = b"text\x1b[?1049h\x1b[?25l\x1b[?1000;1006h more"


@given(st.lists(st.integers(0, len(SCREEN)), max_size=6))
def test_modes_are_found_wherever_the_output_is_cut(places: list[int]) -> None:
    modes = Modes()
    for piece in cut(SCREEN, places):
        modes.feed(piece)
    assert modes.is_full_screen
    assert modes.entering() == b"\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1006h"
    assert modes.leaving() == b"\x1b[0m\x1b[?1006l\x1b[?1000l\x1b[?25h\x1b[?1049l"


@pytest.mark.parametrize("undone", [b"\x1b[?1049;1000;1006l\x1b[?25h", b"\x1bc"])
def test_modes_that_were_taken_back_are_not_set(undone: bytes) -> None:
    modes = Modes()
    modes.feed(SCREEN + undone)
    assert (modes.is_full_screen, modes.entering()) == (False, b"")


@given(st.binary(max_size=300))
def test_no_output_brings_modes_out_of_step(data: bytes) -> None:
    modes = Modes()
    modes.feed(data)
    terminal = Modes()
    terminal.feed(modes.entering())
    assert terminal.entering() == modes.entering()
    terminal.feed(modes.leaving())
    assert terminal.entering() == b""


@pytest.mark.parametrize(
    ("typed", "given_on", "leaves"),
    [
        ([b"ls\n"], b"ls\n", False),
        ([b"ls\x1dd and more"], b"ls", True),
        ([b"a\x1d", b"d"], b"a", True),
        ([b"\x1d\x1dd"], b"\x1dd", False),
        ([b"\x1dx"], b"\x1dx", False),
    ],
)
def test_the_key_that_leaves_is_kept_from_the_program(
    typed: list[bytes], given_on: bytes, leaves: bool
) -> None:
    key = LeaveKey()
    answers = [key.feed(each) for each in typed]
    assert b"".join(kept for kept, _ in answers) == given_on
    assert answers[-1][1] is leaves


@pytest.mark.parametrize("module", [terminal_frames, terminal_holder, terminal_log, terminal_way])
def test_what_is_sent_into_members_can_be_read_by_python_3_8_and_imports_nothing_else(
    module: object,
) -> None:
    text = Path(str(vars(module)["__file__"])).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    own = {
        each.module for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith("fairlead")
    }  # fmt: skip
    assert own <= {f"fairlead.member.terminal_{each}" for each in ("frames", "holder", "log")}
    assert len(WAY.text) < 64 << 10
