"""The output of programs as HTML."""

from __future__ import annotations

import random

from fairlead.web.program_text import LINE_MAX, ProgramText


def lines_of(*chunks: bytes) -> list[str]:
    text = ProgramText()
    lines = [line for chunk in chunks for line in text.feed(chunk)]
    return [*map(str, lines), *map(str, text.feed(b"", is_last=True))]


def test_html_is_text() -> None:
    assert lines_of(b"<b>&\"'</b>\n") == ["&lt;b&gt;&amp;&#34;&#39;&lt;/b&gt;"]


def test_colours_are_classes_and_last_over_lines_until_they_are_reset() -> None:
    out = lines_of(b"\x1b[1;31mbad\nstill\x1b[0m done\n\x1b[38;5;31mnumbered\x1b[39m\n")
    assert out == [
        '<span class="b c1">bad</span>',
        '<span class="b c1">still</span> done',
        "numbered",
    ]


def test_what_controls_terminals_is_dropped() -> None:
    assert lines_of(b"a\x1b]0;title\x07b\x1b[2Jc\xc2\x9b5Ad\x00\x08e\x1bc\n") == ["abcde"]


def test_a_line_that_was_rewritten_shows_its_last_state() -> None:
    assert lines_of(b" 10%\r 20%\r100%\r\nnext") == ["100%", "next"]


def test_a_long_line_is_cut_and_says_so() -> None:
    (line,) = lines_of(b"x" * (LINE_MAX + 5) + b"\n")
    assert line == "x" * LINE_MAX + "<em>… 5 more characters</em>"
    endless = ProgramText()
    for _ in range(100):
        assert endless.feed(b"y" * 65_536) == []
    (line,) = endless.feed(b"\n")
    assert len(line) < 2 * LINE_MAX


def test_the_lines_do_not_depend_on_where_the_output_is_cut() -> None:
    whole = b"\x1b[32mgr\xc3\xbcn\x1b[0m <i>\n10%\r20%\n\x1b]8;;http://x\x07link\x1b]8;;\x07\nend"
    rng = random.Random(7)
    for _ in range(200):
        cuts = sorted(rng.sample(range(len(whole)), 6))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        assert lines_of(*parts) == lines_of(whole)
