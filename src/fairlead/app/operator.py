"""The operator: one replica of the controllers as a process on a real cluster.

election and controllers (`replica.py`)
probes and metrics over HTTP, for the kubelet and Prometheus
webhook and archive over HTTPS, for API servers: on every replica, leader or not
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from fairlead import __version__
from fairlead.app.configuration.audit_settings import AuditSettings
from fairlead.app.configuration.notice_senders import audit_targets, notice_senders
from fairlead.app.configuration.notices_settings import NoticesSettings
from fairlead.app.context import ProcessContext
from fairlead.app.queries.answers_api import AnswersApi
from fairlead.app.queries.archive_api import ArchiveApi
from fairlead.app.replica import Replica, ReplicaLogSource, ReplicaSettings
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.metrics import CONTENT_TYPE, Metrics
from fairlead.runtime.kept.history import History
from fairlead.runtime.logs import Logger
from fairlead.runtime.supervisor import Health, SupervisedService, Supervisor
from fairlead.webhook.service import Webhook, WebhookOptions


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What a process of the operator is started with."""

    replica: ReplicaSettings
    host: str = "0.0.0.0"  # noqa: S104 # the kubelet and Prometheus come from outside the pod
    port: int = 8080
    #: Answer API servers that ask about new pods and jobs, and, on the same port, what its readers
    #: ask of the archive; None: neither.
    webhook: WebhookOptions | None = None
    notices: NoticesSettings = field(default_factory=NoticesSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)


class ProbesFailed(Exception):
    """The address of the probes, or of the webhook, cannot be listened on."""

    def __init__(self, host: str, port: int, cause: OSError, *, option: str = "--listen") -> None:
        super().__init__(f"cannot listen on {host}:{port}: {cause.strerror or cause}")
        #: The flag that chose the address.
        self.option = option
        self.host = host
        self.port = port
        self.cause = cause


class ReplicaRun:
    """One replica, run once. `stop` ends it in order and hands the lease over."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: Client,
        history: History,
        *,
        archive: ReplicaLogSource | None = None,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._archive = archive
        self._client = client
        self._history = history
        self._clock = clock
        registry = CollectorRegistry()
        metrics = Metrics(registry, version=__version__)
        fenced = Counter(
            "fairlead_fenced_jobs_total", "Jobs touched at the start of a term.", registry=registry
        )
        context = ProcessContext(clock, metrics, log)
        self._replica = replica = Replica(
            settings.replica,
            client,
            history,
            context=context,
            archive=archive,
            notices=notice_senders(settings.notices, clock, runs_commands=False),
            audit_targets=audit_targets(settings.audit, settings.notices),
            fenced=fenced.inc,
        )
        self.elector = replica.elector
        leading = Gauge("fairlead_leader", "1 while this replica leads.", registry=registry)
        leading.set_function(lambda: float(self.elector.is_leading))
        self._metrics = metrics
        self.webhook: Webhook | None = None
        services = replica.services()
        if settings.webhook is not None:
            self.webhook = webhook = Webhook(
                settings.webhook,
                client,
                registry,
                clock=clock,
                rng=context.streams("webhook"),
                log=log,
                priority_classes=replica.priority_classes,
                teams=replica.teams,
                others={"/fairlead/v1/": self._archive_api().answer},
            )
            services.append(
                SupervisedService("webhook", webhook.run, is_ready=lambda: webhook.is_ready)
            )
            services.append(SupervisedService("webhook-jobs", webhook.follow_jobs))
            services.append(SupervisedService("webhook-nodes", webhook.follow_nodes))
        self._supervisor = Supervisor(
            services, clock=clock, rng=context.streams("supervisor"), log=log,
            crashed=metrics.crashed,
        )  # fmt: skip

    def _archive_api(self) -> ArchiveApi:
        archive, elector, replica = self._archive, self.elector, self._replica
        logs = archive.store if archive is not None else None
        is_durable = archive is not None and archive.is_durable
        # In memory: only the leader has the records and the logs.
        return ArchiveApi(
            self._client, self._history, logs,
            is_here=lambda: is_durable or elector.is_leading,
            decisions=lambda: replica.decisions,
            questions=AnswersApi(
                lambda: replica.answers, clock=self._clock, stopwatch=time.thread_time
            ),
            clock=self._clock,
        )  # fmt: skip

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
        is_ok, holder = self.elector.is_in_touch, self.elector.holder or "no replica"
        lines = [_line("lease", is_ok=is_ok, text=f"held by {holder}")]
        if self.elector.term is not None:
            controllers = self._replica.controllers
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

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _line(name: str, *, is_ok: bool, text: str) -> str:
    return f"[{'+' if is_ok else '-'}] {name}: {text}"


def _answer(*, is_ok: bool, lines: list[str]) -> web.Response:
    body = "\n".join([*lines, "ok" if is_ok else "not ok"]) + "\n"
    return web.Response(text=body, status=200 if is_ok else 503)
