"""Checks promise 4: no job of a team with strict order passes an earlier one that needs its nodes.

Each first place of a job is judged whose team has no limits and no budget, against the jobs of the
team that have been ahead of it in the queue for `STALE_SECONDS`, since the decision may be that
old, and were promised no nodes meanwhile. It takes nodes of its team or of none. No such earlier
job may lack room there that these nodes, empty, have; one that still has room, there, on nodes that
it may borrow or on some that have just come, is not passed, it is placed too, though its write may
come later. Jobs with rules about nodes or pods are left out. A job may take its first place with
the write that admits it; as long as nobody has admitted it, none passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from fairlead.api.cluster.team import JobLimits, QueueingStrategy, TeamSpec
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import resources_to_base
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gang.phase import Phase, is_new, phase_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.promises.checkers import requests_of
from fairlead.sim.promises.team_model import TeamModel, is_healthy


@dataclass(slots=True)
class _Queued:
    """A job that may be placed: its place in the queue, and since when it has waited there without
    nodes; `inf` for one that is still to be admitted.
    """

    job: Job
    team: str
    order: tuple[int, str]
    since: float


@dataclass(slots=True)
class StrictOrderChecker(Observer):
    """An `Observer`; `model` is fed before it is. `judged` counts the places that were compared."""

    model: TeamModel
    #: By PriorityClass; 0 for a job without one.
    priorities: Mapping[str, int]
    #: What is free on a node, by resource, in base units.
    free: Callable[[str], Mapping[str, int]]
    judged: int = 0
    _nodes: dict[str, tuple[Node, float]] = field(default_factory=dict[str, tuple[Node, float]])
    _queued: dict[ObjectKey, _Queued] = field(default_factory=dict[ObjectKey, _Queued])

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """4: a first place passes no earlier job of a strict team."""
        before = self._queued.pop(key, None)
        if new is None:
            return
        is_queued = phase_of(new) is Phase.QUEUED
        if is_queued or is_new(new):
            priority = self.priorities.get(new.spec.priority_class_name, 0)
            order = (-priority, new.metadata.creation_timestamp or "")
            is_promised = new.status.nomination is not None  # it has nodes already
            since = now if before is None or is_promised else min(before.since, now)
            since = since if is_queued else inf
            self._queued[key] = _Queued(new, self.model.team_of(new), order, since)
        elif before is not None and before.job.status.nomination is None:
            self._check(new, before, now)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in a node, and since when it is what it is."""
        if new is None:
            self._nodes.pop(name, None)
            return
        known = self._nodes.get(name)
        same = known is not None and is_healthy(known[0]) == is_healthy(new)
        same = same and known is not None and known[0].status.allocatable == new.status.allocatable
        self._nodes[name] = (new, known[1] if known is not None and same else now)

    def _check(self, job: Job, queued: _Queued, now: float) -> None:
        spec, placement = self.model.specs.get(queued.team), job.status.placement
        if placement is None or spec is None or not _is_judged(spec) or job.spec.adopts:
            return
        if now - self.model.changed_at <= STALE_SECONDS:
            return
        usable = self._usable(queued.team, now)
        if usable.isdisjoint(nodes_of(placement)):
            return
        self.judged += 1
        for key, other in sorted(self._queued.items()):
            is_ahead = other.team == queued.team and other.order < queued.order
            is_apart = has_rules(other.job) or other.job.spec.adopts
            is_seen = now - other.since > STALE_SECONDS
            if not is_ahead or not is_seen or is_apart:
                continue
            may_borrow = -other.order[0] <= spec.borrow_priority_max
            rooms = map(self.free, self._open(queued.team, may_borrow=may_borrow))
            lacks_room = not _holds(other.job, rooms)
            if lacks_room and _holds(other.job, map(self._capacity, usable)):
                raise PromiseBroken(
                    f"4: {'/'.join(job.metadata.key)} of the strict team {queued.team} passes "
                    f"{'/'.join(key)}, which is ahead of it and waits for the same nodes"
                )

    def _open(self, team: str, *, may_borrow: bool) -> Iterator[str]:
        """Yield the nodes that a decision may have given a job of the team."""
        for name, (node, _) in self._nodes.items():
            if is_healthy(node) and (may_borrow or self.model.owner.get(name, "") in ("", team)):
                yield name

    def _usable(self, team: str, now: float) -> frozenset[str]:
        """Return the nodes of a team and of none, as every decision of late has seen them."""
        return frozenset(
            name for name, (node, since) in self._nodes.items()
            if is_healthy(node) and self.model.owner.get(name, "") in ("", team)
            and now - max(since, self.model.owned_since.get(name, now)) > STALE_SECONDS
        )  # fmt: skip

    def _capacity(self, node: str) -> Mapping[str, int]:
        return resources_to_base(self._nodes[node][0].status.allocatable)


def _holds(job: Job, rooms: Iterable[Mapping[str, int]]) -> bool:
    """True when nodes with so much room hold a job of one role."""
    [role] = job.spec.roles
    request = requests_of(role.template.spec)
    count = sum(
        min(room.get(r, 0) // amount for r, amount in request.items() if amount) for room in rooms
    )
    return count >= role.least


def _is_judged(spec: TeamSpec) -> bool:
    is_strict = spec.queueing_strategy is QueueingStrategy.STRICT_FIFO
    is_unlimited = spec.limits == spec.user_limits == JobLimits()
    return is_strict and is_unlimited and spec.budget.gpu_hours is None


def has_rules(job: Job) -> bool:
    """True where amounts alone do not tell whether nodes hold a job."""
    templates = [role.template.spec for role in job.spec.roles]
    ports = (port for t in templates for c in t.containers for port in c.ports)
    return (
        job.spec.topology is not None
        or any(t.affinity or t.node_selector or t.topology_spread_constraints for t in templates)
        or any(port.host_port for port in ports)
    )
