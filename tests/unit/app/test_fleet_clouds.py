"""The fleet controller on public clouds in virtual time: their SDKs, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
from tests.e2e.aws_server import REGION, aws_in_process
from tests.e2e.azure_server import AzureServer
from tests.e2e.azure_server import connect_to as connect_to_azure
from tests.e2e.clouds import AwsCloud, AzureCloud, Cloud, Ec2FleetCloud, GcpCloud
from tests.e2e.ec2_fleet_server import TEMPLATE, ec2_fleet
from tests.e2e.gcp_server import PROJECT, GcpServer, connect_to
from tests.e2e.rest_server import InProcess
from tests.unit.app.fleet_world import FleetWorld

from fairlead.cloud.provider import LaunchRequest
from fairlead.cloud.simulated import node_body
from fairlead.model.health.machines import Instance, InstanceState
from fairlead.sim.loop import run

GROUP = "h100"
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception.*does not match an error shape:UserWarning"
)
_RESOURCES = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"}


async def _direct(call: Callable[[], Any]) -> Any:
    """Run a call of an SDK at once; a controller may be ended before it and after it."""
    await asyncio.sleep(0.05)
    answer = call()
    await asyncio.sleep(0.05)
    return answer


class _Kubelets:
    """Registers a node for each machine, a minute after it was launched."""

    def __init__(self, world: FleetWorld, cloud: Cloud) -> None:
        self._world = world
        self._cloud = cloud
        self._known: dict[str, float] = {}
        self.broken: set[str] = set()
        self.broken_next = 0

    async def run(self) -> None:
        request = LaunchRequest("", GROUP, 1, self._cloud.zone, _RESOURCES)
        while True:
            await asyncio.sleep(15)
            machines, now = self._cloud.machines(), self._world.clock.now()
            for id_ in sorted(machines):
                if id_ not in self._known and self.broken_next:
                    self.broken_next -= 1
                    self.broken.add(id_)
                since = self._known.setdefault(id_, now)
                if now >= since + 60 and id_ not in self.broken:
                    self._known[id_] = float("inf")
                    instance = Instance(id_, GROUP, InstanceState.RUNNING, self._cloud.zone)
                    body, name = node_body(instance, request), _name(id_)
                    body["metadata"]["name"] = name
                    body["metadata"]["labels"]["kubernetes.io/hostname"] = name
                    await self._world.virtual.register(body)
            for id_ in sorted(self._known.keys() - machines):
                del self._known[id_]
                await self._world.virtual.unregister(_name(id_))


def _name(id_: str) -> str:
    return id_.rpartition("/")[2]


@pytest.fixture(scope="module", autouse=True)
def descriptions_are_read_once() -> Generator[None]:
    """Read boto3's descriptions of services once: moto makes each client's session read them."""
    from botocore.loaders import JSONFileLoader

    read = cache(partial(JSONFileLoader.load_file, JSONFileLoader()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield


@contextmanager
def _aws() -> Generator[Callable[[], Cloud]]:
    with pytest.MonkeyPatch.context() as patch, aws_in_process() as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        yield lambda: AwsCloud(server)


@contextmanager
def _aws_ec2_fleet() -> Generator[Callable[[], Cloud]]:
    with pytest.MonkeyPatch.context() as patch, aws_in_process() as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        with ec2_fleet(server) as subnets:
            yield lambda: Ec2FleetCloud(server, subnets)


@contextmanager
def _azure() -> Generator[Callable[[], Cloud]]:
    def make() -> Cloud:
        server = AzureServer(
            asyncio.get_running_loop().time, operation_seconds=2.0, create_seconds=15.0,
            delete_seconds=20.0, lag_seconds=10.0, has_buckets=True,
        )  # fmt: skip
        return AzureCloud(server, connect_to_azure("http://azure.test", InProcess(server)))

    yield make


@contextmanager
def _gcp(*, resizes: bool = False) -> Generator[Callable[[], Cloud]]:
    def make() -> Cloud:
        server = GcpServer(
            asyncio.get_running_loop().time, operation_seconds=2.0, create_seconds=15.0,
            delete_seconds=20.0, lag_seconds=10.0,
        )  # fmt: skip
        connect = connect_to("http://gcp.test", InProcess(server))
        cloud = GcpCloud(server, connect, resizes=resizes)
        cloud.options = {**cloud.options, "queueSeconds": "60"}
        return cloud

    yield make


_CLOUDS = {
    "aws": (_aws, {"type": "AWS", "options": {"region": REGION}}),
    "aws-ec2-fleet": (
        _aws_ec2_fleet,
        {
            "type": "AWS",
            "reference": "",
            "options": {
                "launchTemplate": TEMPLATE,
                "cluster": "research",
                "subnets": "eu-west-1a=subnet-0a1b2c3d",
            },
        },
    ),
    "azure": (_azure, {"type": "Azure", "options": AzureCloud.options}),
    "gcp": (_gcp, {"type": "GCP", "options": {"project": PROJECT}}),
    "gcp-resize-requests": (
        lambda: _gcp(resizes=True),
        {"type": "GCP", "options": {"project": PROJECT, "resizeRequests": "true"}},
    ),
}


@pytest.fixture(params=_CLOUDS)
def on_cloud(request: pytest.FixtureRequest) -> Callable[..., Cloud]:
    """Return what runs a story on a cluster whose pool is a group of a cloud."""
    make_cloud, provider = _CLOUDS[request.param]

    def run_story(story: Callable[[FleetWorld, Cloud, _Kubelets], Any], **spec: Any) -> Cloud:
        async def main() -> None:
            cloud = made.append(make()) or made[0]
            async with FleetWorld.running() as world:
                world.provider_makers[GROUP] = lambda: cloud.provider(_direct)
                kubelets = _Kubelets(world, cloud)
                task = world.group.create_task(kubelets.run())
                await world.pool(
                    GROUP, provider={"reference": GROUP, **provider},
                    domains=[{"name": cloud.zone}], **spec,
                )  # fmt: skip
                await story(world, cloud, kubelets)
                task.cancel()

        made: list[Cloud] = []
        with make_cloud() as make:
            run(main())
        return made[0]

    return run_story


async def _placed(world: FleetWorld, name: str, seconds: float) -> float:
    async def placed() -> bool:
        return (await world.job(name)).status.placement is not None

    return await world.until(placed, seconds)


def test_a_gang_is_bought_for_and_its_machines_are_ended_when_idle(
    on_cloud: Callable[..., Cloud],
) -> None:
    async def story(world: FleetWorld, cloud: Cloud, _: _Kubelets) -> None:
        await world.submit("train", gpus=8, count=4, seconds=600)
        assert await _placed(world, "train", 600) < 120
        assert len(cloud.machines()) == 4
        await asyncio.sleep(3600)
        assert not cloud.machines(), "what was bought for it goes, one in five minutes"

        async def are_deleted() -> bool:
            nodes = {node.spec.provider_id for node in await world.nodes()}
            return nodes == cloud.machines()

        await world.until(are_deleted, 300)

    cloud = on_cloud(story, scaleDown={"idleSeconds": 60})
    assert cloud.server.calls["launch"] == 1
    assert cloud.server.calls["list"] <= (3600 + 1000) / 15, "one list per interval at most"


def test_a_zone_without_capacity_is_tried_again_later(
    on_cloud: Callable[..., Cloud],
) -> None:
    async def story(world: FleetWorld, cloud: Cloud, _: _Kubelets) -> None:
        cloud.server.capacity[cloud.zone] = 0
        await world.submit("train", gpus=8, count=2)
        await asyncio.sleep(120)
        assert cloud.machines() == set()
        decisions = (await world.get_pool(GROUP)).status.decisions
        said = cloud.no_capacity.partition(":")[0]
        assert any(said in decision.message for decision in decisions)
        cloud.server.capacity[cloud.zone] = 2
        await _placed(world, "train", 1800)

    on_cloud(story, scaleUp={"unavailableSeconds": 60})


def test_a_machine_that_never_becomes_a_node_is_replaced(
    on_cloud: Callable[..., Cloud],
) -> None:
    async def story(world: FleetWorld, cloud: Cloud, kubelets: _Kubelets) -> None:
        kubelets.broken_next = 1
        await world.submit("train", gpus=8, count=3, seconds=7200)
        await _placed(world, "train", 3600)
        await asyncio.sleep(300)
        assert not kubelets.broken & cloud.machines()
        assert len(cloud.machines()) == 3

    on_cloud(story, scaleUp={"readySeconds": 300})


def test_a_controller_that_is_killed_all_the_time_buys_exactly_what_is_needed(
    on_cloud: Callable[..., Cloud],
) -> None:
    async def story(world: FleetWorld, cloud: Cloud, _: _Kubelets) -> None:
        for operation in ("launch", "list", "terminate"):
            for after in (False, True):
                cloud.plan(operation, cloud.internal, after=after)
        await world.submit("train", gpus=8, count=5, seconds=36_000)
        for turn in range(20):
            await asyncio.sleep(2 + 0.05 * turn)  # at ever other awaits
            await world.kill()
        await _placed(world, "train", 1800)
        assert len(cloud.machines()) == 5

    on_cloud(story)
