"""Writes of objects that their owners have filled up to what an API server stores."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.resources import CRDS, JOBS, NAMESPACES, PODS, Resource
from fairlead.api.schema import crd
from fairlead.api.status import Conflict, Forbidden, NotFound, TooLarge
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import OBJECT_BYTES_MAX, Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.sim.actors.quiet_client import QuietClient
from fairlead.sim.loop import run

OWN_FINALIZER, OWN_LABEL = names.JOB_FINALIZER, {names.JOB_NUMBER: "7"}
JOB = {
    "metadata": {"name": "a", "labels": OWN_LABEL, "finalizers": [OWN_FINALIZER]},
    "spec": {"roles": [{
        "name": "worker", "count": 1,
        "template": {"spec": {"containers": [{"name": "main", "image": "registry.example/x:1"}]}},
    }]},
}  # fmt: skip
POD = {
    "metadata": {"name": "a"},
    "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "registry.example/x:1"}]},
}
STATUS = {"state": "Running"}


def owner(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": f"uid-{name}", **more}


def of_labels(size: int) -> dict[str, Any]:
    return {"labels": {f"x-{i:07d}": "y" * 50 for i in range(size)}, "annotations": {"note": "x"}}


def of_finalizers(size: int) -> dict[str, Any]:
    others = [f"example.com/{i:050d}" for i in range(size)]
    return {"finalizers": [*others, OWN_FINALIZER]}


def of_owners(size: int) -> dict[str, Any]:
    others = [owner(f"{i:050d}") for i in range(size)]
    return {"ownerReferences": [*others, owner("controller", controller=True)]}


class World:
    """An API server without an object, and what writes to it."""

    def __init__(self) -> None:
        clock, rng = LoopClock(0.0), random.Random(1)
        ids = map(str, itertools.count())
        service = ApiService(
            Store.open(None), Registry.with_builtins(), clock, ids=lambda: next(ids), rng=rng
        )
        self.service = service
        self.client = QuietClient(service, renews_watches=False, keeps_events=False)
        self.writer = ObjectWriter(self.client)

    async def read(self, resource: Resource[Any]) -> Any:
        return await self.client.get(resource, "a", namespace="default")

    async def filled(self, resource: Resource[Any], filling: Callable[[int], Any]) -> Any:
        """Fill the object until the server takes nothing more of it; return it."""
        small, large = (len(msgspec.json.encode(filling(size))) for size in (1000, 2000))
        step = 32  # items, of all of which only the last ones have to be tried
        size = OBJECT_BYTES_MAX * 1000 // (large - small) - step
        await self.client.patch(resource, "a", {"metadata": filling(size)}, namespace="default")
        while step:
            try:
                patch = {"metadata": filling(size + step)}
                await self.client.patch(resource, "a", patch, namespace="default")
                size += step
            except TooLarge:
                step //= 2
        assert size > 1000
        found = await self.read(resource)
        filler, left = "", 256
        while left:  # with what is smaller than the last item
            try:
                patch = {"metadata": {"annotations": {"filler": filler + "z" * left}}}
                await self.client.patch(resource, "a", patch, namespace="default")
                filler += "z" * left
            except TooLarge:
                left //= 2
        found = await self.read(resource.raw)
        assert len(msgspec.json.encode(found)) > OBJECT_BYTES_MAX - 200
        return await self.read(resource)


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    world = World()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.service.run())
        await world.service.bootstrap()
        for manifest in crd.manifests():
            await world.client.create(CRDS, manifest)
        with_default = {"metadata": {"name": "default"}}
        try:
            await world.client.get(NAMESPACES, "default")
        except NotFound:
            await world.client.create(NAMESPACES, with_default)
        await world.client.create(JOBS, JOB, namespace="default")
        await world.client.create(PODS, POD, namespace="default")
        yield world
        task.cancel()


@pytest.mark.parametrize("filling", [of_labels, of_finalizers, of_owners])
def test_the_status_of_a_job_that_is_full_is_written(filling: Callable[[int], Any]) -> None:
    async def main() -> None:
        async with a_world() as world:
            full = await world.filled(JOBS, filling)
            with pytest.raises(TooLarge):
                await world.client.patch(
                    JOBS, "a", {"status": STATUS}, namespace="default", subresource="status"
                )
            written = await world.writer.patch_status(JOBS, full.metadata, STATUS)
            job = await world.read(JOBS)
            assert job.metadata.version == written.version
            assert job.status.state == "Running"
            assert job.metadata.labels == OWN_LABEL
            assert job.metadata.annotations == full.metadata.annotations, "policies may guard them"
            assert job.spec == full.spec
            assert OWN_FINALIZER in job.metadata.finalizers
            controllers = [each.uid for each in job.metadata.owner_references if each.controller]
            assert controllers == [
                each.uid for each in full.metadata.owner_references if each.controller
            ]

    run(main())


def test_a_decision_on_an_older_version_is_not_written_into_a_full_job() -> None:
    async def main() -> None:
        async with a_world() as world:
            full = await world.filled(JOBS, of_labels)
            old = msgspec.structs.replace(full.metadata, resource_version="1")
            with pytest.raises(Conflict):
                await world.writer.patch_status(JOBS, old, STATUS)
            other = msgspec.structs.replace(full.metadata, uid="of-another")
            with pytest.raises(Conflict):
                await world.writer.patch_status(JOBS, other, STATUS)
            job = await world.read(JOBS)
            assert len(job.metadata.labels) == len(full.metadata.labels)

    run(main())


@pytest.mark.parametrize("filling", [of_labels, of_finalizers])
def test_a_pod_that_is_full_is_deleted_with_its_grace_period(
    filling: Callable[[int], Any],
) -> None:
    async def main() -> None:
        async with a_world() as world:
            uid = (await world.filled(PODS, filling)).metadata.uid
            with pytest.raises(TooLarge):
                await world.client.delete(PODS, "a", namespace="default", grace_period_seconds=30)
            await world.writer.delete(PODS, ("default", "a"), uid=uid, grace_seconds=30)
            assert (await world.read(PODS)).metadata.deletion_timestamp is not None

    run(main())


def test_a_pod_that_is_full_is_evicted() -> None:
    async def main() -> None:
        async with a_world() as world:
            full = await world.filled(PODS, of_labels)
            await world.writer.evict(full.metadata)
            assert (await world.read(PODS)).metadata.deletion_timestamp is not None

    run(main())


def test_what_may_not_be_patched_is_said_to_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays: the controllers write nothing of them but the status."""

    async def main() -> None:
        async with a_world() as world:
            full = await world.filled(JOBS, of_labels)
            patch = world.client.patch

            async def narrow(*args: Any, subresource: str = "", **more: Any) -> Any:
                if not subresource:
                    raise Forbidden("jobarrays may not be patched")
                return await patch(*args, subresource=subresource, **more)

            monkeypatch.setattr(world.client, "patch", narrow)
            with pytest.raises(TooLarge):
                await world.writer.patch_status(JOBS, full.metadata, STATUS)

    run(main())
