"""What the pages know of the cluster: mirrors of the API, and what is computed from all of them.

The mirrors are the controllers' own; what a person may not list stays empty, and the pages say so.
What goes through all jobs or nodes is computed at most once for a version of the mirrors, whoever
looks; nothing is computed while nobody does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from fairlead.api import names
from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.resources import (
    CLUSTER_REPORTS,
    FLEETS,
    JOB_ARRAYS,
    JOBS,
    NODE_POOLS,
    NODE_REPORTS,
    NODES,
    PODS,
    TEAMS,
    Resource,
)
from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.cli.views.jobs import JobChoice, choose_jobs, state_of, where_or_why
from fairlead.cli.views.nodes import NodeUse, node_uses
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.verdict import ObjectKey
from fairlead.model.inventory.reserved_nodes import Reserved, reserved_by
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.mirror import Change, HasMetadata, Mirror, MirrorOptions
from fairlead.runtime.supervisor import SupervisedService

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")
#: Of the jobs of other tools' pods, only those that no job of ours represents are of interest.
_OTHERS = f"!{names.JOB_NAME}"
STEP_SECONDS = 0.5
#: The pods of a job that is looked at are listed so often, and those of so many jobs kept.
PODS_SECONDS, PODS_KEPT_MAX = 5.0, 32


@dataclass(frozen=True, slots=True)
class Rights:
    """What the person may list. `namespace` is the only one whose jobs are shown, "": all."""

    namespace: str = ""
    nodes: bool = True
    reports: bool = True
    pods: bool = True
    teams: bool = True
    #: Node pools, and the Fleet.
    fleet: bool = True
    #: What the doctor found.
    findings: bool = True


async def rights_of(client: Client, namespace: str) -> Rights:
    """Return what the API server lets this person list.

    `namespace` is the one that was asked for; where none was, and jobs of all may not be listed,
    the caller asks again with one. Forbidden, ApiError.
    """
    await _may(client, JOBS, namespace, must=True)
    return Rights(
        namespace, nodes=await _may(client, NODES), reports=await _may(client, NODE_REPORTS),
        pods=await _may(client, PODS, namespace), teams=await _may(client, TEAMS),
        fleet=await _may(client, NODE_POOLS) and await _may(client, FLEETS),
        findings=await _may(client, CLUSTER_REPORTS),
    )  # fmt: skip


async def _may(
    client: Client, resource: Resource[Any], namespace: str = "", *, must: bool = False
) -> bool:
    try:
        await client.read(resource.path(namespace), {"limit": "1"})
    except NotFound:
        return True  # the kind is not there (yet)
    except Forbidden:
        if must:
            raise
        return False
    return True


class PerJob(Generic[V]):
    """What follows from one job alone, computed once for each version of it that is asked for."""

    def __init__(self, jobs: Mirror[Job], compute: Callable[[Job], V]) -> None:
        self._jobs, self._compute = jobs, compute
        self._values: dict[ObjectKey, V] = {}
        jobs.on_change(self._drop)

    def of(self, job: Job) -> V:
        """Return it; of a job that is not the mirror's, without keeping it."""
        key = job.metadata.key
        found = self._values.get(key)
        if found is None or self._jobs.get(*key) is not job:
            found = self._compute(job)
            if self._jobs.get(*key) is job:
                self._values[key] = found
        return found

    def _drop(self, change: Change[Job]) -> None:
        self._values.pop(change.key, None)


class WebMirrors:
    """Mirrors of what the pages show; `services` run them."""

    def __init__(
        self,
        client: Client,
        rights: Rights,
        *,
        clock: Clock,
        rng: random.Random,
        log: Logger = SILENT,
    ) -> None:
        self.client, self.clock, self.rights = client, clock, rights
        #: Rises after changes, at most once in STEP_SECONDS: what is computed is as old as that.
        self.version = 0
        self._own: list[Mirror[Any]] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self._facts: PageFacts | None = None
        self._pods: dict[tuple[str, int], tuple[float, tuple[Pod, ...]]] = {}
        self._step: asyncio.TimerHandle | None = None
        self._stepped_at = 0.0

        def make(resource: Resource[T], namespace: str = "", selector: str = "") -> Mirror[T]:
            options = MirrorOptions(namespace=namespace, label_selector=selector)
            mirror = Mirror(client, resource, clock=clock, rng=rng, options=options, log=log)
            mirror.on_changes(self.touch)
            return mirror

        space = rights.namespace
        self.jobs: Mirror[Job] = make(JOBS, space)
        self.gpus = PerJob(self.jobs, gpu_count)
        #: What a search looks at, in lower case: names, state, user, team, where or why.
        self.words = PerJob(self.jobs, _words)
        self.arrays: Mirror[JobArray] = make(JOB_ARRAYS, space)
        self.nodes: Mirror[Node] = make(NODES)
        self.reports: Mirror[NodeReport] = make(NODE_REPORTS)
        self.others: Mirror[Pod] = make(PODS, space, _OTHERS)
        self.teams: Mirror[Team] = make(TEAMS)
        self.pools: Mirror[NodePool] = make(NODE_POOLS)
        self.fleets: Mirror[Fleet] = make(FLEETS)
        self.findings: Mirror[ClusterReport] = make(CLUSTER_REPORTS)
        self._own += [self.jobs, self.arrays]
        is_open = ((self.nodes, rights.nodes), (self.reports, rights.reports),
                   (self.others, rights.pods), (self.teams, rights.teams),
                   (self.pools, rights.fleet), (self.fleets, rights.fleet),
                   (self.findings, rights.findings))  # fmt: skip
        self._own += [mirror for mirror, may in is_open if may]

    def services(self) -> list[SupervisedService]:
        """Return what keeps the mirrors current."""
        return [
            SupervisedService(
                f"mirror-{each.resource.plural}", each.run, is_ready=partial(_synced, each)
            )
            for each in self._own
        ]

    async def ready(self) -> None:
        """Return once everything has been listed."""
        for mirror in self._own:
            await mirror.wait_synced()

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the API server last said anything about the mirror that hears least; None
        before it did.
        """
        ages = [each.seconds_since_contact for each in self._own]
        known = [age for age in ages if age is not None]
        return max(known) if len(known) == len(ages) else None

    def facts(self) -> PageFacts:
        """Return what follows from all objects as they are now."""
        now = self.clock.now()
        if self._facts is None or self._facts.version != self.version:
            self._facts = PageFacts(self, self.version, now)
        return self._facts

    async def changed(self, since: int) -> None:
        """Return once something has changed since this version."""
        while self.version == since:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def member_pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the pods of a job's current attempt, at most PODS_SECONDS old; none where they
        cannot be listed.
        """
        key, now = (job.metadata.uid, job.status.attempt), self.clock.now()
        kept = self._pods.get(key)
        if kept is not None and now - kept[0] < PODS_SECONDS:
            return kept[1]
        namespace, name = job.metadata.key
        selector = f"{names.JOB_NAME}={name},{names.ATTEMPT}={job.status.attempt}"
        pods: tuple[Pod, ...] = ()
        with suppress(ApiError):
            found = await self.client.list(PODS, namespace=namespace, label_selector=selector)
            pods = tuple(found.items)
        self._pods.pop(key, None)
        while len(self._pods) >= PODS_KEPT_MAX:
            self._pods.pop(next(iter(self._pods)))
        self._pods[key] = now, pods
        return pods

    def touch(self) -> None:
        """Have all that has changed become a version soon; so many changes cost as one."""
        if self._step is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._stepped_at + STEP_SECONDS)
            self._step = loop.call_at(at, self._advance)

    def _advance(self) -> None:
        self._step, self._stepped_at = None, asyncio.get_running_loop().time()
        self.version += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class PageFacts:
    """What follows from all objects of one version of the mirrors; each part on demand."""

    def __init__(self, cluster: WebMirrors, version: int, now: float) -> None:
        self.version, self.now = version, now
        self._cluster = cluster

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, in the order of `fairlead ps`, the latest first; arrays are not folded."""
        chosen = choose_jobs(self._cluster.jobs.items(), JobChoice(shows_all=True))
        return tuple(reversed(chosen))

    @cached_property
    def listed_arrays(self) -> frozenset[str]:
        """The uids of the arrays that have a line of their own."""
        return frozenset(each.metadata.uid for each in self._cluster.arrays.items())

    @cached_property
    def elements(self) -> Mapping[str, tuple[Job, ...]]:
        """The jobs of each array, by the array's uid."""
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            owner = array_reference_of(job.metadata)
            if owner is not None:
                found.setdefault(owner.uid, []).append(job)
        return {uid: tuple(jobs) for uid, jobs in found.items()}

    @cached_property
    def uses(self) -> Mapping[str, NodeUse]:
        """Each node with what it has and what is used of it, by name."""
        cluster = self._cluster
        nodes, others = cluster.nodes.items(), cluster.others.items()
        return {each.name: each for each in node_uses(nodes, self.jobs, others, self.now)}

    @cached_property
    def reservations(self) -> tuple[Reserved, ...]:
        """The reservations that last now."""
        found = reserved_by(self._cluster.teams.items())
        return tuple(each for each in found if each.window.start <= self.now < each.window.end)

    @cached_property
    def on_node(self) -> Mapping[str, tuple[Job, ...]]:
        """The unfinished jobs with a place on each node."""
        return self._by_node(lambda job: nodes_of(job.status.placement))

    @cached_property
    def kept(self) -> Mapping[str, tuple[Job, ...]]:
        """The jobs for which each node is kept while others leave it."""
        return self._by_node(lambda job: nodes_of(job.status.nomination))

    def _by_node(self, places: Callable[[Job], tuple[str, ...]]) -> Mapping[str, tuple[Job, ...]]:
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            for node in dict.fromkeys(() if job.is_finished else places(job)):
                found.setdefault(node, []).append(job)
        return {node: tuple(jobs) for node, jobs in found.items()}


def _words(job: Job) -> str:
    meta = job.metadata
    user = meta.annotations.get(names.SUBMITTED_BY, "")
    parts = (*meta.key, state_of(job), user, job.spec.team, where_or_why(job))
    return "\n".join(parts).lower()


def _synced(mirror: Mirror[Any]) -> bool:
    return mirror.synced
