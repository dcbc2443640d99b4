"""Where programs beside a container, and connections to it, come from: the protocol between the
API server and the nodes.

`kubectl exec`, `attach` and `port-forward` reach the API server, which asks the node of the pod
through a `StreamSource`, as it asks a `LogSource` for logs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from fairlead.api.kubernetes.core import Pod


class Channel(IntEnum):
    """The streams of a session (kubernetes `pkg/util/remotecommand`), by their numbers."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4


#: In v5: the message that ends a channel, whose number follows.
CLOSE = 255


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """What to start, and which of its streams are wanted; of a terminal, stderr is stdout."""

    command: tuple[str, ...]
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @property
    def outputs(self) -> tuple[Channel, ...]:
        """Return the channels to read."""
        wanted = ((Channel.STDOUT, self.stdout), (Channel.STDERR, self.stderr and not self.tty))
        return tuple(channel for channel, is_wanted in wanted if is_wanted)


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """How a program ended; `error` is not empty when it could not be executed."""

    exit_code: int
    error: str = ""


class Execution(Protocol):
    """A program that was started beside a container, with its streams. Call `close` at the end."""

    async def read(self, channel: Channel) -> bytes:
        """Return what the program wrote next; b"" at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Give the program input, as fast as it takes it; dropped when it takes no more."""
        ...

    def close_input(self) -> None:
        """Let the program read the end of its input."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal; without one, do nothing."""
        ...

    async def wait(self) -> ExecEnd:
        """Return once the program has ended."""
        ...

    def close(self) -> None:
        """Give up the streams; a program that runs still is ended."""
        ...


class StreamSource(Protocol):
    """Starts programs beside containers, and connects to what they listen on."""

    async def execute(self, pod: Pod, container: str, options: ExecOptions) -> Execution:
        """Start a program; BadRequest when the container does not run, or is simulated."""
        ...

    async def connect(
        self, pod: Pod, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port that the pod listens on; OSError, BadRequest."""
        ...
