"""`fairlead web-server` as a process, with the rights that the chart gives it and no others."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, TCPConnector
from tests.e2e.users_world import URL, UserBrowser
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import kubeconfig_of
from tests.patience import PATIENCE_SECONDS

from fairlead.api.resources import Resource
from fairlead.api.status import AlreadyExists
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Values, WebValues
from fairlead.kube.client import HttpClient

NAME = "fairlead-web"
_RBAC = ("rbac.authorization.k8s.io", "v1")
_MADE: dict[str, Resource[Any]] = {
    "ServiceAccount": Resource("", "v1", "serviceaccounts", "ServiceAccount", dict),
    "ClusterRole": Resource(*_RBAC, "clusterroles", "ClusterRole", dict, namespaced=False),
    "ClusterRoleBinding": Resource(
        *_RBAC, "clusterrolebindings", "ClusterRoleBinding", dict, namespaced=False
    ),
}


@dataclass
class ServedPage:
    """The page, and browsers for it."""

    port: int
    http: ClientSession

    async def signed_in(self, token: str) -> UserBrowser:
        """Return the browser of the user of a token."""
        browser = UserBrowser(self, self.http)
        await browser.sign_in_with(token)
        return browser


@asynccontextmanager
async def served_page(
    client: HttpClient, plane: ControlPlane, directory: Path
) -> AsyncIterator[ServedPage]:
    """Yield the page of a cluster, served by a process under its own account."""
    chosen = Install(namespace="default", values=Values(web=WebValues(enabled=True)))
    for each in manifests(chosen):
        if each["metadata"]["name"] == NAME and each["kind"] in _MADE:
            space = each["metadata"].get("namespace", "")
            with suppress(AlreadyExists):
                await client.create(_MADE[each["kind"]], each, namespace=space)
    settings = directory / "web.yaml"
    settings.write_text(f"url: {URL}\n")
    kubeconfig = await kubeconfig_of(client, plane, "default", NAME)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "web-server", "--listen", "127.0.0.1:0",
        "--settings", str(settings), "--kubeconfig", str(kubeconfig),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = await _port(process)
        async with ClientSession(connector=TCPConnector(ssl=False)) as http:
            yield ServedPage(port, http)
    finally:
        process.terminate()
        await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    """Return the port that the process says it serves."""
    said: list[bytes] = []
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line)
        if b"Serving the page" in line:
            return int(json.loads(line)["port"])
    raise AssertionError(b"".join(said).decode())
