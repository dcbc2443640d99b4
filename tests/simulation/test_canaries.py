"""Canaries: a planted bug for each way in which a promise breaks, reported by its checker alone.

A checker that is blind reports nothing, and every simulation passes. So each line of `Checkers`
that may report has a history here which breaks exactly that promise, beside the sound history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import msgspec
import pytest

from fairlead.api.jobs.job import Adopts, Job, VerdictStatus
from fairlead.api.kubernetes.core import Pod, PodCondition
from fairlead.api.meta import Condition
from fairlead.decide.verdict import NOTHING
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.working_time import JOBS, TEAMS, WorkingTime
from fairlead.sim.promises.checkers import Checkers
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World, simulate
from fairlead.testing.builders import (
    make_job,
    make_member_pod,
    make_node,
    make_placement,
    make_pod,
)

replace = msgspec.structs.replace
SUCCEEDED = (Condition(type="Succeeded", status="True"),)


def with_status(job: Job, **changes: Any) -> Job:
    return replace(job, status=replace(job.status, **changes))


class History:
    """The checkers, two nodes of 8 GPUs, and a gang of two that has its place; time passes."""

    def __init__(self, adopts: Adopts | None = None) -> None:
        self.working = WorkingTime()
        self.checkers = Checkers(working=self.working)
        self.now = 0.0
        for name in ("n1", "n2"):
            self.node(name)
        job = make_job("a", count=2, gpus=4, placement=make_placement(["n1", "n2"]))
        self.job = replace(job, spec=replace(job.spec, adopts=adopts))
        self.put(self.job)

    def node(self, name: str, **more: Any) -> None:
        self.checkers.node(make_node(name, gpus=8, **more), None, self.now)

    def put(self, job: Job, old: Job | None = None) -> None:
        self.checkers.job(job, old, self.now)

    def pod(self, index: int, **more: Any) -> None:
        self.checkers.pod(make_member_pod(self.job, index, **more), None, self.now)

    def gone(self, index: int, job: Job) -> None:
        self.checkers.pod(None, make_member_pod(job, index), self.now)

    def restarted(self, nodes: list[str]) -> Job:
        """Return the gang as placed for its second attempt."""
        placement = make_placement(nodes, attempt=2)
        return with_status(self.job, attempt=2, placement=placement)


def sound(history: History) -> None:
    """Both members run and end, the second attempt follows on the same nodes, then the end."""
    first = history.job
    for index in (0, 1):
        history.pod(index)
    history.checkers.check_partial(history.now)
    for index in (0, 1):
        history.gone(index, first)
    history.job = history.restarted(["n1", "n2"])
    history.put(history.job, first)
    for index in (0, 1):
        history.pod(index)
    for index in (0, 1):
        history.gone(index, history.job)
    history.put(with_status(history.job, conditions=SUCCEEDED), history.job)
    for nodes in (["n1"] * 4, ["n1", "n2"]):
        history.job = elastic(*nodes)
        history.put(history.job)
        for index in range(len(nodes)):
            history.pod(index)
        for index in range(len(nodes)):
            history.gone(index, history.job)
        history.put(elastic())
    history.put(elastic(conditions=SUCCEEDED))


def a_stranger_fills_a_node_that_is_claimed(history: History) -> None:
    history.checkers.pod(make_pod("stranger", node="n1", gpus=5), None, history.now)


def a_member_asks_for_more_than_its_place(history: History) -> None:
    pod = make_member_pod(history.job, 0)
    spec = replace(pod.spec, containers=make_pod("big", gpus=9).spec.containers)
    history.checkers.pod(replace(pod, spec=spec), None, history.now)


def a_pod_elsewhere_says_it_is_a_member(history: History) -> None:
    history.pod(0)
    pod = make_member_pod(history.job, 0)
    for name in ("x", "y"):
        meta = replace(pod.metadata, name=name, namespace="elsewhere", uid=name)
        history.checkers.pod(replace(pod, metadata=meta), None, history.now)


def half_a_gang_is_placed(history: History) -> None:
    history.put(make_job("b", count=2, gpus=1, placement=make_placement(["n1"])))


def half_a_gang_runs_alone(history: History) -> None:
    history.pod(0)
    history.now += 121.0
    history.checkers.check_partial(history.now)


def two_attempts_are_alive_together(history: History) -> None:
    history.pod(0)
    history.job = history.restarted(["n1", "n2"])
    history.put(history.job)
    history.pod(1)


def a_pod_comes_before_its_place(history: History) -> None:
    history.job = with_status(history.job, attempt=2)
    history.put(history.job)
    history.pod(0)


def elastic(*nodes: str, **more: Any) -> Job:
    """A gang of two to four members, one per entry of `nodes`."""
    placement = make_placement(nodes) if nodes else None
    return make_job("e", count=4, min_count=2, gpus=1, placement=placement, **more)


def an_elastic_gang_is_smaller_than_its_least(history: History) -> None:
    history.put(elastic("n1"))


def an_elastic_gang_is_larger_than_its_most(history: History) -> None:
    history.put(elastic("n1", "n1", "n1", "n2", "n2"))


def an_attempt_of_an_elastic_gang_changes_its_size(history: History) -> None:
    history.put(elastic("n1", "n1"))
    history.put(elastic("n1", "n1", "n2"))


def a_member_beyond_the_size_of_its_attempt_is_made(history: History) -> None:
    history.job = elastic("n1", "n1")
    history.put(history.job)
    history.pod(2, node="n1")


def an_elastic_gang_waits_although_its_least_is_kept(history: History) -> None:
    facts: dict[str, Any] = {"members_kept": 2, "members": 2, "nodes_lost": 1}
    verdict = VerdictStatus(outcome="Waiting", reason="Repairing", facts=facts)
    history.put(elastic("n1", "n1", "n2", verdict=verdict))


def a_job_comes_back_to_life(history: History) -> None:
    history.put(with_status(history.job, conditions=SUCCEEDED))
    history.put(history.job)


def a_gang_succeeds_while_a_member_runs(history: History) -> None:
    history.pod(0, phase="Succeeded")
    history.pod(1)
    history.put(with_status(history.job, state="Succeeded", conditions=SUCCEEDED))


def an_evicted_member_returns(history: History) -> None:
    history.node("n1", unschedulable=True)
    pod = make_member_pod(history.job, 0)
    history.checkers.pod(pod, None, history.now)
    evicted = PodCondition("DisruptionTarget", "True", reason="EvictionByEvictionAPI")
    leaving = replace(pod, status=replace(pod.status, conditions=(evicted,)))
    history.checkers.pod(leaving, pod, history.now)
    history.checkers.pod(None, leaving, history.now)
    history.job = history.restarted(["n1", "n2"])
    history.put(history.job)
    history.pod(0)


def an_attempt_begins_on_a_cordoned_node(history: History) -> None:
    history.node("n1", unschedulable=True)
    history.now += 600.0
    history.put(history.restarted(["n1", "n2"]))


def an_attempt_is_counted_back(history: History) -> None:
    history.put(history.restarted(["n1", "n2"]))
    history.put(history.job)


def a_member_is_made_twice(history: History) -> None:
    history.pod(0)
    pod = make_member_pod(history.job, 0)
    second = replace(pod, metadata=replace(pod.metadata, name="second", uid="second"))
    small = replace(second.spec, containers=make_pod("small").spec.containers)
    history.checkers.pod(replace(second, spec=small), None, history.now)


@pytest.mark.parametrize(
    ("promise", "planted"),
    [
        (1, a_stranger_fills_a_node_that_is_claimed),
        (1, a_member_asks_for_more_than_its_place),
        (1, a_pod_elsewhere_says_it_is_a_member),
        (2, half_a_gang_is_placed),
        (2, half_a_gang_runs_alone),
        (2, two_attempts_are_alive_together),
        (2, a_pod_comes_before_its_place),
        (2, an_elastic_gang_is_smaller_than_its_least),
        (2, an_elastic_gang_is_larger_than_its_most),
        (2, an_attempt_of_an_elastic_gang_changes_its_size),
        (2, a_member_beyond_the_size_of_its_attempt_is_made),
        (2, a_gang_succeeds_while_a_member_runs),
        (3, an_elastic_gang_waits_although_its_least_is_kept),
        (3, a_job_comes_back_to_life),
        (7, an_evicted_member_returns),
        (7, an_attempt_begins_on_a_cordoned_node),
        (8, an_attempt_is_counted_back),
        (8, a_member_is_made_twice),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_planted_bug_is_reported_by_the_checker_of_its_promise(
    promise: int, planted: Callable[[History], None]
) -> None:
    history = History()
    with pytest.raises(PromiseBroken, match=rf"^{promise}: "):
        planted(history)


def test_what_a_node_was_given_may_stay_when_it_offers_less_but_nothing_may_be_added() -> None:
    history = History()
    history.checkers.node(make_node("n1", gpus=3), None, history.now)  # a claim has 4
    history.now += 151.0
    history.put(history.job)
    with pytest.raises(PromiseBroken, match=r"^1: node n1 holds 5 nvidia.com/gpu, it has 3"):
        history.checkers.pod(make_pod("stranger", node="n1", gpus=1), None, history.now)


def test_a_place_given_before_a_node_offers_less_may_come_late_and_is_not_given_again() -> None:
    history = History()
    history.checkers.node(make_node("n1", gpus=3), None, history.now)
    history.now += 149.0
    other = make_job("b", count=1, gpus=1, placement=make_placement(["n1"]))
    history.put(other)
    history.now += 100.0
    history.put(make_job("b", count=1, gpus=1), other)
    with pytest.raises(PromiseBroken, match=r"^1: node n1 holds 5"):
        history.put(other)


def test_a_sound_history_is_not_reported() -> None:
    history = History()
    sound(history)
    assert history.checkers.checked > 10
    assert list(history.checkers.unfinished()) == []


CALM = WorldOptions(
    nodes=2,
    workload=WorkloadOptions(4, 600.0, members_max=1, failing_share=0.0),
    faults=PERFECT,
    calls_between_kills_mean=0.0,
    steps_between_crashes_mean=0.0,
    node_failures_per_day=0.0,
    drains_per_day=0.0,
    user_acts_per_day=0.0,
)


def test_jobs_that_wait_for_ever_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 3: a scheduler that places nothing."""
    monkeypatch.setattr("fairlead.controllers.placing.scheduler.decide", lambda *_, **__: NOTHING)
    with pytest.raises(PromiseBroken, match=r"^3: 4 jobs never end"):
        simulate(changed(CALM, settle_seconds_max=600.0), seed=1)


def test_a_run_that_is_not_repeatable_has_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 9: a random number that no seed gives."""
    first, second = simulate(CALM, seed=1), simulate(CALM, seed=1)
    assert first.log_hash == second.log_hash
    sound_rng = World._rng  # the planted bug

    def unseeded(world: World, name: str) -> random.Random:
        return random.Random() if name == "nodes" else sound_rng(world, name)

    monkeypatch.setattr(World, "_rng", unseeded)
    assert simulate(CALM, seed=1).log_hash != first.log_hash


def test_the_grace_period_stands_while_no_jobs_controller_works_and_goes_on_after() -> None:
    history = History()
    history.pod(0)
    history.now += 100.0
    history.working.ended("jobs", history.now)
    history.now += 500.0
    history.checkers.check_partial(history.now)
    history.working.ended("jobs", history.now)  # killed before its first decision
    history.working.works("scheduler", history.now)
    history.now += 500.0
    history.checkers.check_partial(history.now)
    history.working.works("jobs", history.now)
    history.now += 20.0
    history.checkers.check_partial(history.now)
    history.now += 1.0
    with pytest.raises(PromiseBroken, match="have run alone for 121 s"):
        history.checkers.check_partial(history.now)


def test_a_clock_stands_while_no_controller_works_or_may_wait_for_what_one_before_asked() -> None:
    working = WorkingTime(inherited_seconds=30.0)

    def seconds(now: float) -> tuple[float, float]:
        return working.seconds(JOBS, now), working.seconds(TEAMS, now)

    assert seconds(10.0) == (10.0, 10.0)
    working.ended("", 10.0)
    assert seconds(50.0) == (10.0, 10.0)
    working.works(JOBS, 50.0)
    working.works(JOBS, 70.0)  # its second decision
    assert [seconds(now) for now in (80.0, 85.0)] == [(10.0, 10.0), (15.0, 10.0)]
    working.works(TEAMS, 85.0)
    working.ended(JOBS, 85.0)
    working.works(JOBS, 90.0)
    working.ended(JOBS, 110.0)  # it may have waited all its life
    assert seconds(200.0) == (15.0, 125.0)


def test_members_of_an_adopted_group_stay_ended_when_others_begin_another_attempt() -> None:
    history = History(Adopts(kind="PyTorchJob", name="a", api_version="kubeflow.org/v1"))
    group = history.job

    def pod(attempt: int, index: int, phase: str = "Running") -> Pod:
        made = make_member_pod(with_status(group, attempt=attempt), index, phase=phase)
        return replace(made, metadata=replace(made.metadata, owner_references=()))

    checkers, running, ended = history.checkers, pod(1, 0), pod(1, 0, "Succeeded")
    for index in (0, 1):
        checkers.pod(pod(1, index), None, history.now)
    checkers.pod(ended, running, history.now)
    checkers.pod(None, pod(1, 1), history.now)
    history.put(history.restarted(["n1", "n2"]), group)
    checkers.pod(pod(2, 1), None, history.now)
    history.now += 1000.0
    checkers.check_partial(history.now)

    checkers.pod(None, ended, history.now)  # the other tool is to make it once more
    history.now += 1000.0
    with pytest.raises(PromiseBroken, match=r"1 of 2 members of .* have run alone for 1000 s"):
        checkers.check_partial(history.now)
