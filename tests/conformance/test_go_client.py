"""client-go, unmodified, against the embedded API: informer, leader election, conflicts.

`tools/kubernetes/cmd/informers` prints what it sees. Its connections are cut in the middle, and it
must go on from where it was; once with a history so short that it is answered 410 and lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conformance.http_server import Running, config, running
from tests.conformance.vocabulary import MAPS
from tests.kubernetes.controlplane import NoControlPlane, find_binaries
from tests.kubernetes.own_plane import WITHOUT
from tests.patience import PATIENCE_SECONDS

from fairlead.embedded.http.answering.broadcast import WatchLimits
from fairlead.embedded.http.server import ServerLimits
from fairlead.embedded.storage.store import Store, StoreOptions

pytestmark = pytest.mark.kubernetes


def _program() -> Path:
    try:
        program = find_binaries() / "informers"
    except NoControlPlane as reason:
        pytest.skip(f"{WITHOUT}: {reason}")
    if not program.exists():
        pytest.skip("the program informers is not built: make kubernetes")
    return program


class Lines:
    """What the program prints."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.seen: list[str] = []

    async def until(self, wanted: str) -> str:
        """Read on to the line that starts so, and return it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := (await self._stream.readline()).decode().strip():
                self.seen.append(line)
                if line.startswith(wanted):
                    return line
        raise AssertionError(f"it ended without saying {wanted!r}: {self.seen}")


@asynccontextmanager
async def started(api: Running, home: Path) -> AsyncIterator[Lines]:
    kubeconfig = home / "kubeconfig"
    api.write_kubeconfig(kubeconfig)
    process = await asyncio.create_subprocess_exec(
        str(_program()), str(kubeconfig), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Lines(process.stdout)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _cut(api: Running) -> None:
    """Cut every watch's connection, as a broken network does."""
    for group in api.server.broadcaster._groups.values():
        for watcher in tuple(group.watchers):
            watcher.transport.abort()


@pytest.mark.parametrize("history_max", [100_000, 4], ids=["resumes", "lists-again-after-410"])
async def test_an_informer_of_client_go_stays_equal_to_the_server(
    history_max: int, tmp_path: Path
) -> None:
    store = Store.open(None, StoreOptions(history_max=history_max))
    limits = ServerLimits(watch=WatchLimits(sweep_seconds=0.01))
    async with (
        running(store=store, limits=limits, with_tls=True) as api,
        started(api, tmp_path) as lines,
    ):
        await lines.until("leading")
        await lines.until("counted")
        await lines.until("synced")
        await api.call("POST", MAPS, config("a"))
        await lines.until("event ADDED a")
        _cut(api)
        for i in range(20):
            await api.call("POST", MAPS, config(f"b{i:02}"))
        await api.call("DELETE", f"{MAPS}/a")
        await lines.until("event DELETED a")
        await api.call("POST", MAPS, config("last"))
        told = await lines.until("cache")
        kept = (await api.call("GET", MAPS))[1]["items"]
        assert told == "cache " + ",".join(item["metadata"]["name"] for item in kept)
        assert len([line for line in lines.seen if line.startswith("event ADDED b")]) == 20
