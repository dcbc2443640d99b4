"""An API server in a process of its own: `python -m bench.server DIRECTORY [CERTIFICATES]`.

`python -m bench.server --fleet NODES GANGS MEMBERS` keeps nothing on disk, and has such a cluster
(`bench/fleet.py`) before it prints its port.

On uvloop with its log in the directory, as in `fairlead up`, but without nodes and controllers. It
prints its port, answers one JSON line of counts for each line on its input, and ends with it. With
a directory of certificates (`apiserver.crt`, `apiserver.key`) it speaks TLS.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import ssl
import sys
import uuid
from pathlib import Path

import uvloop

from bench.fleet import FleetSize, fill
from fairlead.app.local.embedded_process import settle_garbage_collector
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.http.answering.broadcast import WatchEnding
from fairlead.embedded.http.server import serve
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import SystemClock

TOKEN = "token-of-the-benchmark"


def _tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
    return context


async def main(
    directory: Path | None, certificates: Path | None = None, fleet: FleetSize | None = None
) -> None:
    """Serve until the input ends."""
    tls = None if certificates is None else _tls(certificates)
    store = Store.open(directory)
    service = ApiService(
        store, Registry.with_builtins(), SystemClock(),
        ids=lambda: str(uuid.uuid4()), rng=random.Random(1),
    )  # fmt: skip
    await service.bootstrap()
    if fleet is not None:
        await fill(InProcessClient(service), fleet)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group, serve(service, token=TOKEN, tls=tls) as server:
        running = group.create_task(service.run())
        settle_garbage_collector()  # as `fairlead up` does
        print(server.port, flush=True)
        while await reader.readline():
            broadcaster = server.broadcaster
            counts = {
                "watchers": broadcaster.watcher_count,
                "slow": broadcaster.ended_counts[WatchEnding.SLOW],
                "version": store.version,
            }
            print(json.dumps(counts), flush=True)
        running.cancel()
    await store.close()


if __name__ == "__main__":
    if sys.argv[1] == "--fleet":
        gc.disable()  # nothing of what is made goes
        uvloop.run(main(None, fleet=FleetSize(*map(int, sys.argv[2:]))))
    else:
        given = [Path(argument) for argument in sys.argv[1:]]
        uvloop.run(main(given[0], given[1] if len(given) > 1 else None))
