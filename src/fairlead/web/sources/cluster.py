"""What the process of the page knows of the cluster: mirrors of the API.

The mirrors are the controllers' own. What of them a viewer sees, `view.py` says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from fairlead.api import names
from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
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
from fairlead.api.status import ApiError
from fairlead.cli.views.jobs import state_of, where_or_why
from fairlead.cli.views.runs import run_line
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.supervisor import SupervisedService
from fairlead.runtime.watching.mirror import Change, HasMetadata, Mirror, MirrorOptions
from fairlead.web.sources.rights import NOWHERE, Rights

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")
#: Of the jobs of other tools' pods, only those that no job of ours represents are of interest.
_OTHERS = f"!{names.JOB_NAME}"
STEP_SECONDS = 0.5
#: The pods of a job that is looked at are listed so often, and those of so many jobs kept.
PODS_SECONDS, PODS_KEPT_MAX = 5.0, 32


class PerJob(Generic[V]):
    """What follows from one job alone, computed once for each version of it that is asked for."""

    def __init__(self, jobs: Mirror[Job], compute: Callable[[Job], V]) -> None:
        self._jobs, self._compute = jobs, compute
        self._values: dict[ObjectKey, V] = {}
        jobs.on_change(self._drop)

    def of(self, job: Job) -> V:
        """Return it; of a job that is not the mirror's, without keeping it."""
        key = job.metadata.key
        if self._jobs.get(*key) is not job:
            return self._compute(job)
        if key not in self._values:
            self._values[key] = self._compute(job)
        return self._values[key]

    def _drop(self, change: Change[Job]) -> None:
        self._values.pop(change.key, None)


class WebMirrors:
    """Mirrors of what the pages show, as far as `rights` go; `services` run them."""

    def __init__(
        self,
        client: Client,
        rights: Rights,
        *,
        clock: Clock,
        rng: random.Random,
        log: Logger = SILENT,
    ) -> None:
        self.client, self.clock = client, clock
        #: Rises after changes, at most once in STEP_SECONDS: what is computed is as old as that.
        self.version = 0
        self._own: list[Mirror[Any]] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self._pods: dict[tuple[str, int], tuple[float, tuple[Pod, ...]]] = {}
        self._step: asyncio.TimerHandle | None = None
        self._stepped_at = 0.0

        def make(resource: Resource[T], namespace: str = "", selector: str = "") -> Mirror[T]:
            options = MirrorOptions(namespace=namespace, label_selector=selector)
            mirror = Mirror(client, resource, clock=clock, rng=rng, options=options, log=log)
            mirror.on_changes(self.touch)
            return mirror

        space = rights.namespace  # of more than one, all are followed
        self.jobs: Mirror[Job] = make(JOBS, space)
        self.gpus = PerJob(self.jobs, gpu_count)
        #: What a search looks at, in lower case: names, state, user, team, where or why.
        self.words = PerJob(self.jobs, _words)
        self.runs = PerJob(self.jobs, run_line)
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
                   (self.others, rights.pods != NOWHERE), (self.teams, rights.teams),
                   (self.pools, rights.pools), (self.fleets, rights.fleets),
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


def _words(job: Job) -> str:
    meta = job.metadata
    user = meta.annotations.get(names.SUBMITTED_BY, "")
    parts = (*meta.key, state_of(job), user, job.spec.team, where_or_why(job))
    return "\n".join(parts).lower()


def _synced(mirror: Mirror[Any]) -> bool:
    return mirror.synced
