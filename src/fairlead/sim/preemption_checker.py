"""Checks promise 5 at every write: preemption takes whole jobs of lower priority, for a job that is
then placed.

It knows the objects only: who is nominated for which nodes, who gives its place back for whom. The
priorities are those of the classes that jobs name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.api.core import Node, Pod
from fairlead.api.job import Job
from fairlead.api.names import READY
from fairlead.api.placement import Placement
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.checkers import PromiseBroken

#: A write that its author decided on earlier comes at most this much later.
_STALE_SECONDS = 150.0
#: A job whose victims have left is placed by then; their pods end, and nodes report late.
_PLACED_SECONDS_MAX = 3600.0


@dataclass(slots=True)
class _JobModel:
    """What one job holds, is nominated for, and was given by others."""

    uid: str
    priority: int
    nodes: frozenset[str] = frozenset()
    nominated: frozenset[str] = frozenset()
    nominated_at: float = 0.0
    #: Until when each victim was named, by uid; infinity: it still is.
    named: dict[str, float] = field(default_factory=dict[str, float])
    gives_way_to: str = ""
    #: Since when a job that others gave way to has not been placed.
    owed_since: float | None = None
    preempted_attempts: int = 0


class PreemptionChecker:
    """An `Observer` of a world without pods of others."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        """`priorities` are the values of the PriorityClasses, 0 for a job without one."""
        self.preemptions = 0
        self.nominations = 0
        self._priorities = priorities
        self._jobs: dict[ObjectKey, _JobModel] = {}
        #: When each node was last seen unable to start pods.
        self._unavailable_at: dict[str, float] = {}
        self._is_unavailable: dict[str, bool] = {}

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Compare a job with what it was."""
        model = self._jobs.get(key)
        if new is None or (model is not None and model.uid != new.metadata.uid):
            self._jobs.pop(key, None)
            model = None
        if new is None:
            return
        if model is None:
            priority = self._priorities.get(new.spec.priority_class_name, 0)
            model = self._jobs[key] = _JobModel(new.metadata.uid, priority)
        self._nomination(key, model, new, now)
        self._preemption(key, model, new, now)
        self._end(key, model, new, now)
        model.nodes = _nodes(new.status.placement)
        if model.nodes or new.is_finished or new.spec.suspend or new.spec.cancel:
            model.owed_since = None

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Nothing: the other checkers count pods."""

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note since when a node can start no pods."""
        is_ready = new is not None and any(
            c.type == READY and c.status == "True" for c in new.status.conditions
        )
        is_out = new is None or not is_ready or new.spec.unschedulable or bool(new.spec.taints)
        if is_out or self._is_unavailable.get(name, False):
            self._unavailable_at[name] = now
        self._is_unavailable[name] = is_out

    def wrote(self, kind: str) -> None:
        """Nothing: other kinds do not matter."""

    def check_by_clock(self, now: float) -> None:
        """5, by the clock: what others gave way for is placed, or does not want it any more."""
        for key, model in self._jobs.items():
            since = model.owed_since
            if since is not None and model.nominated and now - since > _PLACED_SECONDS_MAX:
                raise PromiseBroken(
                    f"5: {key} is not placed {now - since:.0f} s after others gave way to it"
                )

    def _nomination(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        nomination = new.status.nomination
        nodes = frozenset(n for r in nomination.roles for n in r.nodes) if nomination else None
        names = {v.uid for v in nomination.victims} if nomination is not None else set[str]()
        if nodes is not None and nodes != model.nominated:
            self.nominations += 1
            model.nominated_at = now
        if not nodes and model.nominated:
            self._check_withdrawn(key, model, new)
        for uid, until in model.named.items():
            if uid not in names and until == float("inf"):
                model.named[uid] = now
        model.named.update(dict.fromkeys(names, float("inf")))
        model.nominated = nodes or frozenset()

    def _check_withdrawn(self, key: ObjectKey, model: _JobModel, new: Job) -> None:
        """5: a place that is kept is given up only by its job, or with a node of it."""
        wants_none = new.is_finished or new.spec.suspend or new.spec.cancel
        if new.status.placement is not None or wants_none or new.metadata.deletion_timestamp:
            return
        since = model.nominated_at - _STALE_SECONDS
        is_node_lost = any(
            self._is_unavailable.get(n, True) or self._unavailable_at.get(n, 0.0) > since
            for n in model.nominated
        )
        if not is_node_lost:
            raise PromiseBroken(f"5: {key} lost the place that was kept for it")
        model.owed_since = None

    def _preemption(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        preemption = new.status.preemption
        if preemption is None or model.gives_way_to == preemption.uid:
            model.gives_way_to = preemption.uid if preemption is not None else ""
            return
        model.gives_way_to = preemption.uid
        other = self._jobs.get((preemption.namespace, preemption.name))
        if other is None or other.uid != preemption.uid:
            return  # deleted since this was decided
        if other.priority <= model.priority:
            raise PromiseBroken(
                f"5: {key} of priority {model.priority} gives way to one of {other.priority}"
            )
        if now > other.named.get(model.uid, 0.0) + _STALE_SECONDS:
            raise PromiseBroken(f"5: {key} gives way to a job that does not name it")
        if other.nominated and not other.nominated & model.nodes:
            raise PromiseBroken(f"5: {key} gives way to a job that needs none of its nodes")

    def _end(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        count = sum(attempt.reason == "Preempted" for attempt in new.status.attempts)
        if count <= model.preempted_attempts:
            model.preempted_attempts = count  # old records are dropped
            return
        model.preempted_attempts = count
        self.preemptions += 1
        if not model.gives_way_to:
            raise PromiseBroken(f"5: {key} was preempted for no job")
        for other in self._jobs.values():
            if other.uid == model.gives_way_to and not other.nodes and other.owed_since is None:
                other.owed_since = now


def _nodes(placement: Placement | None) -> frozenset[str]:
    roles = placement.roles if placement is not None else ()
    return frozenset(node for role in roles for node in role.nodes)
