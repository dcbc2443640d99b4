"""What all verbs work on: the store, the served kinds, and where time, ids and chance come from."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from fairlead.api.core import PriorityClass
from fairlead.api.times import format_time
from fairlead.embedded.builtins import PRIORITY_CLASSES
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.runtime.clock import Clock

INSTANTS_CACHED_MAX = 16  # many writes fall into one second


def _nobody() -> bool:
    return False


class DefaultPriority:
    """The PriorityClass of pods that name none, found again only when one has changed."""

    __slots__ = ("_at", "_found")

    def __init__(self) -> None:
        self._at = -1
        self._found: PriorityClass | None = None

    def of(self, store: Store) -> PriorityClass | None:
        """Return the global default; the lowest, should there be several."""
        at = store.changed_at(PRIORITY_CLASSES.name)
        if at != self._at:
            classes = [r.typed(PriorityClass) for r in store.records(PRIORITY_CLASSES.name)]
            defaults = [c for c in classes if c.global_default]
            self._found = min(defaults, key=lambda c: c.value, default=None)
            self._at = at
        return self._found


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
    default_priority: DefaultPriority = field(default_factory=DefaultPriority)

    def now_text(self) -> str:
        """Return the clock's instant as it stands in objects: RFC 3339, whole seconds."""
        return _format(int(self.clock.now() // 1))


@lru_cache(maxsize=INSTANTS_CACHED_MAX)
def _format(second: int) -> str:
    return format_time(second)
