"""A real control plane with nodes on it, for one group: who measures, and what is there.

Nodes are API objects without kubelets, so nobody runs pods and nobody confirms their end: they are
deleted with a grace period of 0. `Bound` tells by one watch when how many pods have a node; it
reads five fields of each event, as what measures should cost little of what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from tests.kubernetes.controlplane import (
    ControlPlane,
    NoControlPlane,
    audit_flags,
    control_plane,
    find_binaries,
)

from bench.harness import Report
from bench.objects import node_body
from fairlead.api import names
from fairlead.api.resources import (
    CONFIG_MAPS,
    CRDS,
    JOBS,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from fairlead.api.schema import crd
from fairlead.api.status import ApiError, NotFound
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions

NODE_COUNT = 7_500
CONNECTIONS = 64
SECONDS_MAX = 300.0
REST_SECONDS = 3.0
AUDIT_LOG = "audit.log"
#: By which the server knows who measures.
USER_AGENT = "fairlead-bench"
OF_JOBS: tuple[Resource[Any], ...] = (SERVICES, CONFIG_MAPS)


class WatchedMeta(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """What a watch needs of metadata, where the namespace does not matter."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return ("", self.name)


class _Spec(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    node_name: str = ""


class BoundPod(msgspec.Struct, gc=False, frozen=True):
    """What there is to see of a pod for whoever counts bound ones."""

    metadata: WatchedMeta
    spec: _Spec = _Spec()


BOUND_PODS = Resource(PODS.group, PODS.version, PODS.plural, PODS.kind, BoundPod)


@dataclass
class Ground:
    """A control plane, and a client that stands for its users."""

    plane: ControlPlane
    client: HttpClient

    @property
    def audit_log(self) -> Path:
        """The audit log, where the server keeps one."""
        return self.plane.directory / AUDIT_LOG

    @property
    def pids(self) -> dict[str, int]:
        return dict(self.plane.processes)

    async def add_nodes(
        self, count: int, *, first: int = 0, labels: dict[str, str] | None = None
    ) -> None:
        """Create ready nodes `n00000` ... of eight GPUs."""
        bodies = [_node(first + i, labels or {}) for i in range(count)]
        await each(bodies, lambda body: self.client.create(NODES, body))

    async def remove_pods(self) -> None:
        """Delete all pods and wait until every server has taken note and rests."""
        await self.remove_all(BOUND_PODS)
        await asyncio.sleep(REST_SECONDS)

    async def remove_all(self, resource: Resource[Any]) -> None:
        """Delete all objects of a namespaced kind, and wait until the last is gone."""
        async with asyncio.timeout(SECONDS_MAX):
            while (await self.client.list(resource)).items:
                await self._delete(resource)
                await asyncio.sleep(0.5)

    async def remove_job(self, name: str) -> None:
        """Delete a job and its pods; the controllers must run, and let it go."""
        async with asyncio.timeout(SECONDS_MAX):
            await self.client.delete(JOBS, name, namespace="default")
            with contextlib.suppress(NotFound):
                while await self.client.get(JOBS, name, namespace="default"):
                    await self._delete(PODS)
                    await asyncio.sleep(0.3)
        await self.remove_pods()

    async def clear(self) -> None:
        """Remove all jobs with what is theirs; for when no controllers run that would object."""
        free = {"metadata": {"finalizers": None}}
        async with asyncio.timeout(SECONDS_MAX):
            jobs = (await self.client.list(JOBS)).items
            await each(
                [job.metadata.name for job in jobs if job.metadata.finalizers],
                lambda name: self.client.patch(JOBS, name, free, namespace="default"),
            )
            await self.client.delete_collection(JOBS, namespace="default")
            for resource in OF_JOBS:  # the garbage collector would take longer
                await self.client.delete_collection(
                    resource, namespace="default", label_selector=names.JOB_UID
                )
        await self.remove_pods()

    async def _delete(self, resource: Resource[Any]) -> None:
        with contextlib.suppress(ApiError):  # it is asked again until none is left
            await self.client.delete_collection(
                resource, namespace="default", grace_period_seconds=0
            )


@dataclass
class Bound:
    """Sees which pods are bound, from the moment that it was made."""

    client: HttpClient
    seen: set[str] = field(default_factory=set)
    first_at: float = 0.0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, version: str) -> None:
        """Watch until cancelled; the server cuts watchers that fall behind."""
        while True:
            async for event in self.client.watch(BOUND_PODS, resource_version=version):
                version = event.resource_version
                if event.object is not None and event.object.spec.node_name:
                    self.first_at = self.first_at or time.perf_counter()
                    self.seen.add(event.object.metadata.uid)
                    self._news.set()

    async def reached(self, count: int) -> float:
        """Return the instant (perf_counter) at which so many pods were seen bound."""
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.seen) < count:
                self._news.clear()
                await self._news.wait()
        return time.perf_counter()


@contextlib.asynccontextmanager
async def watching(client: HttpClient) -> AsyncGenerator[Bound]:
    """Yield a `Bound` that sees everything from now on."""
    bound = Bound(client)
    version = (await client.list(BOUND_PODS)).resource_version
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bound.follow(version))
        await asyncio.sleep(0.5)
        yield bound
        task.cancel()


async def time_bound(ground: Ground, count: int, start: Callable[[], Awaitable[None]]) -> float:
    """Return the seconds from the start of `start` until so many pods are seen bound."""
    async with watching(ground.client) as bound, asyncio.TaskGroup() as group:
        begun = time.perf_counter()
        group.create_task(_run(start))
        return await bound.reached(count) - begun


async def _run(start: Callable[[], Awaitable[None]]) -> None:
    await start()


async def each(
    bodies: Iterable[Any], write: Callable[[Any], Awaitable[Any]], *, connections: int = CONNECTIONS
) -> None:
    """Write all bodies, so many at a time."""
    left = iter(bodies)

    async def worker() -> None:
        for body in left:
            await write(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(worker())


def node_name(number: int) -> str:
    """Return the name of the node of a number."""
    return f"n{number:05d}"


def _node(number: int, labels: dict[str, str]) -> dict[str, Any]:
    body = node_body(node_name(number))
    body["metadata"]["labels"] |= labels
    ready = {"type": "Ready", "status": "True", "reason": "AsExpected", "message": ""}
    body["status"]["conditions"] = [ready]
    return body


def on_ground(
    report: Report,
    group: str,
    measure: Callable[[Ground], Awaitable[None]],
    *,
    scheduler: bool = False,
    controllers: Sequence[str] = (),
    flags: Sequence[str] = (),
    is_audited: bool = False,
) -> None:
    """Run `measure` on a new control plane with our kinds; one line where there is none.

    `controllers` are further ones of kube-controller-manager, `flags` of kube-apiserver, which
    keeps an audit log of metadata where it `is_audited`.
    """
    try:
        find_binaries()
    except NoControlPlane as reason:
        report.skip(group, str(reason))
        return

    async def main(plane: ControlPlane) -> None:
        options = HttpOptions(user_agent=USER_AGENT)
        client = HttpClient(load_connection(path=plane.kubeconfig()), options)
        try:
            for manifest in crd.manifests():
                await client.create(CRDS, manifest)
            await measure(Ground(plane, client))
        finally:
            await client.close()

    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory,
        control_plane(
            Path(directory),
            scheduler=scheduler,
            controllers=controllers,
            flags=(*flags, *(audit_flags(Path(directory) / AUDIT_LOG) if is_audited else ())),
        ) as plane,
    ):
        uvloop.run(main(plane))
