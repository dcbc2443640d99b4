"""What `doctor preflight` predicts from an agent on few nodes, beside what it does on more nodes.

An agent runs on each node of a small cluster on a real API server, and its audit log is the trace.
Then the cluster grows, and as many agents as nodes really run. Each counts the bytes it receives.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.cli_world import Shell
from tests.kubernetes.audited import (
    agent,
    answered,
    audited_plane,
    create,
    make_account,
    may_read_all,
    size,
    written_since,
)
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client

from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
SPACE = "monitoring"
FEW, MANY, PODS_PER_NODE, ROUNDS, PERIOD_SECONDS = 3, 12, 10, 8, 2.5
#: What an agent asks for in each round, and the power of the nodes that it costs.
READS = {"/api/v1/pods": 2, "/api/v1/nodes": 2, "/api/v1/pods?fieldSelector=spec.nodeName%3D{}": 1,
         "/api/v1/namespaces/kube-system": 1}  # fmt: skip
MANIFEST = {
    "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": SPACE},
    "spec": {"template": {"spec": {"serviceAccountName": "agent"}}},
}  # fmt: skip
#: Of requests and bytes; of seats, which depend on what else the machine does, only the order.
ERROR_MAX, SEATS_FACTOR_MAX = 0.25, 10.0


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Path]]:
    yield from audited_plane(tmp_path_factory)


@pytest.fixture
async def client(audited: tuple[ControlPlane, Path]) -> AsyncIterator[HttpClient]:
    client = http_client(audited[0])
    yield client
    await client.close()


async def grow(
    plane: ControlPlane, client: HttpClient, agents: dict[str, HttpClient], nodes: int
) -> None:
    """Add nodes, their pods and their agents until there are `nodes`."""
    for number in range(len(agents), nodes):
        node = f"n{number:05d}"
        labels = {"kubernetes.io/hostname": node, "example.com/rack": "x" * 50}
        await create(client, "/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
        agents[node] = await agent(plane, client, SPACE, "agent", node=node)
        for each in range(PODS_PER_NODE - 1):
            container = {"name": "c", "image": "i", "env": [{"name": "V", "value": "x" * 500}]}
            await create(client, f"/api/v1/namespaces/{SPACE}/pods", {
                "metadata": {"name": f"w{each}-{node}"},
                "spec": {"nodeName": node, "containers": [container]},
            })  # fmt: skip


async def behave(node: str, client: HttpClient, received: Counter[str]) -> None:
    """Be the agent of a node for all rounds."""
    start = time.monotonic()
    for number in range(ROUNDS):
        await asyncio.sleep(max(start + number * PERIOD_SECONDS - time.monotonic(), 0.0))
        for path in READS:
            answer = await client.request("GET", path.format(node))
            received[path] += len(answer)


async def rolled_out(
    agents: dict[str, HttpClient], log: Path, to: Path
) -> tuple[Counter[str], float]:
    """Run all agents; return the bytes by path and the seconds, and write their audit log."""
    received: Counter[str] = Counter()
    offset, start = size(log), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for node, each in agents.items():
            group.create_task(behave(node, each, received))
    seconds = time.monotonic() - start
    sent = len(agents) * ROUNDS * len(READS)
    account = f"{SPACE}:agent"
    await written_since(log, offset, to, lambda es: len(answered(es, account=account)) >= sent)
    return received, seconds


def kind_of(path: str) -> str:
    """Return how a path shows in the forecast: the resource, and whether it is of one node."""
    resource = path.removeprefix("/api/v1/").split("?")[0].split("/")[0]
    return resource + (" of a node" if "nodeName" in path else "")


def kinds(requests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what is said of each kind of request of the agent."""
    return {
        each["does"].split()[1] + (" of a node" if "nodeName" in each["shape"] else ""): each
        for each in requests
    }


async def test_an_agent_costs_on_many_nodes_what_was_predicted_from_few(
    audited: tuple[ControlPlane, Path], client: HttpClient, tmp_path: Path
) -> None:
    plane, log = audited
    await may_read_all(client, SPACE)
    await make_account(client, SPACE, "agent")
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(MANIFEST))
    shell, agents = Shell(tmp_path), dict[str, HttpClient]()

    await grow(plane, client, agents, FEW)
    few, _ = await rolled_out(agents, log, tmp_path / "few.log")
    counts = {"pods": FEW * PODS_PER_NODE, "nodes": FEW, "namespaces": 5}
    sent = {"pods": few["/api/v1/pods"], "nodes": few["/api/v1/nodes"],
            "namespaces": few["/api/v1/namespaces/kube-system"] * counts["namespaces"]}  # fmt: skip
    objects = ",".join(f"{name}={count}:{sent[name] // (count * FEW * ROUNDS)}"
                       for name, count in counts.items())  # fmt: skip
    result = await asyncio.to_thread(
        shell.run, "doctor", "preflight", "-f", "agent.yaml", "--trace", "few.log",
        "--nodes", str(MANY), "--traced-nodes", str(FEW), "--objects", objects, "-o", "json",
        code=None,
    )  # fmt: skip
    (report,) = json.loads(result.out)

    await grow(plane, client, agents, MANY)
    many, seconds = await rolled_out(agents, log, tmp_path / "many.log")
    for each in agents.values():
        await each.close()
    objects = f"pods={MANY * PODS_PER_NODE},nodes={MANY}"
    result = await asyncio.to_thread(
        shell.run, "doctor", "audit", "many.log", "--nodes", str(MANY), "--objects", objects,
        "-o", "json", code=None,
    )  # fmt: skip
    callers = kinds([{**each, "does": f"{each['verb']} {each['resource']}"}
                     for each in json.loads(result.out)["callers"]
                     if each["workload"] == f"{SPACE}/agent"])  # fmt: skip

    assert (report["instances"], report["seen_instances"]) == (MANY, FEW)
    predicted = kinds(report["requests"])
    assert set(predicted) == set(callers) == {kind_of(path) for path in READS}
    for path, exponent in READS.items():
        kind = kind_of(path)
        forecast, real = predicted[kind], callers[kind]
        assert forecast["exponent"] == exponent, kind
        assert real["requests"] == MANY * ROUNDS
        rate, sent_rate = real["requests"] / seconds, many[path] / seconds
        assert forecast["requests_per_second"] == pytest.approx(rate, rel=ERROR_MAX), kind
        assert forecast["bytes_per_second"] == pytest.approx(sent_rate, rel=ERROR_MAX), kind
    held = sum(each["seat_seconds"] for each in callers.values()) / seconds
    expected = sum(each["seats"] for each in predicted.values())
    assert held / SEATS_FACTOR_MAX <= expected <= held * SEATS_FACTOR_MAX
