"""The doctor on a real control plane: it names the culprit, and its own requests stay few."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client
from tests.kubernetes.own_plane import own_plane

from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions

pytestmark = pytest.mark.kubernetes
EVENTS, LISTS = 300, 120
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
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
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "agents"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
    },
    "subjects": [
        {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io",
         "name": "system:serviceaccounts:monitoring"}
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[ControlPlane]:
    policy = log.with_name("policy.json")
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    yield from own_plane(tmp_path_factory, flags=flags)


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


async def _create(client: HttpClient, path: str, body: Any) -> dict[str, Any]:
    answer = await client.request("POST", path, body=json.dumps(body).encode())
    return json.loads(answer)


async def _agent_token(client: HttpClient) -> str:
    """Return a token of a service account that may read everything."""
    await _create(client, "/api/v1/namespaces", {"metadata": {"name": "monitoring"}})
    accounts = "/api/v1/namespaces/monitoring/serviceaccounts"
    await _create(client, accounts, {"metadata": {"name": "agent"}})
    await _create(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", BINDING)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await _create(client, f"{accounts}/agent/token", request)
    return str(answer["status"]["token"])


def _size(log: Path) -> int:
    return log.stat().st_size


def _written_since(log: Path, offset: int, to: Path) -> list[dict[str, Any]]:
    """Copy what was logged since the offset, and return it."""
    data = log.read_bytes()[offset:]
    to.write_bytes(data)
    return [json.loads(line) for line in data.splitlines()]


async def test_a_caller_that_polls_events_is_found_first_among_all(
    cluster: ControlPlane, client: HttpClient, shell: Shell, log: Path, tmp_path: Path
) -> None:
    token = await _agent_token(client)
    for number in range(EVENTS):
        event = {
            "metadata": {"name": f"e{number}"}, "reason": "Test", "message": "x" * 500,
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        }  # fmt: skip
        await _create(client, "/api/v1/namespaces/default/events", event)
    offset = _size(log)
    connection = replace(load_connection(path=cluster.kubeconfig()), token=token)
    agent = HttpClient(connection, HttpOptions())
    for number in range(LISTS):
        await agent.request("GET", "/api/v1/events")
        if number % 4 == 0:
            await client.request("GET", "/api/v1/namespaces/default")
    await agent.close()
    part = tmp_path / "part.log"
    events = _written_since(log, offset, part)
    sent = [e for e in events if e["user"]["username"].endswith("monitoring:agent")]
    assert len(sent) == LISTS, "the culprit's requests are in the log"

    arguments = ("doctor", "audit", str(part), "--objects", f"events={EVENTS}", "-o", "json")
    result = await asyncio.to_thread(shell.run, *arguments, code=2)
    values = json.loads(result.out)
    first = values["callers"][0]
    assert first["principal"] == "system:serviceaccount:monitoring:agent"
    assert (first["workload"], first["verb"], first["resource"]) == (
        "monitoring/agent", "list", "events",
    )  # fmt: skip
    assert first["requests"] == LISTS
    assert first["scope"] == "cluster"
    assert values["findings"][0]["id"] == "AUD-08"
    assert values["findings"][0]["subject"].startswith("monitoring/agent: list events")
    assert values["skipped"] == {}

    arguments = ("doctor", "audit", str(part), "--objects", f"events={EVENTS}", "--flow-schema")
    manifest = await asyncio.to_thread(shell.run, *arguments)
    import yaml

    level, schema = yaml.safe_load_all(manifest.out)
    flow = "/apis/flowcontrol.apiserver.k8s.io/v1"
    await _create(client, f"{flow}/prioritylevelconfigurations", level)
    await _create(client, f"{flow}/flowschemas", schema)


async def test_the_doctor_finds_a_planted_webhook_and_keeps_to_its_own_budget(
    client: HttpClient, shell: Shell, log: Path, tmp_path: Path
) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    await _create(client, path, WEBHOOK)
    offset = _size(log)
    arguments = ("doctor", "-o", "json", "--interval", "1", "--nodes", "3000")
    result = await asyncio.to_thread(shell.run, *arguments, code=2)
    report = json.loads(result.out)
    assert {f["id"] for f in report["findings"]} >= {"API-22", "API-22B", "API-22D"}
    assert report["findings"][0]["subject"] == "gatekeeper/all.example.dev"
    assert {"ETCD-01", "ETCD-16"} <= {u["id"] for u in report["unknown"]}, "never a pass"
    assert {"API-01", "API-02", "API-19"} <= {*report["passed"]}, "metrics were read"

    events = _written_since(log, offset, tmp_path / "own.log")
    own = [e for e in events if e["userAgent"].startswith("fairlead")]
    complete = [e for e in own if e["stage"] == "ResponseComplete"]
    assert len(complete) == report["requests"] <= 40
    assert {e["verb"] for e in complete} <= {"get", "list"}
    lists = [e["requestURI"] for e in complete if e["verb"] == "list"]
    assert lists
    assert all("limit=" in uri for uri in lists)
    found = await asyncio.to_thread(
        shell.run, "doctor", "audit", str(tmp_path / "own.log"), "-o", "json", code=None
    )
    own_findings = [f for f in json.loads(found.out)["findings"] if "tester" in f["subject"]]
    assert own_findings == [], "the doctor passes its own checks"
