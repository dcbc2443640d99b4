"""`fairlead logs` and `history` on a real API server: live members, and members that are gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.e2e.cli_world import Result, Shell
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.kubelet import Kubelet, kubelet
from tests.kubernetes.operating import (
    CLOCK,
    controllers,
    ended,
    http_client,
    install_kinds,
    job_body,
    rights_count,
    running,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api import names
from fairlead.api.resources import JOBS, PODS
from fairlead.app.operator import OperatorSettings, ReplicaRun
from fairlead.app.queries.messages import TOKEN_HEADER
from fairlead.app.queries.stores import open_stores
from fairlead.app.replica import ReplicaLogSource, ReplicaSettings
from fairlead.kube.client import HttpClient, HttpLogReader
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.runtime.logs import SILENT
from fairlead.webhook import certificates
from fairlead.webhook.service import WebhookOptions

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, flags=("--kubelet-preferred-address-types=InternalIP",))


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


@pytest.fixture
def shell(cluster: ControlPlane, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(cluster.kubeconfig())
    return shell


async def fairlead(shell: Shell, *arguments: str, code: int = 0) -> Result:
    return await asyncio.to_thread(shell.run, *arguments, code=code)


def _certificate(directory: Path) -> Path:
    times = certificates.Times()
    _, pair = certificates.make(["localhost"], now=CLOCK.now(), times=times)
    (directory / "tls.crt").write_bytes(pair.certificate)
    (directory / "tls.key").write_bytes(pair.key)
    return directory


@asynccontextmanager
async def operator(client: HttpClient, store: str) -> AsyncIterator[int]:
    """One replica in this process, on a store; the port of its webhook and archive."""
    settings = OperatorSettings(
        ReplicaSettings("replica", LeaderOptions("fairlead-test", "default")),
        host="127.0.0.1", port=0,
        webhook=WebhookOptions(
            host="127.0.0.1", port=0, directory=_certificate(Path(store).parent), look_seconds=0.5
        ),
    )  # fmt: skip
    async with open_stores(store) as stores:
        source = ReplicaLogSource(stores.logs, HttpLogReader(client))
        replica = ReplicaRun(
            settings, client, stores.history, archive=source, clock=CLOCK, log=SILENT
        )
        listens = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(replica.run(lambda _port: listens.set()))
            await listens.wait()
            webhook = replica.webhook
            assert webhook is not None

            async def has_certificate() -> bool:
                return webhook.is_ready

            await until(has_certificate)
            yield webhook.port
            replica.stop()


def _wrote(served: Kubelet, job: str, attempt: int, members: int) -> None:
    for index in range(members):
        lines = [f"attempt {attempt} member {index} line {line}\n" for line in range(3)]
        served.logs[f"{job}-{attempt}-worker-{index}"] = "".join(lines).encode()


async def test_logs_of_live_members_come_from_the_api_server(
    cluster: ControlPlane, client: HttpClient, shell: Shell
) -> None:
    with kubelet(cluster) as served:
        async with virtual_nodes(client, 3), controllers(client):
            await served.serve_nodes(client)
            await client.create(JOBS, job_body("live", 3), namespace="default")
            await running(client, "live", 3)
            _wrote(served, "live", 1, 3)
            whole = await fairlead(shell, "logs", "live")
            assert whole.out.splitlines() == [
                f"[worker-{index}] attempt 1 member {index} line {line}"
                for index in range(3)
                for line in range(3)
            ]
            one = await fairlead(shell, "logs", "live", "--task", "1", "--tail", "1")
            assert one.out == "attempt 1 member 1 line 2\n"
            unknown = await fairlead(shell, "logs", "live", "--task", "worker-9", code=3)
            assert "has no log of task worker-9" in unknown.err
            first = await fairlead(shell, "logs", "live", "--previous", code=3)
            assert "has had one attempt only" in first.err
            missing = await fairlead(shell, "logs", "nobody", code=3)
            assert "job 'nobody' does not exist" in missing.err


async def test_following_shows_what_is_written_until_the_job_ends(
    cluster: ControlPlane, client: HttpClient, shell: Shell
) -> None:
    with kubelet(cluster) as served:
        async with virtual_nodes(client, 2) as nodes, controllers(client):
            await served.serve_nodes(client)
            body = job_body("followed", 2, restart={"limit": 0})
            await client.create(JOBS, body, namespace="default")
            await running(client, "followed", 2)
            _wrote(served, "followed", 1, 2)
            following = shell.start("logs", "-f", "followed")
            assert following.stdout is not None
            first = await asyncio.to_thread(following.stdout.readline)
            assert first.startswith("[worker-")
            for index in range(2):
                nodes.fail_pod(("default", f"followed-1-worker-{index}"), exit_code=1)
            served.is_over.set()
            await ended(client, "followed")
            out = await asyncio.to_thread(following.stdout.read)  # has a buffer: no communicate
            assert await asyncio.to_thread(following.wait, 30) == 0
            lines = sorted((first + out).splitlines())
            assert lines[0] == "[worker-0] attempt 1 member 0 line 0"
            assert lines.count("[worker-0] the end") == lines.count("[worker-1] the end") == 1
            assert len(lines) == 8


async def test_logs_of_members_that_are_gone_come_from_the_archive(
    cluster: ControlPlane, client: HttpClient, shell: Shell, tmp_path: Path
) -> None:
    store = str(tmp_path / "history.db")
    with kubelet(cluster) as served:
        async with virtual_nodes(client, 3) as nodes, operator(client, store):
            await served.serve_nodes(client)
            for attempt in (1, 2):
                _wrote(served, "kept", attempt, 3)
            body = job_body("kept", 3, restart={"limit": 3, "backoffSeconds": 0})
            await client.create(JOBS, body, namespace="default")
            await running(client, "kept", 3)
            nodes.fail_pod(("default", "kept-1-worker-1"), exit_code=3)
            await running(client, "kept", 3, attempt=2)
            before = await fairlead(shell, "logs", "kept", "--previous", "--history", store)
            assert before.out.splitlines() == [
                f"[worker-{index}] attempt 1 member {index} line {line}"
                for index in range(3)
                for line in range(3)
            ]
            no = await fairlead(shell, "logs", "kept", "--previous", code=5)
            assert "cannot be read through the controller" in no.err
            assert "--history FILE" in no.err
            await client.patch(
                JOBS, "kept", {"spec": {"restart": {"limit": 0}}}, namespace="default"
            )
            nodes.fail_pod(("default", "kept-2-worker-0"), exit_code=3)
            await ended(client, "kept")
            await client.delete(JOBS, "kept", namespace="default")

            async def is_gone() -> bool:
                return not (await client.list(PODS)).items

            await until(is_gone)
            after = await fairlead(shell, "logs", "kept", "--task", "2", "--history", store)
            assert "attempt 2 member 2 line 2\n" in after.out
            first = await fairlead(shell, "logs", "kept", "--attempt", "1", "--task", "1",
                                   "--tail", "1", "--history", store)  # fmt: skip
            assert first.out == "attempt 1 member 1 line 2\n"
            past = await fairlead(shell, "history", "--history", store, "-o", "json")
            [record] = json.loads(past.out)["items"]
            assert record["metadata"]["name"] == "kept"
            none = await fairlead(shell, "history", code=5)
            assert "the history cannot be read through the controller" in none.err


async def test_a_kubelet_that_does_not_answer_holds_no_gang_back(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    async with virtual_nodes(client, 3) as nodes, operator(client, str(tmp_path / "h.db")):
        body = job_body("mute", 3, restart={"limit": 3, "backoffSeconds": 0})
        await client.create(JOBS, body, namespace="default")
        await running(client, "mute", 3)
        nodes.fail_pod(("default", "mute-1-worker-1"), exit_code=3)
        await running(client, "mute", 3, attempt=2)


ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "rbac.authorization.k8s.io"


async def _token(client: HttpClient, name: str, group: str, resource: str, verb: str) -> str:
    """Return the token of a new service account with one right in its namespace."""

    async def create(path: str, body: dict[str, Any]) -> Any:
        return json.loads(await client.request("POST", path, body=json.dumps(body).encode()))

    named = {"metadata": {"name": name}}
    await create(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", **named})
    rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", **named, "rules": [rule]}
    await create(f"/apis/{RBAC}/v1/namespaces/default/roles", role)
    binding = {
        "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", **named,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }  # fmt: skip
    await create(f"/apis/{RBAC}/v1/namespaces/default/rolebindings", binding)
    await rights_count(client)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return (await create(f"{ACCOUNTS}/{name}/token", request))["status"]["token"]


async def _get(port: int, path: str, token: str) -> tuple[int, list[Any]]:
    headers = {TOKEN_HEADER: token} if token else {}
    url = f"https://127.0.0.1:{port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=False) as answer,
    ):
        text = await answer.text()
        lines = text.splitlines() if answer.status == 200 else []
        return answer.status, [json.loads(line) for line in lines]


async def test_the_archive_answers_those_whom_the_api_server_lets_read(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    store = str(tmp_path / "history.db")
    reader = await _token(client, "reader", "", "pods/log", "get")
    lister = await _token(client, "lister", names.GROUP, "jobs", "list")
    with kubelet(cluster) as served:
        _wrote(served, "asked", 1, 2)
        async with virtual_nodes(client, 2), operator(client, store) as port:
            await served.serve_nodes(client)
            await client.create(JOBS, job_body("asked", 2, seconds=0.5), namespace="default")
            await ended(client, "asked")
            path = "/fairlead/v1/namespaces/default/jobs/asked/logs"

            async def is_kept() -> bool:
                return len((await _get(port, path, reader))[1]) == 2

            await until(is_kept)
            assert [(await _get(port, path, who))[0] for who in (lister, "", "x")] == [
                403, 401, 401,
            ]  # fmt: skip
            elsewhere = "/fairlead/v1/namespaces/kube-system/jobs/asked/logs"
            assert (await _get(port, elsewhere, reader))[0] == 403
            assert (await _get(port, path + "?attempt=7", reader))[0] == 404
            assert (await _get(port, path + f"?attempt={'9' * 5000}", reader))[0] == 400
            past = "/fairlead/v1/history?namespace=default"
            assert (await _get(port, past, reader))[0] == 403
            [record] = (await _get(port, past, lister))[1]
            assert (record["name"], record["state"]) == ("asked", "Succeeded")
            assert (await _get(port, "/fairlead/v1/history", lister))[0] == 403
            assert (await _get(port, past + "&since=x", lister))[0] == 400
