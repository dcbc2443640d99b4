"""The doctor on a real control plane: it names the culprit, and its own requests stay few."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
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
EVENTS, NODES, LISTS = 300, 12, 8
#: What a run of the doctor may cost the API server; the bytes are those of objects.
REQUESTS_MAX, SEAT_SECONDS_MAX, BYTES_MAX = 40, 10.0, 1_000_000
RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["leases"]}
WEBHOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "gatekeeper"},
    "webhooks": [
        {
            "name": "all.example.dev", "failurePolicy": "Fail", "timeoutSeconds": 30,
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [RULE],
            "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Path]]:
    yield from audited_plane(tmp_path_factory)


@pytest.fixture
def cluster(audited: tuple[ControlPlane, Path]) -> ControlPlane:
    return audited[0]


@pytest.fixture
def log(audited: tuple[ControlPlane, Path]) -> Path:
    return audited[1]


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    yield client
    await client.close()


@pytest.fixture
def shell(cluster: ControlPlane, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(cluster.kubeconfig())
    return shell


async def test_agents_that_poll_events_from_every_node_are_found_first_among_all(
    cluster: ControlPlane, client: HttpClient, shell: Shell, log: Path, tmp_path: Path
) -> None:
    await may_read_all(client, "monitoring")
    await make_account(client, "monitoring", "agent")
    agents: list[HttpClient] = []
    for number in range(NODES):
        node = f"n{number:05d}"
        await create(client, "/api/v1/nodes", {"metadata": {"name": node}})
        agents.append(await agent(cluster, client, "monitoring", "agent", node=node))
    for number in range(EVENTS):
        event = {
            "metadata": {"name": f"e{number}"}, "reason": "Test", "message": "x" * 500,
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        }  # fmt: skip
        await create(client, "/api/v1/namespaces/default/events", event)
    offset = size(log)
    for _ in range(LISTS):
        for caller in agents:
            await caller.request("GET", "/api/v1/events")
        await client.request("GET", "/api/v1/namespaces/default")
    for caller in agents:
        await caller.close()
    part = tmp_path / "part.log"
    culprit, sent = "monitoring:agent", LISTS * NODES
    events = await written_since(
        log, offset, part, lambda events: len(answered(events, account=culprit)) >= sent
    )
    assert len(answered(events, account=culprit)) == sent, "the culprit's requests are in the log"

    arguments = ("doctor", "audit", str(part), "--objects", f"events={EVENTS}", "-o", "json")
    result = await asyncio.to_thread(shell.run, *arguments, code=2)
    values = json.loads(result.out)
    first = values["callers"][0]
    assert first["principal"] == "system:serviceaccount:monitoring:agent"
    assert (first["workload"], first["verb"], first["resource"]) == (
        "monitoring/agent", "list", "events",
    )  # fmt: skip
    assert (first["requests"], first["nodes"]) == (LISTS * NODES, NODES)
    assert first["is_daemonset"]
    assert first["exponent"] == 2
    assert first["scope"] == "cluster"
    assert values["findings"][0]["id"] == "AUD-08"
    assert values["findings"][0]["subject"].startswith("monitoring/agent: list events")
    assert {each["id"] for each in values["findings"]} >= {"AUD-02", "API-11", "AUD-03"}
    assert values["skipped"] == {}

    arguments = ("doctor", "--audit", str(part), "-o", "json", "--interval", "1")
    result = await asyncio.to_thread(shell.run, *arguments, code=2)
    worst = json.loads(result.out)["findings"][0]
    assert (worst["id"], worst["severity"]) == ("AUD-08", "critical")
    assert worst["subject"].startswith("monitoring/agent: list events")

    arguments = ("doctor", "audit", str(part), "--objects", f"events={EVENTS}", "--flow-schema")
    manifest = await asyncio.to_thread(shell.run, *arguments)
    import yaml

    level, schema = yaml.safe_load_all(manifest.out)
    flow = "/apis/flowcontrol.apiserver.k8s.io/v1"
    await create(client, f"{flow}/prioritylevelconfigurations", level)
    await create(client, f"{flow}/flowschemas", schema)


async def test_the_doctor_finds_a_planted_webhook_and_keeps_to_its_own_budget(
    client: HttpClient, shell: Shell, log: Path, tmp_path: Path
) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    await create(client, path, WEBHOOK)
    pages = (tmp_path / "before.txt", tmp_path / "after.txt")
    pages[0].write_bytes(bytes(await client.request("GET", "/metrics")))
    offset = size(log)
    arguments = ("doctor", "-o", "json", "--interval", "1", "--nodes", "3000")
    result = await asyncio.to_thread(shell.run, *arguments, code=2)
    report = json.loads(result.out)
    assert {f["id"] for f in report["findings"]} >= {"API-22", "API-22B", "API-22D"}
    assert report["findings"][0]["subject"] == "gatekeeper/all.example.dev"
    assert {"ETCD-01", "ETCD-16"} <= {u["id"] for u in report["unknown"]}, "never a pass"
    assert {"API-01", "API-02", "API-19"} <= {*report["passed"]}, "metrics were read"

    part, sent = tmp_path / "own.log", report["requests"]
    events = await written_since(
        log, offset, part, lambda events: len(answered(events, program="fairlead")) >= sent
    )
    pages[1].write_bytes(bytes(await client.request("GET", "/metrics")))
    complete = answered(events, program="fairlead")
    assert len(complete) == report["requests"] <= REQUESTS_MAX
    assert {e["verb"] for e in complete} <= {"get", "list"}
    lists = [e["requestURI"] for e in complete if e["verb"] == "list"]
    assert lists
    assert all("limit=" in uri for uri in lists)
    measured = [word for page in pages for word in ("--metrics", str(page))]
    arguments = ("doctor", "audit", str(part), *measured, "-o", "json")
    values = json.loads((await asyncio.to_thread(shell.run, *arguments, code=None)).out)
    assert [f for f in values["findings"] if "tester" in f["subject"]] == [], "its own checks"
    cost = [each for each in values["callers"] if each["program"].startswith("fairlead")]
    assert sum(each["requests"] for each in cost) == report["requests"]
    assert sum(each["seat_seconds"] for each in cost) <= SEAT_SECONDS_MAX
    assert 0 < sum(each["bytes"] or 0 for each in cost) <= BYTES_MAX
