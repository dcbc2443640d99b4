"""Maintenance windows in simulated worlds, and a planted bug that their checker reports."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.names import MAINTENANCE
from fairlead.api.values.times import format_time
from fairlead.model.inventory.labels import Bools, Slots
from fairlead.model.inventory.window_table import WindowTable
from fairlead.sim.explore import explore_one
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.placement_checkers import MaintenanceChecker
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

from .test_teams import HOUR, run_world


def busy() -> World:
    """Six nodes, one window every five minutes, 60 jobs in an hour, half of them with limits."""
    workload = WorkloadOptions(60, HOUR, members_max=2, run_seconds_max=1800.0, limited_share=0.5)
    return World(WorldOptions(6, workload, maintenances_per_day=300.0), 7)


def test_no_attempt_begins_that_could_run_into_maintenance() -> None:
    world = run_world(busy)
    assert len(world.checkers.finished) == 60
    assert world.maintenance.judged > 40
    assert world.maintenance.spared > 0  # jobs did use nodes whose window was still to come


def _closes_nothing(_table: WindowTable, _hold: float, slots: Slots, _now: float) -> Bools:
    """A planted bug: windows keep no job off."""
    return np.zeros(len(slots), dtype=np.bool_)


def test_a_scheduler_that_ignores_windows_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowTable, "closed", _closes_nothing)
    with pytest.raises(PromiseBroken, match=r"^7: attempt 1 of .* whose maintenance begins in "):
        run_world(busy)


def test_explored_worlds_have_maintenance() -> None:
    number = next(
        n for n in range(200)
        if options_of(n).maintenances_per_day >= 500 and options_of(n).workload.jobs == 20
    )  # fmt: skip
    found = explore_one(number)
    assert (found.broken, found.dated > 0) == ("", True)


# The checker alone


class History:
    """A node whose window begins in an hour and was announced long ago."""

    def __init__(self, clock_error_seconds: float = 0.0) -> None:
        self.checker = MaintenanceChecker(clock_error_seconds)
        self.start = EPOCH + 2 * HOUR
        text = f"{format_time(self.start)}/{format_time(self.start + HOUR)}"
        self.node = make_node("n1", annotations={MAINTENANCE: text})
        self.checker.node(self.node, "n1", EPOCH)

    def place(self, limit: int | None, at: float, attempt: int = 1) -> Job:
        placement = make_placement(["n1"], attempt=attempt)
        job = make_job("a", time_limit_seconds=limit, placement=placement)
        self.checker.job(job, job.metadata.key, at)
        return job


def test_a_place_from_which_the_job_ends_in_time_is_not_reported() -> None:
    history = History()
    history.place(1800, history.start - HOUR)
    assert (history.checker.judged, history.checker.spared) == (1, 1)
    history.place(None, history.start + HOUR, attempt=2)


@pytest.mark.parametrize("limit", [None, 3600])
def test_each_attempt_that_could_run_into_it_is_reported(limit: int | None) -> None:
    history = History()
    history.place(1800, history.start - HOUR)
    history.place(1800, history.start + HOUR / 2)  # the same attempt, as written again
    with pytest.raises(PromiseBroken, match="7: attempt 2 of default/a is placed on n1"):
        history.place(limit, history.start - HOUR + 200, attempt=2)


def test_what_the_scheduler_could_not_know_is_not_reported() -> None:
    history = History()
    history.checker.node(history.node, "n1", EPOCH)  # a heartbeat is no news
    history.place(3000, history.start - 3000)  # decided on a minute before
    later = History(clock_error_seconds=300.0)
    later.place(3000, later.start - 2700)
    news = History()
    text = f"{format_time(EPOCH + HOUR)}/{format_time(EPOCH + 2 * HOUR)}"
    news.checker.node(make_node("n1", annotations={MAINTENANCE: text}), "n1", EPOCH + 500)
    news.place(None, EPOCH + 600)
    news.checker.node(make_node("n1"), "n1", EPOCH + 1000)
    news.place(None, EPOCH + 2000, attempt=2)
    assert news.checker.judged == 1


def test_pods_of_another_tool_stay() -> None:
    history = History()
    job = make_job("a", placement=make_placement(["n1"]))
    spec = replace(job.spec, adopts=Adopts("StatefulSet", "web", "apps/v1"))
    history.checker.job(replace(job, spec=spec), job.metadata.key, history.start)
    assert history.checker.judged == 0
