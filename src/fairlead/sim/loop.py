"""An asyncio event loop under virtual time: the clock jumps to the next timer, nothing ever waits.

The loop is the stock selector loop with two changes. `time()` returns a field; and the selector,
instead of blocking, moves that field on to the head timer's instant. Time thus moves only when no
callback can run, which is the quiescence rule (KEP-140 of kube-scheduler-simulator). Whatever
would let real time or the outside in (threads, sockets, subprocesses, signals) raises
`SimulationError`.

Timers with equal deadlines run in the order in which they were set (stock asyncio leaves that
open).
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

#: What counts as simultaneous. It must stay above the spacing of floats at the times used.
RESOLUTION_SECONDS = 1e-6


class SimulationError(RuntimeError):
    """Simulated code reached for real time, threads or the outside. Pass such things in instead."""


class Deadlock(SimulationError):
    """Nothing can ever run again: every task waits and no timer is set."""


class _OrderedTimer(asyncio.TimerHandle):
    """A timer handle ordered by (deadline, sequence number)."""

    __slots__ = ("_sequence",)

    def __init__(self, sequence: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sequence = sequence

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _OrderedTimer):
            return NotImplemented
        mine, others = self.when(), other.when()
        return mine < others or (mine == others and self._sequence < other._sequence)


class _JumpingSelector(selectors.BaseSelector):
    """Never blocks: asks the loop to jump by the time-out that it was given."""

    def __init__(self) -> None:
        self.loop: VirtualTimeLoop | None = None
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Keep the key; only the loop's own wake-up pipe is ever registered."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget the key."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance virtual time by `timeout`; None means that nothing can ever run again."""
        assert self.loop is not None
        if timeout is None:
            raise Deadlock("all tasks wait and no timer is set: the simulation is deadlocked")
        if timeout > 0:
            self.loop.advance(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the registered keys."""
        return self._keys


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop. `time()` starts at 0; add an epoch with `runtime.clock.LoopClock`."""

    # Attributes of the stock loop (asyncio.base_events) that its subclasses share.
    _scheduled: list[asyncio.TimerHandle]
    _check_closed: Callable[[], None]

    def __init__(self) -> None:
        self._virtual_time = 0.0
        self._timer_count = 0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = RESOLUTION_SECONDS

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual_time

    def advance(self, seconds: float) -> None:
        """Jump: to the head timer exactly when there is one, so that no rounding accumulates."""
        head = self._scheduled[0].when() if self._scheduled else 0.0
        self._virtual_time = head or self._virtual_time + seconds

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer; equal deadlines keep the order of the calls."""
        self._check_closed()
        self._timer_count += 1
        timer = _OrderedTimer(self._timer_count, when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # noqa: SLF001 # as the stock loop marks its own
        return timer

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
