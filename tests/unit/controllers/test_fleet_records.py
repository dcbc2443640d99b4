"""Decisions about the fleet in the history: all of them, however many and however it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.history.contract import decisions_of

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import NODE_POOLS, NODES, Resource
from fairlead.controllers.nodes.fleet_records import FleetRecords
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.events import EventKind
from fairlead.runtime.kept.history import FleetQuery, FleetRecord, HistoryError
from fairlead.runtime.logs import SILENT
from fairlead.sim.loop import run

POOL = ObjectMeta(name="pool", uid="u")


class Events:
    def __init__(self) -> None:
        self.reasons = list[str]()

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.reasons.append(reason)


class Failing(MemoryHistory):
    """Fails so many times first."""

    failures = 0

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise HistoryError("no connection")
        await super().record_fleet(records)


@pytest.mark.parametrize(("failures", "kept"), [(0, 250), (2, 250), (2, 120)])
def test_of_many_decisions_the_latest_that_may_wait_are_recorded_though_none_follows(
    monkeypatch: pytest.MonkeyPatch, failures: int, kept: int
) -> None:
    monkeypatch.setattr("fairlead.controllers.nodes.fleet_records.RECORDS_WAITING_MAX", kept)

    async def main() -> None:
        history = Failing()
        history.failures = failures
        records = FleetRecords(history, Events(), SILENT)
        at = "2026-01-01T00:00:00Z"
        for number in range(250):
            decided = PoolDecision(at, "Launch", "Demand", f"no. {number}", number=number)
            records.note(NODE_POOLS, POOL, (decided,))
        task = asyncio.create_task(records.run())
        await asyncio.sleep(60)
        task.cancel()
        found = {each.message for each in await decisions_of(history, FleetQuery(limit=500))}
        assert found == {f"no. {number}" for number in range(250 - kept, 250)}

    run(main())


def test_faults_are_recorded_and_are_no_events() -> None:
    async def main() -> None:
        history, events = MemoryHistory(), Events()
        records = FleetRecords(history, events, SILENT)
        at = "2026-01-01T00:00:00Z"
        for action in ("Faults", "WouldCordon"):
            records.note(NODES, ObjectMeta(name="n1", uid="n"), (PoolDecision(at, action, "x"),))
        task = asyncio.create_task(records.run())
        await asyncio.sleep(1)
        task.cancel()
        found = [each.action for each in await decisions_of(history, FleetQuery())]
        assert sorted(found) == ["Faults", "WouldCordon"]
        assert events.reasons == ["WouldCordon"]

    run(main())
