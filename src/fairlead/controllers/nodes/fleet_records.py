"""Writes down what the fleet controller decides: Events, lines of the log, and the history.

A decision is noted once the status that holds it is written. The history is written on the side and
tried again while it fails. A new process records what the statuses still hold: what is recorded
already has the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.cluster.node_pool import NodePool, PoolDecision
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import NODE_POOLS, Resource
from fairlead.decide.health.remembered.fault_records import FAULTS
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.kept.history import FleetRecord, History, HistoryError, fleet_record_of
from fairlead.runtime.logs import Logger

#: Records that wait for a history that fails; the oldest are dropped beyond.
RECORDS_WAITING_MAX = 10_000
_BATCH = 100
_RETRY_SECONDS = 10.0
_WARNINGS = frozenset(
    (
        "Refused",
        "GiveUp",
        "Hold",
        "Release",
        "Unmanaged",
        "Cordon",
        "WouldCordon",
        "Asking",
        "TicketFailed",
        "Untested",
    )
)
#: Facts that decisions follow from, which the history alone has.
_KEPT_ALONE = frozenset((FAULTS,))


class FleetRecords:
    """Run `run` beside the controller."""

    def __init__(self, history: History, events: EventSink, log: Logger) -> None:
        self._history = history
        self._events = events
        self._log = log
        self._waiting: list[FleetRecord] = []
        self._is_waiting = asyncio.Event()
        #: The uids of pools whose status was read for decisions of processes before.
        self._replayed: dict[str, str] = {}

    def note(
        self, resource: Resource[Any], metadata: ObjectMeta, decided: Sequence[PoolDecision]
    ) -> None:
        """Note decisions about a pool, a node of one, or the fleet as a whole."""
        pool = metadata.name if resource is NODE_POOLS else metadata.labels.get(names.POOL, "")
        for each in decided:
            if each.action in _KEPT_ALONE:
                continue
            kind = EventKind.WARNING if each.action in _WARNINGS else EventKind.NORMAL
            text = f"{each.message} ({each.reason})"
            self._events.record(resource, metadata, kind, reason=each.action, message=text)
            self._log.info(
                "Fleet decision", pool=pool, action=each.action, reason=each.reason,
                message=each.message, facts=each.facts,
            )  # fmt: skip
        self._record(metadata, decided, pool)

    def replay(self, pool: NodePool) -> None:
        """Record what the status of a pool held when this process first saw it."""
        name, uid = pool.metadata.name, pool.metadata.uid
        if self._replayed.get(name) != uid:
            self._replayed[name] = uid
            self._record(pool.metadata, pool.status.decisions, name)

    def forget(self, pool: str) -> None:
        """Drop what is kept of a pool that is gone."""
        self._replayed.pop(pool, None)

    async def run(self) -> None:
        """Write records to the history, until cancelled."""
        while True:
            await self._is_waiting.wait()
            batch = self._waiting[:_BATCH]
            try:
                await self._history.record_fleet(batch)
            except HistoryError as error:
                self._log.warning("Cannot record decisions of the fleet", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            written = {each.id for each in batch}
            self._waiting = [each for each in self._waiting if each.id not in written]
            if not self._waiting:
                self._is_waiting.clear()

    def _record(self, metadata: ObjectMeta, decided: Sequence[PoolDecision], pool: str) -> None:
        self._waiting += [fleet_record_of(metadata, each, pool=pool) for each in decided]
        dropped = len(self._waiting) - RECORDS_WAITING_MAX
        if dropped > 0:
            self._log.warning("Dropped records of decisions of the fleet", count=dropped)
            del self._waiting[:dropped]
        if self._waiting:
            self._is_waiting.set()
