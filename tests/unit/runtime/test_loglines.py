"""Lines of several members, and progress bars among them."""

from __future__ import annotations

import pytest

from fairlead.runtime.loglines import LINE_BYTES_MAX, LineCutter


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"a\nb\n", b"[w] a\n[w] b\n"),
        (b"a\n\nb", b"[w] a\n[w] \n[w] b\n"),
        (b"a\r\nb\r\n", b"[w] a\r\n[w] b\r\n"),
        (b"\r10%\r20%\rdone\n", b"[w] \r[w] 10%\r[w] 20%\r[w] done\n"),
        (b"", b""),
    ],
)
def test_every_piece_begins_with_the_prefix(written: bytes, shown: bytes, size: int) -> None:
    cutter = LineCutter(b"[w] ")
    chunks = [written[i : i + size] for i in range(0, len(written), size)]
    assert b"".join([*map(cutter.feed, chunks), cutter.end()]) == shown


def test_a_progress_bar_is_shown_before_its_line_ends() -> None:
    cutter = LineCutter(b"[w] ")
    assert cutter.feed(b"10%\r20%\r") == b"[w] 10%\r"
    assert cutter.feed(b"30%\r") == b"[w] 20%\r"


def test_a_line_without_an_end_is_cut_at_its_limit() -> None:
    cutter = LineCutter(b"[w] ")
    assert cutter.feed(b"x" * (LINE_BYTES_MAX + 1)) == b"[w] " + b"x" * (LINE_BYTES_MAX + 1) + b"\n"
    assert cutter.end() == b""
