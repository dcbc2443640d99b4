"""Processes of `fairlead controller` beside each other, as a Deployment runs them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import until
from tests.planted import PLANTED, found_in

from fairlead.api.resources import LEASES
from fairlead.api.status import NotFound
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection

LEASE_SECONDS = 3
LEASE = "fairlead-controller"
ARGUMENTS = ("-n", "default", "--lease-seconds", str(LEASE_SECONDS), "--binding", "direct")


@dataclass
class Replica:
    """One process of `fairlead controller`."""

    process: asyncio.subprocess.Process
    #: What it was given, and must not log.
    secrets: Sequence[str] = ()
    identity: str = ""
    port: int = 0
    lines: list[dict[str, object]] = field(default_factory=list)

    async def read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            assert line.startswith(b"{"), line + await self.process.stderr.read()
            assert not found_in(line.decode(), self.secrets), line
            entry = json.loads(line)
            self.lines.append(entry)
            if entry["message"] == "Started":
                self.identity, self.port = entry["identity"], entry["port"]

    async def get(self, path: str) -> tuple[int, str]:
        def fetch() -> tuple[int, str]:
            url = f"http://127.0.0.1:{self.port}{path}"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await asyncio.to_thread(fetch)

    def said(self, message: str) -> bool:
        return any(entry["message"] == message for entry in self.lines)


@dataclass
class Replicas:
    """Starts replicas and ends them all."""

    kubeconfig: Path
    group: asyncio.TaskGroup
    #: URL of the history; "" keeps it in memory.
    history: str = ""
    arguments: Sequence[str] = ARGUMENTS
    #: Where their lease is.
    namespace: str = "default"
    running: list[Replica] = field(default_factory=list)

    async def start(
        self, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> Replica:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", "controller", "--kubeconfig", str(self.kubeconfig),
            "--listen", "127.0.0.1:0", *self.arguments, *arguments,
            stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, limit=1 << 22,
            env={**os.environ, "FAIRLEAD_HISTORY_URL": self.history, **environment},
        )  # fmt: skip
        token = load_connection(path=self.kubeconfig).token
        replica = Replica(process, (PLANTED, token))
        self.running.append(replica)
        self.group.create_task(replica.read())

        async def is_up() -> bool:
            assert process.returncode is None, replica.lines
            return bool(replica.port)

        await until(is_up)
        return replica

    def kill(self, replica: Replica) -> None:
        replica.process.kill()
        self.running.remove(replica)


@asynccontextmanager
async def replicas(
    cluster: ControlPlane, *, history: str = "", kubeconfig: Path | None = None,
    arguments: Sequence[str] = ARGUMENTS, namespace: str = "default",
) -> AsyncIterator[Replicas]:  # fmt: skip
    """Start and end replicas in the block; as the tester, unless a kubeconfig is given."""
    async with asyncio.TaskGroup() as group:
        world = Replicas(kubeconfig or cluster.kubeconfig(), group, history, arguments, namespace)
        try:
            yield world
        finally:
            for replica in world.running:
                if replica.process.returncode is None:
                    os.kill(replica.process.pid, signal.SIGCONT)
                    replica.process.kill()
                await replica.process.wait()


async def holder(client: HttpClient, namespace: str = "default") -> str:
    try:
        return (await client.get(LEASES, LEASE, namespace=namespace)).spec.holder_identity
    except NotFound:
        return ""


async def leader(client: HttpClient, world: Replicas) -> Replica:
    """Return the living replica that leads, once one does."""
    found: list[Replica] = []

    async def one_leads() -> bool:
        name = await holder(client, world.namespace)
        found[:] = [r for r in world.running if r.identity and r.identity == name]
        return bool(found)

    await until(one_leads)
    return found[0]
