"""Which keys a JSON body names twice, for `fieldValidation`.

The decoder of the server keeps the last of two equal keys and says nothing. Looking for them takes
a slower second reading, so only those bodies get it whose senders asked for a validation, as
kubectl does; then the paths come out as the real server words them (KEP-2885).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DUPLICATES_MAX = 100


class _Object(dict[str, Any]):
    """An object that remembers which of its keys came twice."""

    twice: tuple[str, ...] = ()


def _keep(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice: list[str] = []
        for key, _ in pairs:
            if key in seen and key not in twice:
                twice.append(key)
            seen.add(key)
        made.twice = tuple(twice)
    return made


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Object):
        for key in value.twice:
            yield f"{path}.{key}" if path else key
        for key, inner in value.items():
            yield from _paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _paths(inner, f"{path}[{i}]")


def duplicate_fields(body: bytes) -> list[str]:
    """Return the paths of keys that a JSON text, which must be valid, gives twice."""
    value = json.loads(body, object_pairs_hook=_keep)
    return [path for path, _ in zip(_paths(value, ""), range(DUPLICATES_MAX), strict=False)]
