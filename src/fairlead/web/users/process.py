"""The process of the page for the users of a cluster, from start to end."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.app.configuration.web_settings import WebSettings
from fairlead.app.queries.access_reviews import AccessReviews, Rate
from fairlead.app.signals import stop_on_signals
from fairlead.input.errors import Code, fail
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import HttpOptions
from fairlead.model.asks.topology import Level
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, SystemClock
from fairlead.runtime.logs import Logger
from fairlead.runtime.outside.connections import ConnectionLimits
from fairlead.runtime.supervisor import Supervisor
from fairlead.web.boards import board_links
from fairlead.web.entrance import Entrance
from fairlead.web.live import Pages
from fairlead.web.server import WebLimits, WebServer
from fairlead.web.sources.cluster import WebMirrors
from fairlead.web.sources.questions import QuestionThreads
from fairlead.web.sources.rights import Rights
from fairlead.web.sources.view import ClusterViews
from fairlead.web.users.entrance import UserEntrance
from fairlead.web.users.oidc import OidcProvider
from fairlead.web.users.proxy import ProxyEntrance
from fairlead.web.users.viewer import ClusterUsers
from fairlead.webhook.certificates import Times, make
from fairlead.webhook.keeper import CertificateFiles
from fairlead.webhook.tls import load_pair, server_context

CONNECTIONS_MAX = 64
#: Answers of the API server about who may list what; a new right is seen after the second.
RIGHTS_MAX, DENIED_SECONDS = 32_768, 60.0
ASKING_MAX, FOLLOWED_MAX, PAGES_KEPT_MAX = 4, 64, 256
LIMITS = WebLimits(
    requests_max=128, streams_max=512, stream_seconds_max=600.0,
    own_requests_max=16, own_rate=Rate(200.0, 20.0), own_streams_max=32,
    # A connection with TLS has a buffer of 256 KiB.
    connections=ConnectionLimits(1024, 128, stranger_seconds_max=10.0),
)  # fmt: skip
#: What the files of the secrets are called.
CLIENT_SECRET, PROVIDER_AUTHORITY, PROXY_AUTHORITY = (
    "oidc-client-secret", "oidc-ca.crt", "proxy-ca.crt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UserPageOptions:
    """What the process is started with. `certificates` is a directory with tls.crt and tls.key that
    somebody else renews, None: it makes its own; `secrets` one with what the settings need.
    """

    host: str
    port: int
    settings: WebSettings
    levels: Sequence[Level]
    certificates: Path | None = None
    secrets: Path | None = None


async def serve_users(
    connection: Connection, options: UserPageOptions, *, log: Logger, ready: Callable[[int], None]
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the port once pages can be seen.

    CliError for a secret that is missing, OSError for the port.
    """
    clock, client = (
        SystemClock(),
        HttpClient(connection, HttpOptions(connections_max=CONNECTIONS_MAX)),
    )
    rng = random.Random()  # noqa: S311 # jitter, not secrets
    threads = QuestionThreads(asking=ASKING_MAX, following=FOLLOWED_MAX)
    try:
        mirrors = WebMirrors(client, Rights(), clock=clock, rng=rng, log=log)
        users = ClusterUsers(
            reviews_of(client, clock), ClusterViews(mirrors), connection, threads,
            clock=clock, levels=options.levels,
        )  # fmt: skip
        server = user_server(users, options, clock=clock, log=log)
        supervisor = Supervisor(mirrors.services(), clock=clock, rng=rng, log=log)
        stop_on_signals(supervisor.stop)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(_serve(server, mirrors, options, log=log, ready=ready))
            await supervisor.run()
            serving.cancel()
    finally:
        await threads.close()
        await client.close()


def reviews_of(client: Client, clock: Clock) -> AccessReviews:
    """Return what asks the API server who somebody is, and what he may see."""
    return AccessReviews(client, clock, rights_max=RIGHTS_MAX, denied_seconds=DENIED_SECONDS)


def user_server(
    users: ClusterUsers, options: UserPageOptions, *, clock: Clock, log: Logger,
    limits: WebLimits = LIMITS,
) -> WebServer:  # fmt: skip
    """Return a server with the way in that the settings name; CliError."""
    settings, entrance = options.settings, _entrance(users, options, clock=clock, log=log)
    assert settings.host, "the schema requires a URL"
    loop = asyncio.get_running_loop()
    pages = Pages(stopwatch=loop.time, cpu=time.thread_time, kept_max=PAGES_KEPT_MAX)
    return WebServer(
        pages, entrance, clock=clock, log=log, limits=limits,
        boards=board_links(settings.grafana_url),
    )  # fmt: skip


def _entrance(
    users: ClusterUsers, options: UserPageOptions, *, clock: Clock, log: Logger
) -> Entrance:
    settings = options.settings
    if settings.proxy.name:
        return ProxyEntrance(users, settings, clock=clock)
    provider = None
    if settings.oidc.issuer:
        provider = OidcProvider(
            settings.oidc, url=settings.url, secret=_secret(options, CLIENT_SECRET),
            authority=_secret(options, PROVIDER_AUTHORITY), clock=clock,
        )  # fmt: skip
    return UserEntrance(users, settings, provider, clock=clock, log=log)


def _secret(options: UserPageOptions, name: str) -> str:
    """Return the text of a secret, "" where there is none; CliError."""
    try:
        return (options.secrets / name).read_text().strip() if options.secrets is not None else ""
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise fail(Code.BAD_VALUE, f"--secrets: {name} cannot be read: {error}") from error


def tls_of(options: UserPageOptions) -> ssl.SSLContext:
    """Return the settings of the listener, without a certificate; CliError."""
    context = server_context()
    if options.settings.proxy.name:
        authority = _secret(options, PROXY_AUTHORITY)
        if not authority:
            raise fail(
                Code.BAD_VALUE, f"proxy.name takes {PROXY_AUTHORITY} among the secrets",
                help=("--secrets DIR; on a cluster: the value web.secretName",),
            )  # fmt: skip
        context.load_verify_locations(cadata=authority)
        context.verify_mode = ssl.CERT_OPTIONAL  # probes have none, and may ask for nothing else
    return context


async def _serve(
    server: WebServer, mirrors: WebMirrors, options: UserPageOptions, *, log: Logger,
    ready: Callable[[int], None],
) -> None:  # fmt: skip
    """Listen once everything has been listed, until cancelled."""
    await mirrors.ready()
    context = tls_of(options)
    async with asyncio.TaskGroup() as group:
        group.create_task(keep_certificate(context, options, log))
        async with server.listening(options.port, host=options.host, tls=context):
            ready(server.port)
            await asyncio.Event().wait()


async def keep_certificate(context: ssl.SSLContext, options: UserPageOptions, log: Logger) -> None:
    """Show a certificate that is in date, until cancelled: the given one, or one of our own."""
    show = partial(load_pair, context)
    if options.certificates is not None:
        await CertificateFiles(options.certificates, show, log=log).run()
    times, clock = Times(), SystemClock()
    host = options.settings.host.rpartition(":")[0] or options.settings.host
    while True:
        _, pair = make((host.strip("[]"),), now=clock.now(), times=times, name="fairlead-web")
        show(pair)
        await asyncio.sleep(times.life_seconds * times.renew_at)
