"""A job whose program has the terminal of its submitter: `run --pty`, and `salloc`.

The job's own command only holds what was asked for. The program runs beside it, on a terminal that
stays in the member (`held_terminal.py`), behind a pipe that the job's command reads: the program's
exit code comes through it and becomes the job's. A pipe that closes without one means that the
session has ended before, by its idle limit or with its holder, and ends the job with LOST; so does
a job that no session joins within JOIN_SECONDS. No side needs the other to clean up, so a client
that is killed before the program runs leaves no job that runs, and later one that can be joined.

An allocation of salloc is such a job as well: its holder is a batch script in the first member, and
leaves the name of the directory of steps (`member/steps.py`) beside the pipe, so that the program
beside it has srun. The pipe is the holder's own, made after that file, which none but the holder
can have made then.

The image needs a shell, mkfifo and sleep.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable
from contextlib import suppress

from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError, NotFound
from fairlead.cli.connection.common import Common, seconds_of
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.change_verbs import CANCEL
from fairlead.cli.job_request.jobspec import Program, Script
from fairlead.cli.records.follow import until_started
from fairlead.cli.records.members import MemberReference, running_members
from fairlead.cli.records.watching import Gone, job_changes
from fairlead.cli.sessions.foreground import (
    HeldEnd,
    HeldSession,
    SessionRules,
    idle_limit,
    run_one,
    with_terminal,
)
from fairlead.cli.sessions.session import ended_by_signals
from fairlead.cli.views.jobs import ending, exit_code, state_of
from fairlead.input.errors import CliError, Exit

JOIN_SECONDS = 60
#: So long a job may take to end after its program, before it is cancelled.
END_SECONDS_MAX = 30.0
#: Between the end of the program and that of the job, for output that is still on its way.
LINGER_SECONDS = 1
#: The exit code of a job whose session was lost: 128 + SIGHUP.
LOST = 129
#: What the holder and the program are called among the processes.
_NAME = "fairlead-run"
_PATH = "path=${TMPDIR:-/tmp}/.fairlead-run-$1"
_STEPS = """# what runs beside this finds srun by it
(set -C; echo "$FAIRLEAD_STEPS" >"$path.steps") || exit 1
"""
_HAS_STEPS = """read -r FAIRLEAD_STEPS <"$path.steps"
export FAIRLEAD_STEPS PATH="$FAIRLEAD_STEPS/bin:$PATH"
"""


def _holder(of_steps: str) -> str:
    """Return what the job runs."""
    return f"""{_PATH}
umask 077
trap 'rm -f "$path" "$path.steps"' EXIT
trap 'exit 143' TERM
{of_steps}mkfifo "$path" || exit 1
(sleep {JOIN_SECONDS}; : >"$path") &
exec 3<"$path"
code=
read -r code <&3
sleep {LINGER_SECONDS}
[ -n "$code" ] || echo "no exit code: the session was idle for too long, was lost, or never came"
exit "${{code:-{LOST}}}"
"""


def _program(of_steps: str) -> str:
    """Return what runs the program beside it."""
    return f"""{_PATH}
shift
until [ -p "$path" ] && [ -O "$path" ]; do sleep 0.1; done
exec 9>"$path"
{of_steps}trap : INT QUIT
"$@" 9>&-
code=$?
echo "$code" >&9
exit "$code"
"""


def _nothing() -> None:
    pass


class TerminalJob:
    """One command that is to have this terminal."""

    def __init__(
        self, command: tuple[str, ...], idle: str = "", *, is_logged: bool = False
    ) -> None:
        """`idle` and `is_logged` are the flags --idle and --log; CliError."""
        self._command, self._is_logged = command, is_logged
        self._idle_seconds = seconds_of(idle, "--idle") if idle else None
        self._token = secrets.token_hex(8)

    @property
    def program(self) -> Program:
        """What the job itself runs."""
        holder = ("sh", "-c", _holder(""), _NAME, self._token)
        return Program(holder, called=self._command[0])

    @property
    def beside(self) -> tuple[str, ...]:
        """What runs the command beside the holder."""
        return ("sh", "-c", _program(""), _NAME, self._token, *self._command)

    def run(
        self, common_: Common, api: Api, key: tuple[str, str], begun: Callable[[], None] = _nothing,
        *, tty: bool = True,
    ) -> int:  # fmt: skip
        """Wait until the job runs, run the command in it and see the job end; return the command's
        exit code. What ends this before the command runs cancels the job, and without a terminal
        also what ends it later; a terminal can be joined again. `begun` is called once the job
        runs.
        """
        try:
            with ended_by_signals():
                job = until_started(common_, api, key)
            if job.is_finished:
                common_.note(f"{key[1]} {state_of(job)}: {ending(job)}")
                return exit_code(job) or Exit.FAILED
            _, pods = running_members(api, key[0], MemberReference(key[1], None))
            begun()
            if tty:
                limit = idle_limit(common_, api, self._idle_seconds)
                end = HeldSession(common_, job, pods[0]).open(
                    self.beside, SessionRules(limit, self._is_logged), shlex.join(self._command)
                )
                if end.goes_on:
                    return end.code
                code, api = end.code, common_.connect()  # it may have moved meanwhile
            else:
                code = run_one(api, pods[0], with_terminal(self.beside), tty=False)
        except KeyboardInterrupt:
            _cancel(common_, api, key)
            return Exit.INTERRUPTED
        except (ApiError, CliError):
            with suppress(ApiError, CliError):  # the first failure is the one to show
                _cancel(common_, api, key)
            raise
        ended = _ended(api, key, job.status.attempt)
        if ended is None:
            _cancel(common_, api, key)
            return code
        return exit_code(ended)  # a session may end with its container, before it has the code


class Allocation(TerminalJob):
    """One command, in the first member of a job of several, that has srun for all of them."""

    def __init__(self, command: tuple[str, ...], name: str) -> None:
        super().__init__(command)
        self._name = name

    @property
    def program(self) -> Program:
        """A batch script in the first member; its last word says what the job is (`code_of`)."""
        holder = Script(self._name, f"#!/bin/sh\n{_holder(_STEPS)}")
        return Program((self._token, _NAME), holder)

    @property
    def beside(self) -> tuple[str, ...]:
        """What runs the command beside the holder, with srun in its PATH."""
        return ("sh", "-c", _program(_HAS_STEPS), _NAME, self._token, *self._command)


def code_of(api: Api, job: Job, end: HeldEnd) -> int:
    """Return the exit code of a session of a job. One that went with its container before it gave
    the code has that of the job, where the job was there for the session.
    """
    containers = [each for role in job.spec.roles for each in role.template.spec.containers]
    if not end.is_gone or not any(_NAME in each.command for each in containers):
        return end.code
    ended = _ended(api, job.metadata.key, job.status.attempt)
    return end.code if ended is None else exit_code(ended)


def _ended(api: Api, key: tuple[str, str], attempt: int) -> Job | None:
    """Return the job once it has ended; None where it begins again, is gone, or takes too long."""
    try:
        for job in job_changes(api, key, deadline=time.monotonic() + END_SECONDS_MAX):
            if job.is_finished:
                return job
            if job.status.attempt != attempt:
                return None
    except (Gone, NotFound, TimeoutError):
        return None
    raise AssertionError("a job's changes never end")


def _cancel(common_: Common, api: Api, key: tuple[str, str]) -> None:
    with suppress(NotFound):
        api.patch(JOBS, key[1], CANCEL.patch, namespace=key[0])
        common_.note(f"\n{key[1]} is cancelled")
