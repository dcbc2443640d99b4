"""From a label on a namespace to a gang that runs: webhook, adoption and the real controllers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kubernetes.adopting import (
    BATCH,
    TOOLS,
    adopting,
    batch_job,
    complete,
    make,
    partial_gangs,
    stand_in,
    sweep_all,
)
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    http_client,
    install_kinds,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_own_webhook import (
    ENABLED,
    MUTATING,
    OPTED_IN,
    OWN,
    VALIDATING,
    configure,
    in_force,
    webhook,
)

from fairlead.api.resources import NAMESPACES, PODS
from fairlead.api.status import AlreadyExists
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
NODES_COUNT = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True, controllers=TOOLS)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    for name, labels in ((OWN, {}), (OPTED_IN, ENABLED), ("plain", {})):
        try:
            await client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        except AlreadyExists:
            continue
    try:
        yield client
    finally:
        for resource in (MUTATING, VALIDATING):
            await client.delete_collection(resource)
        await sweep_all(client)
        await client.close()


async def test_jobs_of_a_namespace_that_opted_in_run_whole_and_others_are_left_alone(
    client: HttpClient,
) -> None:
    async with webhook(client) as running:
        await configure(client, running.webhook.port)
        await in_force(client)
        async with (
            witnessed(client), virtual_nodes(client, NODES_COUNT), adopting(client),
            partial_gangs(client) as partial,
        ):  # fmt: skip
            pair = [
                batch_job(name, NODES_COUNT, seconds=1, gated=False) for name in ("left", "right")
            ]
            await make(client, BATCH, *pair, namespace=OPTED_IN)

            async def are_over() -> bool:
                return all([await complete(client, name, OPTED_IN) for name in ("left", "right")])

            await until(are_over)
            assert partial == []
            jobs = [await stand_in(client, name) for name in ("left", "right")]
            assert [job.status.attempt for job in jobs] == [1, 1]
            bystander = batch_job("bystander", 2, seconds=1, gated=False)
            await make(client, BATCH, bystander, namespace="plain")

            async def is_over() -> bool:
                return await complete(client, "bystander", "plain")

            await until(is_over)
            pods = (await client.list(PODS, namespace="plain")).items
            assert all("fairlead.dev/job-uid" not in pod.metadata.labels for pod in pods)
