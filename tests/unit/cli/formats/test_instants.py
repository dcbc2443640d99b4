"""Instants as Slurm's commands take them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fairlead.cli.formats.instants import parse_instant
from fairlead.testing.builders import EPOCH


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


#: 2026-01-01T00:00:00Z is 01:00 in Berlin.
NOON = 11 * 3_600
DAY = 86_400


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("now", 0), ("now+1hour", 3_600), ("now+90", 90), ("now+2days", 2 * DAY),
        ("now-5minutes", -300), ("today", -3_600), ("tomorrow", DAY - 3_600),
        ("yesterday", -DAY - 3_600), ("noon", NOON), ("teatime", 15 * 3_600), ("fika", 14 * 3_600),
        ("16:00", 15 * 3_600), ("4:30 PM", 15 * 3_600 + 1_800), ("12:00am", DAY - 3_600),
        ("00:30", DAY - 1_800), ("2026-01-02", DAY - 3_600), ("2026-01-01T08:15", 7.25 * 3_600),
        ("01/02/26", DAY - 3_600), ("01.02.26", DAY - 3_600), ("010226", DAY - 3_600),
        ("2026-07-01T02:00:00", 181 * DAY),
    ],
)  # fmt: skip
def test_a_time_of_day_that_is_over_is_that_of_tomorrow(text: str, after: float) -> None:
    assert parse_instant(text, EPOCH, is_ahead=True) == EPOCH + after


def test_a_time_of_day_in_the_past_is_that_of_today() -> None:
    assert parse_instant("00:30", EPOCH) == EPOCH - 1_800


@pytest.mark.parametrize("text", ["soon", "25:00", "13:00pm", "now+1fortnight", "", "2026-13-01"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time such as 2026-11-20T08:15, 18:00"):
        parse_instant(text, EPOCH)
