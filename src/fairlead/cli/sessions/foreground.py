"""A program beside one member in the foreground: with this process's streams, or its terminal.

A terminal is one that a holder in the member keeps, so that the program goes on without this
process, and can be joined again; where the image has no Python, the program ends with it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError, NotFound
from fairlead.cli.connection.common import Common, now
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.program_output import ProgramOutput, write_as_is
from fairlead.input.errors import CliError, Code, Exit, fail

if TYPE_CHECKING:
    from fairlead.cli.job_request.request import JobRequest
    from fairlead.cli.sessions.held_terminal import SessionOutcome
    from fairlead.kube.websocket import SocketServer

#: Of the flag --idle.
IDLE_HELP = (
    "End the session, and the command, once nothing was typed or shown in a joined terminal for "
    "so long; 0s: never. [default: the setting sessions.idleSeconds, 4h]"
)
#: Of the flag --log.
LOG_HELP = "Keep what the terminal shows in the job's log, as text, for all who may read that log."
#: For `sh -c`: the shell that people expect, where there is one.
SHELL = "exec $(command -v bash || echo sh)"
#: The exit code of what ended with its container: 128 + SIGKILL.
WITH_CONTAINER = 137
NOT_HELD = "note: the session ends with this terminal: "
NO_PYTHON = "the image has no Python 3.8, which would keep it"


def require_one_program(request: JobRequest, what: str) -> None:
    """Refuse a job of several members, and one whose program does not run; CliError."""
    if request.members > 1:
        raise fail(Code.BAD_COMBINATION, f"{what} is for one member, --nodes 1",
                   help=("fairlead run -- COMMAND runs in all members, without a terminal",
                         "fairlead shell JOB/MEMBER opens a shell in each"))  # fmt: skip
    if request.simulate_seconds is not None:
        raise fail(Code.BAD_COMBINATION, f"{what} and --simulate do not go together",
                   help=("virtual nodes run no programs; leave one of them out",))  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class HeldEnd:
    """How this terminal's part in a session has ended: the exit code of the command, whether the
    program may go on, and whether the session went before it gave the code.
    """

    code: int
    goes_on: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class SessionRules:
    """How long a session stays where nothing is typed or shown (0: for ever), and whether the job's
    log has what it shows.
    """

    idle_seconds: float
    is_logged: bool = False


@dataclass(slots=True)
class HeldSession:
    """A terminal in a member of a job that is joined with this one."""

    common_: Common
    job: Job
    pod: Pod

    def open(self, command: tuple[str, ...], rules: SessionRules, called: str) -> HeldEnd:
        """Run a command on a terminal that stays, and join it. ApiError, CliError.

        `called` is what the command is called where sessions are shown.
        """
        from fairlead.cli.sessions.held_terminal import SessionEnding

        command = with_terminal(command)
        name = self.job.metadata.name
        self.common_.note(f"Ctrl-] d leaves it running; fairlead attach {name} goes on with it")
        log = "log" if rules.is_logged else ""
        outcome = self._join(("open", str(rules.idle_seconds), log, called, *command))
        if outcome.ending is SessionEnding.NOT_HELD:
            if rules.is_logged:
                raise fail(Code.NOT_STARTED, f"--log: {outcome.why or NO_PYTHON}",
                           help=("without --log the session ends with this terminal",))  # fmt: skip
            self.common_.note(f"{NOT_HELD}{outcome.why or NO_PYTHON}")
            return HeldEnd(run_one(self.common_.connect(), self.pod, command, tty=True))
        return self._ended(outcome)

    def join(self, name: str) -> HeldEnd:
        """Join a session that is there. ApiError, CliError."""
        return self._ended(self._join(("join", name)))

    def _join(self, way: tuple[str, ...]) -> SessionOutcome:
        from fairlead.cli.sessions.held_terminal import Member, join_session

        member = Member(self.pod, self._server, self._is_there, self._seconds_left)
        return join_session(member, way)

    def _server(self) -> SocketServer:
        from fairlead.kube.websocket import SocketServer

        api = self.common_.connect()
        return SocketServer(api.connection, api.token())

    def _is_there(self) -> bool:
        """Say whether the member's attempt goes on, as far as that is known."""
        meta = self.job.metadata
        try:
            found = self.common_.connect().get(JOBS, meta.name, namespace=meta.namespace)
        except NotFound:
            return False
        except (ApiError, CliError):
            return True
        is_same = found.metadata.uid == meta.uid
        is_same &= found.status.attempt == self.job.status.attempt
        self.job = found if is_same else self.job
        return bool(is_same and not found.is_finished)

    def _seconds_left(self) -> float | None:
        from fairlead.cli.views.jobs import run_seconds  # what submit does not load

        limit = self.job.spec.time_limit_seconds
        return None if limit is None else max(1.0, limit - run_seconds(self.job, now()))

    def _ended(self, outcome: SessionOutcome) -> HeldEnd:
        """Say how it has ended, where the terminal does not show that."""
        from fairlead.cli.records.members import task_of
        from fairlead.cli.sessions.held_terminal import SessionEnding

        place = f"{self.job.metadata.name}/{task_of(self.pod)}"
        place += f":{outcome.name}" if outcome.name else ""
        again = f"fairlead attach{self.common_.where()} {place}"
        note = self.common_.note
        match outcome.ending:
            case SessionEnding.LEFT:
                note(f"left; it goes on: {again}")
                return HeldEnd(Exit.OK, goes_on=True)
            case SessionEnding.INTERRUPTED:
                with suppress(OSError):  # there may be no terminal any more
                    note(f"it goes on: {again}")
                return HeldEnd(Exit.INTERRUPTED, goes_on=True)
            case SessionEnding.TAKEN_OVER:
                note(f"another terminal has joined the session; to have it here: {again}")
                return HeldEnd(Exit.INTERRUPTED, goes_on=True)
            case SessionEnding.LOST:
                note(f"{outcome.why}; it may go on: {again}")
                return HeldEnd(Exit.UNREACHABLE, goes_on=True)
            case SessionEnding.ENDED:
                if outcome.why:
                    note(f"the session was ended: {outcome.why}")
                return HeldEnd(outcome.code)
            case SessionEnding.GONE | SessionEnding.NOT_HELD:
                note(f"the session {place} has ended")
                return HeldEnd(WITH_CONTAINER, is_gone=True)
            case _:
                assert_never(outcome.ending)


def idle_limit(common_: Common, api: Api, given: float | None = None) -> float:
    """Return the idle limit of a session in seconds: the one that is given, else the settings'."""
    if given is not None:
        return given
    from fairlead.cli.cluster.cluster_settings import sessions_settings

    return sessions_settings(common_, api).idle_seconds


def with_terminal(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that finds in its variables what this terminal can show."""
    return ("env", f"TERM={os.environ.get('TERM') or 'xterm'}", *command)
