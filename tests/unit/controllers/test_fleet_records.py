"""Decisions about the fleet in the history: all of them, however many and however it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.api.meta import ObjectMeta
from fairlead.api.node_pool import PoolDecision
from fairlead.api.resources import NODE_POOLS, Resource
from fairlead.controllers.fleet_records import FleetRecords
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.events import EventKind
from fairlead.runtime.history import FleetQuery, FleetRecord, HistoryError
from fairlead.runtime.logs import SILENT
from fairlead.sim.loop import run

POOL = ObjectMeta(name="pool", uid="u")


class Events:
    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None: ...  # fmt: skip


class Failing(MemoryHistory):
    """Fails so many times first."""

    failures = 0

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise HistoryError("no connection")
        await super().record_fleet(records)


@pytest.mark.parametrize("failures", [0, 2])
def test_each_of_many_decisions_is_recorded_though_none_follows(failures: int) -> None:
    count = 250

    async def main() -> None:
        history = Failing()
        history.failures = failures
        records = FleetRecords(history, Events(), SILENT)
        at = "2026-01-01T00:00:00Z"
        decided = [PoolDecision(at, "Launch", "Demand", number=i) for i in range(count)]
        records.note(NODE_POOLS, POOL, decided)
        task = asyncio.create_task(records.run())
        await asyncio.sleep(60)
        task.cancel()
        assert len(await history.query_fleet(FleetQuery(limit=2 * count))) == count

    run(main())
