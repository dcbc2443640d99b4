"""What every public cloud does as a provider, through its real SDK and HTTP on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.e2e.aws_server import aws_server
from tests.e2e.azure_server import azure_server
from tests.e2e.azure_server import connect_to as connect_to_azure
from tests.e2e.clouds import AwsCloud, AzureCloud, Cloud, Dies, Ec2FleetCloud, GcpCloud
from tests.e2e.clouds import launched as launched_after
from tests.e2e.ec2_fleet_server import ec2_fleet
from tests.e2e.gcp_server import connect_to, gcp_server
from tests.patience import PATIENCE_SECONDS

from fairlead.cloud import calls
from fairlead.cloud.amazon import aws_ec2_fleet
from fairlead.cloud.google import gcp_launch
from fairlead.cloud.microsoft import azure_api, azure_launch
from fairlead.cloud.provider import (
    BeginsMaintenance,
    CloudError,
    LaunchRequest,
    MachineProvider,
    OutOfCapacity,
    RefusedByProvider,
    ReportsHosts,
)
from fairlead.model.health.machines import HostReport, InstanceState

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:Exception.*does not match an error shape:UserWarning"),
]


@pytest.fixture(
    scope="module", params=["aws", "aws-ec2-fleet", "azure", "gcp", "gcp-resize-requests"]
)
def served(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param == "aws":
        with aws_server() as aws:
            yield AwsCloud(aws)
    elif request.param == "aws-ec2-fleet":
        with aws_server() as aws, ec2_fleet(aws) as subnets:
            yield Ec2FleetCloud(aws, subnets)
    elif request.param == "azure":
        with azure_server() as (azure, url):
            yield AzureCloud(azure, connect_to_azure(url))
    else:
        with gcp_server() as (gcp, url):
            yield GcpCloud(gcp, connect_to(url), resizes=request.param != "gcp")


@pytest.fixture
async def cloud(served: Cloud, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    if isinstance(served, AwsCloud):
        monkeypatch.setenv("AWS_ENDPOINT_URL", served.server.url)
    for name, seconds in (("LOOK_SECONDS", 0.01), ("LOOK_SECONDS_MAX", 0.02),
                          ("SETTLE_SECONDS", 0.3)):  # fmt: skip
        monkeypatch.setattr(gcp_launch, name, seconds)
        monkeypatch.setattr(azure_launch, name, seconds)
    monkeypatch.setattr(aws_ec2_fleet, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(azure_api, "RATES", dict.fromkeys(azure_api.Bucket, (1e9, 1e9)))
    served.clear()
    yield served
    served.clear()
    await ended(served, tuple(served.machines()))


def ask(token: str, cloud: Cloud, count: int = 2) -> LaunchRequest:
    return LaunchRequest(token, "h100", count, cloud.zone)


async def launched(provider: MachineProvider, request: LaunchRequest) -> tuple[str, ...]:
    return await launched_after(provider, request, seconds=0.01)


async def ended(cloud: Cloud, ids: tuple[str, ...]) -> None:
    """End machines as the controller does: until they are gone."""
    provider = cloud.provider()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while set(ids) & cloud.machines():
            await provider.terminate(ids)
            await asyncio.sleep(0.01)


async def test_machines_are_launched_listed_and_ended(cloud: Cloud) -> None:
    provider = cloud.provider()
    ids = await launched(provider, ask("round", cloud, 3))
    assert len(ids) == 3
    assert set(ids) == cloud.machines(), "as nodes state them"
    cloud.server.calls.clear()
    listed = await provider.instances()
    assert listed.is_complete
    assert {each.id for each in listed.instances} == set(ids)
    assert {(each.pool, each.domain) for each in listed.instances} == {("h100", cloud.zone)}
    assert {each.state for each in listed.instances} == {InstanceState.RUNNING}
    assert cloud.server.calls["list"] == 1, "one list per group"
    await ended(cloud, ids[:2])
    assert cloud.machines() == {ids[2]}, "and the group makes no others instead"


async def test_maintenance_that_the_cloud_announces_is_listed_with_the_machine(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ANNOUNCED_SECONDS", 0.0)
    provider = cloud.provider()
    ids = await launched(provider, ask("events", cloud, 2))
    start = datetime(2026, 12, 1, 8, tzinfo=UTC)
    cloud.announce(ids[0], start, start + timedelta(hours=4))
    found = {each.id: each.maintenance for each in (await provider.instances()).instances}
    assert found == {ids[0]: "2026-12-01T08:00:00Z/2026-12-01T12:00:00Z", ids[1]: ""}
    cloud.announce(ids[0], start, start)
    found = {each.id: each.maintenance for each in (await provider.instances()).instances}
    assert found[ids[0]] == "2026-12-01T08:00:00Z/2026-12-01T08:00:01Z", "it can be read"
    await ended(cloud, ids)


async def test_maintenance_begins_early_where_the_cloud_can_be_asked(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ANNOUNCED_SECONDS", 0.0)
    provider = cloud.provider()
    ids = await launched(provider, ask("early", cloud, 2))
    start = datetime(2026, 12, 1, 8, tzinfo=UTC)
    cloud.announce(ids[0], start, start + timedelta(hours=4))

    async def may_begin() -> dict[str, bool]:
        return {each.id: each.may_begin for each in (await provider.instances()).instances}

    if not isinstance(provider, BeginsMaintenance):  # AWS has no such call
        assert await may_begin() == {ids[0]: False, ids[1]: False}
    else:
        assert await may_begin() == {ids[0]: True, ids[1]: False}
        await provider.begin_maintenance(ids[0])
        assert await may_begin() == {ids[0]: False, ids[1]: False}
        with pytest.raises(CloudError):
            await provider.begin_maintenance(ids[1])
    await ended(cloud, ids)


async def test_a_faulty_host_is_reported_to_its_cloud_and_its_end_where_the_cloud_takes_it(
    cloud: Cloud,
) -> None:
    provider = cloud.provider()
    ids = await launched(provider, ask("faulty", cloud, 2))
    assert isinstance(provider, ReportsHosts)
    report = HostReport("ticket-1-opened", ids[0], "the GPU fell off the bus", 1_800_000_000.0,
                        ("gpu-xid 79", "gpu-lost"))  # fmt: skip
    cloud.plan("report", cloud.internal)
    with pytest.raises(CloudError):
        await provider.report_host(report)
    cloud.plan("report", cloud.denied)
    with pytest.raises(RefusedByProvider):
        await provider.report_host(report)
    assert cloud.said_of(ids[0]) == []
    assert await provider.report_host(report)
    assert cloud.said_of(ids[0]) == [cloud.faulty]
    assert cloud.said_of(ids[1]) == []
    over = replace(report, token="ticket-1-resolved", is_over=True)
    assert await provider.report_host(over) is bool(cloud.well)
    assert cloud.said_of(ids[0]) == [cloud.faulty, *filter(None, [cloud.well])]
    assert not await provider.report_host(replace(report, machine="other://machine"))
    gone = replace(report, machine=f"{ids[0].rpartition('/')[0]}/{cloud.gone}")
    with pytest.raises(RefusedByProvider):
        await provider.report_host(gone)
    await ended(cloud, ids)


@pytest.mark.parametrize("after", [False, True])
async def test_a_launch_whose_answer_is_lost_is_sent_again_and_buys_nothing_twice(
    cloud: Cloud, after: bool
) -> None:
    provider, request = cloud.provider(), ask(f"lost-{after}", cloud)
    cloud.plan("launch", cloud.internal, after=after)
    with pytest.raises(CloudError):
        await launched(provider, request)
    ids = await launched(provider, request)
    assert await launched(provider, request) == ids
    assert set(ids) == cloud.machines()


@pytest.mark.parametrize("after", [False, True])
async def test_a_controller_that_dies_at_any_call_loses_and_doubles_no_machine(
    cloud: Cloud, after: bool
) -> None:
    survived = False
    for at in range(1, 30):
        request = ask(f"dies-{at}-{after}", cloud)
        run = Dies(at, after=after)
        try:
            ids = await launched(cloud.provider(run), request)
            survived = True
        except asyncio.CancelledError:
            ids = await launched(cloud.provider(), request)
        assert set(ids) == cloud.machines(), f"died at call {at}"
        assert len(ids) == 2
        try:
            await cloud.provider(Dies(at, after=after)).terminate(ids)
        except asyncio.CancelledError:
            await cloud.provider().terminate(ids)
        await ended(cloud, ids)
        assert cloud.machines() == set()
        if survived:
            break
    assert survived
    assert at > 1, "it died at least once"


async def test_a_controller_that_dies_amid_any_await_loses_and_doubles_no_machine(
    cloud: Cloud,
) -> None:
    have: set[str] = set()
    for turns in range(6):  # cancelled at another await each time
        request = ask(f"amid-{turns}", cloud, 1)
        task = asyncio.create_task(launched(cloud.provider(), request))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        have |= set(await launched(cloud.provider(), request))
        assert have == cloud.machines()
        assert len(have) == turns + 1


async def test_a_zone_without_capacity_says_so_and_gives_machines_later(cloud: Cloud) -> None:
    cloud.server.capacity[cloud.zone] = 0
    with pytest.raises(OutOfCapacity, match=cloud.no_capacity):
        await launched(cloud.provider(), ask("none", cloud))
    assert cloud.machines() == set()
    cloud.server.capacity[cloud.zone] = 2
    await asyncio.sleep(0.1)
    assert cloud.machines() == set(), "nothing is made that was given up"
    assert len(await launched(cloud.provider(), ask("later", cloud))) == 2


async def test_what_will_never_work_is_refused(cloud: Cloud) -> None:
    with pytest.raises(RefusedByProvider, match="no-such-group"):
        await cloud.ask_of("no-such-group")
    cloud.plan("list", cloud.denied)
    with pytest.raises(RefusedByProvider, match="planted"):
        await cloud.provider().instances()


async def test_a_machine_that_is_gone_keeps_no_other_from_being_ended(cloud: Cloud) -> None:
    ids = await launched(cloud.provider(), ask("gone", cloud, 2))
    gone = f"{ids[0].rpartition('/')[0]}/{cloud.gone}"
    await cloud.provider().terminate((ids[0], gone))
    await ended(cloud, ids[:1])
    assert cloud.machines() == {ids[1]}
    await cloud.provider().terminate((ids[0],))  # again: no mistake


async def test_nothing_is_asked_for_a_while_when_the_cloud_throttles(cloud: Cloud) -> None:
    provider = cloud.provider()
    await provider.instances()
    cloud.server.calls.clear()
    cloud.plan("list", cloud.throttled)
    with pytest.raises(CloudError, match="planted"):
        await provider.instances()
    with pytest.raises(CloudError, match="throttles; asked again in 2 s"):
        await provider.instances()
    assert cloud.server.calls["list"] == 1
