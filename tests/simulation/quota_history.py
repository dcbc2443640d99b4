"""The quota changes of a real cluster, replayed while its tenants submit jobs.

The history is that of the Helios cluster Earth (`tests/property/data`): 63 changes of the quotas of
25 tenants on 20 days, of at most 154 nodes with 8 GPUs. Each tenant is a team, each quota a share
of whole nodes, and the days follow one another at a fixed distance. In between every tenant that
has a share wants a drawn part of it, from nothing to twice as much, so that some teams lend nodes
while others have a queue. A job asks for no more than its team has on every day on which it has
anything. A job of a team that is gone waits for it (`TeamNotOpen`), so in the end all that are gone
come back without a share, and may borrow.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from fairlead.api.kubernetes.core import Node
from fairlead.sim.actors.replicas import Replicas
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import unwrap_broken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.promises.team_model import team_taints
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.team_changes import TeamChange
from fairlead.sim.setup.workload import HIGH, Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import EPOCH, WorldOptions
from fairlead.sim.world import World

HELIOS = Path(__file__).parents[1] / "property" / "data" / "helios_earth_quota_changes.csv"
GPUS = 8
#: The parts of its share that a tenant wants between two days.
_WANTED = (0.0, 0.5, 1.0, 2.0)
_HIGH_SHARE = 0.1
#: GPUs of each member; jobs with fewer than all of a node have one member.
_MEMBER_GPUS = (1, 4, 8, 8, 8)


@dataclass(frozen=True, slots=True)
class QuotaHistory:
    """The nodes of each team that has any, day by day, and the nodes of the cluster."""

    days: tuple[Counter[str], ...]
    nodes: int

    @classmethod
    def read(cls, scale: int = 1) -> QuotaHistory:
        """Return the history with each quota divided by `scale`, rounded up to whole nodes."""
        rows = csv.DictReader(line for line in HELIOS.open() if not line.startswith("#"))
        days = tuple(
            Counter({
                team: -(-(int(gpus) // GPUS) // scale)
                for team, gpus in row.items() if team != "day" and int(gpus) >= GPUS
            })
            for row in rows
        )  # fmt: skip
        return cls(days, max(day.total() for day in days))

    def part(self, first: int, last: int) -> QuotaHistory:
        """Return some of the days, with as many nodes as they need."""
        days = self.days[first:last]
        return QuotaHistory(days, max(day.total() for day in days))

    @property
    def teams(self) -> tuple[str, ...]:
        """Every team that there ever is, by name."""
        return tuple(sorted({team for day in self.days for team in day}))

    @property
    def changes(self) -> int:
        """How many shares change, appear or vanish."""
        return sum(a[team] != b[team] for a, b in pairwise(self.days) for team in self.teams)

    @property
    def moves_min(self) -> int:
        """How many nodes change hands at least: those that teams have too many of, or lack."""
        least = 0
        for before, after in pairwise((Counter[str](), *self.days)):
            least += max((before - after).total(), (after - before).total())
        return least

    def team_changes(self, day_seconds: float) -> Iterator[TeamChange]:
        """Yield each day's changes by the teams' names, then the teams that come back."""
        for number, (before, after) in enumerate(pairwise((Counter[str](), *self.days))):
            for team in self.teams:
                if before[team] == after[team]:
                    continue
                nodes = after[team]
                spec = {
                    "namespaces": [team], "shares": [{"nodes": nodes}],
                    "borrowLimitNodes": 2 * nodes, "borrowPriorityMax": 0,
                }  # fmt: skip
                yield TeamChange(number * day_seconds, team, spec if nodes else None)
        for team in self.teams:
            if not self.days[-1][team]:
                spec = {"namespaces": [team], "borrowPriorityMax": HIGH["value"]}
                yield TeamChange(len(self.days) * day_seconds, team, spec)

    def members_max(self, team: str) -> int:
        """Return the nodes that a job of a team may ask for."""
        return min(day[team] for day in self.days if day[team])


def draw_jobs(
    history: QuotaHistory, day_seconds: float, run_seconds: float, rng: random.Random
) -> list[Arrival]:
    """Return the jobs of all tenants in order of time; `run_seconds` is their mean run time."""
    drawn: list[tuple[float, str, int, int, float, bool]] = []
    for number, day in enumerate(history.days):
        for team in sorted(day):
            members_max = history.members_max(team)
            left = rng.choice(_WANTED) * day[team] * day_seconds
            while left > 0:
                gpus = rng.choice(_MEMBER_GPUS)
                members = rng.randint(1, members_max) if gpus == GPUS else 1
                seconds = rng.uniform(0.2, 1.8) * run_seconds
                left -= members * gpus / GPUS * seconds
                at = (number + rng.random()) * day_seconds
                is_high = rng.random() < _HIGH_SHARE
                drawn.append((at, team, members, gpus, seconds, is_high))
    return list(map(_arrival, range(len(drawn)), sorted(drawn)))


def _arrival(number: int, drawn: tuple[float, str, int, int, float, bool]) -> Arrival:
    at, team, members, gpus, seconds, is_high = drawn
    name = f"job-{number:05d}"
    body = job_body(name, members=members, gpus=gpus, run_seconds=round(seconds, 1),
                    is_high=is_high)  # fmt: skip
    body["metadata"]["namespace"] = team
    return Arrival(at, name, body)


@dataclass(slots=True)
class Moves(Observer):
    """An `Observer` that counts the nodes that change hands, and acts at some of the moves."""

    #: Called after as many moves as the key says.
    acts: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])
    #: When which node got which team, "" for none, in order of time.
    seen: list[tuple[float, str, str]] = field(default_factory=list[tuple[float, str, str]])
    _owner: dict[str, str] = field(default_factory=dict[str, str])

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the node where it has another team than before."""
        team = next(iter(team_taints(new)), "")
        if self._owner.get(name, "") != team:
            self._owner[name] = team
            self.seen.append((now - EPOCH, name, team))
            self.acts.get(len(self.seen), lambda: None)()

    def owned_at(self, seconds: float) -> Counter[str]:
        """Return how many nodes each team had at an instant after the start."""
        owner = {name: team for at, name, team in self.seen if at <= seconds}
        return Counter(team for team in owner.values() if team)


def replay(
    history: QuotaHistory,
    moves: Moves,
    *,
    day_seconds: float,
    run_seconds: float | None,
    kills_at: Sequence[int] = (),
) -> World:
    """Return the world in which the history took place; PromiseBroken at what breaks a promise.

    The leading replica is killed at the moves that `kills_at` counts, amid the taints of one day.
    Without `run_seconds` there are no jobs.
    """
    made: list[World] = []

    async def main() -> None:
        made.append(_world(history, moves, day_seconds, run_seconds))
        for count in kills_at:
            moves.acts[count] = partial(_kill_leader, made[0].replicas)
        await made[0].run()

    try:
        run(main())
    except BaseExceptionGroup as group:
        raise unwrap_broken(group) from group
    return made[0]


def _kill_leader(replicas: Replicas) -> None:
    """Kill the replica that leads, as at an API call: nothing more of it is applied."""
    assert replicas.leader is not None
    process = replicas._latest[replicas.leader]
    process.is_dead = process.had_led = True
    replicas.met["killed while it writes taints"] += 1
    process.kill()


def _world(
    history: QuotaHistory, moves: Moves, day_seconds: float, run_seconds: float | None
) -> World:
    rng = random.Random("quotas")  # a simulation, no secret
    seconds = len(history.days) * day_seconds
    options = WorldOptions(
        nodes=history.nodes, workload=WorkloadOptions(0, seconds, teams=history.teams),
        team_changes=tuple(history.team_changes(day_seconds)), faults=PERFECT,
        lease_seconds=15.0, calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0,
        node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0, keeps_events=False,
    )  # fmt: skip
    jobs = draw_jobs(history, day_seconds, run_seconds, rng) if run_seconds is not None else []
    return World(options, 1, arrivals=jobs, observers=(moves,))
