"""Teams in whole simulated worlds, and a planted bug for each promise that their checkers watch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import JobLimits, Share, Team, TeamSpec
from fairlead.api.jobs.job import Attempt, Job, Progress
from fairlead.api.jobs.placement import (
    EmptySeats,
    Nomination,
    Preemption,
    RolePlacement,
    Victim,
)
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import SUBMITTED_BY, TEAM
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.borrowing import Borrowing
from fairlead.decide.placement.waiting.job_limits import QueueLimits, RunningLimits
from fairlead.decide.teams.decide import Sharing
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.asks.teams import TeamTable
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken, unwrap_broken
from fairlead.sim.promises.own_nodes_checker import OwnNodesChecker
from fairlead.sim.promises.preemption_checker import PreemptionChecker
from fairlead.sim.promises.team_checker import TeamChecker
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.team_changes import TeamChange, draw_changes
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import make_job, make_node, make_placement

HOUR = 3600.0


def team(name: str, nodes: int, **more: Any) -> TeamChange:
    spec = {"namespaces": [name], "shares": [{"nodes": nodes}], **more}
    return TeamChange(0.0, name, spec)


def arrival(at: float, space: str, name: str, members: int, seconds: float) -> Arrival:
    body = job_body(name, members=members, gpus=8, run_seconds=seconds)
    body["metadata"]["namespace"] = space
    return Arrival(at, name, body)


def world_of(
    *arrivals: Arrival, changes: tuple[TeamChange, ...], seconds: float = HOUR, **more: Any
) -> World:
    """Four nodes of 8 GPUs, without faults; all teams have what they ask for from 200 s on."""
    workload = WorkloadOptions(
        0, seconds, teams=tuple(dict.fromkeys(change.name for change in changes))
    )
    options = WorldOptions(
        nodes=4, workload=workload, faults=PERFECT, calls_between_kills_mean=0.0,
        steps_between_crashes_mean=0.0, node_failures_per_day=0.0, drains_per_day=0.0,
        user_acts_per_day=0.0, team_changes=changes,
    )  # fmt: skip
    return World(changed(options, **more), 1, arrivals=arrivals)


def run_world(make: Callable[[], World]) -> World:
    """Run a world that is made inside the loop, to its end or to a broken promise."""
    made: list[World] = []

    async def main() -> None:
        made.append(make())
        await made[0].run()

    try:
        run(main())
    except BaseExceptionGroup as group:
        raise unwrap_broken(group) from group
    return made[0]


def reclaiming(**more: Any) -> World:
    """A gang of red takes all four nodes; two of them are blue's, which needs them later."""
    return world_of(
        arrival(400.0, "red", "borrower", 4, 3 * HOUR),
        arrival(900.0, "blue", "owner", 2, 60.0),
        changes=(team("blue", 2), team("red", 2)),
        **more,
    )


def lent_crosswise(exchange_seconds: float) -> World:
    """Green takes the nodes of blue, so that blue's job takes red's, which comes for them later."""
    return world_of(
        arrival(300.0, "green", "guest", 2, 3 * HOUR),
        arrival(400.0, "blue", "within", 2, 3 * HOUR),
        arrival(2400.0, "red", "owner", 2, 60.0),
        changes=(team("blue", 2), team("red", 2), team("green", 0)),
        teams=TeamsPolicy(exchange_seconds=exchange_seconds),
    )


def visited() -> World:
    """Blue's jobs come to its only node every 100 s for 2000 s, where red's job would run an hour.

    The three nodes of red have a gang of its own until all is over.
    """
    return world_of(
        arrival(300.0, "red", "own", 3, 3 * HOUR),
        arrival(400.0, "red", "borrower", 1, HOUR),
        *(arrival(500.0 + 100.0 * n, "blue", f"visit-{n:02}", 1, 30.0) for n in range(20)),
        changes=(team("blue", 1), team("red", 3)),
    )


def single_jobs(*changes: TeamChange) -> World:
    """Four jobs of red, each of one node, one after the other."""
    jobs = [arrival(400.0 + i, "red", f"job-{i}", 1, 600.0) for i in range(4)]
    return world_of(*jobs, changes=changes)


def limited_users(limits: dict[str, int]) -> World:
    """Six jobs of red by two users, each of one node, on four nodes, at about the same time."""
    jobs = [arrival(400.0 + i, "red", f"job-{i}", 1, 600.0) for i in range(6)]
    for number, each in enumerate(jobs):
        each.body["metadata"]["annotations"] = {SUBMITTED_BY: ("ana", "ben")[number % 2]}
    return world_of(*jobs, changes=(team("blue", 1), team("red", 3, userLimits=limits)))


def test_an_owner_has_its_nodes_back_within_a_minute_and_the_borrower_runs_again_after_it() -> None:
    world = run_world(reclaiming)
    assert (world.preemptions.reclaims, world.preemptions.preemptions) == (1, 1)
    assert world.teams.borrowed >= 4  # two nodes, twice
    jobs = {key[1]: job for key, job in world.checkers.finished.items()}
    assert [a.reason for a in jobs["borrower"].status.attempts] == ["Preempted", "Succeeded"]
    owner = jobs["owner"].status
    assert owner.started_at is not None
    assert owner.submitted_at is not None
    assert parse_time(owner.started_at) - parse_time(owner.submitted_at) <= 60.0


@pytest.mark.parametrize(
    ("exchange_seconds", "names"), [(600.0, {"guest"}), (float("inf"), {"within", "guest"})]
)
def test_an_owner_takes_its_node_back_from_a_team_beyond_its_share(
    exchange_seconds: float, names: set[str]
) -> None:
    world = run_world(lambda: lent_crosswise(exchange_seconds))
    jobs = {key[1]: job for key, job in world.checkers.finished.items()}
    gave_way = {
        name for name, job in jobs.items()
        if any(attempt.reason == "Preempted" for attempt in job.status.attempts)
    }  # fmt: skip
    # Without an exchange blue's job takes its own nodes back from green's in turn.
    assert gave_way == names
    assert (world.preemptions.reclaims, set(world.teams.model.owner.values())) == (
        len(names), {"blue", "red"},
    )  # fmt: skip


def test_a_world_in_which_teams_come_change_and_go_ends_with_all_shares_met() -> None:
    gone = TeamChange(1200.0, "blue", None)
    more = changed(team("blue", 3), at_seconds=2000.0)
    jobs = [arrival(100.0 * i, ("blue", "red")[i % 2], f"job-{i}", 1 + i % 3, 300.0)
            for i in range(12)]  # fmt: skip
    world = run_world(
        lambda: world_of(*jobs, changes=(team("blue", 1), team("red", 1), gone, more))
    )
    assert world.teams.compared > 0
    assert list(world.teams.model.owner.values()).count("blue") == 3


def test_drawn_changes_begin_with_every_team_and_end_with_teams_that_may_borrow() -> None:

    for number in range(20):
        changes = draw_changes(random.Random(number), 10, HOUR)
        names = {change.name for change in changes}
        first, last = changes[: len(names)], changes[-len(names) :]
        assert {c.name for c in first} == {c.name for c in last} == names
        assert all(c.spec is not None and c.spec["borrowPriorityMax"] == 10 for c in last)
        assert [c.at_seconds for c in changes] == sorted(c.at_seconds for c in changes)


# Planted bugs in the code, each reported by its own checker


def test_a_planner_that_takes_nothing_back_is_reported() -> None:
    policy = PlacementPolicy(preempts=False)
    with pytest.raises(PromiseBroken, match=r"^4: .*'owner'.* has waited .* that others borrow"):
        run_world(lambda: reclaiming(policy=policy))


def test_a_borrower_whose_owner_comes_twenty_times_gives_way_six_times() -> None:
    world = run_world(visited)
    assert (world.preemptions.preemptions, world.preemptions.borrowed_again) == (6, 5)
    jobs = {key[1]: job for key, job in world.checkers.finished.items()}
    reasons = [a.reason for a in jobs["borrower"].status.attempts]
    assert reasons == [*["Preempted"] * 6, "Succeeded"]


def test_a_borrower_that_never_backs_off_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fairlead.decide.placement.waiting.patience.borrower_backoff", lambda _status: None
    )
    with pytest.raises(PromiseBroken, match=r"^5: .*'borrower'.* borrows again .* takes 60 s"):
        run_world(visited)


def test_a_planner_without_borrow_limits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = (team("blue", 3), team("red", 1, borrowLimitNodes=1))
    assert run_world(lambda: single_jobs(*changes)).teams.borrowed == 2
    monkeypatch.setattr(Borrowing, "limited", lambda _self, capacity, *_: capacity)
    with pytest.raises(PromiseBroken, match=r"^4: .* team red borrows 2 nodes, its limit is 1"):
        run_world(lambda: single_jobs(*changes))


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"running": 1}, "jobs with nodes, its limit is 1"), ({"gpus": 8}, "16 GPUs, its limit is 8")],
)
def test_a_planner_without_limits_of_jobs_is_reported(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], words: str
) -> None:
    world = run_world(lambda: limited_users(limits))
    assert world.teams.limited > 0
    assert len(world.checkers.finished) == 6
    monkeypatch.setattr(RunningLimits, "verdict", lambda *_: None)
    with pytest.raises(PromiseBroken, match=rf"^4: .* user 'ana' of team red has .*{words}"):
        run_world(lambda: limited_users(limits))


def test_a_planner_that_queues_what_was_submitted_beyond_the_limit_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.decide.admission.jobs.limit_causes", lambda *_: ())
    assert len(run_world(lambda: limited_users({"submitted": 1})).checkers.finished) == 6
    monkeypatch.setattr(QueueLimits, "__contains__", lambda *_: False)
    with pytest.raises(PromiseBroken, match=r"^4: .* has 2 unfinished jobs that started, its limi"):
        run_world(lambda: limited_users({"submitted": 1}))


def test_a_job_that_admission_refuses_is_taken_once_another_one_has_ended() -> None:
    world = run_world(lambda: limited_users({"submitted": 2}))
    assert world.submission.refused > 0
    assert len(world.checkers.finished) == 6


def test_a_planner_without_lend_limits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = (team("blue", 3, lendLimitNodes=1), team("red", 1))
    assert run_world(lambda: single_jobs(*changes)).teams.borrowed == 2
    monkeypatch.setattr(Borrowing, "limited", lambda _self, capacity, *_: capacity)
    with pytest.raises(PromiseBroken, match=r"^4: .* team blue lends 2 nodes, its limit is 1"):
        run_world(lambda: single_jobs(*changes))


def test_a_job_that_borrows_without_the_right_to_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = (team("blue", 2), team("red", 2, borrowPriorityMax=-1))
    assert run_world(lambda: single_jobs(*changes)).teams.borrowed == 0
    monkeypatch.setattr(TeamTable, "may_borrow", lambda *_: True)
    with pytest.raises(PromiseBroken, match=r"^4: .* of team red may not borrow, and does"):
        run_world(lambda: single_jobs(*changes))


def test_a_teams_controller_that_adds_a_second_taint_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.controllers.placing.teams.is_team_taint", lambda _taint: False)
    gone = TeamChange(600.0, "blue", None)
    more = changed(team("red", 4), at_seconds=700.0)
    with pytest.raises(PromiseBroken, match=r"^4: node v\d+ has the taints of teams"):
        run_world(lambda: world_of(changes=(team("blue", 4), gone, more), seconds=1200.0))


def test_a_teams_controller_that_stands_still_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.controllers.placing.teams.share_out", lambda *_: Sharing((), {}))
    with pytest.raises(PromiseBroken, match=r"^4: team blue has 0 healthy nodes, .* are 2"):
        run_world(lambda: world_of(changes=(team("blue", 2),), seconds=1200.0))


def headed() -> World:
    """A gang of blue would borrow all nodes, one of which red uses; red's next job comes later."""
    return world_of(
        arrival(400.0, "red", "long", 1, 3 * HOUR),
        arrival(500.0, "blue", "head", 4, 60.0),
        arrival(2500.0, "red", "own", 1, 60.0),
        changes=(team("blue", 2), team("red", 2)),
    )


def test_no_head_of_the_queue_keeps_a_team_off_its_own_nodes() -> None:
    world = run_world(headed)
    assert world.checkers.finished["red", "own"].status.attempt == 1


def test_a_scheduler_that_keeps_a_team_off_its_own_nodes_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        PlanningContext, "kept_from", lambda _self, _team, reservation: reservation.kept
    )
    with pytest.raises(PromiseBroken, match=r"4: .*own.* nodes of its team that are free"):
        run_world(headed)


# The checkers alone


class History:
    """Two nodes, of which red has one; a gang of blue that borrows it, and a job of red."""

    def __init__(self) -> None:
        self.teams = TeamChecker({})
        self.checker = PreemptionChecker({}, self.teams.model)
        self.now = 1000.0
        self.nodes: dict[str, Node] = {}
        for name in ("blue", "red"):
            spec = TeamSpec(namespaces=(name,), shares=(Share(nodes=1),))
            self.teams.team(Team(metadata=ObjectMeta(name=name), spec=spec), name, self.now)
        self.node("n1", "blue")
        self.node("n2", "red")
        self.now += 1000.0
        placed = replace(make_placement(["n1", "n2"]), team="blue", may_borrow=True)
        self.low = make_job("low", namespace="blue", count=2, placement=placed,
                            status={"attempts": (Attempt(1),)})  # fmt: skip
        self.high = make_job("high", namespace="red", count=1)
        self.put(self.low)
        self.put(self.high)

    def node(self, name: str, *teams: str) -> None:
        taints = tuple(Taint(TEAM, "NoSchedule", each) for each in teams)
        node: Node = make_node(name, taints=taints)
        self.nodes[name] = node
        for checker in (self.teams, self.checker):
            checker.node(node, name, self.now)

    def put(self, job: Job, **status: object) -> Job:
        after = replace(job, status=replace(job.status, **status))
        for checker in (self.teams, self.checker):
            checker.job(after, after.metadata.key, self.now)
        return after

    def nominate(self) -> None:
        meta = self.low.metadata
        victim = Victim(namespace=meta.namespace, name=meta.name, uid=meta.uid)
        roles = (RolePlacement(role="worker", nodes=("n2",)),)
        self.high = self.put(self.high, nomination=Nomination(roles, (victim,)))

    def request(self) -> None:
        meta = self.high.metadata
        request = Preemption(namespace=meta.namespace, name=meta.name, uid=meta.uid)
        self.low = self.put(self.low, preemption=request)

    def end(self) -> None:
        ended = replace(self.low.status.attempts[-1], reason="Preempted")
        self.low = self.put(self.low, attempts=(*self.low.status.attempts[:-1], ended))
        self.low = self.put(self.low, placement=None, preemption=None)

    def again(self, *nodes: str) -> None:
        number = self.low.status.attempt + 1
        placed = make_placement(nodes or ("n1", "n2"), attempt=number)
        placed = replace(placed, team="blue", may_borrow=True)
        attempts = (*self.low.status.attempts, Attempt(number))
        self.low = self.put(self.low, placement=placed, attempt=number, attempts=attempts)

    def give_way(self, reason: str = "Preempted") -> None:
        """End the attempt for the job of red, which gets the node for a while."""
        self.now += 1000.0
        self.nominate()
        self.request()
        ended = replace(self.low.status.attempts[-1], reason=reason,
                        finished_at=format_time(self.now))  # fmt: skip
        self.low = self.put(self.low, attempts=(*self.low.status.attempts[:-1], ended))
        self.low = self.put(self.low, placement=None, preemption=None)
        placed = replace(make_placement(["n2"]), team="red")
        self.high = self.put(self.high, nomination=None, placement=placed)
        self.high = self.put(self.high, placement=None)

    def give_way_often(self) -> None:
        """Let it give way four times in a row, long after each other."""
        self.give_way()
        for _ in range(3):
            self.now += 100_000.0
            self.again()
            self.give_way()


def test_a_sound_reclaim_from_a_job_of_equal_priority_is_not_reported() -> None:
    history = History()
    history.nominate()
    history.request()
    history.end()
    history.high = history.put(
        history.high, nomination=None, placement=replace(make_placement(["n2"]), team="red")
    )
    assert (history.checker.reclaims, history.checker.preemptions) == (1, 1)


def equal_priority_on_its_own_nodes(history: History) -> None:
    history.node("n2", "blue")
    history.now += 1000.0
    history.nominate()
    history.request()


def a_loop(history: History) -> None:
    for _ in range(2):
        history.nominate()
        history.request()
        history.end()
        history.again()


def a_part_of_a_gang(history: History) -> None:
    history.nominate()
    history.request()
    history.put(history.low, placement=replace(make_placement(["n1"]), team="blue"))


def borrows_too_early(history: History) -> None:
    history.give_way_often()
    history.now += 239.0
    history.again()


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        (equal_priority_on_its_own_nodes, "gives way to one of 0"),
        (a_loop, "was preempted twice for one place"),
        (a_part_of_a_gang, "a part of the gang"),
        (borrows_too_early, "borrows again 239 s after it gave way 4 times .*, which takes 240 s"),
    ],
)
def test_a_planted_reclaim_is_reported(planted: Callable[[History], None], words: str) -> None:
    with pytest.raises(PromiseBroken, match=rf"^5: .*{words}"):
        planted(History())


def test_a_victim_that_ended_late_may_give_way_again_once_that_place_is_lost() -> None:
    history = History()
    history.nominate()
    history.request()
    elsewhere = replace(make_placement(["n3"]), team="red")
    history.high = history.put(history.high, nomination=None, placement=elsewhere)
    history.end()
    history.high = history.put(history.high, placement=None)
    history.again()
    history.nominate()
    history.request()
    history.end()
    assert history.checker.preemptions == 2


@pytest.mark.parametrize(
    ("kept", "words"),
    [(("n2",), "though n2 were kept for it"), ((), "while n2 of its own has room for a member")],
)
def test_a_job_that_borrows_beside_nodes_of_its_own_is_reported(
    kept: tuple[str, ...], words: str
) -> None:
    history = History()
    checker = OwnNodesChecker(history.teams.model, lambda _: {"nvidia.com/gpu": 8, "pods": 110})
    job = replace(history.high, status=replace(history.high.status, nomination=None))
    if kept:
        nomination = Nomination((RolePlacement(role="worker", nodes=kept),))
        job = replace(job, status=replace(job.status, nomination=nomination))
    for name in ("n1", "n2"):
        checker.node(history.nodes[name], name, history.now - 500.0)
    checker.job(job, job.metadata.key, history.now)
    own = replace(make_placement(["n2"]), team="red")
    for place in (own, replace(own, roles=make_placement(["n1"]).roles, may_borrow=True)):
        after = replace(job, status=replace(job.status, placement=place))
        if place is own:
            checker.job(after, job.metadata.key, history.now)
            checker.job(job, job.metadata.key, history.now)
            history.now += 500.0
        else:
            with pytest.raises(PromiseBroken, match=rf"^11: red/high .* borrows n1, {words}"):
                checker.job(after, job.metadata.key, history.now)


def test_nodes_of_its_own_may_be_kept_for_a_job_that_is_still_to_be_admitted() -> None:
    history = History()
    checker = OwnNodesChecker(history.teams.model, lambda _: {"nvidia.com/gpu": 8, "pods": 110})
    for name in ("n1", "n2"):
        checker.node(history.nodes[name], name, history.now - 500.0)
    other = make_job("other", namespace="red", count=2, attempt=0)
    for job in (other, history.high):
        checker.job(job, job.metadata.key, history.now)
    borrowed = replace(make_placement(["n1"]), team="red", may_borrow=True)
    after = replace(history.high, status=replace(history.high.status, placement=borrowed))
    checker.job(after, after.metadata.key, history.now)  # one decision, and this write came first
    assert checker.judged == 0


def at_its_time(history: History) -> None:
    history.give_way_often()
    history.now += 240.0


def on_its_own_node(history: History) -> None:
    history.give_way_often()
    history.again("n1")


def with_a_checkpoint(history: History) -> None:
    history.give_way_often()
    history.low = history.put(history.low, progress=Progress(checkpoint_step=7))


def after_another_end(history: History) -> None:
    history.give_way_often()
    history.now += 240.0
    history.again()
    history.give_way("NodeLost")


def once(history: History) -> None:
    history.give_way()


@pytest.mark.parametrize(
    "sound", [at_its_time, on_its_own_node, with_a_checkpoint, after_another_end, once]
)
def test_a_borrower_that_may_is_not_reported(sound: Callable[[History], None]) -> None:
    history = History()
    sound(history)
    if sound is not on_its_own_node:
        history.again()
    assert len(history.low.status.attempts) > 1
    assert bool(history.checker.borrowed_again) is (sound is not once)


def test_a_limit_of_gpus_counts_no_seat_that_was_given_back() -> None:
    spec = TeamSpec(namespaces=("red",), limits=JobLimits(gpus=16))
    for vacant in ((0,), ()):
        checker, now = TeamChecker({}), 1000.0
        checker.team(Team(metadata=ObjectMeta(name="red"), spec=spec), "red", 0.0)
        seats = (EmptySeats("worker", done=vacant, vacant=vacant),) if vacant else ()
        placed = replace(make_placement(["n1", "n2"]), team="red")
        first = make_job("first", namespace="red", count=2, gpus=8, placement=placed,
                         status={"seats": seats})  # fmt: skip
        checker.job(first, first.metadata.key, now)
        second = make_job("second", namespace="red", count=1, gpus=8)
        checker.job(second, second.metadata.key, now)
        placed = replace(make_placement(["n1"]), team="red")
        started = replace(second, status=replace(second.status, placement=placed))
        if vacant:
            checker.job(started, started.metadata.key, now)
            assert checker.limited == 1
        else:
            with pytest.raises(PromiseBroken, match=r"^4: .* has 24 GPUs, its limit is 16"):
                checker.job(started, started.metadata.key, now)


def test_a_node_of_a_team_that_is_gone_is_reported() -> None:
    history = History()
    history.teams.team(None, "red", history.now)
    history.now += 1000.0
    with pytest.raises(PromiseBroken, match=r"^4: team red is gone, and has 1 nodes"):
        history.teams.check_by_clock(history.now)


def test_the_shares_of_thousands_of_nodes_are_compared_once_after_each_change() -> None:
    checker, now = TeamChecker({}), 1000.0
    # The share that takes any node is matched first, and leaves the racks' nodes to the other one.
    for name, selector in (("any", {}), ("racks", {"rack": "r"})):
        share = Share(nodes=1_000, node_selector=selector)
        spec = TeamSpec(namespaces=(name,), shares=(share,))
        checker.team(Team(metadata=ObjectMeta(name=name), spec=spec), name, now)
    for number in range(2_000):
        owner, labels = ("racks", {"rack": "r"}) if number < 1_000 else ("any", {})
        taints = (Taint(TEAM, "NoSchedule", owner),)
        name = f"n{number:04d}"
        checker.node(make_node(name, labels=labels, taints=taints), name, now)
    for _ in range(3):
        now += 1000.0
        checker.check_by_clock(now)
    assert checker.compared == 1
    checker.node(make_node("n0000", labels={"rack": "r"}), "n0000", now)
    with pytest.raises(PromiseBroken, match="4: team racks has 999 healthy nodes, its shares are"):
        checker.check_by_clock(now)
