"""Numbers and names in messages, events, conditions and at the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fairlead.api.values.quantity import ATTACHED, CLAIMED, CPU, GPU, SERVING

_RESOURCE_WORDS = {GPU: "GPUs", CPU: "CPUs"}
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def plural(count: int, word: str) -> str:
    """Return e.g. "1 member", "4,000 members"."""
    return f"{count} {word}" if count == 1 else f"{count:,} {word}s"


def resource_word(resource: str) -> str:
    """Return what people call a resource: "GPUs", "CPUs", "memory", else its name."""
    if resource.startswith(CLAIMED):
        name = resource.removeprefix(CLAIMED)
        return f"devices {name}" if name.startswith(SERVING) else f"devices of class {name}"
    if resource.startswith(ATTACHED):
        return f"volumes of driver {resource.removeprefix(ATTACHED)}"
    return _RESOURCE_WORDS.get(resource, resource)


def room_words(resource: str, free: object, facts: Mapping[str, object]) -> str:
    """Return how many of the `nodes` have room for one more of what claims ask for: devices, or
    volumes of a driver, of which a node attaches the `node_limit` at most.
    """
    words = f"{free} of {facts['nodes']} nodes"
    if not resource.startswith(ATTACHED):
        return f"{words} have a free device"
    return (
        f"{words} can attach one more, and none more than {facts['node_limit']} in all: there is "
        "room once pods with such volumes have ended, or on nodes that attach more"
    )


def some_of(names: Sequence[str], shown_max: int) -> str:
    """Return the first of some names, and how many more there are: "a, b and 3 more"."""
    more = len(names) - shown_max
    return ", ".join(names[:shown_max]) + (f" and {more:,} more" if more > 0 else "")


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


def fold_names(names: Iterable[str]) -> str:
    """Return names as ranges: n17, n18, n19, n31 becomes n[17-19,31]; sorted, repeated ones once.

    Numbers of unequal width are folded apart, since n[1-10] must not be read as n[01-10].
    """
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.match(name)
        if match is None:
            plain.append(name)
            continue
        width = len(match[2]) if match[2].startswith("0") and len(match[2]) > 1 else 0
        groups.setdefault((match[1], width), []).append(int(match[2]))
    _join_padded(groups)
    out = list(plain)
    for (prefix, width), numbers in sorted(groups.items()):
        out.append(prefix + _ranges(sorted(numbers), width))
    return ",".join(out)


def _join_padded(groups: dict[tuple[str, int], list[int]]) -> None:
    """Move numbers that only look unpadded (0099, 0100) to the padded group of their width."""
    for prefix, width in sorted(groups):
        unpadded = groups.get((prefix, 0))
        if not width or not unpadded:
            continue
        fitting = [number for number in unpadded if len(str(number)) == width]
        groups[prefix, width].extend(fitting)
        rest = [number for number in unpadded if len(str(number)) != width]
        groups[prefix, 0] = rest
        if not rest:
            del groups[prefix, 0]


def _ranges(numbers: Sequence[int], width: int) -> str:
    parts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == previous + 1:
            previous = number
            continue
        first, last = f"{start:0{width}d}", f"{previous:0{width}d}"
        parts.append(first if start == previous else f"{first}-{last}")
        start = previous = number
    text = ",".join(parts)
    return text if len(numbers) == 1 else f"[{text}]"
