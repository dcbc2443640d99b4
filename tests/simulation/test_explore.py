"""Exploration: a number names a world, and a job that cannot fit is no broken promise."""

from __future__ import annotations

import asyncio
import itertools
import random
import select
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.sim.exploration import run_world
from fairlead.sim.explore import _Exploration, broken_text, explore_one, shrunk_text, summary
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.settling import gpu_hours, settle_seconds
from fairlead.sim.setup.fitting import unfit_jobs
from fairlead.sim.setup.team_changes import budget_seconds
from fairlead.sim.setup.workload import generate
from fairlead.sim.setup.world_file import read_world, world_text
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World


def small(_number: int) -> WorldOptions:
    options = options_of(2)
    workload = replace(options.workload, jobs=3, seconds=600.0, members_max=1)
    return replace(
        options, nodes=2, workload=workload, groups=0, pools=(), calls_between_kills_mean=100.0,
        steps_between_crashes_mean=10.0,
    )  # fmt: skip


def test_a_number_names_one_world() -> None:
    assert options_of(7) == options_of(7)
    assert len({repr(options_of(number)) for number in range(20)}) == 20


def test_some_worlds_have_budgets_and_topologies_and_keep_their_promises() -> None:
    found = explore_one(74)
    assert found.broken == ""
    assert min(found.budgeted, found.bound) > 0
    assert f"{found.budgeted} starts were judged by a budget, {found.bound} " in summary([found])


def test_only_worlds_of_nodes_that_stay_have_topologies_and_only_those_of_teams_budgets() -> None:
    drawn = [options_of(number) for number in range(60)]
    bound = [options for options in drawn if options.workload.bound_share]
    budgeted = [o for o in drawn if any("budget" in (c.spec or {}) for c in o.team_changes)]
    assert len(bound) > 10
    assert not any(options.pools for options in bound)
    assert len(budgeted) > 5
    assert len({o.profile.node.nodes_per_rack for o in bound}) == 3


def test_some_worlds_answer_late_and_out_of_order_and_keep_their_promises() -> None:
    lags = Counter(options_of(number).faults.answer_lag_seconds_mean for number in range(200))
    assert set(lags) == {0.0, 0.05, 0.5, 3.0}
    assert lags[0.0] > 100
    assert options_of(21).faults.answer_lag_seconds_mean == 3.0
    assert explore_one(21).broken == ""


def test_a_world_has_time_for_the_budgets_that_its_jobs_exceed() -> None:
    """Whatever is drawn for the jobs is drawn before the budgets."""
    judged = 0
    for number in (57000041, *range(150)):
        options = options_of(number)
        last = {change.name: change.spec or {} for change in options.team_changes}
        for name, spec in last.items():
            if "budget" in spec and options.workload.limited_share:
                judged += 1
                arrivals = generate(options.workload, random.Random(f"{number}/workload"))
                hours = gpu_hours(options, (arrival.body for arrival in arrivals))[name]
                needed = budget_seconds(options.team_changes, {name: hours}, 1)
                assert needed <= settle_seconds(options, arrivals, ()), number
    assert judged > 3


def test_a_gang_that_no_empty_cluster_holds_waits_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = replace(
        small(3), nodes=1, workload=replace(small(3).workload, jobs=12, members_max=4)
    )
    assert unfit_jobs(generate(options.workload, random.Random("3/workload")), options)
    monkeypatch.setattr("fairlead.sim.explore.options_of", lambda _number: options)
    found = explore_one(3)
    assert (found.broken, bool(found.unfit)) == ("", True)
    assert "1 had jobs that can never fit" in summary([found])


def test_a_job_that_can_never_run_and_does_not_say_so_breaks_promise_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = replace(small(3), settle_seconds_max=1800.0)
    monkeypatch.setattr("fairlead.sim.explore.options_of", lambda _number: options)
    monkeypatch.setattr("fairlead.sim.setup.fitting.never_fits", lambda _body, _options: "planted")
    monkeypatch.setattr(World, "_waiting_unfit", lambda world: list(world.unfit)[:1])
    monkeypatch.setattr("fairlead.sim.promises.checkers.Checkers.unfinished_count", 1)
    found = explore_one(3)
    assert "3: ('default', 'job-00000') can never run and does not say so" in found.broken


def test_a_world_says_which_faults_met_which_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.sim.explore.options_of", small)
    found = explore_one(3)
    assert (found.broken, found.unfit) == ("", 0)
    assert found.writes > 0
    assert sum(found.met.values()) > 0
    assert "1 worlds" in summary([found])


def test_a_world_that_has_no_time_to_end_is_cut_off_and_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.sim.explore.options_of", small)
    for seconds in (1e-6, 0.001):  # before it has begun, and a little later
        found = explore_one(3, seconds)
        assert (found.is_cut_off, found.broken, found.writes) == (True, "", 0)
        assert "1 of them had not ended" in summary([found])
    assert not explore_one(3, 600.0).is_cut_off


# An alarm that meets a callback of the garbage collector is lost; the next one counts.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("callback_seconds", [0.3, 1e9])
def test_a_world_is_cut_off_wherever_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, callback_seconds: float
) -> None:
    """In a callback, too: one once swallowed it, and the world went on without its work."""
    is_worked = False

    def work() -> None:
        nonlocal is_worked
        until = time.monotonic() + callback_seconds
        while time.monotonic() < until:
            pass
        is_worked = True

    async def run(_world: World) -> None:
        asyncio.get_running_loop().call_soon(work)
        await asyncio.sleep(1)

    monkeypatch.setattr("fairlead.sim.explore.options_of", small)
    monkeypatch.setattr("fairlead.sim.exploration.one_world._ALARM_SECONDS", 2.0)
    monkeypatch.setattr(World, "run", run)
    assert explore_one(3, 0.2).is_cut_off is True
    assert is_worked is (callback_seconds < 2)


@pytest.mark.parametrize("waits", [False, True])
def test_a_world_is_endless_by_the_time_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """On a busy machine a world that needs 101 s of it was once called endless after 900 s."""

    async def run(_world: World) -> None:
        if waits:  # as a world does while the processor is another's
            select.select((), (), (), 2.0)
            raise RuntimeError("planted")
        for _ in itertools.count():
            await asyncio.sleep(1)

    monkeypatch.setattr("fairlead.sim.explore.options_of", small)
    monkeypatch.setattr("fairlead.sim.exploration.one_world.WORLD_SECONDS_MAX", 1.0)
    monkeypatch.setattr(World, "run", run)
    endless = "3: the world has not ended after 1 s of the processor"
    assert explore_one(3).broken == ("RuntimeError: planted" if waits else endless)


def test_where_controllers_hardly_get_past_their_lists_only_their_working_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3 of 4 members once ran alone for 138 s, while one jobs controller after another died."""
    options = replace(
        options_of(1005), pools=(), calls_between_kills_mean=40.0, steps_between_crashes_mean=10.0
    )
    monkeypatch.setattr("fairlead.sim.explore.options_of", lambda _number: options)
    found = explore_one(1005)
    assert found.broken == ""
    kills = sum(count for what, count in found.met.items() if what.startswith("killed"))
    assert kills > 20


def test_a_fault_of_our_own_is_found_and_named_with_its_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> Counter[str]:
        raise RuntimeError("planted")

    monkeypatch.setattr("fairlead.sim.explore.options_of", small)
    monkeypatch.setattr("fairlead.controllers.placing.scheduler.decide", broken)
    found = explore_one(3)
    assert found.broken == "RuntimeError: planted"
    assert "python -m fairlead.sim.explore --world 3" in broken_text(found)


class InlinePool(Executor):
    """Runs what is submitted at once, in this process, which tests can change."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        done.set_result(fn(*args, **kwargs))
        return done


def test_a_broken_world_is_printed_and_once_more_when_it_is_shrunk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One small world for each promise, in a directory that may not be there yet."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("fairlead.sim.explore.options_of", small)
    monkeypatch.setattr("fairlead.controllers.placing.scheduler.decide", broken)
    exploration = _Exploration(0.01, 3, tmp_path / "new" / "broken")
    exploration.run(InlinePool(), 1)
    said, worlds = capsys.readouterr().out, len(exploration.done)
    assert worlds > 0
    assert said.count("A PROMISE IS BROKEN: RuntimeError: planted\n") == worlds
    assert said.count("  shrunk to 0 jobs on 1 node: RuntimeError: planted\n") == 1
    (file,) = (tmp_path / "new" / "broken").iterdir()
    assert f"  replay: python -m fairlead.sim --world {file}\n" in said
    world = read_world(file)
    assert (world.broken, world.arrivals) == ("RuntimeError: planted", ())
    assert run_world(world.options, world.seed, arrivals=()).broken == world.broken
    (tmp_path / "file").write_text("")
    text = shrunk_text(world, tmp_path / "file")
    assert text.endswith(f"file cannot be written: File exists\n{world_text(world)}")
