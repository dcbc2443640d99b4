"""The life of a replica's process: connection, logs, signals, and what its end means."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Mapping

from fairlead.app.operator import OperatorSettings, ProbesFailed, ReplicaRun
from fairlead.app.queries.stores import open_stores
from fairlead.app.replica import ReplicaLogSource
from fairlead.app.signals import stop_on_signals
from fairlead.controllers.records.logs import KeeperOptions
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.client import HttpClient, HttpLogReader
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.kept.history import HistoryError, OtherSchema
from fairlead.runtime.logs import LogFormat, LogLevel, configure

#: What is kept of logs in memory, below the limit of `history.memory.BYTES_MAX` for all.
IN_MEMORY = KeeperOptions(member_bytes_max=256 << 10, attempt_bytes_max=16 << 20)
#: Actions of all controllers and their events, side by side, with room for the lease.
CONNECTIONS_MAX = 160
IDENTITY_BYTES = 4


def identity_of(environment: Mapping[str, str]) -> str:
    """Return a name that no other process has: the pod's or host's, and something random."""
    name = environment.get("POD_NAME") or socket.gethostname()
    return f"{name}_{secrets.token_hex(IDENTITY_BYTES)}"


def run_operator(
    settings: OperatorSettings, connection: Connection, *, store: str, verbosity: int
) -> None:
    """Run a replica until SIGINT or SIGTERM, which hand the lease over at once.

    CliError for what a person can mend. The second signal ends the process.
    """
    import uvloop

    clock = SystemClock()
    level = LogLevel.DEBUG if verbosity > 1 else LogLevel.INFO
    log = configure(clock=clock, level=level, stream=sys.stderr, log_format=LogFormat.AUTO)

    async def main() -> None:
        client = HttpClient(connection, HttpOptions(connections_max=CONNECTIONS_MAX))
        try:
            async with open_stores(store) as stores:
                kept = KeeperOptions() if stores.is_durable else IN_MEMORY
                archive = ReplicaLogSource(
                    stores.logs, HttpLogReader(client), kept, is_durable=stores.is_durable
                )
                operator = ReplicaRun(
                    settings, client, stores.history, archive=archive, clock=clock, log=log
                )
                stop_on_signals(operator.stop)
                await operator.run(
                    lambda port: log.info(
                        "Started", identity=settings.replica.identity, server=connection.server,
                        port=port, pid=os.getpid(),
                        webhook_port=operator.webhook.port if operator.webhook else 0,
                    )
                )  # fmt: skip
        finally:
            await client.close()
        log.info("Stopped", identity=settings.replica.identity)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except ProbesFailed as error:
        raise _probes_failed(error) from error
    except OtherSchema as error:
        raise fail(Code.DATA_VERSION, str(error)) from error
    except (KubeconfigError, HistoryError) as error:
        code = Code.KUBECONFIG if isinstance(error, KubeconfigError) else Code.DATA_UNWRITABLE
        raise fail(code, str(error)) from error


def _probes_failed(error: ProbesFailed) -> CliError:
    return fail(
        Code.PORT_IN_USE, str(error), help=(f"{error.option} {error.host}:0 takes a free port",)
    )
