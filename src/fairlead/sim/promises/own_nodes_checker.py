"""Checks promise 11: nobody borrows while nodes of his own fit.

Each first place of a job that takes nodes of other teams is judged, twice:

    nomination   where nodes of its own team were kept for it, it does not take others' instead
    room         no node of its team has had room for a member for `STALE_SECONDS`, as long as a
                 decision may be old, while the team has no other job that this room may be kept for

Jobs with rules about nodes or pods are left out of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import TAINT_SPARE
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gang.phase import Phase, is_new, phase_of
from fairlead.model.health.windows import closed_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.promises.checkers import requests_of
from fairlead.sim.promises.strict_order_checker import has_rules
from fairlead.sim.promises.team_model import TeamModel, is_healthy


@dataclass(slots=True)
class OwnNodesChecker(Observer):
    """An `Observer`; `model` is fed before it is. `judged` counts the places that were compared."""

    model: TeamModel
    #: What is free on a node, by resource, in base units.
    free: Callable[[str], Mapping[str, int]]
    judged: int = 0
    nominated: int = 0
    #: By node: when it, or what uses it, changed last.
    _changed_at: dict[str, float] = field(default_factory=dict[str, float])
    _nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    _pod_nodes: dict[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    _jobs: dict[ObjectKey, Job] = field(default_factory=dict[ObjectKey, Job])

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """11: a first place takes nodes of others only where its team has none."""
        before = self._jobs.pop(key, None)
        if new is not None and not new.is_finished:
            self._jobs[key] = new
        held, holds = _held(before), _held(new)
        if before is not None and new is not None and not held and holds:
            self._check(before, new, now)
        self._note(held ^ holds, now)

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Take in what a pod changes on its node."""
        node = new.spec.node_name if new is not None else self._pod_nodes.pop(key, "")
        if new is not None and node:
            self._pod_nodes[key] = node
        self._note((node,), now)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in a node."""
        before = self._nodes.pop(name, None)
        if new is not None:
            self._nodes[name] = new
        if (
            new is None
            or before is None
            or new.spec != before.spec
            or (is_healthy(new), new.status.allocatable, new.metadata.annotations)
            != (is_healthy(before), before.status.allocatable, before.metadata.annotations)
        ):
            self._note((name,), now)

    def _note(self, nodes: Iterable[str], now: float) -> None:
        for node in nodes:
            self._changed_at[node] = now

    def _check(self, before: Job, new: Job, now: float) -> None:
        placement = new.status.placement
        if placement is None or not placement.team or new.spec.adopts is not None:
            return
        team, taken = placement.team, set(nodes_of(placement))
        borrowed = {node for node in taken if self._is_of_others(node, team, now)}
        if not borrowed:
            return
        shown = f"{'/'.join(new.metadata.key)} of team {team} borrows {', '.join(sorted(borrowed))}"
        kept = set(nodes_of(before.status.nomination))
        if kept - taken:  # members beyond the least may borrow
            self.nominated += 1
            if not any(self._is_of_others(node, team, now) for node in kept) and all(
                is_healthy(self._nodes.get(node)) for node in kept
            ):
                text = f"11: {shown}, though {', '.join(sorted(kept))} were kept for it"
                raise PromiseBroken(text)
        spec = self.model.specs.get(team)
        is_alone = spec is not None and not spec.reservations and not any(
            self.model.team_of(other) == team
            and (phase_of(other) is Phase.QUEUED or is_new(other))
            for key, other in self._jobs.items() if key != new.metadata.key
        )  # fmt: skip
        if not is_alone or has_rules(new) or now - self.model.changed_at <= STALE_SECONDS:
            return
        self.judged += 1
        for node in self._own(team, now):
            if any(_fits(self.free(node), role) for role in _requests(new)):
                raise PromiseBroken(f"11: {shown}, while {node} of its own has room for a member")

    def _is_of_others(self, node: str, team: str, now: float) -> bool:
        """True for a node that has been another team's for so long that every decision saw it."""
        is_old = now - self.model.owned_since.get(node, now) > STALE_SECONDS
        return is_old and self.model.owner.get(node, "") not in ("", team)

    def _own(self, team: str, now: float) -> Iterator[str]:
        """Yield the nodes of a team that have been as they are for long, and are kept for none."""
        kept = {node for job in self._jobs.values() for node in nodes_of(job.status.nomination)}
        for name, node in sorted(self._nodes.items()):
            since = max(self._changed_at.get(name, now), self.model.owned_since.get(name, now))
            is_closed = closed_of(node.metadata.annotations) is not None or any(
                taint.key == TAINT_SPARE for taint in node.spec.taints
            )
            is_seen = self.model.owner.get(name) == team and now - since > STALE_SECONDS
            if is_seen and is_healthy(node) and not is_closed and name not in kept:
                yield name


def _held(job: Job | None) -> set[str]:
    return set() if job is None or job.is_finished else set(nodes_of(job.status.placement))


def _requests(job: Job) -> Iterator[Mapping[str, int]]:
    return (requests_of(role.template.spec) for role in job.spec.roles)


def _fits(room: Mapping[str, int], request: Mapping[str, int]) -> bool:
    return all(room.get(resource, 0) >= amount for resource, amount in request.items())
