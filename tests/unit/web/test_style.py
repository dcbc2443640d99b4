"""The colours of the page can be read, in light and in dark."""

from __future__ import annotations

import re

import pytest

from fairlead.web.render import ROOT

#: WCAG 2.2, 1.4.3 for text and 1.4.11 for marks.
TEXT_RATIO_MIN, MARK_RATIO_MIN = 4.5, 3.0
TEXTS = [
    *((text, ground) for text in ("text", "soft", "accent") for ground in ("page", "card", "row")),
    *((kind, f"{kind}-bg") for kind in ("good", "bad", "wait", "info", "off")),
    ("on-accent", "accent"), ("bad", "card"), ("wait", "card"), ("wait", "row"), ("bad", "row"),
    ("good", "row"), ("info", "row"), ("log-text", "log"), ("text", "good-bg"),
]  # fmt: skip
MARKS = [("used", "card"), ("free-line", "card"), ("failed", "card"), ("focus", "page")]


def colors(scheme: str) -> dict[str, str]:
    sheet = (ROOT / "static" / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", light))
    return found if scheme == "light" else found | dict(re.findall(r"--([\w-]+): (#\w+)", dark))


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * c for c in color[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_stand_out_from_what_is_behind_them(scheme: str) -> None:
    known = colors(scheme)
    ratios = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in (*TEXTS, *MARKS)}
    assert {p: r for p, r in ratios.items() if p in TEXTS and r < TEXT_RATIO_MIN} == {}
    assert {p: r for p, r in ratios.items() if p in MARKS and r < MARK_RATIO_MIN} == {}


def test_black_on_white_is_twenty_one_and_a_colour_on_itself_one() -> None:
    assert round(contrast("#000", "#ffffff"), 2) == 21
    assert contrast("#123456", "#123456") == 1
