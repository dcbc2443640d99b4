"""Launches through EC2 Fleet: all or none, late lists, repeated requests; real boto3 on loopback.

What EC2 Fleet has in common with other clouds is in `test_clouds.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.e2e.aws_server import REGION, ZONE, AwsServer, aws_server
from tests.e2e.clouds import Ec2FleetCloud
from tests.e2e.ec2_fleet_server import ZONE_B, ec2_fleet, fleet_machines

from fairlead.api.cluster.node_pool import NodePool, NodePoolSpec, NodeTemplate, ProviderType
from fairlead.api.cluster.node_pool import Provider as ProviderSpec
from fairlead.api.meta import ObjectMeta
from fairlead.cloud.amazon import aws_ec2_fleet
from fairlead.cloud.amazon.aws import AwsProvider
from fairlead.cloud.amazon.aws_ec2_fleet import Ec2FleetProvider
from fairlead.cloud.provider import (
    CloudError,
    LaunchPending,
    LaunchRequest,
    MachineProvider,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.cloud.registry import provider_of
from fairlead.model.health.machines import InstanceState

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:Exception.*does not match an error shape:UserWarning"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[AwsServer, dict[str, str]]]:
    with aws_server() as server, ec2_fleet(server) as subnets:
        yield server, subnets


@pytest.fixture
def cloud(
    served: tuple[AwsServer, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ec2FleetCloud]:
    server, subnets = served
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(server.url))
    server.clear()
    yield Ec2FleetCloud(server, subnets)
    server.clear()
    if left := list(fleet_machines()):
        server.client("ec2").terminate_instances(InstanceIds=left)


def ask(token: str, count: int = 2, zone: str = ZONE) -> LaunchRequest:
    return LaunchRequest(token, "h100", count, zone)


def bare(id_: str) -> str:
    return id_.rpartition("/")[2]


async def listed(provider: MachineProvider) -> set[str]:
    return {each.id for each in (await provider.instances()).instances}


async def test_a_zone_that_has_room_for_a_part_launches_nothing(cloud: Ec2FleetCloud) -> None:
    cloud.server.capacity[ZONE] = 3
    with pytest.raises(OutOfCapacity, match="InsufficientInstanceCapacity"):
        await cloud.provider().launch(ask("part", 4))
    assert cloud.machines() == set()
    assert len(await cloud.provider().launch(ask("whole", 3))) == 3


async def test_a_gang_is_launched_in_one_zone_where_none_is_named(cloud: Ec2FleetCloud) -> None:
    cloud.server.capacity |= {ZONE: 1, ZONE_B: 3}
    ids = await cloud.provider().launch(ask("any", 3, zone=""))
    assert {id_.rpartition("/")[0] for id_ in ids} == {f"aws:///{ZONE_B}"}
    assert set(ids) == cloud.machines() == await listed(cloud.provider())


async def test_a_failed_launch_stays_failed_when_it_is_sent_again(cloud: Ec2FleetCloud) -> None:
    cloud.server.capacity[ZONE] = 0
    for code, kind in (("UnauthorizedOperation", RefusedByProvider), ("Odd", OutOfCapacity)):
        cloud.server.codes[ZONE] = code
        for _ in range(2):
            with pytest.raises(kind, match=code):
                await cloud.provider().launch(ask(f"failed-{code}"))
    cloud.server.capacity.clear()
    with pytest.raises(OutOfCapacity, match="Odd"):
        await cloud.provider().launch(ask("failed-Odd"))
    assert cloud.machines() == set()


async def test_a_launch_in_a_zone_that_the_pool_has_left_is_refused_unless_it_was_sent(
    cloud: Ec2FleetCloud, served: tuple[AwsServer, dict[str, str]]
) -> None:
    ids = await cloud.provider().launch(ask("sent"))
    subnets = {ZONE_B: served[1][ZONE_B]}
    provider = Ec2FleetCloud(served[0], subnets).provider()
    assert await provider.launch(ask("sent")) == ids
    with pytest.raises(RefusedByProvider, match=f"no subnet in {ZONE}"):
        await provider.launch(ask("not-sent"))


async def test_want_of_capacity_in_one_zone_outweighs_what_another_refuses(
    cloud: Ec2FleetCloud,
) -> None:
    cloud.server.capacity |= {ZONE: 0, ZONE_B: 0}
    cloud.server.codes[ZONE] = "UnauthorizedOperation"
    with pytest.raises(OutOfCapacity, match="InsufficientInstanceCapacity"):
        await cloud.provider().launch(ask("mixed", zone=""))


async def test_a_launch_whose_token_aws_has_forgotten_finds_its_machines(
    cloud: Ec2FleetCloud,
) -> None:
    ids = await cloud.provider().launch(ask("forgotten"))
    cloud.server.answers.clear()
    cloud.server.asked.clear()
    assert await cloud.provider().launch(ask("forgotten")) == ids
    assert cloud.machines() == set(ids)


async def test_a_launch_waits_for_machines_that_lists_lack(
    cloud: Ec2FleetCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cloud.provider()
    ids = await before.launch(ask("late", 3))
    cloud.server.unlisted.add(bare(ids[0]))
    provider = cloud.provider()  # another process, which does not know the answer
    with pytest.raises(LaunchPending, match="2 of 3 machines are listed"):
        await provider.launch(ask("late", 3))
    assert await listed(provider) == set(), "the launch counts them"
    cloud.server.unlisted.clear()
    assert await provider.launch(ask("late", 3)) == ids
    assert await listed(provider) == set(ids)

    await before.terminate(ids[:1])
    monkeypatch.setattr(aws_ec2_fleet, "SETTLE_SECONDS", 0.2)
    after = cloud.provider()
    with pytest.raises(LaunchPending, match="2 of 3 machines are listed"):
        await after.launch(ask("late", 3))
    await asyncio.sleep(0.4)
    assert await after.launch(ask("late", 3)) == ids[1:], "the other one is gone"
    assert len(cloud.machines()) == 2, "and no other is bought in its place"


async def test_an_answer_without_a_result_is_not_taken_for_a_failure(
    cloud: Ec2FleetCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await cloud.provider().launch(ask("terse"))
    cloud.server.is_terse = True
    cloud.server.unlisted |= {bare(id_) for id_ in ids}
    provider = cloud.provider()
    with pytest.raises(LaunchPending, match="0 of 2 machines are listed"):
        await provider.launch(ask("terse"))
    cloud.server.unlisted.clear()
    assert await provider.launch(ask("terse")) == ids

    cloud.server.capacity[ZONE] = 0
    with pytest.raises(OutOfCapacity):
        await cloud.provider().launch(ask("terse-failed"))
    monkeypatch.setattr(aws_ec2_fleet, "SETTLE_SECONDS", 0.0)
    with pytest.raises(OutOfCapacity, match="made no machines"):
        await cloud.provider().launch(ask("terse-failed"))


async def test_machines_of_other_clusters_and_pools_are_neither_listed_nor_ended_in_their_place(
    cloud: Ec2FleetCloud, served: tuple[AwsServer, dict[str, str]]
) -> None:
    other = Ec2FleetCloud(*served, cluster="other")
    ids, others = [
        await each.provider().launch(ask(token))
        for each, token in ((cloud, "here"), (other, "there"))
    ]
    assert await listed(cloud.provider()) == set(ids)
    assert await listed(other.provider()) == set(others)
    gone = f"aws:///{ZONE}/{cloud.gone}"
    await cloud.provider().terminate((gone, *ids))
    assert cloud.machines() == set(others)


async def test_a_list_has_all_pages_or_says_that_it_is_cut(
    cloud: Ec2FleetCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_ec2_fleet, "MACHINES_PER_PAGE", 5)
    provider = cloud.provider()
    ids = {(await provider.launch(ask(f"page-{i}", 1)))[0] for i in range(7)}
    found = await provider.instances()
    assert ({each.id for each in found.instances}, found.is_complete) == (ids, True)
    assert {each.token for each in found.instances} == {f"page-{i}" for i in range(7)}
    monkeypatch.setattr(aws_ec2_fleet, "_PAGES_MAX", 1)
    found = await provider.instances()
    assert (len(found.instances), found.is_complete) == (5, False)


async def test_a_machine_that_stops_is_leaving(cloud: Ec2FleetCloud) -> None:
    ids = await cloud.provider().launch(ask("stops"))
    cloud.server.client("ec2").stop_instances(InstanceIds=[bare(ids[0])])
    states = {each.id: each.state for each in (await cloud.provider().instances()).instances}
    assert states == {ids[0]: InstanceState.STOPPING, ids[1]: InstanceState.RUNNING}


async def test_the_options_say_what_is_launched(
    cloud: Ec2FleetCloud, served: tuple[AwsServer, dict[str, str]]
) -> None:
    types = "p5e.48xlarge, p5.48xlarge"
    spot = Ec2FleetCloud(*served, instanceTypes=types, capacityType="spot").provider()
    ids = await spot.launch(ask("spot"))
    machines = fleet_machines()
    made = [machines[bare(id_)] for id_ in ids]
    assert {(each.instance_type, each.lifecycle) for each in made} == {("p5e.48xlarge", "spot")}
    await cloud.provider().launch(ask("template", 1))
    [asked] = [each for each in cloud.server.fleets if "OnDemandOptions" in each]
    assert asked["Type"] == "instant", "no fleet stays behind that keeps a size"
    found = cloud.server.client("ec2").describe_launch_templates()["LaunchTemplates"][0]
    by_id = cloud.provider(group=found["LaunchTemplateId"])
    [id_] = await by_id.launch(ask("template-id", 1))
    assert fleet_machines()[bare(id_)].instance_type == "p5.48xlarge"


def test_the_option_launch_template_chooses_ec2_fleet(cloud: Ec2FleetCloud) -> None:
    def provider(reference: str, **options: str) -> MachineProvider:
        spec = ProviderSpec(ProviderType.AWS, reference, {"region": REGION, **options})
        return provider_of(
            NodePool(ObjectMeta(name="h100"), NodePoolSpec(spec, NodeTemplate({"cpu": 1}), max=1))
        )

    assert isinstance(provider("", **cloud.options), Ec2FleetProvider)
    assert isinstance(provider("h100"), AwsProvider)


class _Throttles(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        code = b"<Code>RequestLimitExceeded</Code>"
        body = b"<Response><Errors><Error>%b</Error></Errors></Response>" % code
        self.send_response(503)
        self.send_header("Retry-After", "90")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Print nothing."""


async def test_a_time_to_wait_that_aws_names_is_kept(
    cloud: Ec2FleetCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Throttles)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        provider = cloud.provider()
        with pytest.raises(CloudError, match="RequestLimitExceeded"):
            await provider.instances()
        with pytest.raises(CloudError, match="throttles; asked again in 90 s"):
            await provider.instances()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
