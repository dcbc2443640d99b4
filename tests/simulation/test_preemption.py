"""Preemption in a whole simulated world, and canaries of its checker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.placement import (
    Nomination,
    Preemption,
    PreemptionKind,
    RolePlacement,
    Victim,
)
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED, TEAM
from fairlead.api.resources import JOBS, PRIORITY_CLASSES
from fairlead.api.values.times import format_time, parse_time
from fairlead.runtime.kept.audit import AuditQuery, AuditRecord, ChainCheck
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.preemption_checker import PreemptionChecker
from fairlead.sim.promises.team_model import TeamModel
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import HIGH, Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import EPOCH, WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import (
    make_job,
    make_member_pod,
    make_node,
    make_placement,
    make_team,
)

MIDDLE = {"metadata": {"name": "middle"}, "value": 5}


async def _audit(world: World) -> list[AuditRecord]:
    """What was recorded of takings; the chain is whole."""
    found = [each async for page in world.history.query_audit(AuditQuery()) for each in page]
    check = ChainCheck()
    for each in found:
        check.add(each)
    assert check.end() == []
    return found


def test_an_urgent_gang_takes_the_nodes_of_whole_gangs_and_these_run_again_after_it() -> None:
    """Four nodes, two gangs of two that run for an hour, then one of four that goes first."""
    low = [
        Arrival(0.0, f"low-{i}", job_body(f"low-{i}", members=2, gpus=8, run_seconds=3600.0))
        for i in range(2)
    ]
    body = job_body("urgent", members=4, gpus=8, run_seconds=60.0, is_high=True)
    options = WorldOptions(
        nodes=4, workload=WorkloadOptions(0, 900.0), faults=PERFECT, calls_between_kills_mean=0.0,
        steps_between_crashes_mean=0.0, node_failures_per_day=0.0, drains_per_day=0.0,
        user_acts_per_day=0.0,
    )  # fmt: skip
    world: World | None = None

    async def main() -> None:
        nonlocal world
        world = World(options, 1, arrivals=[*low, Arrival(600.0, "urgent", body)])
        await world.run()

    run(main())
    assert world is not None
    assert world.preemptions.preemptions == 2
    assert world.preemptions.nominations == 1
    audit = run(_audit(world))
    asked = [(each.kind, each.object, each.reason) for each in audit]
    assert asked == [
        ("Preempt", f"Job {key}", "Preempted")
        for key in sorted(
            f"{namespace}/{name}"
            for (namespace, name) in world.checkers.finished
            if name != "urgent"
        )
    ]
    finished = {key[1]: job for key, job in world.checkers.finished.items()}
    assert {job.status.state for job in finished.values()} == {"Succeeded"}
    assert finished["urgent"].status.finished_at < finished["low-0"].status.finished_at
    for name in ("low-0", "low-1"):
        reasons = [attempt.reason for attempt in finished[name].status.attempts]
        assert reasons == ["Preempted", "Succeeded"]
        assert finished[name].status.infrastructure_failures == 0


def world_of_two_nodes(*arrivals: Arrival) -> World:
    """A world without faults whose PriorityClass `middle` is between none and `high`."""
    options = WorldOptions(
        nodes=2, workload=WorkloadOptions(0, 900.0), faults=PERFECT, calls_between_kills_mean=0.0,
        steps_between_crashes_mean=0.0, node_failures_per_day=0.0, drains_per_day=0.0,
        user_acts_per_day=0.0,
    )  # fmt: skip
    world = World(options, 1, arrivals=arrivals)
    world.priorities["middle"] = 5
    return world


def run_with_acts(
    arrivals: tuple[Arrival, ...], acts: dict[float, Callable[[World], Awaitable[object]]]
) -> dict[str, Job]:
    """Run a world of two nodes in which users act at instants; return its jobs at their end."""
    made: list[World] = []

    async def act(world: World) -> None:
        for at, each in sorted(acts.items()):
            await asyncio.sleep(at - (world.clock.now() - EPOCH))
            await each(world)

    async def main() -> None:
        made.append(world_of_two_nodes(*arrivals))
        async with asyncio.TaskGroup() as group:
            group.create_task(made[0].run())
            group.create_task(act(made[0]))

    run(main())
    return {key[1]: job for key, job in made[0].checkers.finished.items()}


def gang(at: float, name: str, seconds: float, class_name: str = "") -> Arrival:
    """A gang of two members, one to a node."""
    body = job_body(name, members=2, gpus=8, run_seconds=seconds)
    body["spec"] |= {"priorityClassName": class_name} if class_name else {}
    return Arrival(at, name, body)


async def add_middle(world: World) -> None:
    await world.client.create(PRIORITY_CLASSES, MIDDLE)


def sets_class(name: str, class_name: str) -> Callable[[World], Awaitable[object]]:
    async def set_class(world: World) -> None:
        body = {"spec": {"priorityClassName": class_name}}
        await world.client.patch(JOBS, name, body, namespace="default")

    return set_class


def reasons(job: Job) -> list[str]:
    return [attempt.reason for attempt in job.status.attempts]


def test_a_job_that_raises_its_class_while_it_runs_keeps_no_node_by_it() -> None:
    """It gives way to one of a class between, and by its new class goes before a third."""
    arrivals = (
        gang(10.0, "runs", 3600.0), gang(600.0, "between", 50.0, "middle"),
        gang(610.0, "third", 60.0, "middle"),
    )  # fmt: skip
    acts = {5.0: add_middle, 300.0: sets_class("runs", HIGH["metadata"]["name"])}
    done = run_with_acts(arrivals, acts)
    assert reasons(done["runs"]) == ["Preempted", "Succeeded"]
    assert reasons(done["between"]) == ["Succeeded"]
    assert done["between"].status.started_at < done["runs"].status.finished_at
    assert done["runs"].status.finished_at <= done["third"].status.started_at


def test_a_job_that_raises_its_class_while_it_waits_is_placed_with_it() -> None:
    arrivals = (
        gang(10.0, "runs", 400.0, "middle"), gang(20.0, "waits", 3600.0),
        gang(600.0, "between", 60.0, "middle"),
    )  # fmt: skip
    acts = {5.0: add_middle, 300.0: sets_class("waits", HIGH["metadata"]["name"])}
    done = run_with_acts(arrivals, acts)
    assert reasons(done["runs"]) == ["Preempted", "Succeeded"]
    assert reasons(done["waits"]) == ["Succeeded"]
    assert done["waits"].status.finished_at <= done["between"].status.started_at


def test_a_job_that_lowers_its_class_while_it_runs_gives_way_at_once() -> None:
    arrivals = (gang(10.0, "runs", 3600.0, "middle"), gang(200.0, "between", 60.0, "middle"))
    acts = {5.0: add_middle, 300.0: sets_class("runs", "")}
    done = run_with_acts(arrivals, acts)
    assert reasons(done["runs"]) == ["Preempted", "Succeeded"]
    started = parse_time(done["between"].status.started_at) - EPOCH
    assert 300.0 <= started < 400.0


class History:
    """The checker, a gang of priority 0 on two nodes, and one of priority 10 that needs them."""

    def __init__(self, clock_error_seconds: float = 0.0, *, teams: TeamModel | None = None) -> None:
        self.checker = PreemptionChecker(
            {"high": 10, "higher": 20}, teams, clock_error_seconds=clock_error_seconds
        )
        self.now = 1000.0
        for name in ("n1", "n2", "n3"):
            self.checker.node(make_node(name), name, self.now)
        placed = make_placement(["n1", "n2"])
        self.low = make_job("low", count=2, placement=placed, status={"attempts": (Attempt(1),)})
        self.high = make_job("high", count=2, spec={"priority_class_name": "high"})
        for job in (self.low, self.high):
            self.put(job)

    def put(self, job: Job, **status: object) -> Job:
        after = replace(job, status=replace(job.status, **status))
        self.checker.job(after, after.metadata.key, self.now)
        return after

    def nominate(
        self, nodes: tuple[str, ...] = ("n1", "n2"), decided_at: float | None = None,
        *, kind: PreemptionKind = PreemptionKind.PREEMPT,
    ) -> None:  # fmt: skip
        meta = self.low.metadata
        victim = Victim(namespace=meta.namespace, name=meta.name, uid=meta.uid)
        roles = (RolePlacement(role="worker", nodes=nodes),)
        at = None if decided_at is None else format_time(decided_at)
        self.high = self.put(self.high, nomination=Nomination(roles, (victim,), at, kind))

    def request(self) -> None:
        meta = self.high.metadata
        request = Preemption(namespace=meta.namespace, name=meta.name, uid=meta.uid)
        self.low = self.put(self.low, preemption=request)

    def end(self) -> None:
        *before, last = self.low.status.attempts
        ended = replace(last, reason="Preempted")
        self.low = self.put(self.low, attempts=(*before, ended))
        self.low = self.put(self.low, placement=None, preemption=None)

    def come_back(self) -> None:
        attempts = self.low.status.attempts
        number = len(attempts) + 1
        placed = make_placement(["n1", "n2"], attempt=number)
        attempts = (*attempts, Attempt(number))
        self.low = self.put(self.low, attempt=number, attempts=attempts, placement=placed)


def sound(history: History) -> None:
    history.nominate()
    history.request()
    history.end()
    history.now += 60.0
    history.put(history.high, nomination=None, placement=make_placement(["n1", "n2"]))
    history.now += 10_000.0
    history.checker.check_by_clock(history.now)


def a_job_of_lower_priority_is_served(history: History) -> None:
    low = replace(history.low.metadata, name="lower", uid="lower")
    history.high = history.put(make_job("lower", count=2, uid="lower"))
    assert low.uid == history.high.metadata.uid
    history.nominate()
    history.request()


def a_victim_is_not_named(history: History) -> None:
    history.request()


def a_victim_is_on_other_nodes(history: History) -> None:
    history.nominate(("n3", "n3"))
    history.request()


def a_kept_place_is_given_up(history: History) -> None:
    history.now += 1000.0
    history.nominate()
    history.request()
    history.put(history.high, nomination=None)


def a_job_is_preempted_for_none(history: History) -> None:
    history.end()


def a_victim_that_came_back_gives_way_for_the_same_place(history: History) -> None:
    history.nominate()
    history.request()
    history.end()
    history.come_back()
    history.request()
    history.end()


def the_beneficiary_is_never_placed(history: History) -> None:
    history.nominate()
    history.request()
    history.end()
    history.now += 10_000.0
    history.checker.check_by_clock(history.now)


@pytest.mark.parametrize(
    "planted",
    [
        a_job_of_lower_priority_is_served,
        a_victim_is_not_named,
        a_victim_is_on_other_nodes,
        a_kept_place_is_given_up,
        a_job_is_preempted_for_none,
        a_victim_that_came_back_gives_way_for_the_same_place,
        the_beneficiary_is_never_placed,
    ],
    ids=lambda planted: planted.__name__,
)
def test_a_planted_preemption_is_reported(planted: Callable[[History], None]) -> None:
    with pytest.raises(PromiseBroken, match=r"^5: "):
        planted(History())


def test_a_sound_preemption_is_not_reported() -> None:
    history = History()
    sound(history)
    assert history.checker.preemptions == 1


def test_an_end_that_is_written_after_the_place_was_given_up_is_of_that_place() -> None:
    history = History()
    history.nominate()
    history.request()
    history.checker.node(None, "n2", history.now)
    history.high = history.put(history.high, nomination=None)
    history.end()
    history.checker.node(make_node("n2"), "n2", history.now)
    history.come_back()
    history.nominate()
    history.request()
    history.end()
    assert history.checker.preemptions == 2


def of_class(job: Job, class_name: str) -> Job:
    return replace(job, spec=replace(job.spec, priority_class_name=class_name))


def test_the_checker_judges_a_victim_by_the_class_that_it_was_placed_with() -> None:
    history = History()
    history.low = history.put(of_class(history.low, "higher"))
    sound(history)
    assert history.checker.preemptions == 1


def test_the_checker_judges_a_victim_that_is_placed_again_by_its_class_of_then() -> None:
    history = History()
    placement = make_placement(["n1", "n2"], attempt=2)
    history.low = history.put(of_class(history.low, "higher"), attempt=2, placement=placement)
    history.nominate()
    with pytest.raises(PromiseBroken, match="of priority 20 gives way to one of 10"):
        history.request()


@pytest.mark.parametrize(("apart", "is_broken"), [(0.0, False), (1000.0, True)])
def test_the_checker_excuses_a_request_for_a_job_that_has_just_lowered_its_class(
    apart: float, *, is_broken: bool
) -> None:
    history = History()
    history.nominate()
    history.high = history.put(of_class(history.high, ""))
    history.now += apart
    with (
        pytest.raises(PromiseBroken, match="gives way to one of 0") if is_broken else nullcontext()
    ):
        history.request()


def test_a_place_may_be_given_up_once_its_job_has_another_priority() -> None:
    history = History()
    history.now += 1000.0
    history.nominate()
    history.high = history.put(of_class(history.high, ""))
    history.put(history.high, nomination=None)


def test_a_place_may_be_given_up_until_the_release_of_a_held_job_is_seen() -> None:
    history = History()
    history.now += 1000.0
    history.nominate()
    held = (Condition(type=ADMITTED, status="False", reason="Held"),)
    history.high = history.put(history.high, conditions=held)
    history.put(history.high, nomination=None)


def test_a_place_that_others_move_for_may_be_given_up_until_one_of_them_is_asked() -> None:
    history = History()
    history.now += 1000.0
    history.nominate(kind=PreemptionKind.MOVE)
    history.put(history.high, nomination=None)

    history.nominate(kind=PreemptionKind.MOVE)
    history.request()
    with pytest.raises(PromiseBroken, match="lost the place"):
        history.put(history.high, nomination=None)


def test_a_place_may_be_given_up_where_a_pod_does_not_go() -> None:
    history = History()
    history.now += 1000.0
    history.nominate()
    pod = make_member_pod(history.low, 0)
    should_go = replace(pod.metadata, deletion_timestamp=format_time(history.now - 61.0))
    late = replace(pod, metadata=should_go)
    history.checker.pod(late, pod.metadata.key, history.now)
    history.put(history.high, nomination=None)

    history.nominate()
    history.checker.pod(None, pod.metadata.key, history.now)
    history.now += 1000.0
    with pytest.raises(PromiseBroken, match="lost the place"):
        history.put(history.high, nomination=None)


@pytest.mark.parametrize(("apart", "is_broken"), [(100.0, False), (200.0, True)])
def test_of_two_jobs_that_were_given_a_node_by_decisions_that_cannot_have_seen_each_other_one_loses(
    apart: float, is_broken: bool
) -> None:
    history = History()
    history.nominate()
    history.now += apart
    roles = (RolePlacement(role="worker", nodes=("n2", "n3")),)
    other = history.put(make_job("other"), nomination=Nomination(roles))
    history.now += 1000.0
    for job in (history.high, other):
        with pytest.raises(PromiseBroken, match="lost") if is_broken else nullcontext():
            history.put(job, nomination=None)


@pytest.mark.parametrize(("apart", "is_broken"), [(100.0, False), (200.0, True)])
def test_a_place_may_be_lost_to_a_job_whose_placement_was_decided_before_that_could_be_seen(
    apart: float, is_broken: bool
) -> None:
    history = History()
    history.nominate()
    history.now += apart
    history.put(make_job("other"), placement=make_placement(["n2"]))
    history.now += 1000.0
    with pytest.raises(PromiseBroken, match="lost") if is_broken else nullcontext():
        history.put(history.high, nomination=None)


@pytest.mark.parametrize(
    ("decided_before", "placed_before", "is_broken"),
    [(11.0, 2.0, False), (11.0, 20.0, True), (200.0, 160.0, True)],
    ids=["placed-since-then", "placed-by-then", "later-than-a-write-may-come"],
)
def test_a_nomination_that_arrives_late_may_lose_to_a_job_placed_since_it_was_decided(
    decided_before: float, placed_before: float, is_broken: bool
) -> None:
    history = History()
    history.now += 1000.0
    arrives_at = history.now
    history.now = arrives_at - placed_before
    history.put(make_job("other"), placement=make_placement(["n2"]))
    history.now = arrives_at
    history.nominate(decided_at=arrives_at - decided_before)
    with pytest.raises(PromiseBroken, match="lost") if is_broken else nullcontext():
        history.put(history.high, nomination=None)


def test_a_nomination_that_arrives_late_may_not_be_lost_to_a_job_that_moved_elsewhere() -> None:
    history = History()
    other = history.put(make_job("other", count=2), placement=make_placement(["n2", "n4"]))
    history.now += 1000.0
    history.put(other, placement=make_placement(["n2", "n3"]))
    history.nominate(decided_at=history.now - 10.0)
    with pytest.raises(PromiseBroken, match="lost"):
        history.put(history.high, nomination=None)


def test_a_nomination_that_arrives_late_may_not_be_lost_to_its_own_victim() -> None:
    history = History()
    history.now += 1000.0
    history.put(history.low, placement=make_placement(["n2", "n3"]))
    history.nominate(("n3", "n3"), decided_at=history.now - 10.0)
    with pytest.raises(PromiseBroken, match="lost"):
        history.put(history.high, nomination=None)


@pytest.mark.parametrize(("clock_error", "is_broken"), [(0.0, True), (60.0, False)])
def test_when_a_nomination_was_decided_is_known_as_well_as_the_clock_is_right(
    clock_error: float, is_broken: bool
) -> None:
    history = History(clock_error)
    history.now += 1000.0
    history.put(make_job("other"), placement=make_placement(["n2"]))
    history.now += 5.0
    history.nominate(decided_at=history.now + 30.0)
    with pytest.raises(PromiseBroken, match="lost") if is_broken else nullcontext():
        history.put(history.high, nomination=None)


class Reclaim(History):
    """A gang on n1 to n3, of which some nodes are green's. A job of green that has no higher
    priority is to get n1, which is nobody's.
    """

    def __init__(self, *owned: str, priority_class: str = "") -> None:
        self.teams = TeamModel()
        super().__init__(teams=self.teams)
        self.teams.team(make_team("green"), "green", 0.0)
        self.own("green", *owned)
        self.low = self.put(self.low, placement=make_placement(["n1", "n2", "n3"]))
        spec = {"priority_class_name": priority_class}
        self.high = self.put(make_job("owner", namespace="green", spec=spec))
        self.now += 1000.0

    def own(self, team: str, *nodes: str) -> None:
        taints = (Taint(TEAM, "NoSchedule", team),) if team else ()
        for name in nodes:
            node = make_node(name, taints=taints)
            self.teams.node(node, name, self.now)
            self.checker.node(node, name, self.now)

    def withdraw(self) -> None:
        self.high = self.put(self.high, nomination=None)


def test_a_place_may_be_given_up_where_its_victim_borrows_no_more() -> None:
    history = Reclaim("n2")
    history.nominate(("n1",))
    history.now += 4.0
    history.own("", "n2")
    history.now += 5.0
    history.withdraw()


@pytest.mark.parametrize(("before", "is_broken"), [(100.0, False), (200.0, True)])
def test_a_victim_that_borrowed_when_it_was_chosen_may_borrow_no_more_when_that_is_written(
    before: float, is_broken: bool
) -> None:
    history = Reclaim("n2")
    history.own("", "n2")
    history.now += before
    history.nominate(("n1",))
    with pytest.raises(PromiseBroken, match="lost") if is_broken else nullcontext():
        history.withdraw()


@pytest.mark.parametrize(
    ("owned", "on", "priority_class", "lost"),
    [
        (("n2", "n3"), ("n1", "n2", "n3"), "", "n2"),
        (("n4",), ("n1", "n2", "n3"), "", "n4"),
        (("n2",), ("n1", "n2", "n3"), "high", "n2"),
        (("n2",), ("n2", "n3"), "", "n2"),
    ],
    ids=["another-is-borrowed", "it-was-not-borrowed", "lower-priority", "victim-is-elsewhere"],
)
def test_a_node_that_a_team_loses_is_no_excuse_while_the_victim_gives_way_or_the_room_is_free(
    owned: tuple[str, ...], on: tuple[str, ...], priority_class: str, lost: str
) -> None:
    history = Reclaim(*owned, priority_class=priority_class)
    history.nominate(("n1",))
    history.low = history.put(history.low, placement=make_placement(on))
    history.own("", lost)
    history.now += 1.0
    with pytest.raises(PromiseBroken, match="lost"):
        history.withdraw()


@pytest.mark.parametrize(("apart", "is_broken"), [(100.0, False), (200.0, True)])
def test_a_node_that_its_team_has_again_is_an_excuse_until_that_must_have_been_seen(
    apart: float, is_broken: bool
) -> None:
    history = Reclaim("n2")
    history.nominate(("n1",))
    history.own("", "n2")
    history.own("green", "n2")
    history.now += apart
    with pytest.raises(PromiseBroken, match="lost") if is_broken else nullcontext():
        history.withdraw()


def test_a_job_that_is_no_victim_may_cease_to_borrow_without_an_excuse() -> None:
    history = Reclaim("n4")
    history.put(make_job("other"), placement=make_placement(["n1", "n4"]))
    history.now += 1000.0
    history.nominate(("n1",))
    history.own("", "n4")
    history.now += 1.0
    with pytest.raises(PromiseBroken, match="lost"):
        history.withdraw()
