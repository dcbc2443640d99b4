"""The supervisor: runs named services, restarts them after a crash, and stops them in order.

A service is a function that makes a coroutine; after a crash it is called again, so that nothing of
what failed is kept. Crashes are logged with their traceback, counted, and answered with a growing
delay. A service whose policy is FATAL (the write-ahead log, the listener) takes the whole process
down in order instead. Services stop in reverse order of their start, each within a time limit:
what others stand on goes last.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger


class OnCrash(Enum):
    """What a crash of a service leads to."""

    RESTART = "restart"
    FATAL = "fatal"


class ServiceState(Enum):
    """Where a service is in its life."""

    STOPPED = "stopped"
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    CRASHED = "crashed"
    ENDED = "ended"  # returned by itself


@dataclass(frozen=True, slots=True)
class SupervisedService:
    """A named thing that runs. `start` is called once per start and returns what runs until then.

    `is_ready` is asked while the service runs; without it, running is ready.
    """

    name: str
    start: Callable[[], Coroutine[Any, Any, None]]
    on_crash: OnCrash = OnCrash.RESTART
    is_ready: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How patiently services are started again and stopped."""

    backoff: BackoffOptions = field(default_factory=lambda: BackoffOptions(0.5, 60.0))
    #: A service that ran this long starts its back-off from the first step again.
    healthy_seconds: float = 120.0
    #: A service that has crashed counts as ready again only after it has run this long.
    proven_seconds: float = 5.0
    stop_seconds_max: float = 10.0


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """One service, for probes and for `fairlead status`."""

    name: str
    state: ServiceState
    ready: bool
    crash_count: int
    last_error: str


@dataclass(frozen=True, slots=True)
class Health:
    """All services in the order of their start. Live: no fatal crash. Ready: every service is."""

    live: bool
    services: tuple[ServiceHealth, ...]

    @property
    def ready(self) -> bool:
        """True when work is taken and done."""
        return self.live and all(service.ready for service in self.services)


class _Running:
    """A service and what became of it."""

    def __init__(self, service: SupervisedService) -> None:
        self.service = service
        self.state = ServiceState.STOPPED
        self.crash_count = 0
        self.last_error = ""
        self.started_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.is_stopping = False
        self.done = asyncio.Event()

    def health(self, now: float, proven_seconds: float) -> ServiceHealth:
        ready = self.state is ServiceState.ENDED
        if self.state is ServiceState.RUNNING:
            is_proven = not self.crash_count or now - self.started_at >= proven_seconds
            ready = is_proven and (self.service.is_ready is None or self.service.is_ready())
        return ServiceHealth(
            self.service.name, self.state, ready, self.crash_count, self.last_error
        )


class Supervisor:
    """Runs services until `stop`, cancellation or a fatal crash."""

    def __init__(
        self,
        services: Sequence[SupervisedService],
        *,
        clock: Clock,
        rng: random.Random,
        options: SupervisorOptions | None = None,
        log: Logger = SILENT,
        crashed: Callable[[str, BaseException], None] | None = None,
        stuck: Callable[[str], None] | None = None,
    ) -> None:
        """`crashed` counts; `stuck` gets a service that overran its stop deadline."""
        names = [service.name for service in services]
        if len(set(names)) != len(names):
            raise ValueError(f"services need different names, got {', '.join(names)}")
        self._running = [_Running(service) for service in services]
        self._clock = clock
        self._rng = rng
        self._options = options or SupervisorOptions()
        self._log = log
        self._crashed = crashed
        self._stuck = stuck
        self._stopping = asyncio.Event()
        self._fatal: BaseException | None = None

    def health(self) -> Health:
        """Return the state of everything, now."""
        now, proven = self._clock.now(), self._options.proven_seconds
        services = tuple(running.health(now, proven) for running in self._running)
        return Health(live=self._fatal is None, services=services)

    def stop(self) -> None:
        """Begin the orderly shutdown; `run` returns when it is done."""
        self._stopping.set()

    async def run(self) -> None:
        """Run everything. Raises what crashed a FATAL service, after stopping the others."""
        async with asyncio.TaskGroup() as group:
            for running in self._running:
                running.task = group.create_task(
                    self._keep_running(running), name=running.service.name
                )
                # Not at the end of what the task runs: one that is cancelled at once runs nothing.
                running.task.add_done_callback(lambda _, done=running.done: done.set())
            try:
                await self._stopping.wait()
            finally:
                try:
                    await self._stop_all()
                finally:  # where it is cut short, too, nothing starts again
                    for running in self._running:
                        running.is_stopping = True
        if self._fatal is not None:
            raise self._fatal

    async def _keep_running(self, running: _Running) -> None:
        backoff = Backoff(self._rng, self._options.backoff)
        try:
            while True:
                started_at = running.started_at = self._clock.now()
                running.state = ServiceState.RUNNING
                error = await self._run_once(running)
                if error is None:
                    running.state = ServiceState.ENDED
                    return
                if running.service.on_crash is OnCrash.FATAL:
                    running.state = ServiceState.CRASHED
                    self._fatal = self._fatal or error
                    self._stopping.set()
                    return
                if running.is_stopping:  # a task group that fails swallows a cancellation
                    return
                if self._clock.now() - started_at >= self._options.healthy_seconds:
                    backoff.reset()
                running.state = ServiceState.BACKING_OFF
                await asyncio.sleep(backoff.next())
                self._log.info("Restarted service", service=running.service.name)
        finally:
            if running.state not in (ServiceState.ENDED, ServiceState.CRASHED):
                running.state = ServiceState.STOPPED

    async def _run_once(self, running: _Running) -> Exception | None:
        """Run the service to its end; return what crashed it."""
        try:
            await running.service.start()
        except Exception as error:  # noqa: BLE001 - the one place where our own faults are caught
            running.crash_count += 1
            running.last_error = _describe(error)
            self._log.error(
                "Service crashed",
                service=running.service.name,
                error=running.last_error,
                crashes=running.crash_count,
                exc_info=error,
            )
            if self._crashed is not None:
                self._crashed(running.service.name, error)
            return error
        return None

    async def _stop_all(self) -> None:
        for running in reversed(self._running):
            running.is_stopping = True
            task = running.task
            if task is None or running.done.is_set():
                continue
            task.cancel()
            try:
                async with asyncio.timeout(self._options.stop_seconds_max):
                    await running.done.wait()
            except TimeoutError:
                self._log.error(
                    "Service did not stop in time",
                    service=running.service.name,
                    seconds=self._options.stop_seconds_max,
                )
                if self._stuck is not None:
                    self._stuck(running.service.name)


def _describe(error: BaseException) -> str:
    """Return a crash in one line, looking through groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
