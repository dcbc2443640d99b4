"""A bare model of what a scheduler and an autoscaler do that see pods and no gangs, for comparison.

The same arrivals, machines and delays as the simulated run, by other rules:

* each member is bound as soon as a node has room, members of earlier jobs first; a job runs once
  all of its members are bound, and holds what it has until then;
* every 10 seconds machines are bought for the members that fit on nothing that is there or coming;
* a node without a member for `idleSeconds` is ended, as many at once as there are.

It flatters them: members start at once, there are no priorities and no failures of nodes, a
decision costs nothing, and no budget holds an end back.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fairlead.api.values.quantity import GPU, resources_to_base
from fairlead.sim.actors.machines import MachineUse
from fairlead.sim.scenarios.scenario import CloudSpec, ClusterSpec
from fairlead.sim.setup.workload import SIMULATE_SECONDS, Arrival

SCAN_SECONDS = 10.0
#: After a refused launch, and until a machine that is no node counts as lost (Cluster Autoscaler's
#: `--initial-node-group-backoff-duration` and `--max-node-provision-time`).
BACKOFF_SECONDS, PROVISION_SECONDS_MAX = 300.0, 900.0


@dataclass(slots=True)
class PodPolicyResult:
    """What came of it. Jobs that `never_ran` hold parts of the pool that others wait for."""

    waits: list[float] = field(default_factory=list[float])
    never_ran: int = 0
    use: MachineUse = field(default_factory=MachineUse)


@dataclass(slots=True)
class _Job:
    at: float
    members: int
    gpus: int
    run_seconds: float
    unbound: int
    nodes: list[int] = field(default_factory=list[int])


def run_per_pod(
    cluster: ClusterSpec, arrivals: Sequence[Arrival], seed: int
) -> PodPolicyResult | None:
    """Return what the pods' view gives; None for a load or a cluster that the model does not have.

    It has one pool, and jobs of one role whose members ask for GPUs.
    """
    jobs = list(map(_job, arrivals))
    if len(cluster.pools) != 1 or not all(job.gpus for job in jobs):
        return None
    return _Model(cluster, seed).run(jobs)


def _job(arrival: Arrival) -> _Job:
    (role, *_) = arrival.body["spec"]["roles"]
    template: dict[str, Any] = role["template"]
    limits = template["spec"]["containers"][0]["resources"].get("limits", {})
    members = int(role.get("count", 1))
    seconds = float(template["metadata"]["annotations"][SIMULATE_SECONDS])
    return _Job(arrival.at, members, resources_to_base(limits).get(GPU, 0), seconds, members)


class _Model:
    def __init__(self, cluster: ClusterSpec, seed: int) -> None:
        self._pool, self._gpus, self._cloud = cluster.pools[0], cluster.gpus, cluster.cloud
        self._rng = random.Random(f"{seed}/per-pod")  # noqa: S311 # a simulation, no secret
        self._free: dict[int, int] = {}
        #: Nodes by free GPUs; a dictionary keeps the order of a set.
        self._by_free: list[dict[int, None]] = [{} for _ in range(cluster.gpus + 1)]
        self._idle_since: dict[int, float] = {}
        self._bought: set[int] = set()
        self._coming = 0
        #: Jobs of so many GPUs a member that lack members, in the order of their arrival.
        self._waiting = defaultdict[int, dict[int, _Job]](dict)
        self._now = self._backoff_until = 0.0
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = count()
        self._result = PodPolicyResult()
        for node in range(cluster.nodes):
            self._add(-1 - node)

    def run(self, jobs: Sequence[_Job]) -> PodPolicyResult:
        """Run until nothing can happen any more."""
        for job in jobs:
            self._at(job.at, "arrive", job)
        left, scans = len(jobs), False
        while self._events and left:
            at, _, what, value = heapq.heappop(self._events)
            self._advance(at)
            match what:
                case "arrive":
                    self._waiting[value.gpus][next(self._order)] = value
                case "node":
                    self._coming -= 1
                    self._add(value)
                case "lost":
                    self._coming -= 1
                    self._result.use.ended += 1
                case "finish":
                    left -= 1
                    for node in value.nodes:
                        self._resize(node, self._free[node] + value.gpus)
                case "idle":
                    self._end_idle(value)
                case _:
                    scans = False
                    self._scan()
            if what in ("arrive", "node", "finish"):
                self._bind()
            if not scans and self._may_grow() and any(self._waiting.values()):
                scans = True
                self._at(self._now + SCAN_SECONDS, "scan", None)
        self._result.never_ran = sum(map(len, self._waiting.values()))
        return self._result

    def _at(self, at: float, what: str, value: object) -> None:
        heapq.heappush(self._events, (at, next(self._order), what, value))

    def _advance(self, at: float) -> None:
        use, passed = self._result.use, at - self._now
        machines = len(self._bought) + self._coming
        use.seconds += passed * machines
        use.idle_seconds += passed * (self._coming + len(self._idle_since))
        use.most = max(use.most, machines)
        self._now = at

    # Nodes

    def _add(self, node: int) -> None:
        if node >= 0:
            self._bought.add(node)
        self._free[node] = 0
        self._by_free[0][node] = None
        self._resize(node, self._gpus)

    def _resize(self, node: int, free: int) -> None:
        del self._by_free[self._free[node]][node]
        self._free[node] = free
        self._by_free[free][node] = None
        if free < self._gpus:
            self._idle_since.pop(node, None)
        elif node in self._bought:
            self._idle_since[node] = self._now
            self._at(self._now + self._pool.idle_seconds, "idle", (node, self._now))

    def _end_idle(self, value: tuple[int, float]) -> None:
        node, since = value
        if self._idle_since.get(node) == since:
            del self._by_free[self._free.pop(node)][node], self._idle_since[node]
            self._bought.discard(node)
            self._result.use.ended += 1

    # Members

    def _bind(self) -> None:
        """Bind members on the fullest nodes that have room, those of earlier jobs first."""
        room = max((free for free, nodes in enumerate(self._by_free) if nodes), default=0)
        while True:  # where one member of a size does not fit, no other one of it does
            heads = (
                (next(iter(jobs)), size) for size, jobs in self._waiting.items()
                if jobs and size <= room
            )  # fmt: skip
            key, size = min(heads, default=(0, 0))
            if not size:
                return
            job = self._waiting[size][key]
            while job.unbound and (free := self._least_free(size)):
                node = next(iter(self._by_free[free]))
                self._resize(node, free - size)
                job.nodes.append(node)
                job.unbound -= 1
            if job.unbound:
                room = size - 1
                continue
            del self._waiting[size][key]
            self._result.waits.append(self._now - job.at)
            self._at(self._now + job.run_seconds, "finish", job)

    def _least_free(self, gpus: int) -> int:
        """Return the fewest free GPUs of a node that has as many as these; 0: none has."""
        fits = (free for free in range(gpus, self._gpus + 1) if self._by_free[free])
        return next(fits, 0)

    # Machines

    def _may_grow(self) -> bool:
        return len(self._bought) + self._coming < self._pool.max

    def _scan(self) -> None:
        if self._now < self._backoff_until:
            return
        waiting = (job for jobs in self._waiting.values() for job in jobs.values())
        wanted = _bins(waiting, self._gpus) - self._coming
        buys = min(wanted, self._pool.max - len(self._bought) - self._coming)
        if buys <= 0:
            return
        if self._rng.random() < self._cloud.refused_share:
            self._backoff_until = self._now + BACKOFF_SECONDS
            return
        for _ in range(buys):
            self._coming += 1
            self._result.use.launched += 1
            number = self._result.use.launched
            if self._rng.random() < self._cloud.lost_share:
                self._at(self._now + PROVISION_SECONDS_MAX, "lost", number)
            else:
                self._at(self._now + _delay(self._cloud, self._rng), "node", number)


def _delay(cloud: CloudSpec, rng: random.Random) -> float:
    return cloud.launch_seconds + rng.random() * cloud.launch_jitter_seconds


def _bins(jobs: Iterable[_Job], gpus: int) -> int:
    """Return how many empty nodes hold the unbound members, the largest placed first."""
    counts = [0] * (gpus + 1)
    for job in jobs:
        counts[job.gpus] += job.unbound
    nodes = 0
    while any(counts):
        nodes += 1
        free = gpus
        for size in range(gpus, 0, -1):
            fit = min(counts[size], free // size)
            counts[size] -= fit
            free -= fit * size
    return nodes
