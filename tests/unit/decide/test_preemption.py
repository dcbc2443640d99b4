"""Preemption: whole gangs of lower priority give their nodes to one of higher priority."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import (
    Adopts,
    Attempt,
    Cause,
    Job,
    JobStatus,
    Progress,
    Topology,
    VerdictStatus,
)
from fairlead.api.jobs.placement import Nomination, Preemption, RolePlacement, Victim
from fairlead.api.kubernetes.core import ContainerPort
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED
from fairlead.api.values.times import format_time
from fairlead.decide.answers import forecast
from fairlead.decide.answers.explain import explain
from fairlead.decide.placement.actions import (
    Action,
    NominateJob,
    PlaceJob,
    PreemptJob,
    ReleaseJob,
    WithdrawNomination,
    WithdrawPreemption,
    WriteVerdict,
)
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.evict.preempt import PotentialRises, check_potential, potential
from fairlead.decide.placement.waiting.lost_work import HoldingAttempt, silent_seconds
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.cluster import ClusterState
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.model.pools.grouping import alone
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_priority_class,
)

HOUR = 3600.0
Attempts = tuple[Attempt, ...]
POLICY = PlacementPolicy()


def running(name: str, nodes: list[str], *, since: float = EPOCH - HOUR, **more: object) -> Job:
    """A gang that runs, one member per entry of `nodes`."""
    at = format_time(since)
    record = Attempt(number=1, begun_at=at, started_at=at)
    more.setdefault("priority", 0)
    status = {"attempts": (record,), **more.pop("status", {})}  # type: ignore[dict-item] # passed on
    return make_job(
        name, count=len(nodes), placement=make_placement(nodes), status=status, **more,  # type: ignore[arg-type] # passed on
    )  # fmt: skip


@dataclass
class Cluster:
    """Objects, and a planner whose writes are made; `leave` plays the jobs controller."""

    state: PlacementState
    policy: PlacementPolicy = POLICY
    now: float = EPOCH
    #: Names of the jobs that were asked to leave, in order.
    asked: list[str] = field(default_factory=list)

    def step(self) -> list[Action]:
        """Decide once and write."""
        decision = decide(self.state, self.policy, self.now)
        for action in decision.actions:
            if isinstance(action, PreemptJob):
                self.asked.append(action.job.metadata.name)
            self.state.cluster.job_changed(as_written(action))
        return list(decision.actions)

    def settle(self) -> None:
        """Decide until nothing is left to write."""
        for _ in range(20):
            if not self.step():
                return
        raise AssertionError("the planner never settles")

    def job(self, name: str) -> Job:
        return self.state.jobs["default", name].job

    def put(self, job: Job) -> None:
        self.state.cluster.job_changed(job)

    def leave(self, name: str) -> None:
        """The attempt ends for another job, the place is taken back, the job queues again."""
        job = self.job(name)
        assert job.status.preemption is not None
        record = replace(job.status.attempts[-1], finished_at=format_time(self.now))
        status = replace(job.status, attempts=(record,), conditions=(_admitted("False"),))
        self.put(replace(job, status=status))
        self.settle()
        job = self.job(name)
        assert job.status.placement is None
        assert job.status.preemption is None
        number = job.status.attempt + 1
        status = replace(job.status, attempt=number, conditions=(_admitted("True"),))
        self.put(replace(job, status=status))

    def nodes_of(self, name: str) -> set[str]:
        placement = self.job(name).status.placement
        return {n for role in placement.roles for n in role.nodes} if placement else set()

    def reason(self, name: str) -> str:
        verdict = self.job(name).status.verdict
        return verdict.reason if verdict is not None else ""

    def nominated(self, name: str) -> set[str]:
        nomination = self.job(name).status.nomination
        return {n for r in nomination.roles for n in r.nodes} if nomination is not None else set()


def _admitted(status: str) -> Condition:
    reason = Reason.PREEMPTED.value if status == "False" else ""
    return Condition(type=ADMITTED, status=status, reason=reason)


def cluster(nodes: int, *jobs: Job, policy: PlacementPolicy = POLICY) -> Cluster:
    names = [make_node(f"n{i}") for i in range(nodes)]
    return Cluster(PlacementState.of(names, jobs), policy)


def test_a_job_of_higher_priority_gets_the_nodes_of_a_running_one() -> None:
    world = cluster(2, running("low", ["n0", "n1"]), make_job("high", priority=100, count=2))
    first = world.step()
    assert [type(action) for action in first] == [NominateJob]
    assert world.nominated("high") == {"n0", "n1"}
    assert world.reason("high") == Reason.PREEMPTING.value
    second = world.step()
    assert [type(action) for action in second] == [PreemptJob]
    assert world.job("low").status.preemption.priority == 100
    world.settle()
    assert world.job("high").status.placement is None
    world.leave("low")
    world.settle()
    assert world.nodes_of("high") == {"n0", "n1"}
    assert world.job("high").status.nomination is None
    assert world.reason("low") == Reason.INSUFFICIENT_CAPACITY.value


@pytest.mark.parametrize("priority", [0, -1])
def test_jobs_of_equal_or_higher_priority_are_no_victims(priority: int) -> None:
    world = cluster(1, running("other", ["n0"]), make_job("job", priority=priority))
    world.settle()
    assert world.job("job").status.nomination is None
    assert world.reason("job") == Reason.INSUFFICIENT_CAPACITY.value


def test_two_gangs_that_interleave_leave_whole() -> None:
    """Taking a member of each would break two gangs and place the job nowhere whole."""
    first, second = running("a", ["n0", "n2"]), running("b", ["n1", "n3"])
    world = cluster(4, first, second, make_job("high", priority=1, count=2))
    world.settle()
    assert world.asked == ["a"]
    assert world.nominated("high") == {"n0", "n2"}


def test_a_gang_one_short_of_preempting_enough_preempts_none() -> None:
    world = cluster(
        4, running("a", ["n0", "n1"]), running("b", ["n2"]), running("equal", ["n3"], priority=1),
        make_job("high", priority=1, count=4),
    )  # fmt: skip
    world.settle()
    assert world.asked == []
    assert world.reason("high") == Reason.INSUFFICIENT_CAPACITY.value


def test_idle_nodes_count_before_any_victim() -> None:
    world = cluster(
        4, running("a", ["n0"]), running("b", ["n1"]), make_job("high", priority=1, count=3)
    )
    world.settle()
    assert len(world.asked) == 1
    assert {"n2", "n3"} < world.nominated("high")


def test_a_big_job_gets_its_nodes_behind_an_endless_stream_of_small_ones() -> None:
    """What becomes free is kept for it, however many small jobs of lower priority wait."""
    small = [running(f"s{i}", [f"n{i}"]) for i in range(4)]
    waiting = [make_job(f"w{i}", priority=0, created=EPOCH - 100) for i in range(8)]
    world = cluster(4, *small, *waiting, make_job("big", priority=1, count=4))
    world.settle()
    for number, job in enumerate(small):
        world.leave(job.metadata.name)
        world.put(make_job(f"late{number}", priority=0))
        world.settle()
        assert [n for n in world.state.jobs if n[1][0] in "wl" and world.nodes_of(n[1])] == []
    assert len(world.nodes_of("big")) == 4


def test_the_place_of_a_nominated_job_goes_to_no_other_while_its_victims_leave() -> None:
    world = cluster(3, running("low", ["n0", "n1"]), make_job("high", priority=1, count=3))
    world.settle()
    world.put(make_job("small", priority=0))
    world.put(make_job("higher", priority=2))
    world.settle()
    assert world.nodes_of("small") == set()
    assert world.job("high").status.nomination is not None
    world.leave("low")
    world.settle()
    assert len(world.nodes_of("high")) == 3


def test_a_victim_that_came_back_beside_a_kept_place_is_not_asked_again() -> None:
    jobs = [
        running("stays", ["n0"], gpus=8),
        running("small", ["n1"], gpus=4),
        running("other", ["n1"], gpus=2),
        make_job("high", priority=1, count=2, gpus=6),
    ]
    world = cluster(2, *jobs)
    world.settle()
    assert world.nominated("high") == {"n0", "n1"}
    assert sorted(world.asked) == ["small", "stays"]
    world.now += 5
    world.leave("small")
    small = world.job("small")
    world.put(replace(small, spec=make_job("small", priority=0, gpus=0).spec))
    world.settle()
    place = world.nodes_of("small")
    assert place < world.nominated("high"), "it runs beside what is kept"
    assert sorted(world.asked) == ["small", "stays"]
    world.leave("stays")
    world.settle()
    assert world.nodes_of("high") == {"n0", "n1"}
    assert world.nodes_of("small") == place


def test_the_slot_of_a_wounded_gang_is_not_taken_while_it_waits_for_a_replacement() -> None:
    """Not by preemption either: it keeps its healthy nodes, and holds them for a bounded time."""
    record = Attempt(number=1, finished_at=format_time(EPOCH), nodes_lost=("gone",))
    wounded = make_job(
        "wounded", count=2, attempt=2, priority=0, placement=make_placement(["n0", "gone"]),
        status={"attempts": (record,)},
    )  # fmt: skip
    world = cluster(1, wounded, make_job("high", priority=100))
    world.settle()
    assert world.asked == []
    assert world.reason("wounded") == Reason.REPAIRING.value


def test_several_nodes_lost_at_once_cost_no_other_gang_its_place_while_others_wait() -> None:
    """Three of four nominated nodes go; the job is planned again, once, on what there is."""
    jobs = [running("a", ["n0", "n1"]), running("b", ["n2", "n3"]), running("c", ["n4", "n5"])]
    world = cluster(6, *jobs, make_job("high", priority=1, count=4))
    world.settle()
    assert len(world.asked) == 2
    lost = sorted(world.nominated("high"))[:3]
    for name in lost:
        world.state.cluster.node_deleted(name)
    world.settle()
    assert world.job("high").status.nomination is None
    assert world.reason("high") == Reason.EXCEEDS_CLUSTER.value
    still_asked = [j for j in world.state.jobs if world.job(j[1]).status.preemption is not None]
    assert still_asked == []


def test_reclaim_between_two_jobs_does_not_go_back_and_forth() -> None:
    """What was preempted queues again and preempts nothing: the next decisions are empty."""
    world = cluster(2, running("low", ["n0", "n1"]), make_job("high", priority=1, count=2))
    world.settle()
    world.leave("low")
    world.settle()
    for _ in range(5):
        world.now += HOUR
        world.settle()
    assert world.asked == ["low"]
    assert world.nodes_of("high") == {"n0", "n1"}


def test_the_least_lost_work_goes_first() -> None:
    saved = Progress(10, 10, checkpointed_at=format_time(EPOCH - 60))
    old = Progress(10, 10, checkpointed_at=format_time(EPOCH - 1800))
    world = cluster(
        2, running("old", ["n0"], status={"progress": old}),
        running("saved", ["n1"], status={"progress": saved}), make_job("high", priority=1),
    )  # fmt: skip
    world.settle()
    assert world.asked == ["saved"]


def test_a_checkpoint_of_an_earlier_attempt_costs_no_more_than_this_attempt_has_run() -> None:
    saved = Progress(10, 10, checkpointed_at=format_time(EPOCH - 1000))
    old = Progress(10, 10, checkpointed_at=format_time(EPOCH - HOUR))
    world = cluster(
        2, running("a", ["n0"], status={"progress": saved}),
        running("b", ["n1"], since=EPOCH - 100, status={"progress": old}),
        make_job("high", priority=1),
    )  # fmt: skip
    world.settle()
    assert world.asked == ["b"]


def test_a_silent_job_is_charged_as_the_median_of_those_that_report() -> None:
    saved = Progress(10, 10, checkpointed_at=format_time(EPOCH - 1800))
    world = cluster(
        2, running("reports", ["n0"], status={"progress": saved}),
        running("silent", ["n1"], since=EPOCH - 10 * HOUR), make_job("high", priority=1),
    )  # fmt: skip
    world.settle()
    assert world.asked == ["reports"]  # equal losses: the name decides, silence is no shelter


def test_the_lowest_priority_goes_first_whatever_it_has_done() -> None:
    world = cluster(
        2, running("young", ["n0"], priority=5, since=EPOCH - 100),
        running("old", ["n1"], since=EPOCH - 100 * HOUR), make_job("high", priority=10),
    )  # fmt: skip
    world.settle()
    assert world.asked == ["old"]


def test_a_job_is_protected_for_its_first_minute() -> None:
    world = cluster(1, running("new", ["n0"], since=EPOCH - 30), make_job("high", priority=1))
    decision = decide(world.state, world.policy, EPOCH)
    assert decision.wake_at == EPOCH + 30
    world.settle()
    assert world.asked == []
    world.now = EPOCH + 30
    world.settle()
    assert world.asked == ["new"]


@pytest.mark.parametrize("seconds", [(10, 40), (40, 10)])
def test_victims_are_sought_again_when_the_first_one_is_protected_no_longer(
    seconds: tuple[int, int],
) -> None:
    jobs = [running(f"r{i}", [f"n{i}"], since=EPOCH - each) for i, each in enumerate(seconds)]
    world = cluster(2, *jobs, make_job("high", priority=1))
    assert decide(world.state, world.policy, EPOCH).wake_at == EPOCH + 20


def attempts(*seconds: tuple[float, float | None], cause: Cause | None = Cause.USER) -> Attempts:
    """Attempts that began and ended so many seconds before `EPOCH`; None: has not ended."""

    def ago(value: float | None) -> str | None:
        return None if value is None else format_time(EPOCH - value)

    return tuple(
        Attempt(
            number=number, begun_at=ago(began), started_at=ago(began), finished_at=ago(ended),
            cause=None if ended is None else cause,
        )
        for number, (began, ended) in enumerate(seconds, 1)
    )  # fmt: skip


def of_attempts(records: Attempts) -> Job:
    """A job on the one node whose last attempt is the current one."""
    number = len(records)
    return make_job(
        "low", priority=0, attempt=number, placement=make_placement(["n0"], attempt=number),
        status={"attempts": records},
    )  # fmt: skip


@pytest.mark.parametrize(
    "records",
    [
        attempts((61, 1)),
        attempts((120, 62), (61, 1)),
        attempts((61, 31), (30, None)),
        attempts((180, 121), (120, 61), (60, 2), (1, None)),
    ],
    ids=["waits for its second attempt", "its third", "in its second attempt", "in its fourth"],
)
def test_a_job_that_fails_again_and_again_holds_its_nodes_against_nobody(
    records: Attempts,
) -> None:
    """It keeps them from attempt to attempt: were each spared, or the wait in between, it would
    never give way.
    """
    world = cluster(1, of_attempts(records), make_job("high", priority=1))
    world.settle()
    assert world.asked == ["low"]
    assert world.nominated("high") == {"n0"}


@pytest.mark.parametrize(
    "records",
    [
        attempts((59, 1)),
        attempts((59, 31), (30, None)),
        (*attempts((120, 62), cause=None), *attempts((0, 0), (30, None))[1:]),
    ],
    ids=["waits", "in its second attempt", "after it had lost its nodes"],
)
def test_a_job_that_came_to_its_nodes_a_moment_ago_is_spared_for_a_minute(
    records: Attempts,
) -> None:
    world = cluster(1, of_attempts(records), make_job("high", priority=1))
    world.settle()
    assert world.asked == []


def test_a_job_that_waits_for_its_next_attempt_is_the_cheapest_victim() -> None:
    """A job that works loses what it has not saved, and the time that it takes to start again."""
    idle = make_job(
        "idle", gpus=8, priority=0, placement=make_placement(["n1"]),
        status={"attempts": attempts((HOUR, 1))},
    )  # fmt: skip
    world = cluster(2, running("works", ["n0"], since=EPOCH - 90), idle)
    world.put(make_job("high", priority=1))
    world.settle()
    assert world.asked == ["idle"]


def test_victims_are_sought_again_once_a_job_has_its_place_for_the_next_attempt() -> None:
    """Nothing else changes with that: no node, no pod, and it holds what it held."""
    low = make_job(
        "low", attempt=2, priority=0, placement=make_placement(["n0"], attempt=1),
        status={"attempts": attempts((HOUR, 1))},
    )  # fmt: skip
    world = cluster(1, low, make_job("high", priority=1))
    world.settle()
    assert world.asked == ["low"]


@pytest.mark.parametrize("slow", ["a", "b"])
def test_of_two_gangs_the_one_that_starts_faster_is_the_victim(slow: str) -> None:
    """Both have run for as long; a restart costs the GPUs for the time that it takes."""
    jobs: list[Job] = []
    for name, node in (("a", "n0"), ("b", "n1")):
        started_at = EPOCH - HOUR
        begun_at = started_at - (600.0 if name == slow else 60.0)
        record = Attempt(
            number=1, begun_at=format_time(begun_at), started_at=format_time(started_at)
        )
        jobs.append(running(name, [node], status={"attempts": (record,)}))
    world = cluster(2, *jobs, make_job("high", priority=1))
    world.settle()
    assert world.asked == ["b" if slow == "a" else "a"]


def test_the_time_that_silent_jobs_are_charged_is_that_of_the_jobs_that_report() -> None:
    reporting = [
        HoldingAttempt(1, EPOCH - HOUR, EPOCH - saved, 0.0, EPOCH - HOUR)
        for saved in (30.0, 60.0, 90.0)
    ]
    silent = [HoldingAttempt(1, at := EPOCH - i * HOUR, None, 0.0, at) for i in range(1, 9)]
    idle = [replace(run, has_ended=True) for run in reporting]
    assert silent_seconds([*silent, *reporting, *idle], EPOCH) == 60.0
    assert silent_seconds(silent, EPOCH) == float("inf")


def test_of_the_candidates_that_a_plan_does_not_need_the_dearest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fairlead.decide.placement.evict.victims._REPEATS_MAX", 0
    )  # as on large clusters
    jobs = [
        running(name, ["n0"], gpus=gpus, since=EPOCH - hours * HOUR)
        for name, gpus, hours in (("cheap", 2, 1), ("dear", 2, 3), ("dearest", 3, 9))
    ]
    nodes = [make_node("n0", gpus=7)]
    world = Cluster(PlacementState.of(nodes, [*jobs, make_job("high", gpus=5, priority=1)]))
    world.settle()
    assert sorted(world.asked) == ["cheap", "dearest"]


def test_a_gang_takes_the_nodes_of_the_candidate_that_leaves_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the last candidate there is too little room: with its nodes alone, others stay."""
    monkeypatch.setattr(
        "fairlead.decide.placement.evict.victims._REPEATS_MAX", 0
    )  # as on large clusters
    jobs = [
        running("stays", ["n0"], gpus=4, priority=2), running("first", ["n0"], gpus=4, priority=0),
        running("last", ["n1"], gpus=8, priority=1),
        make_job("high", count=2, gpus=4, priority=2),
    ]  # fmt: skip
    world = cluster(2, *jobs)
    world.settle()
    assert world.asked == ["last"]
    assert world.nominated("high") == {"n1"}


def test_a_class_that_never_preempts_waits() -> None:
    patient = replace(make_priority_class("patient", 100), preemption_policy="Never")
    state = ClusterState(PriorityTable([patient]))
    state.node_changed(make_node("n0"))
    state.job_changed(running("low", ["n0"]))
    state.job_changed(make_job("high", spec={"priority_class_name": "patient"}))
    world = Cluster(PlacementState(state))
    world.settle()
    assert world.asked == []
    assert world.reason("high") == Reason.INSUFFICIENT_CAPACITY.value


def test_preemption_can_be_switched_off() -> None:
    policy = PlacementPolicy(preempts=False)
    world = cluster(1, running("low", ["n0"]), make_job("high", priority=1), policy=policy)
    world.settle()
    assert world.asked == []


def test_groups_of_other_tools_are_victims_only_where_the_settings_say_so() -> None:
    adopted = running("group", ["n0"], spec={"adopts": Adopts(kind="StatefulSet", name="web")})
    world = cluster(1, adopted, make_job("high", priority=1))
    world.settle()
    assert world.asked == []
    world.policy = PlacementPolicy(preempts_adopted=True)
    world.put(replace(world.job("high")))
    world.state = PlacementState.of([make_node("n0")], [adopted, make_job("high", priority=1)])
    world.settle()
    assert world.asked == ["group"]


def test_pods_of_others_are_never_preempted() -> None:
    state = PlacementState.of(
        [make_node("n0")], [make_job("high", priority=100)], [make_pod("web", node="n0", gpus=8)]
    )
    world = Cluster(state)
    world.settle()
    assert world.job("high").status.nomination is None


def test_one_domain_is_emptied_where_the_gang_needs_one() -> None:
    nodes = [make_node(f"n{i}", labels={"rack": f"r{i % 2}"}) for i in range(4)]
    jobs = [running("a", ["n0"]), running("b", ["n1"]), running("c", ["n3"], priority=1)]
    rack = Topology(key="rack", required=True)
    gang = make_job("high", priority=2, count=2, topology=rack)
    world = Cluster(PlacementState.of(nodes, [*jobs, gang]))
    world.settle()
    assert world.asked == ["a"]
    assert world.nominated("high") == {"n0", "n2"}


def test_jobs_that_share_a_node_leave_together() -> None:
    """Eight small jobs fill each of two nodes: those of one node go, not some of both."""
    small = [
        running(f"s{n}{i}", [f"n{n}"], gpus=1, since=EPOCH - HOUR * (1 + n + i / 10))
        for n in range(2) for i in range(8)
    ]  # fmt: skip
    world = cluster(2, *small, make_job("high", priority=1))
    world.settle()
    assert sorted(world.asked) == [f"s0{i}" for i in range(8)]


def test_a_job_that_stops_anyway_makes_room_without_a_victim() -> None:
    stopping = running("stopping", ["n0"], cancel=True)
    world = cluster(2, stopping, running("low", ["n1"]), make_job("high", priority=1))
    world.settle()
    assert world.asked == []
    assert world.nominated("high") == {"n0"}
    assert world.reason("high") == Reason.RESERVED.value


def test_a_gang_that_finds_room_elsewhere_lets_its_victims_run_on() -> None:
    world = cluster(1, running("low", ["n0"]), make_job("high", priority=1))
    world.settle()
    assert world.job("low").status.preemption is not None
    world.state.cluster.node_changed(make_node("new"))
    actions = world.step()
    assert [type(action) for action in actions] == [PlaceJob]
    actions = world.step()
    assert [type(action) for action in actions] == [WithdrawPreemption]
    assert world.nodes_of("low") == {"n0"}


def test_a_new_job_of_the_name_of_a_victim_is_none() -> None:
    world = cluster(1, running("low", ["n0"]), make_job("high", priority=1))
    world.step()
    world.state.cluster.job_deleted(("default", "low"))
    world.put(running("low", ["n0"], since=EPOCH, uid="another"))
    world.settle()
    assert world.asked == []


def test_a_job_that_is_held_gives_up_its_nomination() -> None:
    world = cluster(1, running("low", ["n0"]), make_job("high", priority=1))
    world.settle()
    high = world.job("high")
    world.put(replace(high, spec=replace(high.spec, suspend=True)))
    actions = world.step()
    assert {type(action) for action in actions} == {WithdrawNomination, WithdrawPreemption}
    world.settle()
    assert world.job("high").status.nomination is None
    assert world.job("low").status.preemption is None


def test_the_verdict_tells_a_checkpoint_from_mere_stopping() -> None:
    saved = Progress(10, 10, checkpointed_at=format_time(EPOCH - 60))
    world = cluster(
        1, running("low", ["n0"], status={"progress": saved}), make_job("h", priority=1)
    )
    world.settle()
    assert world.reason("h") == Reason.WAITING_FOR_CHECKPOINT.value


def test_a_place_whose_pods_still_stop_is_reserved() -> None:
    low = running("low", ["n0"])
    world = cluster(1, low, make_job("high", priority=1))
    pod = make_pod("p", node="n0", gpus=8, owner=low, labels={}, deleted=True)
    later = format_time(EPOCH + 30)
    pod = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=later))
    world.settle()
    world.state.cluster.pod_changed(pod)
    world.leave("low")
    world.settle()
    assert world.nodes_of("high") == set()
    assert world.reason("high") == Reason.RESERVED.value
    world.state.cluster.pod_deleted(pod.metadata.key)
    world.settle()
    assert world.nodes_of("high") == {"n0"}


@pytest.mark.parametrize(("seconds", "kept"), [(59, {"n0"}), (60, {"n1"})])
def test_a_pod_that_should_have_gone_long_ago_makes_no_room(seconds: float, kept: set[str]) -> None:
    world = cluster(2, running("low", ["n1"]), make_job("high", priority=1))
    pod = make_pod("p", node="n0", gpus=8, deleted=True)
    metadata = replace(pod.metadata, deletion_timestamp=format_time(EPOCH - seconds))
    world.state.cluster.pod_changed(replace(pod, metadata=metadata))
    world.settle()
    assert world.nominated("high") == kept


@pytest.mark.parametrize(("seconds", "kept"), [(0, {"n0"}), (89, {"n0"}), (90, set[str]())])
@pytest.mark.parametrize("is_adopted", [False, True], ids=["own", "adopted"])
def test_a_pod_is_late_by_the_clock_that_its_attempt_ended_by(
    seconds: float, kept: set[str], is_adopted: bool
) -> None:
    """The clock of the API server is two minutes behind the planner's."""
    name = alone(make_pod("web")).group.key[1] if is_adopted else "low"
    adopts = {"adopts": Adopts(kind="Pod", name="web")} if is_adopted else {}
    low = running(name, ["n0"], spec=adopts)
    labels = make_member_pod(low).metadata.labels
    pod = make_pod("web", node="n0", gpus=8, labels=labels, owner=None if is_adopted else low)
    leaving = replace(
        pod.metadata, deletion_grace_period_seconds=30,
        deletion_timestamp=format_time(EPOCH - 120.0 + 30.0),
    )  # fmt: skip
    policy = PlacementPolicy(preempts_adopted=True)
    world = cluster(1, low, make_job("high", priority=1), policy=policy)
    world.state.cluster.pod_changed(pod)
    world.settle()
    world.state.cluster.pod_changed(replace(pod, metadata=leaving))
    world.leave(name)
    world.now += seconds
    world.settle()
    assert world.asked == [name]
    assert world.nominated("high") == kept


def test_a_preemption_that_no_nomination_wants_is_withdrawn() -> None:
    late = Preemption(namespace="default", name="gone", uid="u", priority=9)
    world = cluster(1, running("low", ["n0"], status={"preemption": late}))
    world.settle()
    assert world.job("low").status.preemption is None


def test_more_nominations_than_one_decision_makes_follow_in_the_next() -> None:
    nodes = make_nodes(12)
    low = [running(f"low{i:02}", [node.metadata.name]) for i, node in enumerate(nodes)]
    high = [make_job(f"high{i:02}", priority=1) for i in range(12)]
    world = Cluster(PlacementState.of(nodes, [*low, *high]))
    world.settle()
    assert len(world.asked) == 12


def test_the_potential_falls_with_every_preemption_or_it_is_an_error() -> None:
    check_potential(5, [4, 4, 0])
    check_potential(5, [])
    for victims in ([5], [4, 6], [5, 0]):
        with pytest.raises(PotentialRises):
            check_potential(5, victims)
    assert potential([1, 3, 2]) == (3, 2, 1)


def test_status_of_a_nominated_job_survives_a_new_scheduler() -> None:
    world = cluster(2, running("low", ["n0", "n1"]), make_job("high", priority=1, count=2))
    world.step()
    jobs = [entry.job for entry in world.state.jobs.values()]
    reborn = Cluster(PlacementState.of([make_node("n0"), make_node("n1")], jobs))
    actions = reborn.step()
    assert [type(action) for action in actions] == [PreemptJob]
    assert isinstance(reborn.job("low").status, JobStatus)


def test_two_gangs_share_the_nodes_of_one_victim_which_is_asked_once() -> None:
    low = running("low", ["n0", "n1"])
    high = [make_job(name, priority=1) for name in ("a", "b")]
    world = cluster(2, low, *high)
    world.settle()
    assert world.asked == ["low"]
    assert world.nominated("a") | world.nominated("b") == {"n0", "n1"}
    world.leave("low")
    world.settle()
    assert world.nodes_of("a") | world.nodes_of("b") == {"n0", "n1"}


def test_a_gang_keeps_its_place_although_another_one_needs_the_victim_no_more() -> None:
    low = running("low", ["n0", "n1"])
    world = cluster(2, low, make_job("a", priority=1), make_job("b", priority=1))
    world.settle()
    world.put(replace(world.job("a"), spec=replace(world.job("a").spec, suspend=True)))
    place = world.nominated("b")
    world.settle()
    assert world.nominated("b") == place
    assert world.job("low").status.preemption is not None
    world.leave("low")
    world.settle()
    assert world.nodes_of("b") == place


def test_a_job_that_its_user_holds_is_a_victim_should_it_be_released_before_it_has_stopped() -> (
    None
):
    held = running("held", ["n0"], suspend=True)
    world = cluster(1, held, make_job("high", priority=1))
    world.settle()
    assert world.asked == []
    assert world.nominated("high") == {"n0"}
    world.put(replace(held, spec=replace(held.spec, suspend=False)))
    world.settle()
    assert world.nominated("high") == {"n0"}
    assert world.asked == ["held"]


def test_a_job_that_is_released_before_its_place_is_taken_back_is_a_victim() -> None:
    ended = running("held", ["n0"], suspend=True)
    record = replace(ended.status.attempts[-1], finished_at=format_time(EPOCH))
    held = replace(ended, status=replace(ended.status, attempts=(record,)))
    world = cluster(1, held, make_job("high", priority=1))
    decided = decide(world.state, world.policy, world.now).actions
    for action in decided:
        if isinstance(action, NominateJob):
            world.put(as_written(action))
    assert {type(action) for action in decided} == {ReleaseJob, NominateJob}
    assert world.nominated("high") == {"n0"}
    world.put(replace(held, spec=replace(held.spec, suspend=False)))
    world.settle()
    assert world.nominated("high") == {"n0"}
    assert world.asked == ["held"]


def test_gangs_that_wait_for_victims_of_their_own_on_one_node_both_keep_their_places() -> None:
    lows = [running(name, ["n0"], gpus=4) for name in ("low1", "low2")]
    highs = [make_job(name, priority=1, gpus=4) for name in ("a", "b")]
    world = cluster(1, *lows, *highs)
    for _ in range(3):
        world.step()
        assert world.nominated("a") == world.nominated("b") == {"n0"}
    assert sorted(world.asked) == ["low1", "low2"]
    world.leave(world.asked[0])
    world.settle()
    placed = [name for name in ("a", "b") if world.nodes_of(name)]
    assert len(placed) == 1  # the other one's victim is still there
    world.leave(world.asked[1])
    world.settle()
    assert world.nodes_of("a") == world.nodes_of("b") == {"n0"}


def written(world: Cluster, *kinds: type[Action]) -> dict[str, type[Action]]:
    """Decide once and apply the writes of these kinds alone; return what was decided, by job."""
    decided = decide(world.state, world.policy, world.now).actions
    for action in decided:
        if isinstance(action, kinds):
            world.put(as_written(action))
    return {
        action.job.metadata.name: type(action)
        for action in decided if not isinstance(action, WriteVerdict)
    }  # fmt: skip


def test_what_was_kept_goes_to_no_other_gang_while_the_withdrawal_is_not_written() -> None:
    first, second = make_job("first", count=2, priority=1), make_job("second", priority=1)
    world = cluster(2, running("low", ["n0"]), running("equal", ["n1"]), first)
    world.settle()
    assert world.nominated("first") == {"n0", "n1"}
    world.put(second)
    world.state.cluster.node_changed(make_node("n1", ready=False))
    decided = written(world, NominateJob)
    assert decided["first"] is WithdrawNomination
    assert "second" not in decided
    world.state.cluster.node_changed(make_node("n1"))
    world.settle()
    assert world.nominated("first") == {"n0", "n1"}
    assert world.nominated("second") == set()
    world.state.cluster.node_changed(make_node("n1", ready=False))
    world.settle()
    assert world.nominated("first") == set()
    assert world.nominated("second") == {"n0"}


def test_what_was_kept_goes_to_no_other_gang_while_the_place_elsewhere_is_not_written() -> None:
    first, second = make_job("first", priority=1), make_job("second", priority=1)
    world = cluster(1, running("low", ["n0"]), first)
    world.settle()
    assert world.nominated("first") == {"n0"}
    world.put(second)
    world.state.cluster.node_changed(make_node("n1"))
    assert written(world, NominateJob) == {"first": PlaceJob}
    world.state.cluster.node_deleted("n1")
    world.settle()
    assert world.nominated("first") == {"n0"}
    assert world.nominated("second") == set()


def test_a_nomination_that_ends_is_replaced_in_one_write_by_one_that_uses_its_room() -> None:
    lows = [running(f"low{i}", [f"n{i}"]) for i in range(3)]
    world = cluster(3, *lows, make_job("high", count=2, priority=1))
    world.settle()
    assert world.nominated("high") == {"n0", "n1"}
    world.state.cluster.node_changed(make_node("n1", ready=False))
    decided = written(world, NominateJob)
    assert decided == {"high": NominateJob, "low1": WithdrawPreemption}, "low0 goes on leaving"
    assert world.nominated("high") == {"n0", "n2"}


def test_a_gang_keeps_its_place_while_a_nomination_of_the_same_node_ends() -> None:
    low, equal = running("low", ["n0"]), running("equal", ["n1"])
    victims = tuple(
        Victim(j.metadata.namespace, j.metadata.name, j.metadata.uid) for j in (low, equal)
    )
    first, second = (
        Nomination((RolePlacement("worker", nodes),), victims) for nodes in (("n0", "n1"), ("n0",))
    )
    world = cluster(
        2, low, equal,
        make_job("first", count=2, priority=1, status={"nomination": first}),
        make_job("second", priority=1, status={"nomination": second}),
    )  # fmt: skip
    world.state.cluster.node_changed(make_node("n1", ready=False))
    decided = written(world)
    assert decided["first"] is WithdrawNomination
    assert "second" not in decided
    world.settle()
    assert world.nominated("second") == {"n0"}


def test_a_victim_with_rules_that_has_gone_elsewhere_is_asked_no_more() -> None:
    port = ContainerPort(container_port=29500, host_port=29500)
    lows = [running("small", ["n0"], gpus=1, ports=(port,)), running("low", ["n1"])]
    busy = running("busy", ["n2"], gpus=7, priority=2)
    world = cluster(3, *lows, busy, make_job("high", count=2, priority=1))
    world.settle()
    assert sorted(world.asked) == ["low", "small"]
    assert world.nominated("high") == {"n0", "n1"}
    world.leave("small")
    world.settle()
    assert world.nodes_of("small") == {"n2"}
    assert sorted(world.asked) == ["low", "small"]
    world.leave("low")
    world.settle()
    assert world.nodes_of("high") == {"n0", "n1"}


def expected(jobs: list[Job], name: str = "high", *, nodes: int = 2) -> object:
    """Return what `why` expects of a waiting job."""
    found = explain(PlacementState.of(make_nodes(nodes), jobs), ("default", name), EPOCH)
    assert found is not None
    return found.forecast


def preempts(at: float, victim: Job) -> forecast.PreemptionAhead:
    """A victim that borrows nothing and has the default grace period."""
    grace = GRACE_SECONDS_DEFAULT
    return forecast.PreemptionAhead(at, (victim.metadata.key,), (0,), at + grace)


def test_a_job_says_whom_it_preempts_before_the_scheduler_may_decide_it() -> None:
    young = running("low", ["node-0000", "node-0001"], since=EPOCH - 20, time_limit_seconds=600)
    high = make_job("high", priority=9, time_limit_seconds=600)
    later = preempts(EPOCH + 40, young)
    assert expected([young, high]) == later
    old = running("low", ["node-0000", "node-0001"])
    assert expected([old, high]) == preempts(EPOCH, old)
    assert expected([young, high, make_job("next")], "next") is forecast.UnknownBound.PREEMPTING


def test_a_job_that_gets_room_before_it_may_preempt_says_when() -> None:
    young = running("low", ["node-0000"], since=EPOCH - 20, time_limit_seconds=600)
    short = running("short", ["node-0001"], since=EPOCH - 20, time_limit_seconds=30)
    found = expected([young, short, make_job("high", priority=9)])
    assert found == forecast.Forecast(EPOCH + 40, (short.metadata.key,))


def test_the_room_of_a_job_that_leaves_counts_once_when_it_has_left() -> None:
    young = running("low", ["node-0000"], since=EPOCH - 10, time_limit_seconds=600)
    leaving = running("left", ["node-0001"], since=EPOCH - 20, time_limit_seconds=20, cancel=True)
    found = expected([young, leaving, make_job("high", count=2, priority=9)])
    assert found == preempts(EPOCH + 50, young)


def test_a_job_that_has_ended_by_then_is_no_victim() -> None:
    short = running("short", ["node-0001"], since=EPOCH - 70, time_limit_seconds=50)
    young = running("low", ["node-0000"], since=EPOCH - 10, time_limit_seconds=600)
    found = expected([young, short, make_job("high", count=2, priority=9)])
    assert found == preempts(EPOCH + 50, young)


def test_a_nominated_job_names_its_victims() -> None:
    low = running("low", ["node-0000", "node-0001"])
    places = (RolePlacement("worker", ("node-0000",)),)
    victims = (Victim(low.metadata.namespace, low.metadata.name, low.metadata.uid),)
    told = VerdictStatus("Waiting", "Preempting", {"nodes": 1, "victims": 1})
    status = {"nomination": Nomination(places, victims)}
    high = make_job("high", priority=9, verdict=told, status=status)
    assert expected([low, high]) == preempts(EPOCH, low)
