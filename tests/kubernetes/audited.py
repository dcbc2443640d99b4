"""A control plane with an audit log, and agents on its nodes: accounts, pods and bound tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane, audit_flags
from tests.kubernetes.operating import rights_count, until
from tests.kubernetes.own_plane import own_plane

from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions

RBAC = "/apis/rbac.authorization.k8s.io/v1"
LOG = "audit.log"


def audited_plane(
    directories: pytest.TempPathFactory, *, flags: Sequence[str] = (), **options: Any
) -> Iterator[tuple[ControlPlane, Path]]:
    """Yield a control plane of its own and its audit log, of metadata."""
    log = directories.mktemp("audit") / LOG
    for plane in own_plane(directories, flags=(*audit_flags(log), *flags), **options):
        yield plane, log


async def create(client: HttpClient, path: str, body: Any) -> dict[str, Any]:
    """Create an object from its body and return what the server made of it."""
    answer = await client.request("POST", path, body=json.dumps(body).encode())
    return json.loads(answer)


async def may_read_all(client: HttpClient, namespace: str) -> None:
    """Make a namespace whose service accounts may do everything."""
    await create(client, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "apiGroup": group,
                      "name": f"system:serviceaccounts:{namespace}"}],
    }  # fmt: skip
    await create(client, f"{RBAC}/clusterrolebindings", binding)
    await rights_count(client)


async def make_account(client: HttpClient, namespace: str, name: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await create(client, path, {"metadata": {"name": name}})


async def agent(
    plane: ControlPlane, client: HttpClient, namespace: str, account: str, *, node: str = ""
) -> HttpClient:
    """Return a client of a service account; with `node` as a pod of a DaemonSet there."""
    spec: dict[str, Any] = {}
    if node:
        container = {"name": "agent", "image": "agent"}
        pod = await create(client, f"/api/v1/namespaces/{namespace}/pods", {
            "metadata": {"name": f"{account}-{node[-5:]}"},
            "spec": {"nodeName": node, "serviceAccountName": account, "containers": [container]},
        })  # fmt: skip
        meta = pod["metadata"]
        spec["boundObjectRef"] = {
            "kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"],
        }  # fmt: skip
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    token = str((await create(client, path, request))["status"]["token"])
    connection = load_connection(path=plane.kubeconfig())
    return HttpClient(replace(connection, token=token), HttpOptions())


def size(log: Path) -> int:
    return log.stat().st_size


Events = list[dict[str, Any]]


def answered(events: Events, *, account: str = "", program: str = "") -> Events:
    """Return the events of requests that were answered to their end.

    Of accounts whose names end so, of programs whose names begin so.
    """
    return [
        each for each in events
        if each["stage"] == "ResponseComplete" and each["userAgent"].startswith(program)
        and each["user"]["username"].endswith(account)
    ]  # fmt: skip


async def written_since(
    log: Path, offset: int, to: Path, is_whole: Callable[[Events], bool]
) -> Events:
    """Copy what was logged since the offset, and return it, once it is whole.

    The line about a request is written behind the answer to it.
    """
    found: Events = []

    async def is_written() -> bool:
        found[:] = _copy(log, offset, to)
        return is_whole(found)

    await until(is_written)
    return found


def _copy(log: Path, offset: int, to: Path) -> Events:
    data = log.read_bytes()[offset:]
    data = data[: data.rfind(b"\n") + 1]  # the last line may be under way
    to.write_bytes(data)
    return [json.loads(line) for line in data.splitlines()]
