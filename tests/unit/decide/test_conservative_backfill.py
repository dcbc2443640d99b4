"""Which later jobs may start while room is kept for several jobs ahead of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
from msgspec.structs import replace
from tests.unit.decide.past_jobs import of, past

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import CPU
from fairlead.api.values.times import format_time
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.placement.actions import Action, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import PlanMemory, Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.kept_room import KeptRoom, QueueReservation, Start, together
from fairlead.decide.placement.snapshot import CarriedState, Snapshot, replay
from fairlead.decide.placement.stages.first_start import FirstStart
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.model.objects import Objects
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_anti_affinity,
    make_job,
    make_node,
    make_placement,
    make_role,
)

EASY = PlacementPolicy(starvation_seconds=0.0)
CONSERVATIVE = PlacementPolicy(starvation_seconds=0.0, backfill_reservations_max=100)
#: A time limit includes what members that do not end by themselves have on top.
HOUR = 3600 - GRACE_SECONDS_DEFAULT
HOURS_2 = 7200 - GRACE_SECONDS_DEFAULT
NODES = [make_node(name) for name in "abcd"]


def running(name: str, *nodes: str, limit: int | None = HOUR) -> Job:
    placement = replace(make_placement(list(nodes)), placed_at=format_time(EPOCH))
    return make_job(name, count=len(nodes), placement=placement, time_limit_seconds=limit)


def waiting(name: str, count: int, limit: int | None, *, after: int, gpus: int = 8) -> Job:
    return make_job(name, count=count, gpus=gpus, created=EPOCH + after, time_limit_seconds=limit)


def decided(
    *jobs: Job, policy: PlacementPolicy = CONSERVATIVE, nodes: Sequence[Node] = NODES
) -> Decision[Action]:
    return decide(PlacementState.of(nodes, jobs), policy, EPOCH)


def started(decision: Decision[Action]) -> set[str]:
    return {a.job.metadata.name for a in decision.actions if isinstance(a, PlaceJob)}


#: Two of four nodes are in use for an hour. The first job needs three of them then, for an hour,
#: the second one all four, so it starts after two hours.
RUNS = running("r", "a", "b")
FIRST = waiting("first", 3, HOUR, after=1)
SECOND = waiting("second", 4, HOUR, after=2)


def test_a_job_that_delays_the_second_one_does_not_start() -> None:
    """It leaves the three nodes that the first job needs, and is over too late for the next."""
    late = waiting("late", 1, 2 * HOURS_2, after=3)
    assert started(decided(RUNS, FIRST, SECOND, late, policy=EASY)) == {"late"}
    decision = decided(RUNS, FIRST, SECOND, late)
    assert started(decision) == set()
    verdict = decision.verdicts["default", "late"]
    assert verdict.reason is Reason.BEHIND_RESERVATION
    facts = {"job": "default/second", "starts_by": format_time(EPOCH + 7200)}
    assert verdict.facts == facts
    assert verdict.blockers == (("default", "second"),)


def test_a_job_that_delays_no_one_starts() -> None:
    in_time = waiting("in-time", 1, HOURS_2, after=3)
    assert started(decided(RUNS, FIRST, SECOND, in_time)) == {"in-time"}
    assert started(decided(RUNS, FIRST, SECOND, waiting("x", 1, HOURS_2 + 1, after=3))) == set()
    both = waiting("both", 2, HOUR, after=3)
    assert started(decided(RUNS, FIRST, SECOND, both)) == {"both"}
    assert started(decided(RUNS, FIRST, SECOND, waiting("x", 2, HOUR + 1, after=3))) == set()


def test_a_job_is_told_the_first_one_that_it_would_delay() -> None:
    decision = decided(RUNS, FIRST, SECOND, waiting("two", 2, HOURS_2, after=3))
    assert started(decision) == set()
    assert decision.verdicts["default", "two"].blockers == (("default", "first"),)
    # The first job starts after two hours, the second one before it. Of two equal jobs one is over
    # when the first one starts.
    jobs = [RUNS, running("s", "c", limit=HOURS_2), waiting("first", 4, HOUR, after=1),
            waiting("second", 3, HOUR, after=2)]  # fmt: skip
    equal = [waiting("long", 1, None, after=3), waiting("short", 1, HOURS_2, after=4)]
    decision = decided(*jobs, *equal)
    assert started(decision) == set()
    assert decision.verdicts["default", "long"].blockers == (("default", "first"),)
    assert decision.verdicts["default", "short"].blockers == (("default", "second"),)


def test_with_one_job_that_waits_it_is_easy_backfill() -> None:
    for limit in (HOUR, HOUR + 1, HOURS_2, None):
        for count in (1, 2):
            jobs = (RUNS, FIRST, waiting("later", count, limit, after=3))
            easy, found = decided(*jobs, policy=EASY), decided(*jobs)
            assert found.actions == easy.actions
            assert found.verdicts == easy.verdicts


def test_jobs_that_ask_for_the_same_have_a_reservation_each() -> None:
    """On two nodes, one free, each of two equal jobs takes both for an hour."""
    nodes = [make_node("a"), make_node("b")]
    jobs = [running("r", "a"), *(waiting(f"w{i}", 2, HOUR, after=i) for i in (1, 2))]
    small = [waiting("small", 1, 3 * 3600, after=3, gpus=2), waiting("none", 1, None, after=4)]
    decision = decided(*jobs, *small, nodes=nodes)
    assert started(decision) == set()
    for name in ("small", "none"):
        assert decision.verdicts["default", name].blockers == (("default", "w1"),)
    # A third job, for which one node is enough, has it after the two.
    third = waiting("third", 1, HOUR, after=3)
    late = waiting("late", 1, HOUR + 1, after=4)
    assert started(decided(*jobs, third, late, nodes=nodes)) == {"third"}


def test_jobs_beyond_the_limit_have_no_reservation() -> None:
    late = waiting("late", 1, 2 * HOURS_2, after=3)
    for reservations, starts in ((1, True), (2, False)):
        policy = dataclasses.replace(CONSERVATIVE, backfill_reservations_max=reservations)
        decision = decided(RUNS, FIRST, SECOND, late, policy=policy)
        assert started(decision) == ({"late"} if starts else set())


def test_each_pool_of_nodes_has_its_own_limit() -> None:
    """Two jobs wait for the nodes of each kind; the second one of either is delayed by no one."""
    nodes = [make_node(f"{kind}{i}", labels={"kind": kind}) for kind in "xy" for i in range(4)]
    jobs = list[Job]()
    for kind in "xy":
        jobs.append(running(f"r{kind}", f"{kind}0", f"{kind}1"))
        jobs += [
            make_job(f"{name}-{kind}", count=count, created=EPOCH + count, time_limit_seconds=limit,
                     node_selector={"kind": kind})
            for name, count, limit in (("first", 3, HOUR), ("second", 4, HOUR))
        ]  # fmt: skip
        jobs.append(
            make_job(f"z-{kind}", created=EPOCH + 9, time_limit_seconds=2 * HOURS_2,
                     node_selector={"kind": kind})
        )  # fmt: skip
    policy = dataclasses.replace(CONSERVATIVE, backfill_reservations_max=2)
    decision = decided(*jobs, policy=policy, nodes=nodes)
    assert started(decision) == set()
    for kind in "xy":
        verdict = decision.verdicts["default", f"z-{kind}"]
        assert verdict.blockers == (("default", f"second-{kind}"),)
    assert started(decided(*jobs, policy=EASY, nodes=nodes)) == {"z-x", "z-y"}


def test_behind_a_start_that_is_not_known_no_job_passes() -> None:
    """The first job runs without end, so it is not known when the second one starts."""
    endless = waiting("first", 3, None, after=1)
    for limit in (60, HOURS_2):
        decision = decided(RUNS, endless, SECOND, waiting("x", 1, limit, after=3))
        assert started(decision) == set()
        verdict = decision.verdicts["default", "x"]
        assert verdict.reason is Reason.BEHIND_EARLIER_JOB
        assert verdict.blockers == (("default", "second"),)


def test_behind_a_job_with_rules_about_others_jobs_have_no_reservation() -> None:
    """Where it will be is not known: it keeps all nodes until it starts, for those behind, too."""
    shy = make_job("first", count=3, created=EPOCH + 1, time_limit_seconds=HOUR,
                   affinity=make_anti_affinity(app="other"))  # fmt: skip
    for limit, starts in ((HOUR, True), (HOUR + 1, False)):
        decision = decided(RUNS, shy, SECOND, waiting("x", 1, limit, after=3))
        assert started(decision) == ({"x"} if starts else set())


def test_a_job_that_is_over_in_time_takes_no_room_from_later_ones() -> None:
    """Of eight GPUs six are kept for the first job. The short one uses four until it begins, so a
    long one may use two of the other four.
    """
    node = [make_node("a")]
    runs = make_job("r", gpus=2, placement=replace(
        make_placement(["a"]), placed_at=format_time(EPOCH)), time_limit_seconds=HOUR)  # fmt: skip
    head = waiting("head", 1, HOUR, after=1, gpus=7)
    short, long = (
        waiting("short", 1, 60, after=2, gpus=4),
        waiting("long", 1, None, after=3, gpus=1),
    )
    for policy in (EASY, CONSERVATIVE):
        decision = decided(runs, head, short, long, policy=policy, nodes=node)
        assert started(decision) == {"short", "long"}


def test_without_limits_jobs_count_by_the_run_times_of_past_ones() -> None:
    """The same as with limits of an hour; a job of two hours is over before the second one."""
    jobs = [of("ana", replace(job, spec=replace(job.spec, time_limit_seconds=None)))
            for job in (RUNS, FIRST, SECOND)]  # fmt: skip
    pasts = [each for job in jobs for each in past(job, 3600)]
    for user, seconds, starts in (("ben", 7200, True), ("cid", 7201, False)):
        late = of(user, waiting("late", 1, None, after=3))
        decision = decided(*pasts, *past(late, seconds), *jobs, late)
        assert started(decision) == ({"late"} if starts else set())
    verdict = decision.verdicts["default", "late"]
    assert verdict.reason is Reason.BEHIND_EXPECTED_START
    assert verdict.facts == {"job": "default/second", "starts_by": format_time(EPOCH + 7200)}


def test_why_says_the_start_of_the_reservation() -> None:
    """`fairlead why` of the job that waits, and the verdict of the one behind it."""
    late = waiting("late", 1, 2 * HOURS_2, after=3)
    jobs = (RUNS, FIRST, SECOND, late)
    written = {a.job.metadata.name: as_written(a) for a in decided(*jobs).actions}
    state = PlacementState.of(NODES, [written.get(job.metadata.name, job) for job in jobs])
    for name, hours in (("first", 1), ("second", 2)):
        found = explain(state, ("default", name), EPOCH, CONSERVATIVE)
        assert found is not None
        assert isinstance(found.forecast, Forecast)
        assert found.forecast.may_start_by == EPOCH + 3600 * hours
    behind = explain(state, ("default", "late"), EPOCH, CONSERVATIVE)
    assert behind is not None
    assert behind.verdict.facts["starts_by"] == format_time(EPOCH + 7200)
    assert [s.after for s in behind.suggestions] == [7140]


def test_only_starts_that_depend_on_a_change_are_calculated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[float | None] = []
    find = FirstStart.find

    def watched(self: FirstStart) -> Start | None:
        result = find(self)
        found.append(None if result is None else result.at - EPOCH)
        return result

    monkeypatch.setattr(FirstStart, "find", watched)
    state = PlacementState.of(NODES, [RUNS, FIRST, SECOND, waiting("late", 1, None, after=9)])

    def starts(at: float = 0.0) -> list[float | None]:
        found.clear()
        assert started(decide(state, CONSERVATIVE, EPOCH + at)) == set()
        return found.copy()

    assert starts() == [3600, 7200]
    assert starts() == []
    assert starts(at=60.0) == []
    state.cluster.job_changed(replace(FIRST, spec=replace(FIRST.spec, time_limit_seconds=HOURS_2)))
    assert starts() == [3600, 10800]
    assert starts() == []
    state.cluster.job_changed(waiting("second", 4, HOURS_2, after=2))
    assert starts() == [10800]
    state.cluster.job_deleted(("default", "first"))
    assert starts() == [3600]
    state.cluster.job_changed(running("r", "a", "b", limit=HOURS_2))
    assert starts() == [7200]


def test_each_pool_has_its_own_starts() -> None:
    nodes = [make_node(name, labels={"pool": name[0]}) for name in ("a1", "a2", "b1", "b2")]
    jobs = [running("r", "a1", limit=HOURS_2 + 3600), running("s", "b1")]
    for after, name in enumerate(("a-1", "a-2", "b-1", "b-2")):
        role = make_role(count=2, gpus=8, node_selector={"pool": name[0]})
        jobs.append(make_job(name, roles=[role], created=EPOCH + after, time_limit_seconds=HOUR))
    state = PlacementState.of(nodes, [*jobs, waiting("late", 1, None, after=9)])
    assert started(decide(state, CONSERVATIVE, EPOCH)) == set()
    found = [state.jobs["default", name].first_start for name in ("a-1", "a-2", "b-1", "b-2")]
    starts = [each and each.start and each.start.at - EPOCH for each in found]
    assert starts == [10800, 14400, 3600, 7200]


def test_a_replay_makes_the_same_decision() -> None:
    late = [waiting(f"late{i}", 1, limit, after=3 + i)
            for i, limit in enumerate((HOURS_2, None, HOUR))]  # fmt: skip
    jobs = (RUNS, FIRST, SECOND, *late)
    state, recall = PlacementState.of(NODES, jobs), Recall()
    decide(state, CONSERVATIVE, EPOCH)
    decision = decide(state, CONSERVATIVE, EPOCH + 1, memory=PlanMemory(recall))
    made = Snapshot(
        EPOCH + 1, Objects(tuple(NODES), jobs), CONSERVATIVE, carried=CarriedState.of(state),
        recall=recall,
    )  # fmt: skip
    assert len(decision.actions) > 2
    assert replay(made).actions == decision.actions
    other = dataclasses.replace(made, policy=EASY)
    assert replay(other).actions != decision.actions  # a canary


def test_an_overdue_job_may_end_at_any_moment() -> None:
    """So the first job may start now on three of the nodes, and the second one in an hour."""
    one, two = waiting("one", 1, HOUR, after=8), waiting("two", 2, 60, after=9)
    state = PlacementState.of(NODES, [RUNS, FIRST, SECOND, two])
    for now in (EPOCH + 3601, EPOCH + 3700):
        decision = decide(state, CONSERVATIVE, now)
        assert started(decision) == set()
        verdict = decision.verdicts["default", "two"]
        assert verdict.facts == {"job": "default/first", "starts_by": format_time(now)}
        state.cluster.job_changed(one)
        assert started(decide(state, CONSERVATIVE, now)) == {"one"}
        state.cluster.job_changed(waiting("one", 1, HOUR + 1, after=8))
        assert started(decide(state, CONSERVATIVE, now)) == set()
        state.cluster.job_deleted(("default", "one"))


def test_what_is_kept_for_several_is_the_most_of_each_and_all_where_the_room_is_not_known() -> None:
    first, second, whole = (np.array(each) for each in ([1, 1, 0], [0, 1, 1], [0, 0, 1]))
    parts = [
        KeptRoom(first.astype(np.bool_), np.array([[4, 1, 9]])),
        KeptRoom(whole.astype(np.bool_)),
        KeptRoom(second.astype(np.bool_), np.array([[9, 3, 2]])),
    ]
    known, unknown = together(parts)
    assert known.nodes.tolist() == [True, True, True]
    assert known.amounts is not None
    assert known.amounts.tolist() == [[4, 3, 2]]
    assert unknown is parts[1]
    assert together(parts[:2]) == tuple(parts[:2])


def test_without_backfill_the_number_of_reservations_has_no_effect() -> None:
    policy = dataclasses.replace(CONSERVATIVE, backfills=False)
    decision = decided(RUNS, FIRST, SECOND, waiting("late", 1, 60, after=3), policy=policy)
    assert started(decision) == set()
    assert decision.verdicts["default", "late"].blockers == (("default", "first"),)


def test_a_job_that_has_not_waited_for_long_has_no_reservation() -> None:
    late = waiting("late", 1, 2 * HOURS_2, after=3)
    for seconds, starts in ((inf, True), (0.0, False)):
        policy = dataclasses.replace(CONSERVATIVE, starvation_seconds=seconds)
        decision = decided(RUNS, FIRST, SECOND, late, policy=policy)
        assert started(decision) == ({"late"} if starts else set())


@pytest.mark.parametrize(("is_predicted", "kept"), [(False, 1000), (True, 0)])
def test_a_start_that_is_not_predicted_goes_by_the_limits_of_later_jobs(
    is_predicted: bool, kept: int
) -> None:
    table = PlacementState.of(NODES).cluster.table
    nodes, amounts = table.exists, np.zeros_like(table.free())
    place = ((np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), ((CPU, 1000),)),)
    first = QueueReservation(
        ("x", "first"), KeptRoom(nodes, amounts), 800.0, is_predicted, place=place
    )
    later = QueueReservation(
        ("x", "later"), KeptRoom(nodes), 500.0, is_predicted=True, place=place,
        hold_seconds=1000.0, likely_seconds=100.0,
    )  # fmt: skip
    first.beside(table, later)
    assert amounts[table.row(CPU), 0] == kept
