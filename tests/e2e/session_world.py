"""The embedded API server with a local node behind it: what runs in its pods are real processes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from tests.conformance.http_server import Running, eventually, running
from tests.e2e.local_world import NODE, OPTIONS
from tests.patience import PATIENCE_SECONDS

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.local.node import LocalNode
from fairlead.embedded.local.processes.streams import LocalStreams
from fairlead.embedded.logs.archive import LogArchive
from fairlead.runtime.clock import SystemClock

SLEEPER = ("sleep", "600")
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"


@dataclass(frozen=True)
class SessionWorld:
    """A cluster with one local node; its pods are those of the test."""

    api: Running
    client: InProcessClient
    data: Path

    async def pod(self, name: str, *command: str, node: str = NODE, **spec: Any) -> None:
        """Create a pod that is bound to a node."""
        container = {"name": "main", "image": "", "command": list(command or SLEEPER)}
        body = {
            "metadata": {"name": name},
            "spec": {"containers": [container], "nodeName": node, "restartPolicy": "Never", **spec},
        }
        await self.client.create(PODS, body, namespace="default")

    async def running_pod(self, name: str, *command: str, **spec: Any) -> Pod:
        """Create a pod and return it once it runs."""
        await self.pod(name, *command, **spec)
        return await self.until_phase(name, "Running")

    async def until_phase(self, name: str, phase: str) -> Pod:
        """Return the pod once it is in a phase."""
        key = ("default", name)

        def now() -> Pod:
            record = self.api.service.store.get(PODS.name, key)
            assert record is not None
            return record.typed(Pod)

        await eventually(lambda: now().status.phase == phase)
        return now()

    def url(self, name: str, what: str, *pairs: tuple[str, str]) -> str:
        """Return the address of a pod's sub-resource."""
        path = PODS.path("default", name, what)
        return f"{self.api.server.url}{path}?{urlencode(pairs)}"

    @asynccontextmanager
    async def exec(
        self, name: str, *command: str, flags: Sequence[str] = ("stdin", "stdout", "stderr"),
        protocol: str = V5,
    ) -> AsyncIterator[Exec]:  # fmt: skip
        """Start a program beside a pod's container, as a client of the protocol does."""
        pairs = [("command", word) for word in command] + [(flag, "true") for flag in flags]
        async with self.api.session.ws_connect(
            self.url(name, "exec", *pairs), protocols=(protocol,), max_msg_size=0
        ) as socket:
            yield Exec(socket)

    async def output(self, name: str, *command: str) -> tuple[bytes, int]:
        """Run a program to its end; return its stdout and its exit code."""
        async with self.exec(name, *command, flags=("stdout", "stderr")) as session:
            await session.until_end()
            return bytes(session.out), session.exit_code


class Exec:
    """The client's side of a session: what came on each channel."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.out, self.err = bytearray(), bytearray()
        self.status: dict[str, Any] = {}

    async def send(self, channel: int, data: bytes) -> None:
        await self.socket.send_bytes(bytes((channel,)) + data)

    async def end_input(self) -> None:
        await self.socket.send_bytes(b"\xff\x00")

    async def receive(self) -> bool:
        """Take one message; False at the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return False
        match message.data[0]:
            case 1:
                self.out += message.data[1:]
            case 2:
                self.err += message.data[1:]
            case 3 if len(message.data) > 1:
                self.status = json.loads(message.data[1:])
        return True

    async def until(self, text: bytes) -> None:
        """Return once the program has written a text."""
        while text not in self.out:
            assert await self.receive(), (self.out, self.status)

    async def until_end(self) -> None:
        while await self.receive():
            pass

    @property
    def exit_code(self) -> int:
        """What the status says; AssertionError without one."""
        if self.status["status"] == "Success":
            return 0
        causes = {c["reason"]: c["message"] for c in self.status["details"]["causes"]}
        return int(causes["ExitCode"])


@asynccontextmanager
async def session_world(data: Path, **options: Any) -> AsyncIterator[SessionWorld]:
    """Serve an empty cluster with a local node, until the end of the block; then kill its pods."""
    holder: list[LocalNode] = []
    archives: list[LogArchive] = []
    streams = LocalStreams(lambda: holder[0])
    async with running(
        streams=streams, logs=_Logs(archives), **options
    ) as api, asyncio.TaskGroup() as group:  # fmt: skip
        client = InProcessClient(api.service)
        archives.append(LogArchive(data, client))
        node = LocalNode(
            client, NODE, data, clock=SystemClock(), rng=random.Random(1), options=OPTIONS,
            gpus=tuple,
        )  # fmt: skip
        holder.append(node)
        task = group.create_task(node.run())
        await node.wait_synced()
        try:
            yield SessionWorld(api, client, data)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await node.shut_down(0.0)


class _Logs:
    """The archive, which needs a client of the server that it serves."""

    def __init__(self, archives: list[LogArchive]) -> None:
        self._archives = archives

    async def read(self, *args: Any) -> Any:
        return await self._archives[0].read(*args)


async def gone(pid: int) -> None:
    """Return once a process has ended."""
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
