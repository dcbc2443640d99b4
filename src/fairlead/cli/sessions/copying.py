"""Files and directories to and from a member, as a stream over exec: both ends are
`member/file_stream.py`, or in images without Python the image's own tar at the other one.

What comes from a member is as little trusted there as here; see that module. The bytes pass through
a pipe between the session, in the loop, and the reading or writing of files, in a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from fairlead.api.kubernetes.core import Pod
from fairlead.cli.sessions.session import CHUNK_BYTES, MESSAGE_MAX, Streams, read_ready, run_session
from fairlead.cli.sessions.shipped import Shipped
from fairlead.input.errors import Code, fail
from fairlead.kube.websocket import SocketServer
from fairlead.member.file_stream import LAST, TOP, CopyError, receive_tree, send_tree
from fairlead.terminal import printable

WAY = Shipped("file_stream")
#: Exit codes: 0 Python, 11 tar, 12 neither.
_HAS_TAR, _HAS_NEITHER = 11, 12
_PROBE = f"""
python3 -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && exit 0
command -v tar >/dev/null && command -v mktemp >/dev/null && exit {_HAS_TAR}
exit {_HAS_NEITHER}
"""
_SEND = """
[ -e "$1" ] || { echo "error: $1: no such file or directory" >&2; exit 1; }
exec tar cf - -C "$(dirname -- "$1")" -- "$(basename -- "$1")"
"""
_RECEIVE = f"""
final=$1
case $1 in */) [ -d "$1" ] || {{ echo "error: $1: no such directory" >&2; exit 1; }} ;; esac
[ ! -d "$1" ] || final=${{1%/}}/$2
work=$(mktemp -u "$(dirname -- "$final")/.fairlead-cp-XXXXXX") || exit 1
trap '' HUP # it would come to rm, too; the stream ends with its client, and so does this
trap '[ -z "$work" ] || rm -rf -- "$work"' EXIT
trap 'exit 1' TERM
mkdir -m 700 -- "$work" || {{ work=; exit 1; }}
tar xf - -C "$work" || exit 1
[ -e "$work/{LAST}" ] || {{ echo "error: the end is missing" >&2; exit 1; }}
if [ -d "$final" ] && [ ! -L "$final" ]; then
    [ -d "$work/{TOP}" ] || {{ echo "error: $final is a directory" >&2; exit 1; }}
    [ "$3" = yes ] || {{ echo "error: $final exists; --force replaces it" >&2; exit 1; }}
    mv -- "$final" "$work/old" || exit 1
elif [ -e "$final" ] && [ -d "$work/{TOP}" ]; then
    echo "error: $final is no directory" >&2
    exit 1
fi
mv -- "$work/{TOP}" "$final"
"""


@dataclass(slots=True)
class MemberCopy:
    """Copies from and to one member. `note` is given what is left out."""

    server: SocketServer
    pod: Pod
    replaces: bool
    note: Callable[[str], None]
    _said: bytearray = field(default_factory=bytearray)
    _wrong: list[str] = field(default_factory=list[str])

    async def to_member(self, source: Path, target: str) -> None:
        """Copy a file or directory of this machine, a path without links. ApiError, CliError."""
        asked = (target, source.name, "yes" if self.replaces else "no")
        command, first = await self._way(("receive", *asked), (_RECEIVE, *asked))
        begin, end = os.pipe()

        def work() -> None:
            try:
                with open(end, "wb") as out:
                    send_tree(source, out, self.note)
            except BrokenPipeError:
                return  # the other side says why
            except (CopyError, OSError) as error:
                self._wrong.append(str(error))

        async def pieces() -> AsyncGenerator[bytes]:
            yield first
            while data := await read_ready(begin):
                yield data

        streams = Streams(stdin=pieces(), tty=False, out=_drop, error=self._hear)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(work))
            try:
                code = await run_session(self.server, self.pod, command, streams)
            finally:
                os.close(begin)
        self._check(code, is_sent=True)

    async def from_member(self, source: str, target: str) -> None:
        """Copy a file or directory of the member. ApiError, CliError."""
        command, first = await self._way(("send", source), (_SEND, source))
        begin, end = os.pipe()
        ended: Future[int] = Future()

        def work() -> None:
            with open(begin, "rb") as file:
                try:
                    receive_tree(
                        file, target, PurePosixPath(source).name, note=self.note,
                        replaces=self.replaces, is_whole=lambda: _is_whole(file, ended),
                    )  # fmt: skip
                except (CopyError, OSError) as error:
                    self._wrong.append(str(error))

        streams = Streams(
            stdin=first, tty=False, out=lambda data: _write(end, data), error=self._hear
        )
        code = 1
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(work))
            try:
                code = await run_session(self.server, self.pod, command, streams)
            except BrokenPipeError:
                pass  # what cannot be written here is said below
            finally:
                os.close(end)
                ended.set_result(code)
        self._check(code, is_sent=False)

    async def _way(
        self, shipped: tuple[str, ...], script: tuple[str, ...]
    ) -> tuple[tuple[str, ...], bytes]:
        """Return the command at the other end, and what it is given first; CliError."""
        probe = ("sh", "-c", _PROBE)
        streams = Streams(stdin=False, tty=False, out=_drop, error=_drop)
        code = await run_session(self.server, self.pod, probe, streams)
        if code == _HAS_NEITHER:
            raise fail(
                Code.REFUSED, "the image has neither Python 3.8 nor tar, so nothing can be copied",
                help=("fairlead exec JOB -- cat FILE > FILE copies one file",),
            )  # fmt: skip
        if code == _HAS_TAR:
            text, *arguments = script
            return ("sh", "-c", text, "fairlead-cp", *arguments), b""
        return WAY.command(shipped), WAY.text

    def _hear(self, data: bytes) -> None:
        self._said += data[: MESSAGE_MAX - len(self._said)]

    def _check(self, code: int, *, is_sent: bool) -> None:
        """Say what the other side noted; CliError where the copy was not made."""
        said = [printable(line, MESSAGE_MAX) for line in
                self._said.decode(errors="replace").splitlines()]  # fmt: skip
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        for line in said:
            if not line.startswith("error: "):
                self.note(line)
        wrong = [printable(each, MESSAGE_MAX) for each in self._wrong]
        if errors or wrong or code:
            # Where the sender fails, the receiver only sees that the end is missing.
            found = [*wrong, *errors] if is_sent else [*errors, *wrong]
            text = (found or [f"the member's end failed with exit code {code}"])[0]
            raise fail(Code.REFUSED, f"nothing was copied: {text}")


def _is_whole(file: IO[bytes], ended: Future[int]) -> bool:
    """Say whether the other end had no error, after all that it sends has been taken."""
    while file.read(CHUNK_BYTES):
        pass
    return ended.result() == 0


def _drop(_data: bytes) -> None:
    pass


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
