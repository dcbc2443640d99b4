"""Killing controllers at random awaits, and starting them again.

A controller dies the way a process does: its task is cancelled at some API call, before the call
is applied or right after, chosen by a countdown drawn from the seed. Everything that it knew is
gone; after a short while a new one starts and finds what it needs in the API.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.runtime.clock import Clock
from fairlead.runtime.loop import ActionResult
from fairlead.sim.checkers import Checkers


class CallCounter:
    """Counts down API calls to the death of the task that makes them. Off until `arm`ed."""

    def __init__(
        self, rng: random.Random, calls_mean: float, *, on_kill: Callable[[], None] = lambda: None
    ) -> None:
        self._on_kill = on_kill
        self._rng = rng
        self._calls_mean = calls_mean
        self._left = 0
        self._task: asyncio.Task[None] | None = None
        self.kills = 0
        #: How many kills there were at each step of a call.
        self.met: Counter[str] = Counter()

    def arm(self, task: asyncio.Task[None]) -> None:
        """Choose at which call `task` dies; never when the mean is 0."""
        self._task = task
        mean = self._calls_mean
        self._left = 1 + int(self._rng.expovariate(1 / mean)) if mean else -1

    def stop(self) -> None:
        """Kill no more."""
        self._calls_mean, self._left = 0.0, -1

    def tick(self, step: str = "") -> None:
        """Note one step of a call; at zero the task is cancelled, at its next await."""
        if self._left > 0:
            self._left -= 1
            if self._left == 0 and self._task is not None:
                self.kills += 1
                self._on_kill()
                self.met[f"killed {step}"] += 1
                self._task.cancel("killed by the simulation")


class LifeObserver:
    """Reports to the checkers when a controller decides, and when it is killed."""

    def __init__(self, name: str, clock: Clock, checkers: Checkers) -> None:
        self._name = name
        self._clock = clock
        self._checkers = checkers

    def decided(self, controller: str, seconds: float) -> None:
        """Its loop has made a decision: it works."""
        self._checkers.controller_works(controller, self._clock.now())

    def acted(self, controller: str, action: str, result: ActionResult) -> None:
        """Nothing to report."""

    def killed(self) -> None:
        """It is killed."""
        self._checkers.controller_ended(self._name, self._clock.now())


async def mortal(
    start: Callable[[], Coroutine[Any, Any, None]],
    counter: CallCounter,
    *,
    down_seconds: Callable[[], float],
) -> None:
    """Run `start()` again and again; each life ends when `counter` kills it. Errors propagate."""
    while True:
        kills = counter.kills
        async with asyncio.TaskGroup() as group:
            task = group.create_task(start())
            counter.arm(task)
        if counter.kills == kills:
            return
        await asyncio.sleep(down_seconds())
