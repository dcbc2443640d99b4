"""No job starts where it could still run when a reservation begins that is not its own; a job that
names one starts on its nodes, while it lasts. Judged from the objects, by a rule of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf

from msgspec.structs import replace

from fairlead.api.cluster.team import Reservation, Team
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node, make_team

WORLDS, STEPS = 15, 30
GRACE_SECONDS = 30.0
NODES = [f"n{i}" for i in range(5)]
TEAMS = ("ape", "bee")


def test_reserved_nodes_are_for_those_who_reserved_them() -> None:
    seen = Counter[str]()
    for seed in range(WORLDS):
        _run(random.Random(seed), seen)
    assert seen["in their own reservation"] > 10
    assert seen["before another one"] > 10


def _run(rng: random.Random, seen: Counter[str]) -> None:
    """Let a world go on, with all decisions made a second time on a new state."""
    teams, jobs = _teams(rng), _jobs(rng)
    cluster = _cluster(teams, jobs, rng)
    state, now, ends = PlacementState(cluster), EPOCH - 200.0, list[tuple[float, Job]]()
    for _ in range(STEPS):
        placed = _placed(state, now)
        fresh = _cluster(teams, [entry.job for entry in cluster.jobs.values()], rng)
        assert placed == _placed(PlacementState(fresh), now)
        for action in placed:
            job = as_written(action)
            nodes = {node for role in action.placement.roles for node in role.nodes}
            _judge(job, nodes, teams, now, seen)
            cluster.job_changed(job)
            ends.append((now + (job.spec.time_limit_seconds or 400), job))
        now += rng.choice([1.0, 7.0, 20.0, 50.0])
        for _, job in [each for each in ends if each[0] <= now]:
            done = (*job.status.conditions, Condition(type="Succeeded", status="True"))
            ended = replace(job.status, conditions=done, placement=None)
            cluster.job_changed(replace(job, status=ended))


def _teams(rng: random.Random) -> list[Team]:
    def reservation(number: int) -> Reservation:
        start = EPOCH + rng.randrange(-100, 600)
        return Reservation(
            f"r{number}", format_time(start), format_time(start + rng.randrange(1, 400)),
            node_names=tuple(rng.sample(NODES, rng.randrange(1, 4))),
        )  # fmt: skip

    return [
        make_team(name, reservations=tuple(map(reservation, range(rng.randrange(3)))))
        for name in TEAMS
    ]


def _jobs(rng: random.Random) -> list[Job]:
    return [
        make_job(
            f"j{i}", namespace=rng.choice(TEAMS), count=rng.randrange(1, 3), created=EPOCH + i,
            time_limit_seconds=rng.choice([None, 20, 100, 300]),
            spec={"reservation": rng.choice(["", "", "r0", "r1"])},
        )
        for i in range(8)
    ]  # fmt: skip


def _cluster(teams: list[Team], jobs: list[Job], rng: random.Random) -> ClusterState:
    """Return the cluster, its objects taken in in any order."""
    cluster = ClusterState()
    events: list[Callable[[], None]] = [
        *(partial(cluster.team_changed, team.metadata.name, team) for team in teams),
        *(partial(cluster.node_changed, make_node(name)) for name in NODES),
        *(partial(cluster.job_changed, job) for job in jobs),
    ]
    rng.shuffle(events)
    for event in events:
        event()
    return cluster


def _placed(state: PlacementState, now: float) -> list[PlaceJob]:
    actions = decide(state, PlacementPolicy(), now).actions
    return [action for action in actions if isinstance(action, PlaceJob)]


def _judge(job: Job, nodes: set[str], teams: list[Team], now: float, seen: Counter[str]) -> None:
    limit = job.spec.time_limit_seconds
    until = inf if limit is None else now + limit + GRACE_SECONDS
    own = None
    for team in teams:
        for each in team.spec.reservations:
            start, end = parse_time(each.start_time), parse_time(each.end_time)
            if (team.metadata.name, each.name) == (job.metadata.namespace, job.spec.reservation):
                own = each
                assert start <= now < end
            elif nodes & set(each.node_names):
                assert until <= start or now >= end
                seen["before another one"] += now < start
    if job.spec.reservation:
        assert own is not None, "its team has no such reservation"
        assert nodes <= set(own.node_names)
        seen["in their own reservation"] += 1
