"""Tests of nodes in simulated worlds, and planted bugs that their checker reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.values.times import format_time
from fairlead.decide.health import cycle
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving import gate
from fairlead.embedded.virtual.hardware import Quality
from fairlead.embedded.virtual.profile import load_profile
from fairlead.model.health.node_record import NodeRecord, NodeState, record_text
from fairlead.model.pools.yielding_tests import YieldingTests
from fairlead.sim.actors import silent_faults
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.working_time import WorkingTime
from fairlead.sim.promises.node_test_checker import NodeTestChecker
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_pod

from .test_teams import HOUR, run_world

DEFAULT = load_profile("default")
GATED = replace_struct(DEFAULT, node=replace_struct(DEFAULT.node, preflight=True))
TESTED = HealthPolicy(
    enabled=True, act_on=("node-test",), test_suite="quick", idle_test_suite="quick",
    idle_test_after_seconds=300, idle_test_interval_seconds=3600,
)  # fmt: skip
BAD = WorldOptions(
    24, WorkloadOptions(30, 4 * HOUR, members_max=4, run_seconds_max=2400.0), health=TESTED,
    faults=PERFECT, replicas=1, calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0,
    node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0,
    node_repair_seconds=3600.0, infant_share=0.2, silent_faults_per_day=20.0, found_after_hits=2,
    renews_watches=False, keeps_events=False, profile=GATED,
)  # fmt: skip
#: Tested again and again, so that many tests are in the way of something.
BUSY = replace(
    BAD, infant_share=0.0, silent_faults_per_day=0.0, nodes=12,
    health=replace(
        TESTED, idle_test_after_seconds=30, idle_test_interval_seconds=120, idle_test_share=0.5
    ),
)  # fmt: skip


def test_tests_find_silent_faults_before_gangs_do_and_cost_next_to_nothing() -> None:
    tested = run_world(lambda: World(BAD, 6))
    bare = replace(BAD, health=HealthPolicy(), profile=DEFAULT)
    untested = run_world(lambda: World(bare, 6))
    assert untested.node_tests.tests == 0
    assert untested.silent.found_by_people > 0
    assert untested.silent.found_by_tests == 0
    assert tested.silent.found_by_tests > 2
    assert tested.silent.taken > 2
    assert tested.silent.taken_good == 0
    assert tested.silent.gangs_hit < untested.silent.gangs_hit
    assert tested.silent.lost_gpu_seconds < untested.silent.lost_gpu_seconds / 2
    assert tested.node_tests.share < 0.01, "each is tested once an hour here"
    assert tested.node_tests.coverage == 1.0
    assert tested.node_tests.periods > 5


def test_tests_leave_for_work_whatever_fails() -> None:
    """Refused and lost calls, cut watches, and controllers that are killed."""
    busy = replace(BUSY.health, idle_test_interval_seconds=40, idle_test_share=1.0)
    rough = replace(
        BUSY, health=busy, faults=WorldOptions().faults, replicas=2, calls_between_kills_mean=300.0,
        user_acts_per_day=300.0, node_failures_per_day=20.0, renews_watches=True,
        workload=replace(BUSY.workload, jobs=40, seconds=HOUR / 2, run_seconds_max=300.0),
    )  # fmt: skip
    world = run_world(lambda: World(rough, 1))
    assert world.kills > 5
    assert world.node_tests.left > 2, "work came while a test ran"
    assert world.node_tests.most > 1
    assert len(world.checkers.finished) == 40


def test_a_test_that_stays_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "step_aside", lambda *_, **__: None)
    with pytest.raises(PromiseBroken, match=r"^14: the test \S+ is on \S+ 5 s after a place"):
        run_world(lambda: World(BUSY, 2))


def test_a_member_that_begins_beside_a_test_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(YieldingTests, "begin", lambda *_: None)
    with pytest.raises(PromiseBroken, match=r"^14: \S+ begins on \S+ beside the test "):
        run_world(lambda: World(BUSY, 2))


def test_tests_beyond_their_share_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_tests: Any = cycle.idle_tests

    def greedy(*given: Any, open_count: int, nodes: int) -> Iterator[Any]:
        return idle_tests(*given, open_count=0, nodes=nodes)

    monkeypatch.setattr(cycle, "idle_tests", greedy)
    few = replace(BUSY, health=replace(BUSY.health, idle_test_share=0.1))
    with pytest.raises(PromiseBroken, match=r"^14: \d+ idle nodes are under test, 1 may be"):
        run_world(lambda: World(few, 2))


def test_a_node_that_idles_untested_is_reported() -> None:
    checker = NodeTestChecker(TESTED, WorkingTime())
    for name in ("n1", "n2"):
        checker.node(make_node(name), name, EPOCH)
    test = make_pod("n2-1", namespace="kube-system", node="n2", labels={names.NODE_TEST: "quick"})
    checker.pod(test, test.metadata.key, EPOCH + HOUR)
    ended = replace_struct(test, status=replace_struct(test.status, phase="Succeeded"))
    checker.pod(ended, test.metadata.key, EPOCH + HOUR + 60)
    checker.check_by_clock(EPOCH + 27 * HOUR)
    with pytest.raises(PromiseBroken, match=r"^14: n1 has been idle for 27.1 h without a test"):
        checker.check_by_clock(EPOCH + 27.1 * HOUR)


def test_an_idle_half_hour_is_covered_by_a_test_within_a_day() -> None:
    checker = NodeTestChecker(TESTED, WorkingTime())
    checker.node(make_node("n1"), "n1", EPOCH)
    for number, at in enumerate((HOUR, 1.25 * HOUR, 3 * HOUR)):  # idle for 60, 10, 100 minutes
        work = make_pod(f"work-{number}", node="n1")
        checker.pod(work, work.metadata.key, EPOCH + at)
        checker.pod(None, work.metadata.key, EPOCH + at + 300)
    test = make_pod("n1-1", namespace="kube-system", node="n1", labels={names.NODE_TEST: "quick"})
    checker.pod(test, test.metadata.key, EPOCH + 25 * HOUR)
    ended = replace_struct(test, status=replace_struct(test.status, phase="Succeeded"))
    checker.pod(ended, test.metadata.key, EPOCH + 25 * HOUR)
    assert (checker.periods, checker.covered) == (2, 1), "the first had half an hour too late"


#: The same in pairs, of which each node meets others every few minutes.
PAIRED = replace(
    BUSY, nodes=12, infant_share=0.1, silent_faults_per_day=100.0,
    workload=replace(BUSY.workload, jobs=10, seconds=1.5 * HOUR),
    health=replace(BUSY.health, pair_tests=True, act_on=("*",), idle_test_share=1.0),
)  # fmt: skip


@pytest.fixture
def _links(monkeypatch: pytest.MonkeyPatch) -> None:
    """All machines that become bad have a slow network interface."""
    monkeypatch.setattr(silent_faults, "_KINDS", ())


@pytest.mark.usefixtures("_links")
def test_pairs_find_slow_interfaces_and_blame_no_healthy_partner() -> None:
    world = run_world(lambda: World(PAIRED, 4))
    assert world.node_tests.pairs > 20
    assert world.silent.found_by_pairs > 0, "and each of them is slow, by the checker"


def test_a_healthy_partner_that_is_blamed_is_reported() -> None:
    record = NodeRecord(
        NodeState.CORDONED, format_time(EPOCH), "critical node-test network Failed", session=1
    )
    notes = {names.HEALTH: record_text(record)}

    async def main() -> None:
        silent = World(PAIRED, 4).silent
        silent.bad["n2"] = Quality.LINK
        silent.node(make_node("n2", annotations=notes), "n2", EPOCH)
        assert silent.found_by_pairs == 1
        with pytest.raises(PromiseBroken, match=r"^14: n1 is out for its pairs, and its"):
            silent.node(make_node("n1", annotations=notes), "n1", EPOCH)

    run(main())


def _side(name: str, peer: str, *, number: int = 1) -> Pod:
    labels = {names.NODE_TEST: "pair", names.NODE_TEST_YIELDS: "true"}
    pod = make_pod(f"{name}-{number}", namespace="kube-system", node=name, labels=labels)
    [container] = pod.spec.containers
    container = replace_struct(container, command=("fairlead", "agent", "pair", "--peer", peer))
    return replace_struct(pod, spec=replace_struct(pod.spec, containers=(container,)))


def _checker_of_pair() -> NodeTestChecker:
    checker = NodeTestChecker(replace(TESTED, pair_tests=True), WorkingTime())
    for name, peer in (("n1", "n2"), ("n2", "n1")):
        checker.node(make_node(name), name, EPOCH)
        pod = _side(name, peer)
        checker.pod(pod, pod.metadata.key, EPOCH)
    return checker


def test_a_side_of_a_pair_that_stays_when_its_partner_has_work_is_reported() -> None:
    checker = _checker_of_pair()
    placed = make_job("work", placement=make_placement(["n1"]))
    checker.job(placed, placed.metadata.key, EPOCH + 1)
    gone = _side("n1", "n2").metadata.key
    checker.pod(None, gone, EPOCH + 2)
    checker.check_by_clock(EPOCH + 5)
    with pytest.raises(PromiseBroken, match=r"^14: the test n2-1 is on n2 5 s after a place there"):
        checker.check_by_clock(EPOCH + 7)


def test_a_node_in_two_tests_at_a_time_is_reported() -> None:
    second = _side("n2", "n3", number=2)
    with pytest.raises(PromiseBroken, match=r"^14: the test n2-2 begins on n2 beside n2-1"):
        _checker_of_pair().pod(second, second.metadata.key, EPOCH + 1)
