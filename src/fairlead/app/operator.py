"""One replica of the controllers on a real cluster.

    HttpClient -> LeaderElector -> LeaderClient (writes during the term only) -> scheduler, jobs
    probes and metrics over HTTP, for the kubelet and Prometheus
    webhook and archive over HTTPS, for API servers: on every replica, leader or not

The controllers are those of the embedded cluster, unchanged; only how peers are named differs. They
exist while this replica leads, and are made anew for each term: whatever they knew is in the API.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from fairlead import __version__
from fairlead.api.core import PriorityClass
from fairlead.api.resources import PRIORITY_CLASSES
from fairlead.app.archive_api import ArchiveApi
from fairlead.app.controllers import Controllers, Policies
from fairlead.controllers.logs import KeepingClient, LogKeeper
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.discovery import discover_groups
from fairlead.runtime.fencing import LeaderClient, fence
from fairlead.runtime.history import History, LogReader, LogStore
from fairlead.runtime.leader import LeaderElector, LeaderOptions, Term
from fairlead.runtime.logs import Logger
from fairlead.runtime.metrics import CONTENT_TYPE, Metrics
from fairlead.runtime.mirror import Mirror
from fairlead.runtime.supervisor import Health, Service, Supervisor
from fairlead.webhook.service import Webhook, WebhookOptions


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What a replica is told. `identity` must be unique to the process."""

    identity: str
    host: str = "0.0.0.0"  # noqa: S104 # the kubelet and Prometheus come from outside the pod
    port: int = 8080
    leader: LeaderOptions = field(default_factory=LeaderOptions)
    policies: Policies = field(
        default_factory=lambda: Policies(JobsPolicy(peer_naming=PeerNaming.DNS))
    )
    #: Answer API servers that ask about new pods and jobs, and, on the same port, what its readers
    #: ask of the archive; None: neither.
    webhook: WebhookOptions | None = None


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where logs of members are kept, and how they are read before they are gone."""

    store: LogStore
    reader: LogReader


class ProbesFailed(Exception):
    """The address of the probes, or of the webhook, cannot be listened on."""

    def __init__(self, host: str, port: int, cause: OSError, *, option: str = "--listen") -> None:
        super().__init__(f"cannot listen on {host}:{port}: {cause.strerror or cause}")
        #: The flag that chose the address.
        self.option = option
        self.host = host
        self.port = port
        self.cause = cause


class Operator:
    """One replica, run once. `stop` ends it in order and hands the lease over."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: Client,
        history: History,
        *,
        archive: LogSource | None = None,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._archive = archive
        self._client = client
        self._history = history
        self._clock = clock
        self._log = log
        self._rng = random.Random()  # noqa: S311 # jitter, not secrets
        registry = CollectorRegistry()
        self._metrics = Metrics(registry, version=__version__)
        self._fenced = Counter(
            "fairlead_fenced_jobs_total", "Jobs touched at the start of a term.", registry=registry
        )
        self.elector = LeaderElector(
            client, settings.identity, clock=clock, rng=self._rng, options=settings.leader, log=log
        )
        leading = Gauge("fairlead_leader", "1 while this replica leads.", registry=registry)
        leading.set_function(lambda: float(self.elector.is_leading))
        self._controllers: Supervisor | None = None
        self.webhook: Webhook | None = None
        #: Read on every replica, since each answers API servers that ask about jobs.
        self._priority_classes: Mirror[PriorityClass] = Mirror(
            client, PRIORITY_CLASSES, clock=clock, rng=self._rng, log=log
        )
        self._metrics.watch_mirror(self._priority_classes)
        services = [
            Service("leader", lambda: self.elector.run(self._lead)),
            Service("mirror-priorityclasses", self._priority_classes.run),
        ]
        if settings.webhook is not None:
            self.webhook = webhook = Webhook(
                settings.webhook,
                client,
                registry,
                clock=clock,
                rng=self._rng,
                log=log,
                priority_classes=self._priority_classes,
                others={"/fairlead/v1/": self._archive_api().answer},
            )
            services.append(Service("webhook", webhook.run, is_ready=lambda: webhook.is_ready))
        self._supervisor = Supervisor(
            services,
            clock=clock, rng=self._rng, log=log, crashed=self._metrics.crashed,
        )  # fmt: skip

    def _archive_api(self) -> ArchiveApi:
        if self._archive is not None:
            return ArchiveApi(self._client, self._history, self._archive.store)
        # In memory: what ended is known to who leads.
        elector = self.elector
        return ArchiveApi(self._client, self._history, None, is_here=lambda: elector.is_leading)

    def stop(self) -> None:
        """Begin the orderly end; `run` returns when it is done."""
        self._supervisor.stop()

    async def run(self, announce: Callable[[int], None]) -> None:
        """Run until stopped; `announce(port)` is called once probes are answered. ProbesFailed."""
        async with self._probes() as port, self._asked():
            announce(port)
            await self._supervisor.run()

    @asynccontextmanager
    async def _asked(self) -> AsyncGenerator[None]:
        """Let API servers ask the webhook; a while longer than anything else runs."""
        options = self._settings.webhook
        if self.webhook is None or options is None:
            yield
            return
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.webhook.listening())
            except OSError as error:
                raise ProbesFailed(
                    options.host, options.port, error, option="--webhook-listen"
                ) from error
            yield

    async def _lead(self, term: Term) -> None:
        client = LeaderClient(self._client, term)
        keeper: LogKeeper | None = None
        if (archive := self._archive) is not None:
            keeper = LogKeeper(archive.reader, archive.store, clock=self._clock, log=self._log)
            client = KeepingClient(self._client, term, keeper)
        policies, jobs_policy = self._settings.policies, self._settings.policies.jobs
        if jobs_policy.binding is not None:
            jobs_policy = replace(jobs_policy, groups=await discover_groups(client))
        served = jobs_policy.groups.value if jobs_policy.groups is not None else ""
        self._log.info("Discovered", pod_groups=served)
        controllers = Controllers(
            replace(policies, jobs=jobs_policy), client, self._history, clock=self._clock,
            metrics=self._metrics, log=self._log, priority_classes=self._priority_classes,
        )  # fmt: skip
        jobs = controllers.mirrors.jobs
        touched = await fence(client, jobs, term, rng=self._rng, options=self._settings.leader)
        self._fenced.inc(touched)
        self._log.info("Fenced", jobs=touched, term=term.token)
        services = controllers.services()
        if keeper is not None:
            services.append(Service("logs", partial(keeper.run, controllers.mirrors.pods)))
        self._controllers = Supervisor(
            services, clock=self._clock, rng=self._rng, log=self._log,
            crashed=self._metrics.crashed,
        )  # fmt: skip
        try:
            await self._controllers.run()
        finally:
            self._controllers = None

    # Probes

    @asynccontextmanager
    async def _probes(self) -> AsyncGenerator[int]:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._scrape)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        host, port = self._settings.host, self._settings.port
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            yield int(runner.addresses[0][1])
        except OSError as error:
            raise ProbesFailed(host, port, error) from error
        finally:
            await runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        """Live as long as the loop answers and nothing fatal has happened."""
        health = self._supervisor.health()
        lines = [_line(s.name, is_ok=s.ready, text=s.state.value) for s in health.services]
        return _answer(is_ok=health.live, lines=lines)

    async def _readyz(self, _request: web.Request) -> web.Response:
        """Ready to act or to take over: it knows who leads; who leads has all controllers ready."""
        lines = [_line("lease", is_ok=self.elector.is_in_touch, text=f"held by {self._holder()}")]
        is_ok = self.elector.is_in_touch
        if self.elector.term is not None:
            controllers = self._controllers
            health = controllers.health() if controllers is not None else Health(True, ())
            is_started = bool(health.services)
            is_ok = is_ok and is_started and health.ready
            lines += [
                _line(s.name, is_ok=s.ready, text=s.state.value) for s in health.services
            ] or [_line("controllers", is_ok=False, text="starting")]
        if self.webhook is not None:
            text = "certificate in date" if self.webhook.is_ready else "no certificate in date"
            lines.append(_line("webhook", is_ok=self.webhook.is_ready, text=text))
            is_ok = is_ok and self.webhook.is_ready
        return _answer(is_ok=is_ok, lines=lines)

    def _holder(self) -> str:
        return self.elector.holder or "nobody"

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _line(name: str, *, is_ok: bool, text: str) -> str:
    return f"[{'+' if is_ok else '-'}] {name}: {text}"


def _answer(*, is_ok: bool, lines: list[str]) -> web.Response:
    body = "\n".join([*lines, "ok" if is_ok else "not ok"]) + "\n"
    return web.Response(text=body, status=200 if is_ok else 503)
