"""Reads the boards of a page as a person does: what is drawn against the labels of its axis."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

_UNITS = {
    "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "%": 0.01, "/s": 1.0, "h": 1.0, "s": 1.0, "ms": 1e-3,
    "µs": 1e-6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6,
}  # fmt: skip


@dataclass(frozen=True)
class Pictured:
    """A panel: its legend without values, the values of each line at its points, its text."""

    title: str
    names: tuple[str, ...]
    lines: tuple[tuple[float, ...], ...]
    text: str
    #: How much of the axis a pixel is.
    pixel: float

    @property
    def is_empty(self) -> bool:
        return not self.names


def pictured(page: str) -> Iterator[Pictured]:
    """Yield the panels. Of stacks, the lines are the edges: there and back."""
    for part in page.split("<figure ")[1:]:
        body = part.partition("</div></div>")[0]
        title = html.unescape(re.findall(r"<figcaption>(.*?)</figcaption>", body)[0])
        names = re.findall(r"</svg>([^<]*?)(?:: [^<:]*)?</span>", body.partition("</figure>")[0])
        low, per_pixel = _axis(body)
        paths = re.findall(r'<path d="([^"]*)"', body)
        lines = tuple(
            tuple(low + per_pixel * float(y) for _, y in re.findall(r"([\d.]+),([-\d.]+)", path))
            for path in paths
        )
        yield Pictured(title, tuple(map(html.unescape, names)), lines, body, abs(per_pixel))


def _axis(body: str) -> tuple[float, float]:
    """Return the value at the top, and how much it changes per pixel downward."""
    labels = re.findall(r'y="([-\d.]+)" text-anchor="end">([^<]*)</text>', body)
    known = [(float(y) - 4, value) for y, text in labels if (value := _value(text)) is not None]
    if len(known) < 2:
        return 0.0, 0.0
    (y0, v0), (y1, v1) = known[0], known[-1]
    slope = (v1 - v0) / (y1 - y0)
    return v0 - slope * y0, slope


def _value(text: str) -> float | None:
    found = re.fullmatch(r"(-?[\d.e+-]+) ?(\D*)", html.unescape(text))
    if found is None or found[2] not in _UNITS:
        return None
    return float(found[1]) * _UNITS[found[2]]
