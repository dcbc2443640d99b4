"""Instants: RFC 3339 there and back, and texts that are none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fairlead.api.values.times import format_micro_time, format_time, parse_time


@pytest.mark.parametrize(
    "text",
    ["1970-01-01T00:00:00Z", "2000-02-29T23:59:59Z", "2026-11-20T08:15:30Z", "1969-12-31T23:59:59Z",
     "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"],
)  # fmt: skip
def test_parse_agrees_with_the_standard_library_and_format_is_its_inverse(text: str) -> None:
    instant = parse_time(text)
    assert instant == datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    assert format_time(instant) == text


def test_offsets_and_fractions_are_read() -> None:
    assert parse_time("2026-11-20T10:15:30+02:00") == parse_time("2026-11-20T08:15:30Z")
    assert parse_time("2026-11-20t08:15:30.25z") == parse_time("2026-11-20T08:15:30Z") + 0.25


@pytest.mark.parametrize("micros", [0, 1, 499_999, 999_999])
def test_micro_time_keeps_microseconds(micros: int) -> None:
    instant = 1_795_000_000 + micros / 1_000_000
    text = format_micro_time(instant)
    assert text.endswith(f".{micros:06d}Z")
    assert abs(parse_time(text) - instant) < 1e-6


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-11-20", "2026-11-20T08:15:30", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z",
     "2026-11-20T24:00:00Z", "2026-11-20T08:15:60Z", "2026-11-20T08:15:30Z\n",
     "2026-11-20T08:15:30+99:00", "2026-11-20 08:15:30Z", "٢٠٢٦-11-20T08:15:30Z"],
)  # fmt: skip
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an RFC 3339 time"):
        parse_time(text)
