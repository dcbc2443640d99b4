"""What all verbs work on: the store, the served kinds, and where time, ids and chance come from."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.kubernetes.devices import DeviceClass
from fairlead.api.pods.served_resources import ResourceClasses
from fairlead.api.resources import TEAMS
from fairlead.api.values.times import format_time
from fairlead.embedded.builtins import (
    DEVICE_CLASSES,
    LIMIT_RANGES,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
)
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.records import Key, Record
from fairlead.embedded.storage.store import Store
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.teams import TeamTable
from fairlead.runtime.clock import Clock

T = TypeVar("T")

INSTANTS_CACHED_MAX = 16  # many writes fall into one second
_format = lru_cache(maxsize=INSTANTS_CACHED_MAX)(format_time)


def _nobody() -> bool:
    return False


class Digest(Generic[T]):
    """What is made of all objects of a table, made again only when one has changed."""

    __slots__ = ("_at", "_made", "_make", "_name")

    def __init__(self, name: str, make: Callable[[list[Record]], T]) -> None:
        self._name = name
        self._make = make
        self._at = -1
        self._made = make([])

    def of(self, store: Store) -> T:
        """Return it as of the last visible write."""
        at = store.changed_at(self._name)
        if at != self._at:
            self._made, self._at = self._make(store.records(self._name)), at
        return self._made


class Bounds(dict[str, set[str]]):
    """The objects of a kind that bounds writes in its namespace, also those not yet visible.

    A namespace is in it as long as it may have one: each create asks, so it is a plain dict.
    """

    __slots__ = ("_table",)

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table

    def load(self, store: Store) -> list[Key]:
        """Take in what is stored; return the keys."""
        keys = [record.key for record in store.records(self._table)]
        for key in keys:
            self.add(key)
        return keys

    def add(self, key: Key) -> None:
        """Take in an object that was just stored."""
        self.setdefault(key[0], set()).add(key[1])

    def of(self, store: Store, namespace: str) -> list[Record]:
        """Return the latest of a namespace, by name."""
        names = self.get(namespace, set[str]())
        found = [store.latest(self._table, (namespace, name)) for name in sorted(names)]
        records = [record for record in found if record is not None]
        if len(records) < len(names):
            names.intersection_update(record.name for record in records)
            if not names:
                del self[namespace]
        return records


def _priorities(records: list[Record]) -> tuple[PriorityTable, PriorityClass | None]:
    """Return the values of all classes, and the global default; the lowest of several."""
    classes = [record.typed(PriorityClass) for record in records]
    defaults = [each for each in classes if each.global_default]
    return PriorityTable(classes), min(defaults, key=lambda each: each.value, default=None)


def _resource_classes(records: list[Record]) -> ResourceClasses:
    return ResourceClasses.of(record.typed(DeviceClass) for record in records)


def _teams(records: list[Record]) -> TeamTable:
    return TeamTable(record.typed(Team) for record in records)


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
    #: What the settings of the cluster say of its jobs.
    terms: JobTerms = field(default_factory=JobTerms)
    priorities: Digest[tuple[PriorityTable, PriorityClass | None]] = field(
        default_factory=lambda: Digest(PRIORITY_CLASSES.name, _priorities)
    )
    teams: Digest[TeamTable] = field(default_factory=lambda: Digest(TEAMS.name, _teams))
    resource_classes: Digest[ResourceClasses] = field(
        default_factory=lambda: Digest(DEVICE_CLASSES.name, _resource_classes)
    )

    quotas: Bounds = field(default_factory=lambda: Bounds(RESOURCE_QUOTAS.name))
    ranges: Bounds = field(default_factory=lambda: Bounds(LIMIT_RANGES.name))

    def is_bounded(self, key: Key) -> bool:
        """True when quotas or limit ranges may have a say on an object with this key."""
        return key[0] in self.quotas or key[0] in self.ranges

    def now_text(self) -> str:
        """Return the clock's instant as it stands in objects: RFC 3339, whole seconds."""
        return _format(int(self.clock.now() // 1))
