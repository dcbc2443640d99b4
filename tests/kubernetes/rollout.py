"""A Deployment of the controllers, played by processes of several versions of the project.

Nobody runs pods on the control plane of the tests. A replica here is a process of the version that
a tree has, with the arguments and settings that the Deployment has at that moment, the rights of
the service account, and a port of its own behind the Service. It is asked once it is ready, and
ends as a pod does: out of the Service first, then SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane, free_ports
from tests.kubernetes.operating import kubeconfig_of, until
from tests.kubernetes.replicas import Replica, Replicas, leader, replicas
from tests.kubernetes.webhook_route import add, own_address, remove

from fairlead.api.names import OWN_NAMESPACE
from fairlead.install.manifests import NAME
from fairlead.kube.client import HttpClient

_DEPLOYMENT = f"/apis/apps/v1/namespaces/{OWN_NAMESPACE}/deployments/{NAME}"
_SETTINGS = f"/api/v1/namespaces/{OWN_NAMESPACE}/configmaps/fairlead-settings"


async def run_command(tree: Path, *arguments: str) -> str:
    """Run `fairlead` of a tree; return what it says."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "fairlead", *arguments], capture_output=True,
        text=True, check=False, env={**os.environ, **path_of_tree(tree)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def path_of_tree(tree: Path) -> dict[str, str]:
    """Return the variable by which a process has the tree's version."""
    return {"PYTHONPATH": str(tree / "src")}


@dataclass
class Rollout:
    """The replicas of the Deployment, and those of them to which the Service leads."""

    client: HttpClient
    pods: Replicas
    directory: Path
    #: Port of the webhook by replica.
    ports: dict[int, int] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)

    async def start(self, tree: Path) -> Replica:
        """Return a replica of a tree's version, once it is ready."""
        settings, arguments = await self._template()
        number, (port,) = len(self.ports), free_ports(1)
        file = self.directory / f"settings-{number}.yaml"
        file.write_text(settings)
        changed = {
            "0.0.0.0:8080": "127.0.0.1:0",
            "0.0.0.0:9443": f"{own_address()}:{port}",
            "/etc/fairlead/settings.yaml": str(file),
        }
        assert changed.keys() <= set(arguments)
        environment = {
            "POD_NAME": f"pod-{number}", "POD_NAMESPACE": OWN_NAMESPACE,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1", **path_of_tree(tree),
        }  # fmt: skip
        replica = await self.pods.start(
            *(changed.get(each, each) for each in arguments), environment=environment
        )
        self.ports[replica.process.pid] = port

        async def is_ready() -> bool:
            return (await replica.get("/readyz"))[0] == 200

        await until(is_ready)
        return replica

    async def _template(self) -> tuple[str, Sequence[str]]:
        """Return the settings and the arguments that a new pod gets now."""

        async def read(path: str) -> dict[str, Any]:
            return msgspec.json.decode(await self.client.request("GET", path))

        settings = (await read(_SETTINGS))["data"]["settings.yaml"]
        pod = (await read(_DEPLOYMENT))["spec"]["template"]["spec"]
        command, *arguments = pod["containers"][0]["args"]
        assert command == "controller"
        return settings, arguments

    async def serve(self, *chosen: Replica) -> None:
        """Let the Service lead to these replicas and no other, without a gap."""
        wanted = {self.ports[each.process.pid] for each in chosen}
        for port in sorted(wanted - self.served):
            await add(self.client, port)
        for port in sorted(self.served - wanted):
            await remove(self.client, port)
        self.served = wanted

    async def end(self, replica: Replica) -> None:
        """End a replica to which nothing leads any more."""
        assert self.ports[replica.process.pid] not in self.served
        replica.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await replica.process.wait() == 0, replica.lines[-3:]
        self.pods.running.remove(replica)

    async def leader(self) -> Replica:
        """Return who leads, once somebody does."""
        return await leader(self.client, self.pods)


@asynccontextmanager
async def rollout(
    cluster: ControlPlane, client: HttpClient, directory: Path
) -> AsyncIterator[Rollout]:
    """A Deployment that is installed, without replicas at first; they end with the block."""
    kubeconfig = await kubeconfig_of(client, cluster, OWN_NAMESPACE, NAME)
    async with replicas(
        cluster, kubeconfig=kubeconfig, arguments=(), namespace=OWN_NAMESPACE
    ) as pods:
        yield Rollout(client, pods, directory)
