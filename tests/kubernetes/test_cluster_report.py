"""The doctor as a controller on a real control plane whose etcd is nearly full."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client, install_kinds, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import ARGUMENTS, leader, replicas
from tests.kubernetes.test_monitoring import static_pool

from fairlead.api.cluster.cluster_report import REPORT_NAME, ClusterReport, FindingSeverity
from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.meta import find_condition, is_true
from fairlead.api.resources import CLUSTER_REPORTS, CONFIG_MAPS, FLEETS
from fairlead.api.status import NotFound
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
#: The file of the database grows in steps of 16 MiB; the third is over 80 % of this.
QUOTA_BYTES = 56 << 20


@pytest.fixture
def small_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, etcd_flags=[f"--quota-backend-bytes={QUOTA_BYTES}"])


@pytest.fixture
async def client(small_etcd: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(small_etcd)
    await install_kinds(client)
    yield client
    await client.close()


def used_share(plane: ControlPlane) -> float:
    with urllib.request.urlopen(f"{plane.etcd_url}/metrics", timeout=10) as answer:
        found = re.search(rb"^etcd_mvcc_db_total_size_in_bytes (.*)$", answer.read(), re.MULTILINE)
    assert found is not None
    return float(found[1]) / QUOTA_BYTES


async def fill(client: HttpClient, plane: ControlPlane) -> None:
    for number in range(60):
        if await asyncio.to_thread(used_share, plane) > 0.8:
            break
        body = {"metadata": {"name": f"large-{number}"}, "data": {"text": "x" * 900_000}}
        await client.create(CONFIG_MAPS, body, namespace="default")
    assert 0.8 < await asyncio.to_thread(used_share, plane) < 1


async def test_an_etcd_that_is_nearly_full_is_reported_and_freezes_the_fleet(
    small_etcd: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    await fill(client, small_etcd)
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"doctor: {{intervalSeconds: 60, metrics: ['etcd={small_etcd.etcd_url}/metrics']}}\n"
    )
    arguments = (*ARGUMENTS, "--settings", str(settings))

    async def report() -> ClusterReport | None:
        try:
            return await client.get(CLUSTER_REPORTS, REPORT_NAME)
        except NotFound:
            return None

    async def is_reported() -> bool:
        found = await report()
        return found is not None and is_true(found.status.conditions, "EtcdNearlyFull")

    async def is_frozen() -> bool:
        fleet = await client.get(FLEETS, FLEET_NAME)
        return "EtcdNearlyFull" in fleet.status.blind

    async with static_pool(client, tmp_path), replicas(small_etcd, arguments=arguments) as world:
        await world.start()
        replica = await leader(client, world)
        await until(is_reported)
        await until(is_frozen)
        found = await report()
        assert found is not None
        status = found.status
        (finding,) = [each for each in status.findings if each.check == "ETCD-04"]
        assert finding.severity is FindingSeverity.CRITICAL
        assert "ETCD-04" in [each.check for each in status.findings[:3]], "among the worst"
        degraded = find_condition(status.conditions, "APIServerDegraded")
        assert degraded is not None
        assert degraded.status == "False", "all of its checks were seen, and passed"
        assert status.requests <= 30
        page = (await replica.get("/metrics"))[1]
        assert 'fairlead_doctor_check_findings{check="ETCD-04",severity="critical"} 1.0' in page
        assert "FindingBegan" in str(await client.request("GET", "/api/v1/events"))
        others = [
            each.check for each in status.findings if each.severity is FindingSeverity.CRITICAL
        ]
        assert others == ["ETCD-04"]
