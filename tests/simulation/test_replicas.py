"""Replicas of the operator in a simulated world: one leads, and a deposed one writes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fairlead.runtime.client import Request, RequestVerb
from fairlead.runtime.leading.fencing import LeaderClient
from fairlead.runtime.leading.leader import LeaderElector, LeaderTerm
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.outcome import SimulationOutcome
from fairlead.sim.setup.faults import PERFECT, ROUGH
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World, simulate

CALM = WorldOptions(
    nodes=4,
    workload=WorkloadOptions(
        10, 600.0, members_max=2, failing_share=0.0, run_seconds_median=60.0, run_seconds_max=120.0
    ),
    faults=PERFECT, lease_seconds=15.0, calls_between_kills_mean=0.0,
    steps_between_crashes_mean=0.0, node_failures_per_day=0.0, drains_per_day=0.0,
    user_acts_per_day=0.0,
)  # fmt: skip
#: Patches hang for longer than a lease lasts, those of the lease among them.
STALLING = replace(CALM, faults=replace(ROUGH, stall=0.05))


class _Observed(World):
    """Notes who leads, every second."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.leaders: list[int | None] = []

    async def _look(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super()._look())
            while True:
                await asyncio.sleep(1.0)
                self.leaders.append(self.replicas.leader)


def leaders_of(options: WorldOptions, seed: int) -> list[int | None]:
    async def main() -> list[int | None]:
        world = _Observed(options, seed)
        await world.run()
        return world.leaders

    return run(main())


def test_in_a_calm_world_one_replica_leads_all_the_time() -> None:
    leaders = leaders_of(CALM, seed=1)
    assert len(leaders) > 500
    assert len(set(leaders[5:])) == 1


def test_the_other_replica_takes_over_when_the_leader_dies_or_cannot_renew() -> None:
    for options in (replace(CALM, calls_between_kills_mean=60.0), STALLING):
        # After one death the process that replaces the leader may be the first to see the lease
        # expire, so that in some runs the same replica leads to the end.
        runs = [leaders_of(options, seed) for seed in (1, 2, 3)]
        assert any({0, 1} <= set(leaders) for leaders in runs)
        assert all(None in leaders for leaders in runs)


def test_once_faults_have_stopped_no_candidate_looks_at_the_lease() -> None:
    job = Arrival(0.0, "long", job_body("long", members=1, gpus=0, run_seconds=7200.0))
    options = WorldOptions(nodes=1, workload=WorkloadOptions(1, 60.0), faults=PERFECT)

    async def main() -> World:
        world = World(options, 1, arrivals=[job])
        outcome = await world.run()
        assert outcome.succeeded == 1
        return world

    requests = run(main()).replicas.requests
    calls = Counter[str]()
    for (_, what), count in requests.items():
        calls[what] += count
    assert calls["patch leases"] > 1000  # the leader renews to the end
    assert 10 < calls["get leases"] < 200


def _pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a leader notice the end of its term late, as a process does that was paused."""
    renew = LeaderElector._renew_until_over

    async def late(elector: LeaderElector, term: LeaderTerm, ended: asyncio.Event) -> None:
        await renew(elector, term, ended)
        await asyncio.sleep(20.0)

    monkeypatch.setattr(LeaderElector, "_renew_until_over", late)


def test_every_write_of_a_deposed_leader_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Counter[RequestVerb] = Counter()
    call = LeaderClient.call

    async def counted(client: LeaderClient, request: Any) -> Any:
        refused[request.verb] += request.is_write and client._term.is_over
        return await call(client, request)

    _pause(monkeypatch)
    monkeypatch.setattr(LeaderClient, "call", counted)
    outcome = simulate(STALLING, seed=1)
    assert outcome.jobs == outcome.succeeded + outcome.failed
    assert refused.total() > 0


def test_a_deposed_leader_that_still_writes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of fencing: writes are let out after the term."""

    async def unfenced(client: LeaderClient, request: Any) -> Any:
        return await client.inner.call(request)

    _pause(monkeypatch)
    monkeypatch.setattr(LeaderClient, "call", unfenced)
    with pytest.raises(PromiseBroken, match=r"^8: a replica that does not lead sends "):
        simulate(STALLING, seed=1)


def test_what_a_write_is_the_checker_says_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence asks the request, and lets out what that takes for no write."""
    _pause(monkeypatch)
    monkeypatch.setattr(Request, "is_write", property(lambda _: False))
    with pytest.raises(PromiseBroken, match=r"^8: a replica that does not lead sends "):
        simulate(STALLING, seed=1)


def test_two_leaders_at_once_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of the lease: a leader whose renewal gets no answer goes on as if it had one."""
    renew = LeaderElector._renew

    async def hopeful(elector: LeaderElector, term: LeaderTerm) -> float:
        wait = await renew(elector, term)
        if not term.is_over:
            term.deadline = asyncio.get_running_loop().time() + 15.0
        return wait

    assert simulate(STALLING, seed=1).jobs
    monkeypatch.setattr(LeaderElector, "_renew", hopeful)
    with pytest.raises(PromiseBroken, match=r"^8: replicas \[0, 1\] lead at the same time"):
        simulate(STALLING, seed=1)


def test_clocks_that_jump_by_an_hour_depose_no_leader_and_fail_no_job() -> None:
    options = replace(CALM, clock_jumps_per_day=5000.0, clock_jump_seconds_max=3600.0)
    worlds: list[_Observed] = []

    async def main() -> SimulationOutcome:
        worlds.append(_Observed(options, 1))
        return await worlds[0].run()

    outcome = run(main())
    assert worlds[0].faults_met["jumped clock"] > 10
    assert (outcome.jobs, outcome.succeeded) == (10, 10)
    assert len(set(worlds[0].leaders[5:])) == 1
