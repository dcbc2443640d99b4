"""The API server has little room for us: priority and fairness turns most of what we ask away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    controllers,
    ended,
    http_client,
    install_kinds,
    job_body,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.outage_world import Sent, client_of, counted, equal_to_the_server
from tests.kubernetes.own_plane import own_plane

from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError, TooManyRequests
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
GANGS, MEMBERS = 4, 50
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1"
#: One share of a server that takes few at a time: one seat, and room for one that waits.
LEVEL: dict[str, Any] = {
    "kind": "PriorityLevelConfiguration",
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "metadata": {"name": "tiny"},
    "spec": {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 1,
            "lendablePercent": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {
                "type": "Queue",
                "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1},
            },
        },
    },
}
SCHEMA: dict[str, Any] = {
    "kind": "FlowSchema",
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "metadata": {"name": "tiny"},
    "spec": {
        "matchingPrecedence": 100,
        "priorityLevelConfiguration": {"name": "tiny"},
        "rules": [
            {
                "subjects": [{"kind": "User", "user": {"name": "tester"}}],
                "resourceRules": [
                    {
                        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                        "clusterScope": True, "namespaces": ["*"],
                    }
                ],
            }
        ],
    },
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    flags = ("--max-requests-inflight=20", "--max-mutating-requests-inflight=20")
    yield from own_plane(tmp_path_factory, flags=flags)


async def narrow(client: HttpClient) -> None:
    """Give the tester one seat."""
    for path, body in (("prioritylevelconfigurations", LEVEL), ("flowschemas", SCHEMA)):
        await client.request("POST", f"{FLOWS}/{path}", body=msgspec.json.encode(body))


async def is_narrow(client: HttpClient) -> bool:
    """Ask for much at once; True when some of it is turned away."""
    asked = [client.list(JOBS) for _ in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    unexpected = [a for a in answers if isinstance(a, Exception) and not isinstance(a, ApiError)]
    assert not unexpected
    return any(isinstance(answer, TooManyRequests) for answer in answers)


async def test_controllers_wait_as_long_as_they_are_asked_to_and_get_there(
    cluster: ControlPlane,
) -> None:
    """The others are exempt (system:masters), so that only the controllers are short of room."""
    client = http_client(cluster, token=cluster.admin_token)
    await install_kinds(client)
    acting = client_of(cluster)
    async with witnessed(client), virtual_nodes(client, GANGS * MEMBERS // 2):
        await narrow(client)
        while not await is_narrow(acting):  # noqa: ASYNC110 - the server's own watch takes a while
            await asyncio.sleep(0.1)
        counts = counted(acting)
        async with controllers(acting) as pair:
            for number in range(GANGS):
                body = job_body(f"gang-{number}", MEMBERS, gpus=4, seconds=1)
                await client.create(JOBS, body, namespace="default")
            for number in range(GANGS):
                job = await ended(client, f"gang-{number}")
                assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
            for controller in (pair.jobs, pair.scheduler):
                await equal_to_the_server({m.kind: m for m in controller.mirrors}, client)
    refused = counts.failed(TooManyRequests)
    took = counts.sent[-1].at - counts.sent[0].at
    tried = len(counts.sent)
    print(f"{len(refused)} of {tried} requests refused in {took:.1f} s: {counts.by_verb}")
    assert refused
    assert too_early(counts.sent) == []
    await acting.close()
    await client.close()


def too_early(sent: list[Sent]) -> list[str]:
    """Return the requests that were sent again before the time that the server had asked for.

    Both controllers read and write jobs; what a task sends is one controller's.
    """
    not_before: dict[tuple[str, str, str], float] = {}
    early: list[str] = []
    for each in sent:
        key = (each.verb, each.path, "" if each.verb == "create" else each.task)
        if each.at < not_before.get(key, 0.0):
            early.append(f"{each.verb} {each.path}")
        if isinstance(each.error, TooManyRequests):
            assert each.error.retry_after_seconds > 0
            not_before[key] = each.at + each.error.retry_after_seconds
    return early
