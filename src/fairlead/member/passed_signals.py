"""Signals that reach the parent of a program and are meant for the program."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

#: The program may save before it ends.
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def passed_signals() -> Generator[Callable[[subprocess.Popen[bytes]], None]]:
    """Keep signals until the context ends; its value is called with the program, which leads a
    process group, and passes on to that what has come and what comes.
    """
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: object = None) -> None:
        if program is None:
            early.append(number)
            return
        with suppress(ProcessLookupError):  # it is not reaped yet, so the number is its own
            os.killpg(program.pid, number)

    def to(started: subprocess.Popen[bytes]) -> None:
        nonlocal program
        program = started
        for number in early:
            pass_on(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
