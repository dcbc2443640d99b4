"""What `why` shows of a member's log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.records.last_lines import COLUMNS_MAX, LINES_MAX, shown_lines

_PIECES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"\x1b[31m",
        b"\x1b[2J",
        b"\x1b]0;t\x07",
        b"\xff",
        b"step 1",
        b" ",
    ]
)


def test_of_a_log_the_last_lines_that_say_something_are_shown_without_colours() -> None:
    text = b"".join(b"step %d\n" % i for i in range(40)) + b"\x1b[31mKeyError\x1b[0m: 'w'\n\n  \n"
    shown = shown_lines(text)
    assert shown == (*(f"step {i}" for i in range(31, 40)), "KeyError: 'w'")


def test_of_a_progress_bar_its_last_state_is_shown_and_of_a_long_line_its_start() -> None:
    assert shown_lines(b"10%\r20%\r30%\r\n") == ("30%",)
    assert shown_lines(b"x" * 5_000) == ("x" * (COLUMNS_MAX - 1) + "\u2026",)
    assert shown_lines(b"\tin\ta\n") == ("    in  a",)


@given(st.lists(_PIECES | st.binary(max_size=8), max_size=60).map(b"".join))
def test_whatever_a_program_wrote_the_lines_are_few_short_and_move_no_cursor(text: bytes) -> None:
    shown = shown_lines(text)
    assert len(shown) <= LINES_MAX
    for line in shown:
        assert line.strip()
        assert len(line) <= COLUMNS_MAX
        assert not set(line) & set("\n\r\t\x1b\x07\x08")
