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
import heapq
import inspect
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

#: What counts as simultaneous. It must stay above the spacing of floats at the times used.
RESOLUTION_SECONDS = 1e-6
#: Cancelled timers that are kept beyond half of all.
_CANCELLED_MAX = 64


class SimulationError(RuntimeError):
    """Simulated code reached for real time, threads or the outside. Pass such things in instead."""


class Deadlock(SimulationError):
    """Nothing can ever run again: every task waits and no timer is set."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The loop. `time()` starts at 0; add an epoch with `runtime.clock.LoopClock`."""

    # Attributes of the stock loop (asyncio.base_events) that its subclasses share.
    _ready: deque[asyncio.Handle]
    _stopping: bool
    _closed: bool
    _check_closed: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._virtual_time = 0.0
        self._timer_count = 0
        #: (deadline, sequence number, handle): compared without a call of Python code.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
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
        handle = asyncio.Handle(callback, args, self, context)
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
        return self.call_at(self._virtual_time + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer; equal deadlines keep the order of the calls."""
        if self._closed:
            self._check_closed()
        self._timer_count += 1
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Drop cancelled timers when they are more than half; `TimerHandle.cancel` calls this."""
        self._cancelled_count += 1
        if self._cancelled_count > _CANCELLED_MAX + len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def _run_once(self) -> None:
        """Take one turn, as the stock loop does, but jump where that would block."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled_count -= 1
        if not ready and not self._stopping:
            if not timers:
                raise Deadlock("all tasks wait and no timer is set: the simulation is deadlocked")
            self._virtual_time = max(timers[0][0], self._virtual_time)
        end = self._virtual_time + RESOLUTION_SECONDS
        while timers and timers[0][0] < end:
            timer = heapq.heappop(timers)[2]
            if timer.cancelled():
                self._cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 # as the stock loop does

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


@contextmanager
def _fence() -> Generator[None]:
    """Make the wall clock, threads, sockets and processes raise when our own code uses them."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _FENCED]
    for owner, name, instead in _FENCED:
        label = f"{getattr(owner, '__name__', owner)}.{name}"
        setattr(owner, name, _refusing(label, instead, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end under virtual time and return its result.

    Like `asyncio.run`: tasks that are left over are cancelled. Raises `Deadlock` when nothing can
    ever run again.
    """
    with _fence(), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
