"""The process of the page: mirrors, threads that ask, and the server, from start to end."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.api.status import Forbidden
from fairlead.app.run_file import identity
from fairlead.app.signals import stop_on_signals
from fairlead.cli.connection.common import Common
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import Connection
from fairlead.model.asks.topology import Level
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.logs import Logger
from fairlead.runtime.supervisor import Supervisor
from fairlead.web.cluster import Rights, WebMirrors, rights_of
from fairlead.web.live import Pages
from fairlead.web.pages import Site
from fairlead.web.questions import Questions
from fairlead.web.record import WebRecord, clear_record, leave_record
from fairlead.web.server import WebServer


@dataclass(frozen=True, slots=True)
class WebOptions:
    """What the process is started with.

    `namespace` is what was asked for; "": all, or where jobs of all may not be listed the
    kubeconfig's. `user` to `is_up` are as in `Site`, `record` is where its record goes.
    """

    port: int
    is_port_asked: bool
    namespace: str
    user: str
    levels: Sequence[Level]
    is_up: bool
    record: Path


async def serve_web(
    common: Common,
    connection: Connection,
    options: WebOptions,
    *,
    log: Logger,
    ready: Callable[[WebServer], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called once the page can be looked at.

    ApiError where the cluster does not answer at the start; OSError for the port or the record.
    """
    clock, client = SystemClock(), HttpClient(connection)
    loop = asyncio.get_running_loop()
    rng = random.Random()  # noqa: S311 # jitter, not secrets
    questions = Questions(replace(common, quiet=True), connection, clock)
    try:
        rights = await _rights(client, options, connection.namespace)
        cluster = WebMirrors(client, rights, clock=clock, rng=rng, log=log)
        questions.answered = cluster.touch
        site = Site(
            cluster, questions, options.user, connection.namespace, common.where(rights.namespace),
            options.levels, is_up=options.is_up,
        )  # fmt: skip
        server = WebServer(
            Pages(site, stopwatch=loop.time, cpu=time.thread_time),
            key=secrets.token_urlsafe(32),
            clock=clock,
            log=log,
        )
        supervisor = Supervisor(cluster.services(), clock=clock, rng=rng, log=log)
        stop_on_signals(supervisor.stop)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(_serve(server, cluster, options, ready))
            await supervisor.run()
            serving.cancel()
    finally:
        await questions.close()
        await client.close()


async def _rights(client: HttpClient, options: WebOptions, namespace: str) -> Rights:
    try:
        return await rights_of(client, options.namespace)
    except Forbidden:
        if options.namespace:
            raise
    return await rights_of(client, namespace)


async def _serve(
    server: WebServer, cluster: WebMirrors, options: WebOptions, ready: Callable[[WebServer], None]
) -> None:
    """Listen once everything has been listed, until cancelled."""
    await cluster.ready()
    try:
        async with server.listening(options.port):
            await _announced(server, options, ready)
    except OSError:
        if options.is_port_asked or server.port:
            raise
        async with server.listening(0):
            await _announced(server, options, ready)


async def _announced(
    server: WebServer, options: WebOptions, ready: Callable[[WebServer], None]
) -> None:
    own = identity(os.getpid())
    assert own is not None, "this process lives"
    record = WebRecord(os.getpid(), own.start_ticks, own.boot_id, server.url, server.key)
    leave_record(options.record, record)
    try:
        ready(server)
        await asyncio.Event().wait()
    finally:
        with suppress(OSError):
            clear_record(options.record, os.getpid())
