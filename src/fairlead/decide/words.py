"""Numbers in messages, events, conditions and at the terminal."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """Return e.g. "1 member", "4,000 members"."""
    return f"{count} {word}" if count == 1 else f"{count:,} {word}s"


def duration(seconds: float) -> str:
    """Return the two largest units, such as 10h48m, 2m5s, 45s, 3d2h; 0s for nothing or less."""
    rest = max(0, int(seconds))
    if rest >= 86_400:
        days, hours = rest // 86_400, rest % 86_400 // 3_600
        return f"{days}d{hours}h" if hours and days < 10 else f"{days}d"
    if rest >= 3_600:
        hours, minutes = rest // 3_600, rest % 3_600 // 60
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    if rest >= 60:
        minutes, left = divmod(rest, 60)
        return f"{minutes}m{left:02d}s" if left and minutes < 10 else f"{minutes}m"
    return f"{rest}s"
