"""The one loop that all controllers share.

Its cycle, read aloud: wait for a change, for `wake_at` or for a timer, and a little longer for what
comes with it; wait until the mirrors are synced and have seen our own writes (the barrier); decide,
which is pure; perform the actions, in order per object, objects side by side.

Actions that may wait long for others (`ActsBeside`) run beside the cycles, a bounded number at a
time: one that gets no answer holds up no cycle, and so no other object.

A controller that keeps a queue says when it has something to decide (`Queued`); a change that gives
it nothing to decide on then costs no cycle.

The world's errors are handled here, by type. `Conflict`, `NotFound` and `AlreadyExists` mean that
the decision was made on stale objects: the rest of that object's actions is dropped and the object
is looked at again. What can pass by itself (429, 5xx, a broken connection) is repeated a few times
with back-off, and then treated the same. What cannot (422, 403 ...) is given to the controller. An
object that keeps failing is looked at again ever more rarely and holds up no other. A server that
asks to wait (Retry-After) is not asked about that object before, and less is done side by side
while it throttles us.

Any other exception of `perform` is that object's fault: the controller sets it aside (`faulted`).
Any exception elsewhere is a fault of ours: it ends `run`, and the supervisor restarts the
controller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.backoff import BackoffOptions, delay_seconds
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.kept.audit_book import AuditBook
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.queue import KeyQueue
from fairlead.runtime.wake_up import WakeUp
from fairlead.runtime.watching.barrier import Barrier, Written
from fairlead.runtime.watching.mirror import Mirror

__all__ = [
    "ActionResult",
    "Controller",
    "ControllerLoop",
    "LoopObserver",
    "LoopOptions",
    "Queued",
    "Written",
]

#: The controller's own closed set of actions.
A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)


class Controller(Protocol[A]):
    """What a controller supplies. Only `perform` may await; nothing else takes long."""

    @property
    def name(self) -> str:
        """Stable name, a metric label."""
        ...

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads; its own handlers are registered on them already."""
        ...

    def decide(self, now: float) -> Decision[A]:
        """Call the pure core on the state that the handlers keep."""
        ...

    def key_of(self, action: A) -> ObjectKey:
        """Return the object of an action: those with one key run in order, others in parallel."""
        ...

    async def perform(self, action: A) -> Written | None:
        """Carry out one action; safe to repeat. Return the write if a mirror will show it."""
        ...

    def changed(self, key: ObjectKey) -> None:
        """Look at this object again: an action on it came too late or did not get through."""
        ...

    def failed(self, action: A, error: ApiError) -> None:
        """Note an answer that no retry can mend; `changed` is called for the object, too."""
        ...

    def faulted(self, action: A, error: Exception) -> None:
        """Set the action's object aside: `perform` raised no answer of the API, but `error`.

        Or raise the error, if it is nothing that one object could be the cause of.
        """
        ...

    def close(self) -> None:
        """Remove its handlers from mirrors and shared state that outlive the controller."""
        ...


@runtime_checkable
class Queued(Protocol):
    """A controller that knows, after each change, whether it has anything to decide.

    Changes of its mirrors start no cycle of it before `due_at`.
    """

    def due_at(self) -> float | None:
        """Return the instant of the next decision: 0.0 for now, None until a change asks for it."""
        ...


@runtime_checkable
class ActsBeside(Protocol[A_contra]):
    """A controller some of whose actions run beside the cycles, alone of their key.

    Such an action ends by itself after a bounded time. While one of its key is running or waits for
    its turn, another one is dropped: the object is to be looked at again when the action is done.
    """

    def is_beside(self, action: A_contra) -> bool:
        """True for an action that no cycle waits for."""
        ...


class ActionResult(Enum):
    """How an action ended, as a metric label."""

    DONE = "done"
    OUTDATED = "outdated"  # conflict, not found, already exists
    RETRIED = "retried"  # one failed attempt that is repeated
    POSTPONED = "postponed"  # enough attempts for one cycle, or the server asked for a long wait
    FAILED = "failed"  # an answer that no retry can mend
    FAULT = "fault"  # code of ours raised over the object


class LoopObserver(Protocol):
    """Counts decisions and actions; `fairlead.runtime.exported.metrics.Metrics` is one."""

    def stopwatch(self) -> float:
        """Return an instant for durations: steady, and of no known epoch."""
        ...

    def decided(self, controller: str, seconds: float) -> None:
        """Note one decision and how long it took."""
        ...

    def acted(self, controller: str, action: str, result: ActionResult) -> None:
        """Note one attempt of an action."""
        ...


@dataclass(slots=True)
class _Workers(Generic[A]):
    """The tasks that act on the objects of one decision, and the objects that are left."""

    group: asyncio.TaskGroup
    work: Iterator[tuple[ObjectKey, list[A]]]
    left: int
    size: int = 0


class _NoObserver:
    def stopwatch(self) -> float:
        return 0.0

    def decided(self, controller: str, seconds: float) -> None: ...

    def acted(self, controller: str, action: str, result: ActionResult) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How the loop waits and tries again."""

    #: After the first change, wait this long for what comes with it.
    batch_window_seconds: float = 0.001
    #: Objects acted on side by side. Each is a connection to the server, whose TLS handshake costs
    #: both ends as much as several requests; 64 made pods no faster and cost us a fifth more CPU.
    concurrency_max: int = 32
    #: Of these, so many begin; more join as answers come (as in TCP's slow start), so that the
    #: handshakes of new connections do not hold up the first requests.
    concurrency_start: int = 8
    #: Actions that run beside the cycles at a time.
    beside_max: int = 8
    #: A mirror that has not shown our writes by then is listed again.
    barrier_seconds: float = 5.0
    #: Decide this often even if nothing changes; None: never.
    resync_seconds: float | None = None
    #: A `wake_at` in the past is served this much later, so that time always moves.
    wake_seconds_min: float = 0.001
    #: Repeats of one action within a cycle, with their delays. The cycle, and so every other
    #: object, waits for them; an object whose retry must wait longer is left to a later cycle.
    retries_max: int = 4
    retry: BackoffOptions = field(
        default_factory=lambda: BackoffOptions(0.1, 2.0, retry_after_seconds_max=2.0)
    )
    #: Delays before an object is looked at again whose actions fail in cycle after cycle.
    again: BackoffOptions = field(default_factory=lambda: BackoffOptions(0.05, 30.0))
    #: The same for objects over which code of ours raises.
    after_fault: BackoffOptions = field(default_factory=lambda: BackoffOptions(1.0, 600.0))
    #: Objects whose failures are counted; the oldest is dropped first.
    again_max: int = 10_000
    #: False when the controller's mirrors are shared and run elsewhere.
    runs_mirrors: bool = True


class ControllerLoop(Generic[A]):
    """Runs one controller. Make a new one, with a new controller, after a crash."""

    def __init__(
        self,
        controller: Controller[A],
        *,
        clock: Clock,
        rng: random.Random,
        options: LoopOptions | None = None,
        observer: LoopObserver | None = None,
        log: Logger = SILENT,
        audit: AuditBook | None = None,
    ) -> None:
        self.cycle_count = 0
        self._controller = controller
        self._act_on = controller.perform if audit is None else audit.around(controller)
        self._clock = clock
        self._rng = rng
        self._options = options or LoopOptions()
        self._observer = observer or _NoObserver()
        self._log = log
        self._barrier = Barrier(controller.mirrors, timeout_seconds=self._options.barrier_seconds)
        self._due_at = controller.due_at if isinstance(controller, Queued) else None
        self._is_beside = controller.is_beside if isinstance(controller, ActsBeside) else None
        #: Actions beside the cycles, by key: those that run, and those that wait for their turn.
        self._running: dict[ObjectKey, asyncio.Task[None]] = {}
        self._waiting: dict[ObjectKey, A] = {}
        self._woken = WakeUp()
        #: Until when the loop sleeps: infinite without a deadline, None while it is in a cycle.
        self._sleeps_until: float | None = None
        self._again = KeyQueue[ObjectKey]()
        self._failures: dict[ObjectKey, int] = {}
        #: Objects that are left alone until an instant: the server is in trouble, or asked for it.
        self._not_before: dict[ObjectKey, float] = {}
        #: Objects acted on side by side now: halved by each 429, widened by one for every round
        #: that goes through (additive increase, multiplicative decrease, as in TCP).
        self._width = float(self._options.concurrency_max)

    @property
    def ready(self) -> bool:
        """True once the controller has decided for the first time."""
        return self.cycle_count > 0

    def wake(self) -> None:
        """Start a cycle soon, for a reason that no mirror shows."""
        self._woken.set()

    async def run(self) -> None:
        """Run cycles, and the mirrors, until cancelled or until our own code fails."""
        removes = [mirror.on_changes(self.check) for mirror in self._controller.mirrors]
        try:
            async with asyncio.TaskGroup() as group:
                if self._options.runs_mirrors:
                    for mirror in self._controller.mirrors:
                        name = f"{self._controller.name}/{mirror.kind}"
                        group.create_task(mirror.run(), name=name)
                await self._cycles(group)
        finally:
            for remove in removes:
                remove()

    def check(self) -> None:
        """Start a cycle if changes have given the controller something to decide."""
        if self._due_at is None:
            self._woken.set()
        elif self._sleeps_until is not None:
            due_at = self._due_at()
            if due_at is not None and due_at < self._sleeps_until:
                self._woken.set()

    async def _cycles(self, group: asyncio.TaskGroup) -> None:
        now = self._clock.now()
        while True:
            await self._barrier.wait()
            decision = self._decide(max(now, self._clock.now()))
            await self._perform(self._begin_beside(decision.actions, group))
            now = await self._wait(decision.wake_at)

    def _decide(self, now: float) -> Decision[A]:
        for key in self._again.pop(loop_time()):
            self._controller.changed(key)
        self._woken.clear()
        self.cycle_count += 1
        started_at = self._observer.stopwatch()
        decision = self._controller.decide(now)
        seconds = self._observer.stopwatch() - started_at
        self._observer.decided(self._controller.name, seconds)
        return decision

    async def _wait(self, wake_at: float | None) -> float:
        """Return after a change and the batch window, or at a deadline; at least the deadline."""
        now = self._clock.now()
        if self._due_at is not None:
            wake_at = self._due_at()  # what it has performed may have moved it
        again_at = self._again.wake_at()
        if again_at is not None:
            again_at += now - loop_time()
        deadlines = [at for at in (wake_at, again_at) if at is not None]
        if self._options.resync_seconds is not None:
            deadlines.append(now + self._options.resync_seconds)
        deadline = min(deadlines) if deadlines else None
        delay = None if deadline is None else max(deadline - now, self._options.wake_seconds_min)
        self._sleeps_until = float("inf") if deadline is None else deadline
        is_woken = await self._woken.wait(delay)
        self._sleeps_until = None
        if not is_woken:
            # Rounding may have the timer fire a hair early: `now` must not be before the deadline,
            # or a controller that is due "at" it would ask for the same instant for ever.
            return max(self._clock.now(), deadline or 0.0)
        await asyncio.sleep(self._options.batch_window_seconds)
        return self._clock.now()

    def _begin_beside(self, actions: Sequence[A], group: asyncio.TaskGroup) -> Sequence[A]:
        """Begin what runs beside the cycles; return the other actions."""
        if self._is_beside is None:
            return actions
        rest: list[A] = []
        for action in actions:
            if not self._is_beside(action):
                rest.append(action)
                continue
            key = self._controller.key_of(action)
            if key not in self._running and not self._is_to_wait(key):
                self._waiting.setdefault(key, action)
        self._fill(group)
        return rest

    def _fill(self, group: asyncio.TaskGroup) -> None:
        """Begin actions beside the cycles, first come, first served, as long as there is room."""
        while self._waiting and len(self._running) < self._options.beside_max:
            key = next(iter(self._waiting))
            action = self._waiting.pop(key)
            name = f"{self._controller.name}-beside"
            task = group.create_task(self._act_beside(group, key, action), name=name)
            self._running[key] = task

    async def _act_beside(self, group: asyncio.TaskGroup, key: ObjectKey, action: A) -> None:
        await self._act(key, [action])
        del self._running[key]
        self._fill(group)
        self._woken.set()  # it may have moved when the loop is to decide

    async def _perform(self, actions: Sequence[A]) -> None:
        by_key: dict[ObjectKey, list[A]] = {}
        for action in actions:
            key = self._controller.key_of(action)
            if not self._is_to_wait(key):
                by_key.setdefault(key, []).append(action)
        if not by_key:
            return
        if len(by_key) == 1:
            await self._act(*by_key.popitem())
            return
        async with asyncio.TaskGroup() as group:
            workers = _Workers(group, iter(by_key.items()), len(by_key))
            for _ in range(min(len(by_key), int(self._width), self._options.concurrency_start)):
                self._start_worker(workers)

    def _is_to_wait(self, key: ObjectKey) -> bool:
        """True while the server is not to be bothered with this object; it is looked at later.

        Others of the same decision are not held up by it, and must not bring it along either: a
        gang's thousand pods are decided on together, whichever of them is due.
        """
        until = self._not_before.get(key)
        if until is None:
            return False
        if loop_time() < until:
            self._again.add_at(key, until)
            return True
        del self._not_before[key]
        return False

    def _start_worker(self, workers: _Workers[A]) -> None:
        workers.size += 1
        workers.group.create_task(self._work(workers), name=self._controller.name)

    async def _work(self, workers: _Workers[A]) -> None:
        """Act on objects, one after another; each that is done makes room for one more worker."""
        for key, actions in workers.work:
            workers.left -= 1
            await self._act(key, actions)
            if workers.size > max(self._width, 1):
                break
            if workers.left > 1 and workers.size + 1 <= self._width:  # the next one is for this one
                self._start_worker(workers)
        workers.size -= 1

    async def _act(self, key: ObjectKey, actions: Sequence[A]) -> None:
        """Perform the actions of one object, until one does not succeed."""
        for action in actions:
            if not await self._perform_one(key, action):
                return
        self._failures.pop(key, None)

    async def _perform_one(self, key: ObjectKey, action: A) -> bool:
        """Perform with retries; False when the rest of the object's actions is to be dropped."""
        attempts = 0
        while True:
            try:
                written = await self._act_on(action)
            except (Conflict, NotFound, AlreadyExists) as error:
                return self._drop(key, action, ActionResult.OUTDATED, error)
            except ApiError as error:
                if isinstance(error, TooManyRequests):
                    self._width = max(self._width / 2, 1.0)
                if not error.retryable:
                    self._controller.failed(action, error)
                    return self._drop(key, action, ActionResult.FAILED, error)
                if self._is_enough(attempts, error):
                    return self._drop(key, action, ActionResult.POSTPONED, error)
                self._note(action, ActionResult.RETRIED, error)
                await asyncio.sleep(self._retry_seconds(attempts, error))
                attempts += 1
            except Exception as error:  # noqa: BLE001 - over one object, so it is that object's
                self._controller.faulted(action, error)
                self._note(action, ActionResult.FAULT)
                delay = delay_seconds(self._rng, self._failed(key), self._options.after_fault)
                self._again.add_at(key, loop_time() + delay)
                return False
            else:
                if written is not None:
                    self._barrier.expect(written)
                self._note(action, ActionResult.DONE)
                self._width = min(self._width + 1 / self._width, self._options.concurrency_max)
                return True

    def _is_enough(self, attempts: int, error: ApiError) -> bool:
        asked_max = self._options.retry.retry_after_seconds_max
        return attempts >= self._options.retries_max or error.retry_after_seconds > asked_max

    def _retry_seconds(self, attempts: int, error: ApiError) -> float:
        """Return the delay: ours, on top of what the server asks of everybody in the same words."""
        return error.retry_after_seconds + delay_seconds(self._rng, attempts, self._options.retry)

    def _drop(self, key: ObjectKey, action: A, result: ActionResult, error: ApiError) -> bool:
        """Look at the object again: at once after a first conflict, else after a growing delay."""
        self._note(action, result, error)
        failures = self._failed(key)
        if failures == 0 and result is not ActionResult.POSTPONED:
            self._controller.changed(key)
            self._woken.set()
        else:
            delay = delay_seconds(self._rng, failures, self._options.again)
            asked = min(error.retry_after_seconds, self._options.again.retry_after_seconds_max)
            until = loop_time() + asked + delay
            self._again.add_at(key, until)
            if result is ActionResult.POSTPONED or isinstance(error, Unauthorized):
                self._not_before[key] = until
                if len(self._not_before) > self._options.again_max:
                    del self._not_before[next(iter(self._not_before))]
        return False

    def _failed(self, key: ObjectKey) -> int:
        """Count a failure of an object; return how many there were before, in a row."""
        failures = self._failures.pop(key, 0)
        self._failures[key] = failures + 1
        if len(self._failures) > self._options.again_max:
            del self._failures[next(iter(self._failures))]
        return failures

    def _note(self, action: A, result: ActionResult, error: ApiError | None = None) -> None:
        name = type(action).__name__
        self._observer.acted(self._controller.name, name, result)
        facts = {"controller": self._controller.name, "cycle": self.cycle_count, "action": name}
        if error is None:
            self._log.debug("Performed action", **facts)
            return
        namespace, object_name = self._controller.key_of(action)
        self._log.warning(
            "Action did not succeed",
            **facts,
            object=f"{namespace}/{object_name}",
            result=result.value,
            reason=error.status.reason,
            error=error.message,
        )
