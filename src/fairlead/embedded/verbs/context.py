"""What all verbs work on: the store, the served kinds, and where time, ids and chance come from."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from fairlead.api.core import PriorityClass
from fairlead.api.resources import TEAMS
from fairlead.api.team import Team
from fairlead.api.times import format_time
from fairlead.embedded.builtins import PRIORITY_CLASSES
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.model.priorities import PriorityTable
from fairlead.model.teams import TeamTable
from fairlead.runtime.clock import Clock

INSTANTS_CACHED_MAX = 16  # many writes fall into one second


def _nobody() -> bool:
    return False


class Priorities:
    """The PriorityClasses, read again only when one has changed."""

    __slots__ = ("_at", "_default", "_table")

    def __init__(self) -> None:
        self._at = -1
        self._default: PriorityClass | None = None
        self._table = PriorityTable()

    def default(self, store: Store) -> PriorityClass | None:
        """Return the global default; the lowest, should there be several."""
        self._read(store)
        return self._default

    def table(self, store: Store) -> PriorityTable:
        """Return the values of all classes."""
        self._read(store)
        return self._table

    def _read(self, store: Store) -> None:
        at = store.changed_at(PRIORITY_CLASSES.name)
        if at == self._at:
            return
        classes = [r.typed(PriorityClass) for r in store.records(PRIORITY_CLASSES.name)]
        defaults = [c for c in classes if c.global_default]
        self._default = min(defaults, key=lambda c: c.value, default=None)
        self._table = PriorityTable(classes)
        self._at = at


class Teams:
    """The teams, read again only when one has changed."""

    __slots__ = ("_at", "_table")

    def __init__(self) -> None:
        self._at = -1
        self._table = TeamTable()

    def table(self, store: Store) -> TeamTable:
        """Return all teams."""
        at = store.changed_at(TEAMS.name)
        if at != self._at:
            self._table = TeamTable(r.typed(Team) for r in store.records(TEAMS.name))
            self._at = at
        return self._table


@dataclass(frozen=True, slots=True)
class Context:
    """Shared by the modules behind `Service`; `ids` gives a new uid per call.

    `can_call_webhooks` tells whether there is anybody to call admission webhooks.
    """

    store: Store
    registry: Registry
    clock: Clock
    ids: Callable[[], str]
    rng: random.Random
    can_call_webhooks: Callable[[], bool] = _nobody
    priorities: Priorities = field(default_factory=Priorities)
    teams: Teams = field(default_factory=Teams)

    def now_text(self) -> str:
        """Return the clock's instant as it stands in objects: RFC 3339, whole seconds."""
        return _format(int(self.clock.now() // 1))


@lru_cache(maxsize=INSTANTS_CACHED_MAX)
def _format(second: int) -> str:
    return format_time(second)
