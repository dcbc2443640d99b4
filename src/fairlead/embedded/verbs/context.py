"""What all verbs work on: the store, the served kinds, and where time, ids and chance come from."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from fairlead.api.times import format_time
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.runtime.clock import Clock

INSTANTS_CACHED_MAX = 16  # many writes fall into one second


def _nobody() -> bool:
    return False


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

    def now_text(self) -> str:
        """Return the clock's instant as it stands in objects: RFC 3339, whole seconds."""
        return _format(int(self.clock.now() // 1))


@lru_cache(maxsize=INSTANTS_CACHED_MAX)
def _format(second: int) -> str:
    return format_time(second)
