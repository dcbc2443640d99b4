"""`exec`, `shell` and `forward`: into the members of a job that run."""

from __future__ import annotations

import re
import sys

import click

from fairlead import terminal
from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import ApiError
from fairlead.cli.connection.common import Common, common, seconds_of
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.program_output import ProgramOutput
from fairlead.cli.records.members import parse_reference, running_members, task_of
from fairlead.cli.sessions.foreground import (
    IDLE_HELP,
    LOG_HELP,
    SHELL,
    HeldSession,
    SessionRules,
    idle_limit,
    run_one,
)
from fairlead.input.errors import CliError, Code, Exit, fail
from fairlead.runtime.kept.loglines import LineCutter

#: Members that run a command of `exec --all` at the same time.
AT_ONCE_MAX = 64
_PORTS = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})", re.ASCII)


@click.command(
    "exec",
    epilog="""Examples:

    \b
      fairlead exec train-1 -- nvidia-smi
      fairlead exec train-1/3 -- cat /proc/1/status
      fairlead exec train-1 --all -- hostname
      tar c data | fairlead exec train-1 -- tar x
    """,
)
@click.argument("job", metavar="JOB[/MEMBER]", shell_complete=complete_jobs)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True,
                type=click.UNPROCESSED)  # fmt: skip
@click.option("-a", "--all", "everywhere", is_flag=True,
              help="In every member; lines begin with its role and index.")  # fmt: skip
@click.option("-t", "--tty", is_flag=True, help="Give the command this terminal.")
@common(output=False)
def exec_(
    common_: Common, *, job: str, command: tuple[str, ...], everywhere: bool, tty: bool
) -> int:
    """Run a command beside a member of a job: the first one, unless another is named.

    It has the member's environment and directory, and ends with it, or when this command does. A
    pipe or a file on stdin goes to the command. The exit code is the command's; with --all the
    highest of all members'.
    """
    if everywhere and tty:
        raise fail(Code.BAD_COMBINATION, "--all and --tty do not go together",
                   help=("leave one of them out",))  # fmt: skip
    api, pods = _members(common_, job)
    if everywhere:
        return _run_all(common_, api, pods, command)
    if tty:
        require_terminal("--tty")
    return run_one(api, pods[0], command, tty=tty)


@click.command(
    epilog="""Examples:

    \b
      fairlead shell train-1
      fairlead shell train-1/worker-3
      fairlead shell train-1 --idle 12h
      fairlead shell train-1 --log        and read it later: fairlead logs train-1
    """
)
@click.argument("job", metavar="JOB[/MEMBER]", shell_complete=complete_jobs)
@click.option("--idle", metavar="DURATION", default="", help=IDLE_HELP)
@click.option("--log", "is_logged", is_flag=True, help=LOG_HELP)
@common(output=False)
def shell(common_: Common, *, job: str, idle: str, is_logged: bool) -> int:
    """Open a shell beside a member of a job: bash, or sh where there is none.

    It ends with the member. Ctrl-] d, or the loss of this terminal, leaves it running there, for
    fairlead attach to go on with.
    """
    require_terminal("a shell")
    api: Api = common_.connect()
    space = common_.space(api.connection.namespace)
    found, pods = running_members(api, space, parse_reference(job))
    limit = idle_limit(common_, api, seconds_of(idle, "--idle") if idle else None)
    common_.note(f"shell in {task_of(pods[0])} ({pods[0].metadata.name})")
    rules = SessionRules(limit, is_logged)
    return HeldSession(common_, found, pods[0]).open(("sh", "-c", SHELL), rules, "shell").code


@click.command(
    epilog="""Examples:

    \b
      fairlead forward train-1 6006            http://127.0.0.1:6006
      fairlead forward train-1/3 8000:80       this machine's port 8000
      fairlead forward train-1 0:8888          a free port
    """
)
@click.argument("job", metavar="JOB[/MEMBER]", shell_complete=complete_jobs)
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True)
@common(output=False)
def forward(common_: Common, *, job: str, ports: tuple[str, ...]) -> int:
    """Forward ports of this machine to a member of a job, until Ctrl-C."""
    import asyncio

    from fairlead.cli.sessions.forwarding import Forward, Ports
    from fairlead.kube.websocket import SocketServer

    pairs = [Ports(*_port_pair(text)) for text in ports]
    api, pods = _members(common_, job)
    server = SocketServer(api.connection, api.token())

    async def work() -> None:
        made: list[asyncio.Server] = []
        for pair in pairs:
            try:
                listener = await Forward(server, pods[0], pair, terminal.tell).listen()
            except OSError as error:
                raise fail(
                    Code.PORT_IN_USE, f"cannot listen on 127.0.0.1:{pair.local}: {error.strerror}",
                    help=(f"0:{pair.remote} takes a free port",),
                ) from error  # fmt: skip
            made.append(listener)
            port = listener.sockets[0].getsockname()[1]
            common_.lines([f"127.0.0.1:{port} -> {pods[0].metadata.name}:{pair.remote}"])
        await asyncio.gather(*(listener.serve_forever() for listener in made))

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        common_.note("\nstopped")
    return Exit.OK


def _port_pair(text: str) -> tuple[int, int]:
    match = _PORTS.fullmatch(text)
    local, remote = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
    if not (0 < remote < 1 << 16 and local < 1 << 16):
        raise fail(Code.BAD_VALUE, f"'{text}' must be PORT or LOCAL:PORT, each from 1 to 65535",
                   help=("8888, or 9000:8888, or 0:8888 for a free port",))  # fmt: skip
    return local, remote


def _members(common_: Common, job: str) -> tuple[Api, list[Pod]]:
    """Return a connection and the running members that are meant; CliError."""
    api: Api = common_.connect()
    space = common_.space(api.connection.namespace)
    _, pods = running_members(api, space, parse_reference(job))
    return api, pods


def require_terminal(what: str) -> None:
    """Refuse where stdin or stdout is no terminal; CliError."""
    if not (sys.stdin.isatty() and terminal.is_terminal()):
        raise fail(Code.BAD_COMBINATION, f"{what} needs a terminal on stdin and stdout",
                   help=("fairlead exec JOB -- COMMAND works with pipes",))  # fmt: skip


def _run_all(common_: Common, api: Api, pods: list[Pod], command: tuple[str, ...]) -> int:
    """Run a command in all members, some at a time; what fails is noted, by member."""
    import asyncio

    from fairlead.cli.sessions.session import Streams, run_session
    from fairlead.kube.websocket import SocketServer

    server = SocketServer(api.connection, api.token())
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def work(output: ProgramOutput) -> list[int]:
        async def one(pod: Pod) -> int:
            cutter = LineCutter(f"[{task_of(pod)}] ".encode())
            streams = Streams(
                stdin=False, tty=False,
                out=lambda data: output.write(cutter.feed(data)),
                error=lambda data: output.write(cutter.feed(data)),
            )  # fmt: skip
            try:
                async with room:
                    code = await run_session(server, pod, command, streams)
            except (ApiError, CliError) as error:
                code = Exit.FAILED
                common_.note(f"[{task_of(pod)}] {error}")
            output.write(cutter.end())
            if code:
                common_.note(f"[{task_of(pod)}] exit code {code}")
            return code

        return await asyncio.gather(*map(one, pods))

    try:
        with ProgramOutput() as output:
            return max(asyncio.run(work(output)))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
