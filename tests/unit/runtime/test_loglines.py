"""Lines of several members, and progress bars among them."""

from __future__ import annotations

import pytest

from fairlead.runtime.kept.loglines import LINE_BYTES_MAX, STATE_SECONDS, LineCutter


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"a\nb\n", b"[w] a\n[w] b\n"),
        (b"a\n\nb", b"[w] a\n[w] \n[w] b\n"),
        (b"a\r\nb\r\n", b"[w] a\r\n[w] b\r\n"),
        (b"\r10%\r20%\rdone\n", b"[w] done\n"),
        (b"10%\r20%\r", b"[w] 20%\n"),
        (b"10%\r\r\nnext\n", b"[w] 10%\r\n[w] next\n"),
        (b"a\n10%\r\n\r\n", b"[w] a\n[w] 10%\r\n[w] \r\n"),
        (b"\r", b""),
        (b"", b""),
    ],
)
def test_every_line_begins_with_the_prefix_and_shows_its_last_state(
    written: bytes, shown: bytes, size: int
) -> None:
    cutter = LineCutter(b"[w] ")
    chunks = [written[i : i + size] for i in range(0, len(written), size)]
    assert b"".join([*map(cutter.feed, chunks), cutter.end()]) == shown


def test_bars_of_several_members_do_not_write_over_each_other() -> None:
    one, other = LineCutter(b"[0] "), LineCutter(b"[1] ")
    shown = b"".join(
        cutter.feed(f"\r{percent}%".encode(), now=0.0)
        for percent in range(0, 100, 10)
        for cutter in (one, other)
    )
    assert shown == b"[0] 0%\n[1] 0%\n"


def test_of_a_bar_that_moves_a_state_is_shown_now_and_then_to_who_looks_on() -> None:
    cutter = LineCutter(b"[w] ")
    assert cutter.feed(b"10%\r20%\r", now=100.0) == b"[w] 10%\n"
    assert cutter.feed(b"30%\r", now=100.0 + STATE_SECONDS - 1) == b""
    assert cutter.feed(b"40%\r", now=100.0 + STATE_SECONDS) == b"[w] 30%\n"
    assert cutter.feed(b"100%\n", now=200.0) == b"[w] 100%\n"
    assert LineCutter(b"").feed(b"10%\r20%\r") == b""


def test_a_bar_is_kept_in_little_memory_however_long_it_moves() -> None:
    cutter = LineCutter(b"[w] ")
    for _ in range(100):
        assert cutter.feed(b"\r 50%" * 10_000) == b""
    assert cutter.feed(b"\r100%\n") == b"[w] 100%\n"


def test_a_line_without_an_end_is_cut_at_its_limit() -> None:
    cutter = LineCutter(b"[w] ")
    assert cutter.feed(b"x" * (LINE_BYTES_MAX + 1)) == b"[w] " + b"x" * (LINE_BYTES_MAX + 1) + b"\n"
    assert cutter.end() == b""
