"""The nearest valid name to a misspelt one (pure).

Distance is Damerau's, restricted (insert, delete, replace, swap neighbours); a name is near when no
more than a third of its letters, and at least one, would have to change, or when one is the other's
beginning, as with `--gpu` and `--gpus`.
"""

from __future__ import annotations

from collections.abc import Iterable

_LENGTH_MAX = 64


def edit_distance(left: str, right: str) -> int:
    """Return the optimal string alignment distance of two texts."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        previous, row = row, [i]
        for j, b in enumerate(right, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = previous
    return row[-1]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was most likely meant, or None; ties go to the first in order."""
    wanted = name.lower()[:_LENGTH_MAX]
    best: tuple[int, str] | None = None
    for candidate in sorted(set(known)):
        other = candidate.lower()
        if abs(len(other) - len(wanted)) > max(2, len(wanted)):
            continue
        distance = edit_distance(wanted, other)
        stem = min(len(wanted.lstrip("-")), len(other.lstrip("-")))
        is_near = distance <= max(1, max(len(wanted), len(other)) // 3)
        is_beginning = stem >= 2 and (other.startswith(wanted) or wanted.startswith(other))
        if (is_near or is_beginning) and (best is None or distance < best[0]):
            best = (distance, candidate)
    return best[1] if best else None
