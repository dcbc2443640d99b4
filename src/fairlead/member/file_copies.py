"""Copies of a file in all members of a job, as sbcast makes them: both of its ends in members.

Every member opens a new file beside the destination before any is sent data, and gives it its name
once all members have all of it. So a destination that cannot be written changes nothing anywhere,
and no program ever reads a part of a file. Pieces go to one member after the other, and the next
one is read when all have taken it: nothing is kept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fairlead.member.gang_link import Link, LinkLost, Message

#: A piece of a file in one message.
PIECE_BYTES = 256 << 10

Send = Callable[[Message], Awaitable[None]]


class CopyToMembers:
    """One sbcast, in the first member: passes on what it says, and collects what members answer."""

    def __init__(self, number: int, members: Mapping[int, Send]) -> None:
        self._number = number
        self._members = dict(members)
        self._answers: asyncio.Queue[tuple[str, str]] = asyncio.Queue(len(members))

    def heard(self, member: str, error: str) -> None:
        """Take the answer of a member; LinkLost for one that nobody asked for."""
        if self._answers.full():
            raise LinkLost
        self._answers.put_nowait((member, error))

    async def serve(self, link: Link, asked: Message) -> None:
        """Copy what comes through the link, and say through it how that went; LinkLost."""
        is_done = False
        try:
            if not await self._all(link, {"open": asked}):
                return
            await link.send({"ready": len(self._members)})
            while True:
                match await link.receive():
                    case {"data": str(data)}:
                        await self._tell({"data": data})
                    case {"end": True}:
                        break
                    case _:
                        raise LinkLost
            is_done = await self._all(link, {"finish": True}) and await self._all(
                link, {"rename": True}
            )
            if is_done:
                await link.send({"copied": len(self._members)})
        finally:
            if not is_done:
                with suppress(LinkLost):
                    await self._tell({"abort": True})

    async def _tell(self, message: Message) -> None:
        for send in self._members.values():
            await send({"copy": self._number, **message})

    async def _all(self, link: Link, message: Message) -> bool:
        """Ask all members to do something; False: one cannot, which has been said."""
        await self._tell(message)
        answers = [await self._answers.get() for _ in self._members]
        errors = [f"{member}: {error}" for member, error in sorted(answers) if error]
        if errors:
            await link.send({"error": "; ".join(errors[:3])})
        return not errors


@dataclass(slots=True)
class _Incoming:
    """A file that comes in, under the name that it has until all members have all of it."""

    file: BinaryIO
    path: str
    target: Path
    #: When the original was read and changed last, in ns; empty: not to be kept.
    times: tuple[int, ...] = ()
    #: What went wrong of it first.
    error: str = ""


class FilesFromFirst:
    """The files that the first member sends to this one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._incoming: dict[int, _Incoming] = {}

    async def hear(self, number: int, message: Message) -> None:
        """Do what the first member says of a copy, and answer; LinkLost for what it never says."""
        match message:
            case {
                "open": {
                    "target": str(target), "name": str(name), "mode": int(mode),
                    "replaces": bool(replaces), "times": list(times),
                }
            }:  # fmt: skip
                error = self._open(number, Path(target), name, replaces=replaces)
                if not error:
                    os.fchmod(self._incoming[number].file.fileno(), mode)
                    self._incoming[number].times = tuple(times)
                await self._answer(number, error)
            case {"data": str(data)} if number in self._incoming:
                self._write(self._incoming[number], data)
            case {"finish": True} if number in self._incoming:
                await self._answer(number, self._finish(self._incoming[number]))
            case {"rename": True} if number in self._incoming:
                await self._answer(number, self._rename(self._incoming.pop(number)))
            case {"abort": True}:
                if (incoming := self._incoming.pop(number, None)) is not None:
                    self._remove(incoming)
            case _:
                raise LinkLost

    async def _answer(self, number: int, error: str) -> None:
        node = f"node {os.environ.get('FAIRLEAD_INDEX', '0')}"
        await self._send({"copied": number, "member": node, "error": error})

    def _open(self, number: int, target: Path, name: str, *, replaces: bool) -> str:
        """Create the file; return what is wrong."""
        target = target / name if target.is_dir() else target
        if os.path.lexists(target) and not replaces:
            return f"{target} exists; --force replaces it"
        try:
            descriptor, path = tempfile.mkstemp(prefix=".sbcast-", dir=target.parent)
        except (OSError, ValueError) as error:
            return _cannot_be_written(target, error)
        self._incoming[number] = _Incoming(os.fdopen(descriptor, "wb"), path, target)
        return ""

    @staticmethod
    def _write(incoming: _Incoming, data: str) -> None:
        try:
            if not incoming.error:
                incoming.file.write(b64decode(data, validate=True))
        except (OSError, ValueError) as error:
            incoming.error = _cannot_be_written(incoming.target, error)

    @staticmethod
    def _finish(incoming: _Incoming) -> str:
        """Write what is left; return what is wrong."""
        try:
            incoming.file.close()
            if incoming.times:
                os.utime(incoming.path, ns=(incoming.times[0], incoming.times[1]))
        except OSError as error:
            incoming.error = incoming.error or _cannot_be_written(incoming.target, error)
        return incoming.error

    def _rename(self, incoming: _Incoming) -> str:
        """Give the file its name; return what is wrong."""
        try:
            Path(incoming.path).replace(incoming.target)
        except OSError as error:
            self._remove(incoming)
            return f"{incoming.target} cannot be replaced: {error.strerror}"
        return ""

    @staticmethod
    def _remove(incoming: _Incoming) -> None:
        with suppress(OSError):
            incoming.file.close()
        with suppress(OSError):
            Path(incoming.path).unlink()


def _cannot_be_written(target: Path, error: OSError | ValueError) -> str:
    return f"{target} cannot be written: {getattr(error, 'strerror', None) or error}"
