"""The process of the page: mirrors, threads that ask, and the server, from start to end."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shlex
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
from fairlead.web.boards import board_links
from fairlead.web.entrance import LinkEntrance, url_of
from fairlead.web.live import Pages
from fairlead.web.pages import Site
from fairlead.web.record import WebRecord, clear_record, leave_record
from fairlead.web.server import WebServer
from fairlead.web.simulator import Simulations
from fairlead.web.sources.cluster import WebMirrors
from fairlead.web.sources.questions import Questions, QuestionThreads
from fairlead.web.sources.rights import Rights, rights_of
from fairlead.web.sources.view import ClusterView


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
    #: Where Grafana has the boards; "" where pages link to none.
    grafana: str = ""


@dataclass(frozen=True, slots=True)
class OwnPage:
    """A page that one person has started: its server, and the way in."""

    server: WebServer
    entrance: LinkEntrance

    @property
    def url(self) -> str:
        """Where a browser of this machine reaches it."""
        return url_of(self.server.port)

    def link(self) -> str:
        """Return a new one-time link."""
        return self.entrance.link(self.server.port)


@dataclass(frozen=True, slots=True)
class OnlyViewer:
    """The person who started the page, and who always sees the same site."""

    own: Site
    name: str = ""

    async def site(self) -> Site:
        """See `Viewer`."""
        return self.own


async def serve_web(
    common: Common,
    connection: Connection,
    options: WebOptions,
    *,
    log: Logger,
    ready: Callable[[OwnPage], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called once the page can be looked at.

    ApiError where the cluster does not answer at the start; OSError for the port or the record.
    """
    clock, client = SystemClock(), HttpClient(connection)
    loop = asyncio.get_running_loop()
    rng = random.Random()  # noqa: S311 # jitter, not secrets
    threads = QuestionThreads()
    questions = Questions(replace(common, quiet=True), connection, clock, threads)
    try:
        rights = await _rights(client, options, connection.namespace)
        mirrors = WebMirrors(client, rights, clock=clock, rng=rng, log=log)
        questions.answered = mirrors.touch
        where = shlex.split(_absolute(common).where())
        simulations = Simulations(where, clock, log, changed=mirrors.touch)
        site = Site(
            ClusterView(mirrors, rights), questions, options.user, connection.namespace,
            common.where(rights.namespace), options.levels, is_up=options.is_up,
            simulations=simulations,
        )  # fmt: skip
        entrance = LinkEntrance(OnlyViewer(site), key=secrets.token_urlsafe(32), clock=clock)
        pages = Pages(stopwatch=loop.time, cpu=time.thread_time)
        server = WebServer(
            pages, entrance, clock=clock, log=log, boards=board_links(options.grafana)
        )
        page = OwnPage(server, entrance)
        supervisor = Supervisor(mirrors.services(), clock=clock, rng=rng, log=log)
        stop_on_signals(supervisor.stop)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(_serve(page, mirrors, options, ready))
            simulating = group.create_task(simulations.run())
            await supervisor.run()
            serving.cancel()
            simulating.cancel()
    finally:
        await threads.close()
        await client.close()


def _absolute(common: Common) -> Common:
    """Return flags that lead to the same cluster from any directory, whatever its namespace."""
    path = str(Path(common.kubeconfig).absolute()) if common.kubeconfig else ""
    return replace(common, kubeconfig=path, namespace="")


async def _rights(client: HttpClient, options: WebOptions, namespace: str) -> Rights:
    try:
        return await rights_of(client, options.namespace)
    except Forbidden:
        if options.namespace:
            raise
    return await rights_of(client, namespace)


async def _serve(
    page: OwnPage, mirrors: WebMirrors, options: WebOptions, ready: Callable[[OwnPage], None]
) -> None:
    """Listen once everything has been listed, until cancelled."""
    await mirrors.ready()
    try:
        async with page.server.listening(options.port):
            await _announced(page, options, ready)
    except OSError:
        if options.is_port_asked or page.server.port:
            raise
        async with page.server.listening(0):
            await _announced(page, options, ready)


async def _announced(page: OwnPage, options: WebOptions, ready: Callable[[OwnPage], None]) -> None:
    own = identity(os.getpid())
    assert own is not None, "this process lives"
    record = WebRecord(os.getpid(), own.start_ticks, own.boot_id, page.url, page.entrance.key)
    leave_record(options.record, record)
    try:
        ready(page)
        await asyncio.Event().wait()
    finally:
        with suppress(OSError):
            clear_record(options.record, os.getpid())
