"""Blocking calls side by side, each in a thread of its own: one that hangs holds up no other.

A call that the kernel holds cannot be stopped. So it is left behind, no second one of its name is
begun, and it is said for how long it has hung. The threads are daemons, which end with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

#: Calls at a time, with those that hang.
PROBES_MAX = 64
WHY_MAX = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call: `error` is empty for a good one. None came within `waited_seconds`."""

    error: str = ""
    is_pending: bool = False
    waited_seconds: float = 0.0


@dataclass(slots=True)
class _Run:
    begun_at: float
    done: threading.Event = field(default_factory=threading.Event)
    error: str = ""


class Probes:
    """Calls by name. Used by one thread."""

    def __init__(self, uptime: Callable[[], float], wait_seconds: float = 2.0) -> None:
        """`wait_seconds`: so long a look waits for all of them."""
        self._uptime, self._wait_seconds = uptime, wait_seconds
        self._runs: dict[str, _Run] = {}

    def look(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, Answer]:
        """Make each call, unless its last one still runs; return what came of all within a while.

        OSError is an answer; a call that has no room yet is left out.
        """
        now = self._uptime()
        for name in [n for n, run in self._runs.items() if run.done.is_set() and n not in calls]:
            del self._runs[name]
        for name, call in calls.items():
            if name not in self._runs and len(self._runs) < PROBES_MAX:
                run = self._runs[name] = _Run(now)
                threading.Thread(
                    target=_make, args=(call, run), name=f"probe-{name}"[:40], daemon=True
                ).start()
        asked = {name: self._runs[name] for name in calls if name in self._runs}
        left = threading.Event()
        timer = threading.Timer(self._wait_seconds, left.set)
        timer.daemon = True
        timer.start()
        try:
            _await(asked.values(), left)
        finally:
            timer.cancel()
        found: dict[str, Answer] = {}
        for name, run in asked.items():
            if run.done.is_set():
                found[name] = Answer(run.error)
                del self._runs[name]
            else:
                found[name] = Answer(is_pending=True, waited_seconds=now - run.begun_at)
        return found


def _await(runs: Iterable[_Run], left: threading.Event) -> None:
    """Return when all have ended, or `left` is set."""
    for run in runs:
        while not run.done.wait(0.02):
            if left.is_set():
                return


def _make(call: Callable[[], object], run: _Run) -> None:
    try:
        call()
    except OSError as error:
        run.error = (error.strerror or str(error) or type(error).__name__)[:WHY_MAX]
    finally:
        run.done.set()


class Strikes(msgspec.Struct, frozen=True):
    """How often in a row each probe has failed."""

    failed: dict[str, int] = {}


def failures(
    answers: Mapping[str, Answer], before: Strikes, *, seconds_max: float, strikes: int
) -> tuple[dict[str, str], Strikes]:
    """Return why each failed that did so often in a row, and the strikes.

    One that is pending has failed once it took longer than `seconds_max`, however often.
    """
    counts: dict[str, int] = {}
    found: dict[str, str] = {}
    for name, answer in answers.items():
        is_late = answer.is_pending and answer.waited_seconds > seconds_max
        if answer.error or is_late:
            counts[name] = before.failed.get(name, 0) + 1
        elif answer.is_pending:
            counts[name] = before.failed.get(name, 0)
        late = f"no answer for {answer.waited_seconds:.0f} s"
        if is_late or counts.get(name, 0) >= strikes:
            found[name] = answer.error or late
    return found, Strikes({name: count for name, count in counts.items() if count})
