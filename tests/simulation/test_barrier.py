"""The barrier in a simulated world where answers to writes come out of order, and events late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.runtime import loop
from fairlead.runtime.watching.barrier import Barrier, Written
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import simulate

LAGGING = WorldOptions(
    nodes=6,
    workload=WorkloadOptions(
        20, 300.0, members_max=6, failing_share=0.2, run_seconds_median=60.0, run_seconds_max=120.0
    ),
    faults=replace(
        PERFECT, latency_seconds_mean=0.02, answer_lag_seconds_mean=0.1, watch_lag_seconds_max=1.0
    ),
    calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0, node_failures_per_day=0.0,
    drains_per_day=0.0, user_acts_per_day=0.0,
)  # fmt: skip


class Checked(Barrier):
    """Breaks promise 8 when a decision would miss a write whose answer has come."""

    out_of_order = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answered: dict[str, int] = {}

    def expect(self, written: Written) -> None:
        highest = self._answered.get(written.resource.name, 0)
        Checked.out_of_order += 0 < written.version < highest
        self._answered[written.resource.name] = max(highest, written.version)
        super().expect(written)

    async def wait(self) -> None:
        await super().wait()
        for expected in self._expected:
            mirror = expected.mirror
            answered = self._answered.get(mirror.resource.name, 0)
            if mirror.resource_version < answered:
                raise PromiseBroken(
                    f"8: a decision on {mirror.kind} at version {mirror.resource_version} misses "
                    f"the own write {answered}"
                )


class LastCounts(Checked):
    """The planted bug: waits for the write that was answered last, not for the newest."""

    def expect(self, written: Written) -> None:
        super().expect(written)
        for expected in self._expected:
            if expected.mirror.resource == written.resource and written.version:
                expected.version = written.version


def test_no_decision_misses_a_write_whose_answer_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checked, "out_of_order", 0)
    monkeypatch.setattr(loop, "Barrier", Checked)
    outcome = simulate(LAGGING, seed=1)
    assert outcome.jobs == outcome.succeeded + outcome.failed > 0
    assert Checked.out_of_order > 10


def test_a_barrier_that_waits_for_the_last_answer_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The canary of the test above."""
    monkeypatch.setattr(loop, "Barrier", LastCounts)
    with pytest.raises(PromiseBroken, match=r"^8: a decision on \w+ at version \d+ misses"):
        simulate(LAGGING, seed=1)
