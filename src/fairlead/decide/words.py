"""Numbers in messages, events and conditions."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """Return e.g. "1 member", "4 members"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def duration(seconds: float) -> str:
    """Return e.g. "4.2 s", "3m12s", "2h05m", "3d4h"."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"
