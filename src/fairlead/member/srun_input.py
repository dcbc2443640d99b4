"""What srun passes on to the tasks of its step: its standard input; keys and size of its terminal.

One piece is on its way at a time: the next one is read once each task has taken the last. So a task
that reads nothing stops the reader, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from base64 import b64encode
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

from fairlead.member.gang_link import Link, LinkLost

READ_BYTES_MAX = 64 << 10
#: The size of a terminal that is none here: rows, columns.
NO_TERMINAL = (24, 80)


class StepInput:
    """The input of a step's tasks."""

    def __init__(self, link: Link, ranks: Iterable[int]) -> None:
        """`ranks`: of the tasks that read."""
        self._link = link
        self._reading = set(ranks)
        self._owing = set[int]()
        self._taken = asyncio.Event()

    def taken(self, rank: int) -> None:
        """Note that a task has taken the last piece."""
        self._owing.discard(rank)
        if not self._owing:
            self._taken.set()

    def ended(self, rank: int) -> None:
        """Note that a task has ended, and takes nothing any more."""
        self._reading.discard(rank)
        self.taken(rank)

    async def send(self, descriptor: int | None) -> None:
        """Pass on what is read until it ends, or no task reads it; None: it has ended."""
        with suppress(LinkLost):  # srun is about to end
            while self._reading:
                data = await read_next(descriptor) if descriptor is not None else b""
                await self._pass_on(data)
                if not data:
                    return

    async def send_sizes(self) -> None:
        """Say how large the terminal is whenever that changes."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        loop.add_signal_handler(signal.SIGWINCH, changed.set)
        try:
            with suppress(LinkLost):
                while True:
                    await changed.wait()
                    changed.clear()
                    await self._link.send({"size": size_of_terminal()})
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)

    async def _pass_on(self, data: bytes) -> None:
        self._owing = set(self._reading)
        self._taken.clear()
        if self._owing:
            text = b64encode(data).decode()
            await self._link.send({"input": text, "ranks": sorted(self._owing)})
            await self._taken.wait()


async def read_next(descriptor: int) -> bytes:
    """Return what can be read next; b"" at the end, and where nothing can be read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    except PermissionError:  # a regular file
        pass
    except OSError:
        return b""
    try:
        return os.read(descriptor, READ_BYTES_MAX)
    except OSError:  # the terminal is gone
        return b""


def size_of_terminal() -> list[int]:
    """Return the rows and columns of the terminal that stdin is."""
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return list(NO_TERMINAL)
    return [size.lines or NO_TERMINAL[0], size.columns or NO_TERMINAL[1]]


@contextmanager
def raw_terminal(descriptor: int) -> Generator[None]:
    """Have a terminal pass keys on as they are, Ctrl-C among them; restore it at the end."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead stays
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
