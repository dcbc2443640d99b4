"""An asyncio event loop under virtual time: the clock jumps to the next timer, nothing ever waits.

The loop is the stock base loop without a selector. `time()` returns a field; where the stock loop
would block, that field moves on to the head timer's instant. Time thus moves only when no callback
can run, which is the quiescence rule (KEP-140 of kube-scheduler-simulator). Whatever would let real
time or the outside in (threads, sockets, subprocesses, signals) raises `SimulationError`.

Timers with equal deadlines run in the order in which they were set (stock asyncio leaves that
open).
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import inspect
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

#: What counts as simultaneous. It must stay above the spacing of floats at the times used.
RESOLUTION_SECONDS = 1e-6
#: New objects between two collections of garbage. With the default of 700 a tenth of a run goes by
#: in collections that find next to nothing.
YOUNG_OBJECTS_MAX = 50_000
#: Cancelled timers that are kept beyond half of all.
_CANCELLED_MAX = 64


class SimulationError(RuntimeError):
    """Simulated code reached for real time, threads or the outside. Pass such things in instead."""


class Deadlock(SimulationError):
    """Nothing can ever run again: every task waits and no timer is set."""


class _Handle(asyncio.Handle):
    """A callback to run. Made ten times per write, so it has no debug mode to ask for."""

    __slots__ = ()
    # Attributes of the stock handle (asyncio.events) that `_run_once` reads.
    _callback: Any
    _args: Any
    _context: Context
    _cancelled: bool

    def __init__(
        self, callback: Callable[..., object], args: Any, loop: Any, context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._cancelled = False
        self._repr = self._source_traceback = None

    @staticmethod
    def run_all(ready: deque[_Handle], loop: asyncio.BaseEventLoop) -> None:
        """Run those that are ready now, as `Handle._run` does, but without a call for each."""
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # noqa: SLF001 # of this class
                continue
            try:
                handle._context.run(handle._callback, *handle._args)  # noqa: SLF001
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 # as the stock loop does
                facts = {"message": "Exception in callback", "exception": error, "handle": handle}
                loop.call_exception_handler(facts)

    def cancel(self) -> None:
        """Never run it."""
        self._cancelled = True
        self._callback = self._args = None


class _Timer(_Handle, asyncio.TimerHandle):
    """A callback to run at an instant."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: Any,
        *,
        context: Context | None,
    ) -> None:
        # As `_Handle` does, without a second call.
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True

    @staticmethod
    def take_due(timers: list[tuple[float, int, _Timer]], end: float, ready: deque[_Handle]) -> int:
        """Move the timers before `end` to `ready`; return how many cancelled ones were dropped."""
        dropped = 0
        while timers and timers[0][0] < end:
            timer = heapq.heappop(timers)[2]
            if timer._cancelled:  # noqa: SLF001 # of this class
                dropped += 1
            else:
                timer._scheduled = False  # noqa: SLF001
                ready.append(timer)
        return dropped

    def cancel(self) -> None:
        """Never run it; the loop counts those that it still holds."""
        if not self._cancelled and self._scheduled:
            self._loop._timer_handle_cancelled(self)  # noqa: SLF001 # as the stock handle does
        self._cancelled = True
        self._callback = self._args = None


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The loop. `time()` starts at 0; add an epoch with `runtime.clock.LoopClock`."""

    # Attributes of the stock loop (asyncio.base_events) that its subclasses share.
    _ready: deque[_Handle]
    _stopping: bool
    _closed: bool
    _check_closed: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._virtual_time = 0.0
        self._timer_count = 0
        #: (deadline, sequence number, handle): compared without a call of Python code.
        self._timers: list[tuple[float, int, _Timer]] = []
        self._cancelled_count = 0

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual_time

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run the callback in the next turn."""
        if self._closed:
            self._check_closed()
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer; equal deadlines keep the order of the calls."""
        return self._set_timer(self._virtual_time + delay, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer; equal deadlines keep the order of the calls."""
        return self._set_timer(when, callback, args, context)

    def _set_timer(
        self, when: float, callback: Callable[..., object], args: Any, context: Context | None
    ) -> _Timer:
        if self._closed:
            self._check_closed()
        self._timer_count += 1
        timer = _Timer(when, callback, args, self, context=context)
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Drop cancelled timers when they are more than half; `TimerHandle.cancel` calls this."""
        self._cancelled_count += 1
        if self._cancelled_count > _CANCELLED_MAX + len(self._timers) // 2:
            self._timers[:] = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def _run_once(self) -> None:
        """Take turns until the loop is to stop, each as the stock loop does, but jump for a block.

        The stock loop asks for one turn per call, and each is hardly more than one callback.
        """
        ready, timers = self._ready, self._timers
        while True:
            if not ready and not self._stopping:
                while timers and timers[0][2].cancelled():
                    heapq.heappop(timers)
                    self._cancelled_count -= 1
                if not timers:
                    raise Deadlock(
                        "all tasks wait and no timer is set: the simulation is deadlocked"
                    )
                self._virtual_time = max(timers[0][0], self._virtual_time)
            end = self._virtual_time + RESOLUTION_SECONDS
            if timers and timers[0][0] < end:
                self._cancelled_count -= _Timer.take_due(timers, end, ready)
            _Handle.run_all(ready, self)
            if self._stopping:
                return

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Refuse: a thread runs in real time."""
        raise SimulationError(f"threads are not allowed in a simulation: {func!r}")

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Refuse: no other thread may talk to a simulation."""
        raise SimulationError(f"threads are not allowed in a simulation: {callback!r}")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the network is real."""
        raise SimulationError("sockets are not allowed in a simulation: use the in-process client")

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the network is real."""
        raise SimulationError("sockets are not allowed in a simulation")

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: processes run in real time."""
        raise SimulationError("processes are not allowed in a simulation")

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: processes run in real time."""
        raise SimulationError("processes are not allowed in a simulation")

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Refuse: signals come at real instants."""
        raise SimulationError("signals are not allowed in a simulation")


def _is_ours() -> bool:
    """True when the caller of the fenced function is Fairlead's own code."""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    return caller is not None and str(caller.f_globals.get("__name__")).startswith("fairlead.")


def _refusing(name: str, instead: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def fenced(*args: Any, **kwargs: Any) -> Any:
        if _is_ours():
            raise SimulationError(f"{name} is not allowed in a simulation: use {instead}")
        return original(*args, **kwargs)

    return fenced


#: What lets real time, threads or the outside in; libraries below us may still use it.
_FENCED: tuple[tuple[Any, str, str], ...] = (
    (time, "time", "a Clock argument"),
    (time, "monotonic", "the loop's time"),
    (time, "perf_counter", "a Clock argument"),
    (time, "sleep", "asyncio.sleep"),
    (threading.Thread, "start", "asyncio.TaskGroup"),
    (socket, "create_connection", "the in-process client"),
    (subprocess, "run", "a virtual node"),
    (subprocess, "Popen", "a virtual node"),
)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end under virtual time and return its result.

    Like `asyncio.run`: tasks that are left over are cancelled. Raises `Deadlock` when nothing can
    ever run again. Meanwhile the wall clock, threads, sockets and processes raise when our own code
    uses them, and no longer once this is over, at whatever line an alarm ends it.
    """
    thresholds = gc.get_threshold()
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _FENCED]

    def restore() -> None:
        gc.set_threshold(*thresholds)
        for owner, name, original in originals:
            setattr(owner, name, original)

    try:
        try:
            gc.set_threshold(YOUNG_OBJECTS_MAX, 20, 100)
            for (owner, name, original), (_, _, instead) in zip(originals, _FENCED, strict=True):
                label = f"{getattr(owner, '__name__', owner)}.{name}"
                setattr(owner, name, _refusing(label, instead, original))
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                return runner.run(main)
        finally:
            restore()
    finally:
        restore()  # an alarm that meets the first leaves it half done
