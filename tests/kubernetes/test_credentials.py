"""Credentials that expire while the controllers run: replaced in time, or too late, or by a plugin.

Tokens of a service account, each bound to a Secret: it is void once its Secret is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
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
    rights_count,
    sweep,
    virtual_nodes,
)
from tests.kubernetes.outage_world import client_of, counted, equal_to_the_server, eventually
from tests.kubernetes.own_plane import own_plane

from fairlead.api.resources import JOBS, NODES
from fairlead.api.status import AlreadyExists, Unauthorized
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import Connection, ExecPlugin

pytestmark = pytest.mark.kubernetes
API = "client.authentication.k8s.io/v1"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts"
SECRETS = "/api/v1/namespaces/default/secrets"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@dataclass(frozen=True)
class Account:
    """A service account and where its token lies, as a file and as a plugin's answer."""

    client: HttpClient
    file: Path
    answer: Path

    async def issue(self, secret: str) -> str:
        """Return a token that is good as long as a new Secret of this name is there."""
        await self._post(SECRETS, {"kind": "Secret", "metadata": {"name": secret}})
        bound = {"kind": "Secret", "apiVersion": "v1", "name": secret}
        body = {
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"boundObjectRef": bound},
        }  # fmt: skip
        made = await self._post(f"{ACCOUNT}/acting/token", body)
        return made["status"]["token"]

    def put(self, token: str) -> None:
        """Give it to whoever asks from now on, at once and whole, as kubelets do."""
        answer = {"kind": "ExecCredential", "apiVersion": API, "status": {"token": token}}
        for path, text in ((self.file, token), (self.answer, json.dumps(answer))):
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(path)

    async def revoke(self, cluster: ControlPlane, secret: str, token: str) -> None:
        """Return once the server does not take the token any more; it remembers it for a while."""
        await self.client.request("DELETE", f"{SECRETS}/{secret}")
        asking = client_of(cluster, change=lambda known: replace(known, token=token))

        async def is_refused() -> bool:
            try:
                await asking.list(NODES)
            except Unauthorized:
                return True
            return False

        await eventually(is_refused)
        await asking.close()

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        body = {"apiVersion": "v1", **body}
        return msgspec.json.decode(
            await self.client.request("POST", path, body=msgspec.json.encode(body))
        )

    async def prepare(self) -> None:
        """Make the account and give it all rights."""
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "acting"}, "roleRef": {**reference, "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "acting", "namespace": "default"}],
        }  # fmt: skip
        try:
            await self._post(ACCOUNT, {"kind": "ServiceAccount", "metadata": {"name": "acting"}})
            await self._post(BINDINGS, binding)
            await rights_count(self.client)
        except AlreadyExists:
            return


@asynccontextmanager
async def accounts(cluster: ControlPlane, directory: Path) -> AsyncIterator[Account]:
    client = http_client(cluster, token=cluster.admin_token)
    await install_kinds(client)
    account = Account(client, directory / "token", directory / "answer.json")
    await account.prepare()
    yield account
    await sweep(client)
    await client.close()


def by_file(known: Connection, account: Account) -> Connection:
    return replace(known, token="", token_file=account.file)


def by_plugin(known: Connection, account: Account) -> Connection:
    plugin = ExecPlugin("cat", API, "the test's kubeconfig", arguments=(str(account.answer),))
    return replace(known, token="", exec_plugin=plugin)


@pytest.mark.parametrize("way", [by_file, by_plugin])
async def test_gangs_run_on_though_the_token_in_use_is_refused_for_another_is_there(
    cluster: ControlPlane, tmp_path: Path, way: Any
) -> None:
    async with accounts(cluster, tmp_path) as account:
        first = await account.issue(f"first-{way.__name__}".replace("_", "-"))
        account.put(first)
        acting = client_of(cluster, change=lambda known: way(known, account))
        async with virtual_nodes(account.client, 4), controllers(acting) as pair:
            await account.client.create(JOBS, job_body("a", 4, seconds=0.2), namespace="default")
            assert (await ended(account.client, "a")).status.state == "Succeeded"
            account.put(await account.issue(f"second-{way.__name__}".replace("_", "-")))
            await account.revoke(cluster, f"first-{way.__name__}".replace("_", "-"), first)
            await account.client.create(JOBS, job_body("b", 4, seconds=0.2), namespace="default")
            job = await ended(account.client, "b")
            assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
            for controller in (pair.jobs, pair.scheduler):
                await equal_to_the_server({m.kind: m for m in controller.mirrors}, account.client)
        await acting.close()


@pytest.mark.parametrize("way", [by_file, by_plugin])
async def test_without_a_good_token_they_wait_patiently_say_why_and_go_on_with_the_next(
    cluster: ControlPlane, tmp_path: Path, way: Any
) -> None:
    async with accounts(cluster, tmp_path) as account:
        secret = f"only-{way.__name__}".replace("_", "-")
        only = await account.issue(secret)
        account.put(only)
        acting = client_of(cluster, change=lambda known: way(known, account))
        async with virtual_nodes(account.client, 4), controllers(acting) as pair:
            await account.client.create(JOBS, job_body("a", 4, seconds=0.2), namespace="default")
            await ended(account.client, "a")
            await account.revoke(cluster, secret, only)
            counts = counted(acting)
            await account.client.create(JOBS, job_body("b", 4, seconds=0.2), namespace="default")
            for mirror in (*pair.jobs.mirrors, *pair.scheduler.mirrors):
                mirror.relist()
            await asyncio.sleep(8)
            refused = counts.failed(Unauthorized)
            print(f"{len(counts.sent)} requests in 8 s without credentials")
            assert refused
            assert len(counts.sent) < 8 * 16
            what = "token file" if way is by_file else "credential plugin cat"
            assert f"does not accept the credentials of {what}" in str(refused[-1].error)
            account.put(await account.issue(f"next-{way.__name__}".replace("_", "-")))
            job = await ended(account.client, "b")
            assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
        await acting.close()
