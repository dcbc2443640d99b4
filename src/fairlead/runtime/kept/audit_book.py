"""Keeps a record of what takes, before the act: what cannot be recorded is not done.

    decide -> record, on disk -> act        a process may end after either arrow

A record without an act says what was about to be done; an act without a record there is none. What
the API refuses gets a second record, `NotDone`. A taking that is tried again, as a decision is that
gets no answer, has one record as long as this process remembers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    StatusDetails,
    Unavailable,
)
from fairlead.decide.takings import Taking
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.audit import NOT_DONE, Draft, draft_of, facts_text
from fairlead.runtime.kept.history import History, HistoryError
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.wake_up import WakeUp

A_contra = TypeVar("A_contra", contravariant=True)
#: Takings that are not recorded once more; the oldest is forgotten first.
REMEMBERED_MAX = 10_000
#: Until the next try where no record can be kept: none within the cycle, as others wait for that.
_PAUSE_SECONDS = 5
#: Records of one commit.
_BATCH = 256


@runtime_checkable
class Takes(Protocol[A_contra]):
    """A controller some of whose actions take from a user or the fleet."""

    def takings(self, action: A_contra) -> Sequence[Taking]:
        """Return what the action takes; nothing for most."""
        ...


class AuditBook:
    """Of one process; its controllers share it."""

    def __init__(
        self, history: History, *, writer: str, clock: Clock, log: Logger = SILENT,
        broken: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`writer` names the process in its records; `broken` is called when some are gone."""
        self._history = history
        self._writer = writer
        self._clock = clock
        self._log = log
        self._broken = broken
        self._turn = asyncio.Lock()
        self._known: dict[str, None] = {}
        #: Woken when there are new records.
        self.waiting: list[WakeUp] = []

    def around(self, controller: Any) -> Callable[[Any], Awaitable[Any]]:
        """Return what performs the controller's actions, with a record before those that take."""
        perform = controller.perform
        if not isinstance(controller, Takes):
            return perform

        async def recorded(action: Any) -> Any:
            takings = controller.takings(action)
            if not takings:
                return await perform(action)
            await self.record(takings)
            try:
                return await perform(action)
            except ApiError as error:
                if isinstance(error, Conflict | NotFound | AlreadyExists) or not error.retryable:
                    await self._withdraw(takings, error)
                raise

        return recorded

    async def record(self, takings: Sequence[Taking]) -> None:
        """Keep records of takings; Unavailable where they cannot be kept."""
        async with self._turn:
            now = self._clock.now()
            new = [each for each in takings if each.id not in self._known]
            try:
                await self._append([draft_of(each, writer=self._writer, now=now) for each in new])
            except HistoryError as error:
                text = f"not done: no record of it can be kept: {error}"
                details = StatusDetails(retry_after_seconds=_PAUSE_SECONDS)
                raise Unavailable(text, details=details) from error
            self._known.update((each.id, None) for each in new)
            while len(self._known) > REMEMBERED_MAX:
                del self._known[next(iter(self._known))]

    async def _withdraw(self, takings: Sequence[Taking], error: ApiError) -> None:
        """Keep records that takings were refused; without them they count as done."""
        facts = facts_text({"reason": error.status.reason})
        now = round(self._clock.now() * 1000)
        drafts = [
            Draft(now, self._writer, each.id, NOT_DONE, each.object, each.uid, each.reason,
                  "the API server refused it", facts)
            for each in takings
        ]  # fmt: skip
        async with self._turn:
            for each in takings:
                self._known.pop(each.id, None)
            try:
                await self._append(drafts)
            except HistoryError as failure:
                self._log.warning("Cannot record that something was not done", error=str(failure))

    async def _append(self, drafts: Sequence[Draft]) -> None:
        for at in range(0, len(drafts), _BATCH):
            done = await self._history.append_audit(drafts[at : at + _BATCH])
            if done.is_broken:
                self._broken()
                self._log.error(
                    "Audit records are gone that this process had written",
                    next=done.records[0].number,
                )
            for each in done.records:
                self._log.info(
                    "Audit", number=each.number, digest=each.digest, kind=each.kind,
                    object=each.object, reason=each.reason, message=each.message,
                )  # fmt: skip
        for each in self.waiting if drafts else ():
            each.set()
