"""`sessions` and `attach`: terminals that stay in members when their viewer goes."""

from __future__ import annotations

import asyncio
import json

import click
import msgspec

from fairlead.api.jobs.job import Job, JobState
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError
from fairlead.cli.commands.interactive import AT_ONCE_MAX, require_terminal
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.table import Column
from fairlead.cli.records.members import MemberReference, parse_reference, running_members, task_of
from fairlead.cli.sessions.foreground import HeldSession
from fairlead.cli.sessions.terminal_job import code_of
from fairlead.cli.views.jobs import state_of
from fairlead.decide.words import duration
from fairlead.input.errors import CliError, Code, fail
from fairlead.terminal import printable

#: Members that are asked at most.
MEMBERS_MAX = 512
_ANSWER_BYTES_MAX = 256 << 10
_COMMAND_MAX = 200
_COLUMNS = (Column("SESSION"), Column("COMMAND", may_cut=True), Column("AGE"), Column("IDLE"),
            Column("ENDS"), Column("JOINED"))  # fmt: skip


class Session(msgspec.Struct, frozen=True):
    """What a holder says of its session."""

    name: int
    command: str
    began: float
    #: For how long nothing was typed or shown in a joined terminal, and for how long that may be.
    idle: float
    idle_limit: float
    is_joined: bool
    #: What it shows is kept in the job's log.
    is_logged: bool


class FoundSession(msgspec.Struct, frozen=True):
    """A session, and where it is."""

    job: Job
    pod: Pod
    session: Session

    @property
    def place(self) -> str:
        """What `attach` calls it."""
        return f"{self.job.metadata.name}/{task_of(self.pod)}:{self.session.name}"


@click.command(
    epilog="""Examples:

    \b
      fairlead sessions               of your namespace's running jobs
      fairlead sessions train-1
      fairlead sessions -o json
    """
)
@click.argument("job", metavar="[JOB[/MEMBER]]", default="", shell_complete=complete_jobs)
@common()
def sessions(common_: Common, *, job: str) -> None:
    """Show terminals that can be joined: those of run --pty, shell and salloc.

    IDLE is for how long nothing was typed or shown in a joined terminal, ENDS when the session ends
    if that stays so. Members are asked themselves, which needs the right to run commands there.
    """
    api: Api = common_.connect()
    found = _sessions(common_, api, _asked(common_, api, job))
    if common_.is_structured:
        common_.data([{"session": each.place, **msgspec.to_builtins(each.session)}
                      for each in found])  # fmt: skip
        return
    rows = [_row(each) for each in found]
    common_.table(_COLUMNS, rows, empty="no sessions")


@click.command(
    epilog="""Examples:

    \b
      fairlead attach train-1                  its only session
      fairlead attach train-1/worker-3:217     one of several, as fairlead sessions calls it
    """
)
@click.argument("session", metavar="JOB[/MEMBER][:SESSION]", shell_complete=complete_jobs)
@common(output=False)
def attach(common_: Common, *, session: str) -> int:
    """Go on with a terminal of a job that was left or lost.

    The program, its latest output and its modes are as they were; it takes this terminal's size.

    Another terminal that is joined with it is detached. Ctrl-] d leaves it again. The exit code is
    the program's where that ends meanwhile.
    """
    require_terminal("a session")
    api: Api = common_.connect()
    where, _, name = session.partition(":")
    job, pods = _asked(common_, api, where)[0]
    found = _sessions(common_, api, [(job, pods)])
    chosen = [each for each in found if name in ("", str(each.session.name))]
    if len(chosen) != 1:
        here = f"job {job.metadata.name}" if "/" not in where else where
        what = f"has no session {name}" if name else f"has {len(found) or 'no'} sessions"
        places = tuple(f"fairlead attach {each.place}" for each in found)
        raise fail(
            Code.NOT_STARTED if not chosen else Code.BAD_VALUE, f"{here} {what}",
            help=places or (f"fairlead shell {where} opens one",),
        )  # fmt: skip
    end = HeldSession(common_, job, chosen[0].pod).join(str(chosen[0].session.name))
    return code_of(common_.connect(), job, end)  # it may have moved meanwhile


def _asked(common_: Common, api: Api, text: str) -> list[tuple[Job, list[Pod]]]:
    """Return the job that is named with its running members, or all jobs that run; CliError."""
    space = common_.space(api.connection.namespace)
    if text:
        return [running_members(api, space, parse_reference(text))]
    asked: list[tuple[Job, list[Pod]]] = []
    count = 0
    for job in api.list(JOBS, namespace="" if common_.all_namespaces else space):
        if state_of(job) != JobState.RUNNING.value:
            continue
        namespace, name = job.metadata.key
        try:
            _, pods = running_members(api, namespace, MemberReference(name, None))
        except CliError:
            continue  # it has just ended
        count += len(pods)
        if count > MEMBERS_MAX:
            common_.note(f"note: only the first {MEMBERS_MAX} members are asked; name a job")
            break
        asked.append((job, pods))
    return asked


def _sessions(common_: Common, api: Api, asked: list[tuple[Job, list[Pod]]]) -> list[FoundSession]:
    """Ask members for their sessions; what fails is noted, by member."""
    from fairlead.cli.sessions.held_terminal import WAY
    from fairlead.cli.sessions.session import Streams, run_session
    from fairlead.cli.sessions.shipped import NO_PYTHON
    from fairlead.kube.websocket import SocketServer

    server = SocketServer(api.connection, api.token())
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(job: Job, pod: Pod) -> list[FoundSession]:
        out, errors = bytearray(), bytearray()
        streams = Streams(
            stdin=WAY.text, tty=False,
            out=lambda data: out.extend(data[: _ANSWER_BYTES_MAX - len(out)]),
            error=lambda data: errors.extend(data[: _COMMAND_MAX - len(errors)]),
        )  # fmt: skip
        try:
            async with room:
                code = await run_session(server, pod, WAY.command(("list",)), streams)
            if code == NO_PYTHON:
                return []
            lines = out.decode(errors="replace").splitlines()
            return [
                FoundSession(job, pod, msgspec.convert(json.loads(line), Session)) for line in lines
            ]
        except (ApiError, CliError, ValueError) as error:
            why = printable(errors.decode(errors="replace"), _COMMAND_MAX) or str(error)
            common_.note(f"[{job.metadata.name}/{task_of(pod)}] {why}")
            return []

    async def work() -> list[FoundSession]:
        answers = await asyncio.gather(*(one(job, pod) for job, pods in asked for pod in pods))
        return [found for answer in answers for found in answer]

    return asyncio.run(work())


def _row(found: FoundSession) -> tuple[str, ...]:
    session = found.session
    left = session.idle_limit - session.idle
    return (
        found.place, printable(session.command, _COMMAND_MAX), duration(now() - session.began),
        duration(session.idle), f"in {duration(left)}" if session.idle_limit else "never",
        "yes" if session.is_joined else "no",
    )  # fmt: skip
