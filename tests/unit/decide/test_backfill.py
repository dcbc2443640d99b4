"""Which later jobs may start while room is kept for the head of the queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import inf

import pytest
from msgspec.structs import replace
from tests.unit.decide.past_jobs import of, past

from fairlead.api.jobs.job import Attempt, Job, Progress
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ResourceQuotaStatus
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import Action, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import PlanMemory, Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.kept_room import Start
from fairlead.decide.placement.snapshot import CarriedState, Snapshot, replay
from fairlead.decide.placement.stages.first_start import FirstStart
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.model.objects import Objects
from fairlead.testing.builders import (
    EPOCH,
    make_anti_affinity,
    make_job,
    make_node,
    make_placement,
)

EASY = PlacementPolicy(starvation_seconds=0.0)
STRICT = PlacementPolicy(starvation_seconds=0.0, backfills=False)
#: Time limits include what members that do not end by themselves have on top.
HOUR = 3600 - GRACE_SECONDS_DEFAULT


def running(name: str, *nodes: str, gpus: int = 8, limit: int | None = HOUR) -> Job:
    placement = replace(make_placement(list(nodes)), placed_at=format_time(EPOCH))
    return make_job(
        name, count=len(nodes), gpus=gpus, placement=placement, time_limit_seconds=limit
    )


def later(name: str, limit: int | None, *, gpus: int = 8, after: int = 1, count: int = 1) -> Job:
    return make_job(name, gpus=gpus, count=count, created=EPOCH + after, time_limit_seconds=limit)


def decided(
    nodes: Sequence[Node], *jobs: Job, policy: PlacementPolicy = EASY, pods: Sequence[Pod] = ()
) -> Decision[Action]:
    return decide(PlacementState.of(nodes, jobs, pods), policy, EPOCH)


def placed(decision: Decision[Action]) -> Mapping[str, tuple[str, ...]]:
    return {
        action.job.metadata.name: action.placement.roles[0].nodes
        for action in decision.actions
        if isinstance(action, PlaceJob)
    }


NODES = [make_node("a"), make_node("b")]
HEAD = make_job("head", count=2)


def test_a_job_that_is_over_before_the_head_starts_may_use_its_nodes() -> None:
    for limit, starts in ((HOUR, True), (HOUR + 1, False), (None, False)):
        decision = decided(NODES, running("r", "a"), HEAD, later("small", limit))
        assert placed(decision) == ({"small": ("b",)} if starts else {})


def test_who_waits_is_told_until_when_the_room_is_kept() -> None:
    decision = decided(NODES, running("r", "a"), HEAD, later("small", None))
    verdict = decision.verdicts["default", "small"]
    assert verdict.reason is Reason.BEHIND_RESERVATION
    assert verdict.facts == {"job": "default/head", "starts_by": format_time(EPOCH + 3600)}
    assert verdict.blockers == (("default", "head"),)


def test_without_backfill_later_jobs_keep_off_whatever_their_limits() -> None:
    small = later("small", 60)
    decision = decided(NODES, running("r", "a"), HEAD, small, policy=STRICT)
    assert placed(decision) == {}
    assert decision.verdicts["default", "small"].reason is Reason.BEHIND_EARLIER_JOB


@pytest.mark.parametrize("limit", [60, None])
def test_a_running_job_without_a_limit_leaves_the_start_unknown(limit: int | None) -> None:
    decision = decided(NODES, running("r", "a", limit=None), HEAD, later("small", limit))
    assert placed(decision) == {}
    assert decision.verdicts["default", "small"].reason is Reason.BEHIND_EARLIER_JOB


def test_room_that_the_head_leaves_is_for_all() -> None:
    nodes = [*NODES, make_node("c"), make_node("d")]
    many = [later(f"small{i}", None, after=i) for i in range(1, 5)]
    # Of the nodes that are idle now it needs those that will not be free by then.
    for count, left in ((3, {"small1": ("d",)}), (4, {})):
        head = make_job("head", count=count)
        assert placed(decided(nodes, running("r", "a", "b"), head, *many)) == left
    # Those of jobs that end at the same time serve as well.
    both = (running("r", "a"), running("s", "b"))
    head = make_job("head", count=3)
    assert placed(decided(nodes, *both, head, *many)) == {"small1": ("d",)}


def test_what_is_kept_is_an_amount_not_a_node() -> None:
    """The head takes six of the eight GPUs that the node has once the other job is over."""
    head = make_job("head", gpus=6)
    for gpus, starts in ((2, True), (3, False)):
        decision = decided(
            [make_node("a")], running("r", "a", gpus=4), head, later("x", None, gpus=gpus)
        )
        assert placed(decision) == ({"x": ("a",)} if starts else {})
    twice = [later("x", None, gpus=1), later("y", None, gpus=2, after=2), later("z", None, gpus=1)]
    decision = decided([make_node("a")], running("r", "a", gpus=4), head, *twice)
    assert placed(decision) == {"x": ("a",), "z": ("a",)}


def test_the_first_end_that_makes_room_is_found_among_many() -> None:
    """Twenty jobs end a minute apart: the head of seven nodes starts with the seventh end."""
    nodes = [make_node(f"n{i:02}") for i in range(20)]
    jobs = [running(f"r{i:02}", f"n{i:02}", limit=60 * (i + 1)) for i in range(20)]
    for count in (1, 2, 3, 7, 16, 17, 20):
        spare = [*nodes, make_node("spare")]
        head = make_job("head", count=count + 1)
        decision = decided(spare, *jobs, head, later("small", None))
        end = format_time(EPOCH + 60 * count + GRACE_SECONDS_DEFAULT)
        assert decision.verdicts["default", "small"].facts["starts_by"] == end
        assert placed(decided(spare, *jobs, head, later("small", 60 * count))) == {
            "small": ("spare",)
        }


def test_jobs_that_this_decision_places_end_too() -> None:
    urgent = make_job("urgent", priority=1, time_limit_seconds=HOUR)
    decision = decided(NODES, urgent, HEAD, later("small", HOUR), later("long", HOUR + 1))
    assert placed(decision) == {"urgent": ("a",), "small": ("b",)}


def test_a_short_job_passes_equal_ones_that_are_long() -> None:
    jobs = [later(f"j{i}", 60 if i == 5 else None, after=i) for i in range(1, 9)]
    assert placed(decided(NODES, running("r", "a"), HEAD, *jobs)) == {"j5": ("b",)}


def test_a_job_whose_limit_changes_while_it_waits_is_found_by_the_new_one() -> None:
    jobs = [later(f"j{i}", None, after=i) for i in range(1, 9)]
    state = PlacementState.of(NODES, [running("r", "a"), HEAD, *jobs])
    assert placed(decide(state, EASY, EPOCH)) == {}
    for limit, found in ((60, {"j5": ("b",)}), (7200, {}), (90, {"j5": ("b",)})):
        changed = replace(jobs[4], spec=replace(jobs[4].spec, time_limit_seconds=limit))
        state.cluster.job_changed(changed)
        assert placed(decide(state, EASY, EPOCH)) == found


def test_each_pool_of_nodes_has_a_head_of_its_own() -> None:
    """Two large jobs wait for nodes of two kinds, and one that could use both behind them."""
    kinds = ("x", "y")
    nodes = [make_node(f"{kind}{i}", labels={"kind": kind}) for kind in kinds for i in range(2)]
    ends = [running("rx", "x0", limit=HOUR), running("ry", "y0", limit=2 * HOUR)]
    heads = [
        make_job(f"head-{kind}", count=2, created=EPOCH + i, node_selector={"kind": kind})
        for i, kind in enumerate(kinds)
    ]
    both = make_job("both", count=4, created=EPOCH + 2)
    late = [
        make_job(f"late-{kind}", created=EPOCH + 3, node_selector={"kind": kind},
                 time_limit_seconds=HOUR + 1)
        for kind in kinds
    ]  # fmt: skip
    decision = decided(nodes, *ends, *heads, both, *late)
    assert placed(decision) == {"late-y": ("y1",)}
    facts = {"job": "default/head-x", "starts_by": format_time(EPOCH + 3600)}
    assert decision.verdicts["default", "late-x"].facts == facts
    late = [replace(job, spec=replace(job.spec, time_limit_seconds=None)) for job in late]
    decision = decided(nodes, *ends, *heads, both, *late)
    assert placed(decision) == {}
    end = format_time(EPOCH + 2 * HOUR + GRACE_SECONDS_DEFAULT)
    facts = {"job": "default/head-y", "starts_by": end}
    assert decision.verdicts["default", "late-y"].facts == facts
    # A job that could use nodes of both kinds is over before the one and not before the other.
    anywhere = [
        later(f"any{i}", limit, after=3 + i) for i, limit in enumerate((None, HOUR + 1, HOUR))
    ]
    assert placed(decided(nodes, *ends, *heads, both, *anywhere)) == {
        "any1": ("y1",), "any2": ("x1",)
    }  # fmt: skip


def test_jobs_that_wait_for_something_else_hide_no_head() -> None:
    """However many they are: those of a namespace whose quota is used up are first in the queue."""
    poor = [
        make_job(f"poor-{i:04}", namespace="poor", count=2, created=EPOCH - 5000 + i)
        for i in range(1500)
    ]
    state = PlacementState.of(NODES, [*poor, running("r", "a", limit=None), HEAD,
                                      later("small", None)])  # fmt: skip
    amounts = {"requests.nvidia.com/gpu": "8"}
    quota = ResourceQuota(
        ObjectMeta(name="q", namespace="poor"), status=ResourceQuotaStatus(amounts, amounts)
    )
    state.cluster.quotas.put(quota)
    assert placed(decide(state, EASY, EPOCH)) == {}
    never = PlacementPolicy(starvation_seconds=inf)
    assert placed(decide(state, never, EPOCH)) == {"small": ("b",)}


def test_a_group_finds_its_first_short_job_among_many_limits() -> None:
    jobs = [later(f"j{i:03}", 7200 - i, after=i) for i in range(1, 300)]
    jobs += [later("late", 60, after=400), later("later", 30, after=500)]
    assert placed(decided(NODES, running("r", "a"), HEAD, *jobs)) == {"late": ("b",)}
    state = PlacementState.of(NODES, [running("r", "a"), HEAD, *jobs])
    for gone in ("late", "j001", "j150"):
        state.cluster.job_deleted(("default", gone))
    assert placed(decide(state, EASY, EPOCH)) == {"later": ("b",)}


def test_a_job_with_rules_about_others_uses_the_nodes_only_if_it_is_over() -> None:
    nodes = [*NODES, make_node("c")]
    for limit, starts in ((60, True), (None, False)):
        shy = make_job("shy", created=EPOCH + 1, time_limit_seconds=limit,
                       affinity=make_anti_affinity(app="other"))  # fmt: skip
        decision = decided(nodes, running("r", "a", "b"), HEAD, shy)
        assert bool(placed(decision).get("shy")) is starts


def test_a_head_with_rules_about_others_leaves_its_nodes_to_jobs_that_are_over() -> None:
    nodes = [*NODES, make_node("c"), make_node("d")]
    head = make_job("head", count=3, affinity=make_anti_affinity(app="other"))
    for limit, starts in ((HOUR, True), (None, False)):
        decision = decided(nodes, running("r", "a", "b"), head, later("small", limit))
        assert bool(placed(decision)) is starts


def test_the_start_of_the_head_is_calculated_again_when_a_node_or_an_end_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[float | None] = []
    find = FirstStart.find

    def watched(self: FirstStart) -> Start | None:
        result = find(self)
        found.append(None if result is None else result.at)
        return result

    monkeypatch.setattr(FirstStart, "find", watched)
    job = running("r", "a")
    state = PlacementState.of(NODES, [job, HEAD, later("small", None)])

    def starts() -> list[float | None]:
        found.clear()
        assert placed(decide(state, EASY, EPOCH)) == {}
        return found.copy()

    end = EPOCH + HOUR + GRACE_SECONDS_DEFAULT
    assert starts() == [end]
    assert starts() == []
    state.cluster.job_changed(later("other", None))
    assert starts() == []
    attempt = Attempt(number=1, started_at=format_time(EPOCH + 10))
    started = replace(job, status=replace(job.status, attempts=(attempt,)))
    state.cluster.job_changed(started)
    assert starts() == [end + 10]
    assert starts() == []
    state.cluster.node_changed(make_node("c"))
    assert placed(decide(state, EASY, EPOCH)) == {"head": ("b", "c")}
    state.cluster.node_changed(make_node("c", unschedulable=True))
    assert starts() == [end + 10]
    state.cluster.job_changed(running("r", "a", limit=2 * HOUR))
    assert starts() == [end + HOUR]
    state.cluster.job_changed(running("r", "a", limit=None))
    assert starts() == [None]
    state.cluster.job_deleted(("default", "r"))
    assert placed(decide(state, EASY, EPOCH)) == {"head": ("a", "b")}


PREDICTED = PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=600.0)


RUNS = of("ana", running("r", "a", limit=None))
HOURLY = [
    *past(RUNS, 3600),
    *past(of("ana", later("j", None)), 3600),
    *past(of("ben", later("j", None)), 3601),
]


def test_without_limits_jobs_count_by_the_run_times_of_past_ones() -> None:
    for user, starts in (("ana", True), ("ben", False)):
        small = of(user, later("j", None))
        decision = decided(NODES, *HOURLY, RUNS, HEAD, small, policy=PREDICTED)
        assert placed(decision) == ({"j": ("b",)} if starts else {})
        assert decision.wake_at == EPOCH + 3600  # then it is predicted again
    verdict = decision.verdicts["default", "j"]
    assert verdict.reason is Reason.BEHIND_EXPECTED_START
    assert verdict.facts == {"job": "default/head", "starts_by": format_time(EPOCH + 3600)}


def test_predictions_end_with_their_bound() -> None:
    """It counts from when room was first kept for the job from another one."""
    small = of("cid", later("small", None))
    state = PlacementState.of(NODES, [*HOURLY, *past(small, 60), RUNS, HEAD, small])
    for seconds in (0, 599):
        assert placed(decide(state, PREDICTED, EPOCH + seconds)) == {"small": ("b",)}
    decision = decide(state, PREDICTED, EPOCH + 600)
    assert placed(decision) == {}
    assert decision.verdicts["default", "small"].reason is Reason.BEHIND_EARLIER_JOB
    state.cluster.job_changed(running("head", "a", "b", limit=None))
    state.cluster.job_deleted(RUNS.metadata.key)
    state.cluster.job_changed(HEAD)  # it waits again
    state.cluster.job_changed(RUNS)
    assert placed(decide(state, PREDICTED, EPOCH + 600)) == {"small": ("b",)}


def test_a_replay_knows_since_when_room_is_kept() -> None:
    small = of("cid", later("small", None))
    jobs = (*HOURLY, *past(small, 60), RUNS, HEAD, small)
    state = PlacementState.of(NODES, jobs)
    decide(state, PREDICTED, EPOCH)
    recall = Recall()
    decision = decide(state, PREDICTED, EPOCH + 600, memory=PlanMemory(recall))
    made = Snapshot(EPOCH + 600, Objects(tuple(NODES), jobs), PREDICTED, recall=recall)
    assert (
        placed(replay(dataclasses.replace(made, carried=CarriedState.of(state))))
        == placed(decision)
        == {}
    )
    assert placed(replay(made)) == {"small": ("b",)}  # a canary


def test_an_exceeded_prediction_is_corrected() -> None:
    """The job that was to end at an hour goes on: for how long, no past job tells."""
    policy = PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=inf)
    state = PlacementState.of(NODES, [*past(RUNS, 3600), RUNS, HEAD, later("long", HOUR)])
    for seconds, starts in ((0, True), (1, False), (3599, False), (3600, True)):
        found = placed(decide(state, policy, EPOCH + seconds))
        assert found == ({"long": ("b",)} if starts else {})


def test_a_job_that_past_jobs_tell_to_be_short_passes_equal_ones() -> None:
    jobs = [of("ana" if i == 5 else "ben", later(f"j{i}", None, after=i)) for i in range(1, 9)]
    decision = decided(NODES, *HOURLY, RUNS, HEAD, *jobs, policy=PREDICTED)
    assert placed(decision) == {"j5": ("b",)}


def test_a_job_that_goes_on_from_a_checkpoint_is_predicted_by_what_is_left() -> None:
    """A job of an hour has run for half of it, and the head starts in half an hour."""
    runs = of("ana", running("r", "a", limit=1800 - GRACE_SECONDS_DEFAULT))
    for saved, starts in ((7, True), (None, False)):
        ran = Attempt(1, started_at=format_time(EPOCH - 1800), finished_at=format_time(EPOCH))
        status = {"attempts": (ran,), "progress": Progress(checkpoint_step=saved)}
        small = of("ana", make_job("j", created=EPOCH + 1, attempt=2, status=status))
        decision = decided(NODES, *HOURLY, runs, HEAD, small, policy=PREDICTED)
        assert placed(decision) == ({"j": ("b",)} if starts else {})
