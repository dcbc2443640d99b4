"""An index of what belongs to each job, updated per event: a decision costs what changed.

`JobIndex` follows the mirrors and marks the jobs to look at again. All of it follows from the
mirrors and is built again from them after a crash.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from fairlead.api import names
from fairlead.api.jobs.job import Job, RestartPolicy, owner_reference_of
from fairlead.api.kubernetes.core import ConfigMap, Node, Pod, Service
from fairlead.api.meta import label_number
from fairlead.api.podgroups import PodGroup, pod_groups
from fairlead.api.resources import CONFIG_MAPS, SERVICES
from fairlead.api.values.times import parse_time
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.elements.element_states import ElementStates
from fairlead.controllers.gangs.finished_jobs import FinishedJobs
from fairlead.decide.jobs.admitting.dependencies import VISITED_MAX, find_cycle, links_of, waits_for
from fairlead.decide.jobs.admitting.gate import begun_of, dependency_state
from fairlead.decide.jobs.following.pods import JobPods
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.view import (
    DependencyState,
    JobView,
    NodeOutage,
    OwnedObject,
    PodRefusal,
    Probe,
)
from fairlead.decide.pinning import Binding, node_of, own_binding
from fairlead.decide.verdict import ObjectKey
from fairlead.model.health.node_health import NodeHealth
from fairlead.model.inventory.spares import is_spare
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Change, Mirror, MirrorOptions
from fairlead.runtime.watching.reader import MirrorReader, follow

_NO_NODES: Mapping[str, int] = {}
Dependent: TypeAlias = ConfigMap | Service | PodGroup
D = TypeVar("D", ConfigMap, Service, PodGroup)
O = TypeVar("O", Pod, ConfigMap, Service, PodGroup)  # noqa: E741 - an owned object


#: By how much the clock of an earlier controller may have differed from ours.
_CLOCK_ERROR_SECONDS_MAX = 600.0


@dataclass(slots=True)
class JobParts:
    """What belongs to one job besides its object, kept from its first sign to its last."""

    pods: JobPods = field(default_factory=JobPods)
    config_maps: dict[str, OwnedObject] = field(default_factory=dict)
    services: dict[str, OwnedObject] = field(default_factory=dict)
    pod_groups: dict[str, OwnedObject] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True when nothing of the job is left."""
        others = self.config_maps or self.services or self.pod_groups
        return not (self.pods.attempts or others)


#: Of a job without any; never added to.
_NO_PARTS = JobParts()


@dataclass(slots=True)
class _PlacedNodes:
    """The nodes that a job's placement names, with how many members each holds."""

    nodes: Mapping[str, int]
    #: False until it was checked whether they all exist.
    is_checked: bool = False


class JobIndex:
    """The parts, places and dependents of every job."""

    def __init__(
        self,
        world: ClusterWorld,
        mirrors: JobsMirrors,
        *,
        mark: Callable[[ObjectKey], None],
        on_finished: Callable[[str], None],
        on_gone: Callable[[str], None],
        clock: Clock,
        reader: MirrorReader | None,
        finished: FinishedJobs,
    ) -> None:
        """Register on the mirrors.

        `mark` is called with each job to look at again, `on_finished` and `on_gone` with the uid of
        a job that has ended, and of one that was deleted.
        """
        self._finished = finished
        self._world, self._cluster = world, world.mirrors
        self._health = world.health
        self._yielding = world.yielding
        self._mark = mark
        self._on_finished = on_finished
        self._on_gone = on_gone
        self._clock = clock
        self._began = asyncio.get_running_loop().time()
        #: The attempts that were there when we began, by uid of the job.
        self._inherited: dict[str, int] = {}
        self._by_node = JobsByNode()
        #: How members are bound on the nodes that say it.
        self._bindings: dict[str, Binding] = {}
        self._spares: dict[str, None] = {}
        #: By key and uid of the job: parts in another namespace are not its parts.
        self._parts: dict[tuple[ObjectKey, str], JobParts] = {}
        #: By key of the job; exactly those with a placement.
        self._placed: dict[ObjectKey, _PlacedNodes] = {}
        #: Jobs not yet admitted, by the job that they wait for.
        self._dependents: dict[ObjectKey, dict[ObjectKey, None]] = {}
        arrays, jobs = self._cluster.arrays, self._cluster.jobs
        self._elements = ElementStates(arrays, jobs, mark=mark, reader=reader)
        self._unregister = [
            follow(self._cluster.jobs, self._on_job, reader),
            follow(self._cluster.pods, self._on_pod, reader),
            follow(self._cluster.nodes, self._on_node, reader),
        ]
        in_maps = partial(self._on_owned, attrgetter("config_maps"))
        self._unregister.append(follow(mirrors.config_maps, in_maps, reader))
        if mirrors.services is not None:
            in_services = partial(self._on_owned, attrgetter("services"))
            self._unregister.append(follow(mirrors.services, in_services, reader))
        if mirrors.pod_groups is not None:
            in_groups = partial(self._on_owned, attrgetter("pod_groups"))
            self._unregister.append(follow(mirrors.pod_groups, in_groups, reader))
        self._unregister += [self._health.on_change(self._on_health), self._elements.close]

    def close(self) -> None:
        """Take the handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    def view(
        self,
        job: Job,
        policy: JobsPolicy,
        now: float,
        *,
        pod_refusal: PodRefusal | None,
        probe: Probe | None,
        counts_written_at: float,
        late_until: float,
    ) -> JobView:
        """Return the input of a decision: what follows from the mirrors and from answers.

        `late_until` 0: no creation of ours is unanswered; those of an earlier controller may be.
        """
        key, uid = job.metadata.key, job.metadata.uid
        parts = self._parts.get((key, uid)) or _NO_PARTS
        placed = self._placed.get(key)
        if placed is not None and not placed.is_checked:
            for node in placed.nodes:
                if node not in self._health:
                    self._by_node.note_gone(node, now)
            placed.is_checked = True
        nodes = placed.nodes if placed is not None else _NO_NODES
        return JobView(
            job=job,
            policy=policy,
            now=now,
            pods=parts.pods,
            config_maps=parts.config_maps,
            services=parts.services,
            pod_groups=parts.pod_groups,
            dependencies=self._dependencies(job) if job.spec.after else {},
            begun=begun_of(job, self._cluster.jobs.get),
            cycle=find_cycle(job, lambda other: self._cluster.jobs.get(*other)),
            element=self._elements.state(job),
            node_troubles=outages(self._health, self._by_node.gone_since, nodes, parts.pods.nodes),
            bindings=self._bindings,
            served=self._world.state.devices.resources,
            spares=self._spares,
            is_surplus=self._finished.is_surplus(job),
            is_waited_for=key in self._dependents,
            cordoned=self._health.cordoned,
            yielding=self._yielding.nodes,
            closing=self._health.closing,
            pod_refusal=pod_refusal,
            probe=probe,
            counts_written_at=counts_written_at,
            late_until=late_until or self._inherited_until(job, policy, now),
        )

    def _dependencies(self, job: Job) -> dict[str, DependencyState]:
        """Return the state of each job that a job waits for."""
        found: dict[str, DependencyState] = {}
        for namespace, name in waits_for(job):
            found[name] = dependency_state(self._cluster.jobs.get(namespace, name))
        if not job.status.attempt:
            for after in job.spec.after:
                if after.elements:
                    found[after.job] = self._elements.dependency(job.metadata.namespace, after)
        return found

    def _inherited_until(self, job: Job, policy: JobsPolicy, now: float) -> float:
        """Return until when a pod may come that an earlier controller asked for; 0: none may.

        The record of unanswered creations ended with that controller. None of its requests is in
        flight any more once we have run so long, nor where all of them had an answer when all
        members ran, nor where that is long ago, as clocks differ; a member's replacement may be.
        """
        attempt = job.status.current_attempt
        if attempt is None or self._inherited.get(job.metadata.uid) != attempt.number:
            return 0.0
        seconds = policy.late_pod_seconds
        if attempt.started_at and job.spec.restart.policy is not RestartPolicy.MEMBER:
            age = now - parse_time(attempt.started_at)
            if not attempt.may_have_late_pods or age > seconds + _CLOCK_ERROR_SECONDS_MAX:
                return 0.0
        left = self._began + seconds - asyncio.get_running_loop().time()
        return now + left if left > 0 else 0.0

    def _on_job(self, change: Change[Job]) -> None:
        key, old, new = change.key, change.old, change.new
        self._mark(key)
        if old is None and new is not None and new.status.attempt:
            self._inherited[new.metadata.uid] = new.status.attempt
        elif old is not None and new is None:
            self._inherited.pop(old.metadata.uid, None)
        if dependency_state(old) is not dependency_state(new):
            for dependent in self._dependents.get(key, ()):
                self._mark(dependent)
        if links_of(old) != links_of(new):  # a ring may have come about, or is broken
            self._mark_ring(key)
        for other in waits_for(old):
            waiting = self._dependents[other]
            waiting.pop(key, None)
            if not waiting:
                del self._dependents[other]
        for other in waits_for(new):
            self._dependents.setdefault(other, {})[key] = None
        self._elements.put(key, old, new)
        for surplus in self._finished.put(key, old, new):
            self._mark(surplus)
        placement = new.status.placement if new is not None else None
        before = old.status.placement if old is not None else None
        if placement != before or (placement is not None and key not in self._placed):
            self._replace_placed(key, new)
        if new is not None and new.is_finished:
            self._on_finished(new.metadata.uid)
            self._forget_if_over(key, new.metadata.uid)
        if new is None and old is not None:
            self._on_gone(old.metadata.uid)
            self._forget_if_over(key, old.metadata.uid)

    def _mark_ring(self, key: ObjectKey) -> None:
        """Mark the jobs that wait for a job, directly or by way of others."""
        seen, rest = {key}, [key]
        while rest:
            for dependent in self._dependents.get(rest.pop(), ()):
                if dependent not in seen and len(seen) < VISITED_MAX:
                    seen.add(dependent)
                    rest.append(dependent)
                    self._mark(dependent)

    def _replace_placed(self, key: ObjectKey, job: Job | None) -> None:
        before = self._placed.pop(key, None)
        after = placed_nodes(job) if job is not None else {}
        for node in after:
            self._by_node.link(node, key)
        for node in before.nodes if before is not None else ():
            self._by_node.unlink(node, key)
        if after:
            self._placed[key] = _PlacedNodes(after)

    def _on_pod(self, change: Change[Pod]) -> None:
        pod, is_there = subject(change)
        owner = owner_reference_of(pod.metadata)
        if owner is None:
            return
        key = (pod.metadata.namespace, owner.name)
        pods = self._parts_of(key, owner.uid).pods
        node = node_of(pod.spec)
        count = pods.nodes.get(node, 0)
        if is_there:
            pods.put(pod, self._clock.now())
        else:
            pods.drop(pod)
        if pods.nodes.get(node, 0) > count:
            self._by_node.link(node, key)
        elif pods.nodes.get(node, 0) < count:
            self._by_node.unlink(node, key)
        self._forget_if_over(key, owner.uid)
        self._mark(key)

    def _on_node(self, change: Change[Node]) -> None:
        binding = own_binding(change.new.metadata.labels) if change.new is not None else None
        if binding is not None:
            self._bindings[change.key[1]] = binding
        else:
            self._bindings.pop(change.key[1], None)
        self._spares.pop(change.key[1], None)
        if change.new is not None and is_spare(change.new.spec.taints):
            self._spares[change.key[1]] = None

    def _on_health(self, name: str) -> None:
        if name in self._health:
            self._by_node.gone_since.pop(name, None)
        else:
            self._by_node.note_gone(name, self._clock.now())
        for key in self._by_node.on(name):
            self._mark(key)

    def _on_owned(
        self, table_of: Callable[[JobParts], dict[str, OwnedObject]], change: Change[D]
    ) -> None:
        """Keep what a job owns besides its pods in one of the tables of its parts."""
        obj, is_there = subject(change)
        key, owner = job_key_of(obj), owner_reference_of(obj.metadata)
        if key is None or owner is None:
            return
        table = table_of(self._parts_of(key, owner.uid))
        if is_there:
            table[obj.metadata.name] = owned_of(obj)
        else:
            table.pop(obj.metadata.name, None)
        self._forget_if_over(key, owner.uid)
        self._mark(key)

    def _parts_of(self, key: ObjectKey, uid: str) -> JobParts:
        parts = self._parts.get((key, uid))
        if parts is None:
            parts = self._parts[key, uid] = JobParts()
        return parts

    def _forget_if_over(self, key: ObjectKey, uid: str) -> None:
        """Drop the parts of a job that is gone or has ended, once there are none.

        Until it has ended its parts stay: they hold what deleted pods had reported.
        """
        job = self._cluster.jobs.get(*key)
        if job is not None and job.metadata.uid == uid and not job.is_finished:
            return
        parts = self._parts.get((key, uid))
        if parts is not None and parts.is_empty:
            del self._parts[key, uid]


def job_key_of(obj: Pod | Dependent) -> ObjectKey | None:
    """Return the key of the Fairlead job that controls an object, or None."""
    owner = owner_reference_of(obj.metadata)
    return None if owner is None else (obj.metadata.namespace, owner.name)


def subject(change: Change[O]) -> tuple[O, bool]:
    """Return the object that changed, and whether it is still there and still its job's.

    An object that lost its owner (a job deleted with its dependents orphaned), or got another one,
    is shown as it was: to the job that had it, it is gone. A new owner takes no part: we adopt
    nothing that we did not make.
    """
    old, new = change.old, change.new
    if new is None:
        assert old is not None
        return old, False
    if old is not None:
        owner = owner_reference_of(old.metadata)
        now = owner_reference_of(new.metadata)
        if owner is not None and (now is None or now.uid != owner.uid):
            return old, False
    return new, True


def owned_of(obj: Dependent) -> OwnedObject:
    """Return what decisions ask of a ConfigMap or Service."""
    return OwnedObject(
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        attempt=label_number(obj.metadata.labels.get(names.ATTEMPT)) or 0,
        is_terminating=obj.metadata.deletion_timestamp is not None,
    )


class JobsByNode:
    """Which jobs have members or reservations on which node."""

    def __init__(self) -> None:
        #: Exactly the jobs whose placement names the node, or that have a pod on it.
        self._jobs: dict[str, dict[ObjectKey, int]] = {}
        #: Nodes that do not exist, as long as a job is on them, with the instant since when.
        self.gone_since: dict[str, float] = {}

    def on(self, name: str) -> tuple[ObjectKey, ...]:
        """Return the jobs on a node."""
        return tuple(self._jobs.get(name, ()))

    def note_gone(self, name: str, now: float) -> None:
        """Note that a node that jobs are on does not exist."""
        if name in self._jobs:
            self.gone_since.setdefault(name, now)

    def link(self, name: str, key: ObjectKey) -> None:
        """Note one more reason for a job to be on a node."""
        jobs = self._jobs.setdefault(name, {})
        jobs[key] = jobs.get(key, 0) + 1

    def unlink(self, name: str, key: ObjectKey) -> None:
        """Take back what `link` noted."""
        jobs = self._jobs[name]
        jobs[key] -= 1
        if jobs[key]:
            return
        del jobs[key]
        if not jobs:
            del self._jobs[name]
            self.gone_since.pop(name, None)


def placed_nodes(job: Job) -> Mapping[str, int]:
    """Return the nodes of the placement and how many members each holds."""
    if job.status.placement is None:
        return _NO_NODES
    out: dict[str, int] = {}
    for role in job.status.placement.roles:
        for node in role.nodes:
            out[node] = out.get(node, 0) + 1
    return out


def outages(
    health: NodeHealth, gone_since: Mapping[str, float], *nodes: Mapping[str, int]
) -> dict[str, NodeOutage]:
    """Return those of the nodes that are not ready or gone, in name order."""
    unready_since = health.unready_since
    if not unready_since and not gone_since:
        return {}
    unready = ((name, False) for name in _among(unready_since, nodes))
    gone = ((name, True) for name in _among(gone_since, nodes))
    return {
        name: NodeOutage(
            name,
            (gone_since if is_gone else unready_since)[name],
            is_gone=is_gone,
            is_unreachable=not is_gone and name in health.unreachable,
        )
        for name, is_gone in sorted({**dict(unready), **dict(gone)}.items())
    }


def _among(table: Mapping[str, float], nodes: Sequence[Mapping[str, int]]) -> Iterator[str]:
    """Yield the names of `table` that are among the nodes; walks the smaller side."""
    if not table:
        return iter(())
    if len(table) <= sum(map(len, nodes)):
        return (name for name in table if any(name in group for group in nodes))
    return (name for group in nodes for name in group if name in table)


# What the jobs controller reads besides the cluster: what jobs own that is not a pod


@dataclass(frozen=True, slots=True)
class JobsMirrors:
    """Mirrors that no other controller reads; they hold only what jobs own."""

    config_maps: Mirror[ConfigMap]
    services: Mirror[Service] | None = None
    pod_groups: Mirror[PodGroup] | None = None

    @classmethod
    def make(
        cls, client: Client, policy: JobsPolicy, *, clock: Clock, rng: random.Random
    ) -> JobsMirrors:
        """Make the mirrors that the policy needs."""
        own = MirrorOptions(label_selector=names.JOB_UID)
        services = None
        if policy.peer_naming is PeerNaming.DNS:
            services = Mirror(client, SERVICES, clock=clock, rng=rng, options=own)
        groups = None
        if policy.groups is not None:
            resource = pod_groups(policy.groups)
            groups = Mirror(client, resource, clock=clock, rng=rng, options=own)
        return cls(
            config_maps=Mirror(client, CONFIG_MAPS, clock=clock, rng=rng, options=own),
            services=services,
            pod_groups=groups,
        )

    @property
    def all(self) -> Sequence[Mirror[Any]]:
        """Return those that there are."""
        optional = (self.services, self.pod_groups)
        return [self.config_maps, *(mirror for mirror in optional if mirror is not None)]
