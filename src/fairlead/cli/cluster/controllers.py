"""Scheduler and jobs controller as services: made anew, with new mirrors, at each start."""

from __future__ import annotations

import random

from fairlead.controllers.jobs import JobsController, JobsMirrors
from fairlead.controllers.scheduler import SchedulerController, SchedulerMirrors
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Recorder
from fairlead.runtime.history import History
from fairlead.runtime.logs import Logger
from fairlead.runtime.loop import Controller, ControllerLoop
from fairlead.runtime.metrics import Metrics
from fairlead.runtime.supervisor import Service

COMPONENT = "fairlead"


class Controllers:
    """Makes the controllers and knows which are ready."""

    def __init__(
        self,
        policy: JobsPolicy,
        client: Client,
        history: History,
        *,
        clock: Clock,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        self._policy = policy
        self._client = client
        self._history = history
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._events = Recorder(client, clock, COMPONENT, rng=_rng(), log=log)
        self._loops: dict[str, ControllerLoop] = {}

    def services(self) -> list[Service]:
        """Return the services: events first, since the controllers emit them."""
        return [
            Service("events", self._events.run),
            Service("scheduler", self._run_scheduler, is_ready=lambda: self._is_ready("scheduler")),
            Service("jobs", self._run_jobs, is_ready=lambda: self._is_ready("jobs")),
        ]

    def _is_ready(self, name: str) -> bool:
        loop = self._loops.get(name)
        return loop is not None and loop.ready

    async def _run_scheduler(self) -> None:
        mirrors = SchedulerMirrors.make(self._client, clock=self._clock, rng=_rng())
        controller = SchedulerController(self._client, mirrors, events=self._events)
        await self._run(controller)

    async def _run_jobs(self) -> None:
        mirrors = JobsMirrors.make(self._client, self._policy, clock=self._clock, rng=_rng())
        controller = JobsController(
            self._client, mirrors, history=self._history, events=self._events,
            policy=self._policy, clock=self._clock,
        )  # fmt: skip
        await self._run(controller)

    async def _run(self, controller: Controller) -> None:
        loop = ControllerLoop(
            controller, clock=self._clock, rng=_rng(), observer=self._metrics, log=self._log
        )
        self._loops[controller.name] = loop
        for mirror in controller.mirrors:
            self._metrics.watch_mirror(mirror)
        try:
            await loop.run()
        finally:
            self._metrics.forget_mirrors(controller.mirrors)


def _rng() -> random.Random:
    return random.Random()  # noqa: S311 # jitter, not secrets
