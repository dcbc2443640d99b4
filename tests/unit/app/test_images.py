"""Images before work: the controllers over virtual nodes whose pulls take time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from fairlead.api import names
from fairlead.api.cluster.image_set import ImageSet, ImageSetPhase
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import Condition, find_condition, to_wire
from fairlead.api.resources import (
    CRDS,
    IMAGE_SETS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
)
from fairlead.api.schema import crd
from fairlead.api.values.times import format_time, parse_time
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.decide.images.policy import RATE_SECONDS, ImagesPolicy
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import ImagesSpec, load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import Supervisor
from fairlead.sim.actors.quiet_client import QuietClient
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job

SPACE = "fairlead-system"
TORCH, SMALL = "registry.example/torch:1", "registry.example/small:1"
GIB = 1 << 30
#: 120 s for the large image on one node, 1.2 s for the small one.
SPEC = ImagesSpec(
    layers={TORCH: {"base": 2 * GIB, "torch": 10 * GIB}, SMALL: {"base": 2 * GIB, "small": 1}},
    node_bytes_per_second=0.1 * GIB, registry_bytes_per_second=10 * GIB,
)  # fmt: skip
PULL_SECONDS = 120.0


class TickingClock(LoopClock):
    """Virtual time that passes between any two looks at it, as real time does."""

    looks = 0

    def now(self) -> float:
        self.looks += 1
        return super().now() + self.looks * 1e-6


class ImageWorld:
    """Run it with `async with ImageWorld.running() as world`, in virtual time."""

    def __init__(self, nodes: int, images: ImagesPolicy, spec: ImagesSpec | None) -> None:
        self.clock, rng = TickingClock(EPOCH), random.Random(7)
        self.api = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
        )  # fmt: skip
        self.client = QuietClient(self.api, renews_watches=False, keeps_events=True)
        profile = msgspec.structs.replace(load_profile("default"), images=spec)
        self.virtual = VirtualNodes(
            self.client, NodeFleet(nodes, profile.node), profile, clock=self.clock, rng=rng
        )
        placement = PlacementPolicy(starvation_seconds=10)
        policy = replace(images, namespace=SPACE, priority_class=names.BALLOON_PRIORITY_CLASS)
        self.policies = Policies(images=policy, placement=placement)
        self.controllers: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def running(
        cls, nodes: int = 4, images: ImagesPolicy | None = None, spec: ImagesSpec | None = SPEC
    ) -> AsyncGenerator[ImageWorld]:
        world = cls(nodes, images or ImagesPolicy(prefetch_jobs=True), spec)
        await world.api.bootstrap()
        for manifest in crd.manifests():
            await world.client.create(CRDS, manifest)
        await world.client.create(NAMESPACES, {"metadata": {"name": SPACE}})
        low = {"metadata": {"name": names.BALLOON_PRIORITY_CLASS}, "value": -10}
        await world.client.create(PRIORITY_CLASSES, low)
        async with asyncio.TaskGroup() as group:
            world.group = group
            tasks = [group.create_task(world.api.run()), group.create_task(world.virtual.run())]
            world.begin()
            yield world
            await world.die()
            for task in tasks:
                task.cancel()

    group: asyncio.TaskGroup

    def begin(self) -> None:
        """Begin one life of the controllers."""
        metrics = Metrics(CollectorRegistry(), version="test", stopwatch=self.clock.now)
        context = ProcessContext(self.clock, metrics)
        made = Controllers(self.policies, self.client, MemoryHistory(), context=context)
        supervisor = Supervisor(made.services(), clock=self.clock, rng=random.Random(1))
        self.controllers = self.group.create_task(supervisor.run())

    async def die(self) -> None:
        """End the controllers where they are."""
        assert self.controllers is not None
        self.controllers.cancel()
        await asyncio.gather(self.controllers, return_exceptions=True)

    async def until(self, holds: Callable[[], Awaitable[bool]], seconds: float = 3600.0) -> None:
        ends = self.clock.now() + seconds
        while not await holds():
            assert self.clock.now() < ends, "it did not happen in time"
            await asyncio.sleep(1.0)

    async def image_set(self, *images: str, name: str = "base", **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": {"images": images, **spec}}
        await self.client.create(IMAGE_SETS, body)

    async def set_of(self, name: str = "base") -> ImageSet:
        return await self.client.get(IMAGE_SETS, name)

    async def is_ready(self) -> bool:
        return (await self.set_of()).status.phase is ImageSetPhase.READY

    async def pulls(self) -> list[Pod]:
        found = (await self.client.list(PODS)).items
        return [pod for pod in found if names.IMAGE_PULL in pod.metadata.labels]

    async def having(self, image: str) -> list[str]:
        found = (await self.client.list(NODES)).items
        return sorted(
            node.metadata.name for node in found
            if any(image in (each.names or ()) for each in node.status.images)
        )  # fmt: skip

    async def submit(
        self, name: str, image: str, *, count: int, seconds: float, zone: str = ""
    ) -> None:
        job = make_job(name, count=count, gpus=8)
        body: dict[str, Any] = {"metadata": {"name": name}, "spec": to_wire(job.spec)}
        template = body["spec"]["roles"][0]["template"]
        template["metadata"] = {"annotations": {names.SIMULATE_SECONDS: str(seconds)}}
        template["spec"]["containers"][0]["image"] = image
        template["spec"]["imagePullSecrets"] = [{"name": f"{name}-registry"}]
        template["spec"]["serviceAccountName"] = f"{name}-account"
        if zone:
            template["spec"]["nodeSelector"] = {"zone": zone}
        body["spec"]["timeLimitSeconds"] = int(seconds) + 60
        await self.client.create(JOBS, body, namespace="default")

    async def job(self, name: str) -> Job:
        return await self.client.get(JOBS, name, namespace="default")

    async def waiting_seconds(self, name: str) -> float:
        """Return the time from a job's place to the start of its last member."""
        await self.until(lambda: self.runs(name))
        job = await self.job(name)
        assert job.status.placement is not None
        assert job.status.placement.placed_at is not None
        assert job.status.started_at is not None
        return parse_time(job.status.started_at) - parse_time(job.status.placement.placed_at)

    async def runs(self, name: str) -> bool:
        return (await self.job(name)).status.state == "Running"


def test_an_image_set_is_pulled_onto_its_nodes_and_leaves_no_pods() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            await world.image_set(TORCH)
            await world.until(world.is_ready)
            assert len(await world.having(TORCH)) == 4
            assert await world.pulls() == []
            status = (await world.set_of()).status
            assert (status.nodes, status.lacking) == (4, 0)
            (image,) = status.images
            assert (image.present, image.pulling, image.size_bytes) == (4, 0, 12 * GIB)

    run(main())


def test_an_image_that_is_there_costs_no_pod() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            await world.image_set(TORCH)
            await world.until(world.is_ready)
            seen: list[str] = []
            await world.image_set(TORCH, name="again")

            async def is_again_ready() -> bool:
                seen.extend(pod.metadata.name for pod in await world.pulls())
                return (await world.set_of("again")).status.phase is ImageSetPhase.READY

            await world.until(is_again_ready)
            assert seen == []

    run(main())


def test_a_gang_finds_its_image_on_the_nodes_that_were_kept_for_it() -> None:
    async def main(prefetch: bool) -> float:
        policy = ImagesPolicy(prefetch_jobs=prefetch)
        async with ImageWorld.running(images=policy) as world:
            await asyncio.sleep(RATE_SECONDS)
            await world.submit("first", SMALL, count=4, seconds=1000)
            await world.until(lambda: world.runs("first"))
            await world.submit("second", TORCH, count=4, seconds=100)
            return await world.waiting_seconds("second")

    without, with_it = run(main(False)), run(main(True))
    assert without > PULL_SECONDS * 0.8  # the small image brought a sixth of it
    assert with_it < 5.0


def test_the_pod_of_a_jobs_pull_has_the_credentials_of_the_job_and_nothing_else() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            await asyncio.sleep(RATE_SECONDS)
            await world.submit("first", SMALL, count=4, seconds=1000)
            await world.until(lambda: world.runs("first"))
            await world.submit("second", TORCH, count=2, seconds=100)

            async def begun() -> bool:
                return bool(await world.pulls())

            await world.until(begun)
            (pod,) = (await world.pulls())[:1]
            raw = await world.client.get(PODS.raw, pod.metadata.name, namespace="default")
            spec = raw["spec"]
            assert spec["imagePullSecrets"] == [{"name": "second-registry"}]
            assert spec["serviceAccountName"] == "second-account"
            assert spec["automountServiceAccountToken"] is False
            assert spec["containers"][0]["image"] == TORCH
            assert raw["metadata"]["ownerReferences"][0]["name"] == "second"
            assert "volumes" not in spec

    run(main())


def test_nothing_is_pulled_for_a_job_on_nodes_that_it_may_not_use() -> None:
    async def main() -> None:
        async with ImageWorld.running(nodes=6) as world:
            own = ["v00001", "v00004"]
            await asyncio.sleep(RATE_SECONDS)
            for name in own:
                await world.client.patch(NODES, name, {"metadata": {"labels": {"zone": "own"}}})
            await world.submit("first", SMALL, count=6, seconds=1000)
            await world.until(lambda: world.runs("first"))
            await world.submit("second", TORCH, count=2, seconds=100, zone="own")
            await asyncio.sleep(900.0)
            assert await world.having(TORCH) == own

    run(main())


def test_the_pulls_of_a_job_that_is_cancelled_end() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            await asyncio.sleep(RATE_SECONDS)
            await world.submit("first", SMALL, count=4, seconds=1000)
            await world.until(lambda: world.runs("first"))
            await world.submit("second", TORCH, count=4, seconds=100)

            async def begun() -> bool:
                return bool(await world.pulls())

            async def ended() -> bool:
                return not await world.pulls()

            await world.until(begun)
            await world.client.patch(
                JOBS, "second", {"spec": {"cancel": True}}, namespace="default"
            )
            await world.until(ended, 10.0)
            assert await world.having(TORCH) == []

    run(main())


def test_a_wish_that_is_gone_ends_its_pulls() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            await world.image_set(TORCH)

            async def begun() -> bool:
                return bool(await world.pulls())

            async def ended() -> bool:
                return not await world.pulls()

            await world.until(begun)
            await world.client.delete(IMAGE_SETS, "base")
            await world.until(ended, 10.0)
            assert await world.having(TORCH) == []

    run(main())


def test_a_set_says_by_a_condition_since_when_its_images_are_there() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:

            async def ready() -> Condition | None:
                return find_condition((await world.set_of()).status.conditions, "Ready")

            async def is_said() -> bool:
                return await ready() is not None

            await world.image_set(TORCH)
            await world.until(is_said, 60)
            lacking = await ready()
            assert lacking is not None
            assert (lacking.status, lacking.reason) == ("False", "ImagesLacking")
            assert lacking.message.endswith("lack an image")
            await world.until(world.is_ready, 3600)
            there = await ready()
            assert there is not None
            assert (there.status, there.reason) == ("True", "ImagesPresent")
            assert there.last_transition_time != lacking.last_transition_time
            made = await world.set_of()
            assert there.observed_generation == made.metadata.generation
            await asyncio.sleep(3600)
            version = made.metadata.resource_version
            assert (await world.set_of()).metadata.resource_version == version, "on change alone"

    run(main())


def test_nothing_is_pulled_for_a_set_after_its_time() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            until = format_time(world.clock.now() + RATE_SECONDS + 30)
            await world.image_set(TORCH, keepUntil=until)

            async def expired() -> bool:
                return (await world.set_of()).status.phase is ImageSetPhase.EXPIRED

            await world.until(expired, RATE_SECONDS + 60)
            (said,) = (await world.set_of()).status.conditions
            assert (said.type, said.status, said.reason) == ("Ready", "False", "Expired")
            await asyncio.sleep(10.0)
            assert await world.pulls() == []
            assert await world.having(TORCH) == []

    run(main())


def test_a_pull_gives_way_to_work_that_starts_with_another_image() -> None:
    async def main() -> None:
        async with ImageWorld.running(nodes=1) as world:
            await world.image_set(TORCH)

            async def begun() -> bool:
                return bool(await world.pulls())

            await world.until(begun)
            await asyncio.sleep(30.0)
            await world.submit("job", SMALL, count=1, seconds=1000)
            assert await world.waiting_seconds("job") < 30.0
            await world.until(world.is_ready)  # and then goes on beside the work

    run(main())


def test_a_name_that_is_no_image_costs_one_pull_at_a_time_and_ever_fewer() -> None:
    async def main() -> None:
        async with ImageWorld.running(nodes=20) as world:
            await world.image_set("registry.example/none:1")
            seen: dict[str, None] = {}
            for _ in range(900):
                pulls = await world.pulls()
                assert len(pulls) <= 1
                seen |= {pod.metadata.uid: None for pod in pulls}
                await asyncio.sleep(1.0)
            assert 2 <= len(seen) <= 6
            (image,) = (await world.set_of()).status.images
            assert "not found" in image.message

    run(main())


def test_controllers_that_die_at_any_moment_leave_every_image_pulled_and_no_pod() -> None:
    async def main(after: float) -> None:
        async with ImageWorld.running() as world:
            await world.image_set(TORCH, SMALL)
            await asyncio.sleep(RATE_SECONDS + after)
            await world.die()
            await asyncio.sleep(5.0)
            world.begin()
            await world.until(world.is_ready)
            assert len(await world.having(TORCH)) == 4
            assert await world.pulls() == []

    for after in (0.5, 2.0, 30.0, PULL_SECONDS, PULL_SECONDS + 3):
        run(main(after))


def test_what_looks_like_a_pull_and_is_none_is_deleted_and_an_ordinary_pod_is_left_alone() -> None:
    async def main() -> None:
        async with ImageWorld.running() as world:
            await world.image_set(SMALL)
            await world.until(world.is_ready)
            for name, command in (("forged", None), ("ordinary", ["sleep", "1000"])):
                container: dict[str, Any] = {
                    "name": "main", "image": SMALL,
                    "resources": {"requests": {"cpu": "0"}, "limits": {}},
                    "command": command or ["/fairlead.dev/pulls-and-runs-nothing"],
                }  # fmt: skip
                body = {
                    "metadata": {"name": name, "labels": {names.IMAGE_PULL: "any"}},
                    "spec": {"nodeName": "v00000", "containers": [container]},
                }
                await world.client.create(PODS, body, namespace="default")
            await asyncio.sleep(10.0)
            assert [pod.metadata.name for pod in await world.pulls()] == ["ordinary"]

    run(main())


def test_where_nodes_report_no_images_nothing_is_pulled() -> None:
    async def main() -> None:
        async with ImageWorld.running(spec=None) as world:
            await world.image_set(TORCH)
            await asyncio.sleep(RATE_SECONDS + 30)
            assert await world.pulls() == []
            (image,) = (await world.set_of()).status.images
            assert image.message.startswith("4 nodes: not ready, closed, or without a runtime")
            await world.submit("job", TORCH, count=4, seconds=10)
            assert await world.waiting_seconds("job") < 5.0
            assert len(nodes_of((await world.job("job")).status.placement)) == 4

    run(main())
