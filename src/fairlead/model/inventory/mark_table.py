"""Which marks are where: what pods and jobs carry and shun (`asks/neighbours.py`), by slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.model.asks.requests import CARRIED, SHUNNED, Request

Ints: TypeAlias = npt.NDArray[np.int64]


class MarkTable:
    """How many pods carry or shun each mark, by slot: `at["+mark"][slot]`, zeros left out."""

    def __init__(self, at: dict[str, dict[int, int]] | None = None) -> None:
        self._at = at if at is not None else {}

    def add(self, request: Request, slots: Ints, counts: Ints) -> None:
        """Count the marks of a request `counts[i]` times on each of the slots."""
        if not request or request[0][0][0] not in (CARRIED, SHUNNED):
            return  # marks sort before resources
        changes = list(zip(slots.tolist(), counts.tolist(), strict=True))
        for name, amount in request:
            if name[0] not in (CARRIED, SHUNNED):
                return
            at = self._at.setdefault(name, {})
            for slot, count in changes:
                left = at.get(slot, 0) + count * amount
                if left:
                    at[slot] = left
                else:
                    at.pop(slot, None)
            if not at:
                del self._at[name]

    def copy(self) -> MarkTable:
        """Return a table of its own with the same counts."""
        return MarkTable({name: dict(at) for name, at in self._at.items()})

    def names(self) -> list[str]:
        """Return what is somewhere, "+mark" or "-mark", sorted."""
        return sorted(self._at)

    def counts(self, name: str) -> tuple[Ints, Ints]:
        """Return the slots where "+mark" or "-mark" is, and how often."""
        at: Mapping[int, int] = self._at.get(name, {})
        keys: Any = np.fromiter(at.keys(), dtype=np.int64, count=len(at))
        values: Any = np.fromiter(at.values(), dtype=np.int64, count=len(at))
        return keys, values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MarkTable) and self._at == other._at

    __hash__ = None  # type: ignore[assignment] # it changes
