"""Reads a page of metrics in Prometheus' text format, of strangers (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
SAMPLES_MAX = 200_000
START = "process_start_time_seconds"


class BadPage(ValueError):
    """A page that is not in the exposition format, or has too many wanted samples."""


def parse_page(
    page: bytes, wanted: Iterable[str], *, samples_max: int = SAMPLES_MAX
) -> dict[str, dict[Labels, float]]:
    """Return the samples of the wanted sample names; BadPage.

    Lines of other names are dropped before they are parsed: an API server's page has a hundred
    thousand lines, a doctor needs a few thousand.
    """
    names = frozenset(wanted) | {START}
    lines: list[bytes] = []
    for line in page.splitlines():
        if not line or line.startswith(b"#"):
            continue
        end = line.find(b"{")
        name = line[: end if end >= 0 else line.find(b" ")].decode(errors="replace")
        if name in names:
            lines.append(line)
    if len(lines) > samples_max:
        raise BadPage(f"more than {samples_max:,} wanted samples")
    found: dict[str, dict[Labels, float]] = {}
    text = b"\n".join(lines).decode(errors="replace") + "\n"
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = float(sample.value)
    except (ValueError, IndexError, KeyError) as error:
        raise BadPage(f"not a page of metrics: {str(error)[:200]}") from error
    return found
