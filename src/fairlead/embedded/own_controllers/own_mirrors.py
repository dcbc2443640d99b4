"""What controllers of the embedded cluster share that read mirrors of their own.

Each looks at everything again after any change: what they are about is few.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from fairlead.api.status import ApiError
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.clock import Clock
from fairlead.runtime.loop import ControllerLoop, LoopOptions
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror

A = TypeVar("A")


class OwnMirrorsController(ABC, Generic[A]):
    """A controller beside the API server; pods and nodes are in mirrors that run elsewhere."""

    #: A metric label, and the name of its task.
    name: str
    _clock: Clock
    _rng: random.Random
    #: The mirrors that it reads, and runs.
    own: tuple[Mirror[Any], ...]
    #: Those that it reads as well.
    _others: tuple[Mirror[Any], ...]
    #: Take its handlers off the mirrors.
    _unregister: tuple[Callable[[], None], ...]
    _is_due = True
    _retry_at: float | None = None

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (*self.own, *self._others)

    def close(self) -> None:
        """Take its handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    async def run(self) -> None:
        """Run its loop and its own mirrors until cancelled."""
        options = LoopOptions(runs_mirrors=False)
        loop = ControllerLoop(self, clock=self._clock, rng=self._rng, options=options)
        try:
            async with asyncio.TaskGroup() as group:
                for mirror in self.own:
                    group.create_task(mirror.run(), name=f"{self.name}-{mirror.resource.plural}")
                group.create_task(loop.run(), name=self.name)
        finally:
            self.close()

    def due_at(self) -> float | None:
        """Return when to decide again: at once after a change that may matter."""
        return 0.0 if self._is_due else self._retry_at

    def changed(self, key: ObjectKey) -> None:
        """Look at everything again."""
        self._is_due = True

    def failed(self, action: A, error: ApiError) -> None:
        """Do nothing: the loop calls `changed` later."""

    def faulted(self, action: A, error: Exception) -> None:
        """Raise the error: it is no object's."""
        raise error

    @abstractmethod
    def decide(self, now: float) -> Decision[A]:
        """Call the pure core, and note that nothing is due."""

    @abstractmethod
    def key_of(self, action: A) -> ObjectKey:
        """Return the object of an action."""

    @abstractmethod
    async def perform(self, action: A) -> Written | None:
        """Carry out one action; safe to repeat."""

    def _changed(self, change: Change[Any]) -> None:
        self._is_due = True
