"""Text of others, for a terminal or a report."""

from __future__ import annotations


def printable(text: str, length_max: int = 120) -> str:
    """Return text that may be of anybody for a terminal: on one line, without control codes."""
    return "".join(c if c.isprintable() else "?" for c in text[:length_max])
