"""The images controller: has images pulled before work comes, by pods that run nothing.

It keeps an index of nodes, pulls and starting work by event, and decides about all of them at once,
as the rates are of the whole cluster. Where the next jobs are going to be, the scheduler has
written (nominations), or says in this process (room that it keeps for the heads of the queue).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from fairlead.api.cluster.image_set import ImageSet
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import IMAGE_SETS, JOBS, PODS
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.api.values.times import parse_time
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.images.actions import Action, SetImageSet
from fairlead.decide.images.book import PullBook
from fairlead.decide.images.plan import (
    EndPull,
    ImageTally,
    PullEnding,
    StartPull,
    plan,
    scope_of,
)
from fairlead.decide.images.pods import Taken, name_of, of_job, of_set, pull_pod
from fairlead.decide.images.policy import ImagesPolicy
from fairlead.decide.images.view import ImageNode, ImagesView, SeenPull, Wish, pulls_for
from fairlead.decide.images.wishes import (
    IMAGE_SET,
    JOB,
    ExpectedJob,
    images_by_node,
    is_expired,
    is_of_set,
    is_starting,
    status_of_set,
    wishes_of_job,
    wishes_of_set,
)
from fairlead.decide.verdict import Decision, ObjectKey, earliest
from fairlead.model.asks.image_pulls import is_pull
from fairlead.model.gang.phase import PLACEABLE, Phase, phase_of
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: Where jobs at the head of the queue are going to be, by the scheduler of this process.
ReservedPlaces = Callable[[], Mapping[ObjectKey, tuple[str, ...]]]
#: What a decision was made on: changes taken in, and places that were kept.
Basis: TypeAlias = tuple[int, Mapping[ObjectKey, tuple[str, ...]]]
_UNSETTLED: Basis = (-1, {})
_JOBS_READ_MAX = 64


class ImagesController:
    """One per process and leader. After a crash, create a new one: its state is in the pods."""

    name = "images"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        sets: Mirror[ImageSet],
        *,
        reserved: ReservedPlaces,
        events: EventSink,
        policy: ImagesPolicy,
        clock: Clock,
        reader: MirrorReader | None = None,
    ) -> None:
        """`reserved` says where the heads of the queue are going to be."""
        self._client, self._objects = client, ObjectWriter(client)
        self._world, self._sets, self._reserved = world, sets, reserved
        self._events, self._policy, self._clock = events, policy, clock
        self._set_aside = set_aside_of(reader)
        self._book = PullBook(loop_time())
        self._nodes: dict[str, ImageNode] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._pulls: dict[ObjectKey, Pod] = {}
        #: What pods that start wait for, by node; and jobs that start, which may lack pods yet.
        self._pending: dict[str, dict[ObjectKey, frozenset[str]]] = defaultdict(dict)
        self._node_of: dict[ObjectKey, str] = {}
        self._starting: dict[ObjectKey, None] = {}
        self._nominated: dict[ObjectKey, None] = {}
        #: Jobs as they are stored, by uid; the oldest go first.
        self._read: dict[str, Mapping[str, Any]] = {}
        self._version, self._settled_on = 0, _UNSETTLED
        self._next_at = self._due_at = float("-inf")
        mirrors = world.mirrors
        removers = (
            follow(mirrors.nodes, self._node_changed, reader),
            follow(mirrors.pods, self._pod_changed, reader),
            follow(mirrors.jobs, self._job_changed, reader),
            follow(sets, self._set_changed, reader),
        )
        self._removers = removers

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        return (self._sets, seen.nodes, seen.jobs, seen.pods, seen.quotas)

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        for remove in self._removers:
            remove()

    # Events

    def _node_changed(self, change: Change[Node]) -> None:
        name, node = change.key[1], change.new
        found = None if node is None else ImageNode.of(node)
        labels = {} if node is None else node.metadata.labels
        if found == self._nodes.get(name) and labels == self._labels.get(name, {}):
            return
        self._version += 1
        self._nodes.pop(name, None)
        self._labels.pop(name, None)
        if found is not None:
            self._nodes[name], self._labels[name] = found, labels

    def _pod_changed(self, change: Change[Pod]) -> None:
        key, pod = change.key, change.new
        if pod is not None and is_pull(pod):
            self._version += 1
            self._pulls[key] = pod
            pod = None
        elif self._pulls.pop(key, None) is not None:
            self._version += 1
        images = frozenset[str]() if pod is None else pulls_for(pod)
        before = self._node_of.pop(key, "")
        known = self._pending[before].pop(key, frozenset()) if before else frozenset()
        if before and not self._pending[before]:
            del self._pending[before]
        if pod is not None and images:
            self._node_of[key] = pod.spec.node_name
            self._pending[pod.spec.node_name][key] = images
        self._version += known != images

    def _job_changed(self, change: Change[Job]) -> None:
        key, job = change.key, change.new
        for index, holds in (
            (self._starting, job is not None and is_starting(job)),
            (self._nominated, job is not None and job.status.nomination is not None),
        ):
            before = key in index
            index.pop(key, None)
            if holds:
                index[key] = None
            self._version += holds or before
        self._version += key in self._reserved()
        if job is None and change.old is not None:
            self._read.pop(change.old.metadata.uid, None)

    def _set_changed(self, change: Change[ImageSet]) -> None:
        self._version += 1

    # Decisions

    def _expected(self) -> Iterator[ExpectedJob]:
        """Yield the waiting jobs whose nodes are known: those that others make room for first."""
        if not self._policy.prefetch_jobs:
            return
        jobs, seen = self._world.mirrors.jobs, dict[ObjectKey, None]()
        for key in sorted(self._nominated):
            job = jobs.get(*key)
            if job is None or phase_of(job) not in PLACEABLE:
                continue
            if job.status.nomination is not None:
                seen[key] = None
                yield ExpectedJob.of_roles(job, job.status.nomination.roles)
        for key, nodes in self._reserved().items():
            job = jobs.get(*key)
            if job is not None and key not in seen and phase_of(job) is Phase.QUEUED:
                yield ExpectedJob(job, {"": nodes})

    def _wishes(self, now: float) -> Iterator[Wish]:
        quotas: dict[str, list[ResourceQuota]] = defaultdict(list)
        if self._policy.prefetch_jobs:
            for quota in self._world.mirrors.quotas.items():
                quotas[quota.metadata.namespace].append(quota)
        pulls = Counter(namespace for namespace, _ in self._pulls)
        for count, expected in enumerate(self._expected()):
            if count >= self._policy.jobs_max:
                break
            space = expected.job.metadata.namespace
            yield from wishes_of_job(expected, self._policy, quotas[space], pulls[space])
        for each in sorted(self._sets.items(), key=_name):
            if not is_expired(each, now):
                yield from wishes_of_set(each, self._nodes_of(each))

    def _nodes_of(self, image_set: ImageSet) -> dict[str, ImageNode]:
        return {
            name: node for name, node in self._nodes.items()
            if is_of_set(image_set, self._labels[name])
        }  # fmt: skip

    def _starting_on(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        instant = self._clock.now()
        for node, pods in self._pending.items():
            for key, images in pods.items():
                pod = self._world.mirrors.pods.get(*key)
                created = pod.metadata.creation_timestamp if pod is not None else None
                # One that has not started for so long is not about to.
                if created and instant - parse_time(created) < self._policy.pull_seconds_max:
                    found[node] |= images
        for key in self._starting:
            job = self._world.mirrors.jobs.get(*key)
            if job is not None and job.status.placement is not None:
                for node, image in images_by_node(job, job.status.placement):
                    found[node].add(full_image_name(image))
        return {node: frozenset(images) for node, images in found.items()}

    def _basis(self) -> Basis:
        return self._version, self._reserved() if self._policy.prefetch_jobs else {}

    def _wait_seconds(self) -> float | None:
        """Return how long to wait for the next decision: after a change or at the instant that was
        set, at its pace; 0 or less: not at all, None: until something changes.
        """
        if self._sets.is_undefined and not self._policy.prefetch_jobs and not self._pulls:
            return None
        instant = loop_time()
        if self._settled_on != self._basis():
            return self._next_at - instant
        if self._due_at == float("inf"):
            return None
        return max(self._due_at, self._next_at) - instant

    def due_at(self) -> float | None:
        """Return when to decide next; None: when something changes."""
        return self._later(self._clock.now())

    def _later(self, now: float) -> float | None:
        wait = self._wait_seconds()
        return None if wait is None else now + max(wait, 0.0)

    def decide(self, now: float) -> Decision[Action]:
        """Decide about all pulls, unless that was done a moment ago."""
        wait, instant = self._wait_seconds(), loop_time()
        if wait is None or wait > 0.0:
            return Decision(wake_at=self._later(now))
        basis = self._basis()
        wishes = tuple(self._wishes(now))
        pulls = [SeenPull.of(pod) for pod in self._pulls.values()]
        if not wishes and not pulls and not len(self._sets):
            self._settle(basis, instant, None)
            return Decision()
        view = ImagesView(self._nodes, wishes, pulls, self._starting_on())
        found = plan(view, self._book, self._policy, instant)
        statuses = tuple(self._statuses(found.tallies, now))
        self._settle(basis, instant, earliest(found.wake_at, self._next_expiry(now, instant)))
        return Decision((*found.actions, *statuses), wake_at=self._later(now))

    def _settle(self, basis: Basis, instant: float, due_at: float | None) -> None:
        self._settled_on = basis
        self._next_at = instant + self._policy.loop_seconds
        self._due_at = float("inf") if due_at is None else due_at

    def _next_expiry(self, now: float, instant: float) -> float | None:
        ends = [
            parse_time(each.spec.keep_until) for each in self._sets.items()
            if each.spec.keep_until is not None and not is_expired(each, now)
        ]  # fmt: skip
        return instant + min(ends) - now if ends else None

    def _statuses(
        self, tallies: Mapping[tuple[str, str], ImageTally], now: float
    ) -> Iterator[SetImageSet]:
        for each in sorted(self._sets.items(), key=_name):
            status = status_of_set(each, self._nodes_of(each), tallies, now)
            if status != each.status:
                yield SetImageSet(each, status)

    # Actions

    def key_of(self, action: Action) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        match action:
            case StartPull(owner):
                return (owner.namespace or self._policy.namespace, name_of(action))
            case EndPull(pod):
                return pod.metadata.key
            case SetImageSet(image_set):
                return image_set.metadata.key
            case _:
                assert_never(action)

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case StartPull():
                taken = await self._taken(action)
                if taken is None:
                    return None
                body = pull_pod(action, taken, self._policy)
                namespace = body["metadata"]["namespace"]
                try:
                    made = await self._client.create(PODS.only_metadata, body, namespace=namespace)
                except AlreadyExists:
                    return None  # it is on its way out, or the pull of this very image
                return Written.of(PODS, made)
            case EndPull(pod, why):
                self._report(pod, why)
                return await self._objects.delete(
                    PODS, pod.metadata.key, uid=pod.metadata.uid, grace_seconds=0
                )
            case SetImageSet(image_set, status):
                diff = merge_diff(to_wire(image_set.status), to_wire(status))
                return await self._objects.patch_status(IMAGE_SETS, image_set.metadata, diff)
            case _:
                assert_never(action)

    async def _taken(self, action: StartPull) -> Taken | None:
        """Return what the pod takes from its owner; None when that is gone."""
        owner = action.owner
        if owner.kind == IMAGE_SET:
            image_set = self._sets.get("", owner.name)
            is_same = image_set is not None and image_set.metadata.uid == owner.uid
            return of_set(image_set) if image_set is not None and is_same else None
        raw = self._read.pop(owner.uid, None)
        if raw is None:
            raw = await self._client.get(JOBS.raw, owner.name, namespace=owner.namespace)
            if raw.get("metadata", {}).get("uid") != owner.uid:
                return None
        self._read[owner.uid] = raw
        if len(self._read) > _JOBS_READ_MAX:
            del self._read[next(iter(self._read))]
        return of_job(raw, action.role)

    def _report(self, pod: Pod, why: PullEnding) -> None:
        """Emit an event of a pull that failed, on what it was for."""
        if why is not PullEnding.FAILED:
            return
        seen = SeenPull.of(pod)
        message = f"Node {pod.spec.node_name} cannot pull {seen.key[1]}: {seen.message}"
        for owner in pod.metadata.owner_references:
            job = self._world.mirrors.jobs.get(pod.metadata.namespace, owner.name)
            image_set = self._sets.get("", owner.name)
            found = {JOB: (JOBS, job), IMAGE_SET: (IMAGE_SETS, image_set)}.get(owner.kind)
            if found is None or found[1] is None or found[1].metadata.uid != owner.uid:
                continue
            self._events.record(
                found[0], found[1].metadata, EventKind.WARNING, reason="ImagePullFailed",
                message=message,
            )  # fmt: skip

    def changed(self, key: ObjectKey) -> None:
        """Decide again."""
        self._version += 1

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave an image alone for a while whose pod is refused: by a quota, or a policy."""
        if isinstance(action, StartPull):
            self._fail(action, f"the API server refuses its pod: {error.status.message}")

    def _fail(self, action: StartPull, message: str) -> None:
        image = full_image_name(action.image)
        self._book.note_failure(
            scope_of(action.owner), action.node_uid, image, message, policy=self._policy,
            instant=loop_time(),
        )  # fmt: skip

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this object: set it aside, so that the others go on."""
        match action:
            case StartPull():
                self._fail(action, f"{type(error).__name__}: {error}")
            case EndPull(pod):
                self._set_aside.note(PODS, pod.metadata, AsideStage.ACT, error)
            case SetImageSet(image_set):
                self._set_aside.note(IMAGE_SETS, image_set.metadata, AsideStage.ACT, error)
            case _:
                assert_never(action)


def _name(image_set: ImageSet) -> str:
    return image_set.metadata.name
