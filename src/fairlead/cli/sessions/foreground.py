"""A program beside one member in the foreground: with this process's streams, or its terminal."""

from __future__ import annotations

import sys

from fairlead.api.kubernetes.core import Pod
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.program_output import ProgramOutput, write_as_is
from fairlead.input.errors import Exit


def run_one(api: Api, pod: Pod, command: tuple[str, ...], *, tty: bool) -> int:
    """Run a command beside a member with this process's streams, and return its exit code."""
    import asyncio

    from fairlead.cli.sessions.session import Streams, raw_terminal, run_session
    from fairlead.kube.websocket import SocketServer

    server = SocketServer(api.connection, api.token())
    if tty:
        streams = Streams(stdin=True, tty=True, out=write_as_is, error=write_as_is)
        with raw_terminal():
            return asyncio.run(run_session(server, pod, command, streams))
    with ProgramOutput() as output, ProgramOutput(to_stderr=True) as errors:
        is_given = not sys.stdin.isatty()
        streams = Streams(stdin=is_given, tty=False, out=output.write, error=errors.write)
        try:
            return asyncio.run(run_session(server, pod, command, streams))
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
