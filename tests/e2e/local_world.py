"""A local node beside an API in a dictionary; as a program, one that survives `kill -9` on disk.

`python -m tests.e2e.local_world DATA` runs a node in a process of its own: the API's objects are
read from and kept in DATA/api.json, so that a test can kill the process and start it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_SECONDS

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.embedded.local.host import LocalOptions
from fairlead.embedded.local.machine import Gpu
from fairlead.embedded.local.memory import MemoryGroups
from fairlead.embedded.local.node import LocalNode
from fairlead.runtime.clock import SystemClock
from fairlead.testing.fake_client import FakeClient

ROOT = Path(__file__).resolve().parents[2]
NODE = "here"
OPTIONS = LocalOptions(
    restart_back_off_seconds=0.2,
    restart_back_off_seconds_max=0.4,
    progress_seconds=0.1,
    retry_seconds=0.3,
    kill_seconds=2.0,
)


class Api(FakeClient):
    """Deletes pods gracefully, as the API does, and keeps everything in a file if one is given."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__(now=time.time, is_graceful=True)
        self.file = file
        if file is not None and file.exists():
            state = json.loads(file.read_text())
            self.version, self._uids = state["version"], state["uids"]
            self._compacted = self.version
            for plural, objects in state["objects"].items():
                self._objects[plural] = {tuple(key): value for key, value in objects}

    def _publish(self, logged: Any) -> None:
        super()._publish(logged)
        if self.file is not None:
            objects = {
                name: [[k, v] for k, v in kind.items()] for name, kind in self._objects.items()
            }
            state = {"version": self.version, "uids": self._uids, "objects": objects}
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps(state))
            fresh.replace(self.file)


def two_gpus() -> tuple[Gpu, ...]:
    """The GPUs of the machine, for tests."""
    return tuple(Gpu(i, f"GPU-{i}", "Test", 1 << 30) for i in range(2))


class LocalWorld:
    """The node's data, the API, and short ways to make and see pods."""

    def __init__(
        self,
        data: Path,
        api: Api,
        memory_groups: MemoryGroups | None = None,
        options: LocalOptions = OPTIONS,
    ) -> None:
        self.data, self.api = data, api
        self.memory_groups, self.options = memory_groups, options
        self.node = self.new_node()

    def new_node(self) -> LocalNode:
        return LocalNode(
            self.api,
            NODE,
            self.data,
            clock=SystemClock(),
            rng=random.Random(1),
            options=self.options,
            gpus=two_gpus,
            memory_groups=self.memory_groups,
        )

    async def pod(self, name: str, *command: str, **parts: Any) -> None:
        await self.api.create(PODS, pod_body(name, *command, **parts), namespace="default")

    async def get(self, name: str) -> Pod:
        return await self.api.get(PODS, name, namespace="default")

    async def until(self, name: str, test: Callable[[Pod], bool]) -> Pod:
        """Return the pod once `test` holds; AssertionError with its status otherwise."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            pod = await self.get(name)
            if test(pod):
                return pod
            await asyncio.sleep(0.02)
        raise AssertionError(f"waited for {name}: {(await self.get(name)).status}")

    async def until_phase(self, name: str, phase: str) -> Pod:
        return await self.until(name, lambda pod: pod.status.phase == phase)

    async def until_gone(self, name: str) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while any(pod.metadata.name == name for pod in self.api.stored(PODS)):
            assert time.monotonic() < limit, f"{name} is still there"
            await asyncio.sleep(0.02)

    def log(self, name: str) -> str:
        return (self.data / "logs/default/pods" / f"{name}.log").read_text()


def pod_body(name: str, *command: str, **parts: Any) -> dict[str, Any]:
    container = {"name": "main", "command": list(command), **parts.pop("container", {})}
    metadata = {"name": name, **parts.pop("metadata", {})}
    spec = {"nodeName": NODE, "restartPolicy": "Never", "containers": [container], **parts}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


@contextlib.asynccontextmanager
async def local_world(
    data: Path, *, memory_groups: MemoryGroups | None = None, options: LocalOptions = OPTIONS
) -> AsyncIterator[LocalWorld]:
    """Run a node inside; its processes are ended afterwards."""
    world = LocalWorld(data, Api(), memory_groups, options)
    task = asyncio.create_task(world.node.run())
    try:
        yield world
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await world.node.shut_down(0.0)


def program(data: Path) -> list[str]:
    """Return the command that runs a node in ROOT until killed."""
    return [sys.executable, "-m", __name__, str(data)]


async def main(data: Path) -> None:
    """Run a node until killed."""
    await LocalWorld(data, Api(data / "api.json")).node.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
