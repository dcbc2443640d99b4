"""Writes that arrive when nobody waits for them any more."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairlead.api.resources import NODES
from fairlead.api.status import Conflict, Timeout
from fairlead.sim.loop import run
from fairlead.sim.setup.faults import PERFECT, FaultRates, FaultSwitch, FaultyClient
from fairlead.testing.builders import make_node
from fairlead.testing.fake_client import FakeClient


@pytest.mark.parametrize("late_seconds_max", [30.0, 0.0])
def test_a_stalled_write_times_out_and_comes_true_later_though_its_sender_is_gone(
    late_seconds_max: float,
) -> None:
    async def main() -> None:
        rates = FaultRates(stall=1.0, late_seconds_max=late_seconds_max)
        store, switch = FakeClient(), FaultSwitch(rates)
        await store.create(NODES, make_node("n"))
        client = FaultyClient(store, switch, random.Random(1))
        late = asyncio.create_task(switch.late.run())
        label = {"metadata": {"labels": {"x": "1"}}}
        with pytest.raises(Timeout):
            await client.patch(NODES, "n", label)
        del client
        assert "x" not in (await store.get(NODES, "n")).metadata.labels
        switch.rates = PERFECT
        await asyncio.sleep(90)
        assert (await store.get(NODES, "n")).metadata.labels["x"] == "1"
        assert switch.late.arrived == 1
        late.cancel()

    run(main())


def test_a_late_write_that_has_become_impossible_is_nobodys_trouble() -> None:
    async def main() -> None:
        store, switch = FakeClient(), FaultSwitch(FaultRates(stall=1.0))
        await store.create(NODES, make_node("n"))
        client = FaultyClient(store, switch, random.Random(1))
        late = asyncio.create_task(switch.late.run())
        with pytest.raises(Timeout):
            await client.patch(NODES, "n", {"metadata": {"resourceVersion": "1"}})
        await store.patch(NODES, "n", {"metadata": {"labels": {"x": "2"}}})
        await store.delete(NODES, "n")
        await asyncio.sleep(90)
        assert switch.late.arrived == 0
        assert not late.done()
        late.cancel()

    run(main())


def test_a_conflict_meets_patches_alone() -> None:
    async def main() -> None:
        client = FaultyClient(FakeClient(), FaultSwitch(FaultRates(conflict=1.0)), random.Random(1))
        await client.create(NODES, make_node("n"))
        with pytest.raises(Conflict):
            await client.patch(NODES, "n", {"metadata": {"labels": {"x": "1"}}})

    run(main())
