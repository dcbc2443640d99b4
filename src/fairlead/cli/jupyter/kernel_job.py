"""A kernel that runs as a job: its submission, the way to its ports, and what is asked of it.

The way runs in a thread with a loop of its own, so that what Jupyter does meanwhile delays no
message, and ends with the job. It looks at the kernel through one `exec` that reports each second,
and is made again when it is lost; that report is also how the job knows that a Jupyter is there.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError, NotFound
from fairlead.cli.commands.submit import flag_values, job_flags, submit_request
from fairlead.cli.connection.common import Common, common, kept_api, now
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.change_verbs import CANCEL
from fairlead.cli.job_request.jobspec import Program, Script
from fairlead.cli.job_request.request import parse_request
from fairlead.cli.records.follow import state_line
from fairlead.cli.records.members import MemberReference, running_members
from fairlead.cli.records.watching import Gone, attempt_end, job_changes
from fairlead.cli.sessions.foreground import require_one_program
from fairlead.cli.sessions.forwarding import Forward, Ports
from fairlead.cli.sessions.session import Streams, run_session
from fairlead.cli.views.jobs import ending, state_of
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.websocket import SocketServer
from fairlead.member import kernel_holder
from fairlead.runtime.kept.loglines import LineCutter

RETRY_SECONDS = 1.0
#: Between two looks at whether the attempt goes on.
LOOK_SECONDS = 2.0
Port = Annotated[int, Meta(ge=1, le=65_535)]
_DIRECTORY = 'cd "${TMPDIR:-/tmp}/.fairlead-kernel-$FAIRLEAD_JOB_UID" && [ -O . ]'
_REPORT = f"""{_DIRECTORY} || exit 1
cat {kernel_holder.CONNECTION}; echo
while :> {kernel_holder.ALIVE}; do cat {kernel_holder.STATE}; echo; sleep 1; done
"""
_ORDER = f"""{_DIRECTORY} || exit 1
umask 077
printf %s "$1" >.asked && mv .asked {kernel_holder.ORDER}
"""
_SIGNAL = 'kill -s "$1" -- "-$2"'


class KernelConnection(msgspec.Struct, frozen=True):
    """Where a kernel listens in its member, and the key of its messages."""

    shell_port: Port
    iopub_port: Port
    stdin_port: Port
    control_port: Port
    hb_port: Port
    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class KernelState(msgspec.Struct, frozen=True):
    """What a holder says: which run of the kernel, its process, and its exit code once it ended."""

    run: int
    pid: Annotated[int, Meta(ge=2)]
    code: int | None = None


@click.command("kernel")
@job_flags
@common(output=False)
def _flags(common_: Common, **options: Any) -> tuple[Common, dict[str, Any]]:
    return common_, options


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """What is run, and for how long without any Jupyter."""

    flags: tuple[str, ...]
    command: tuple[str, ...]
    lost_seconds: float


class KernelJob:
    """A job whose program is a kernel. `note` tells why it waits, and what goes wrong."""

    def __init__(self, program: KernelProgram, note: Callable[[str], None]) -> None:
        self._program = program
        self._note = note
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun: Future[KernelConnection] = Future()
        self._common: Common | None = None
        self._job: Job | None = None
        self._pod: Pod | None = None
        self._credential: Callable[[], Any] = _not_yet
        self._credential_lock = threading.Lock()
        self._there: KernelConnection | None = None
        self._is_there = asyncio.Event()
        self.state: KernelState | None = None
        self.has_ended = False

    @property
    def name(self) -> str:
        """The job's name; "" before it is submitted."""
        return "" if self._job is None else self._job.metadata.name

    def start(self) -> Future[KernelConnection]:
        """Submit it, and begin to lead to it; the result comes once the kernel runs. Its ports are
        those of this machine.
        """
        self._thread = threading.Thread(target=self._work, name="fairlead-kernel", daemon=True)
        self._thread.start()
        return self._begun

    def order(self, text: str) -> Future[int]:
        """Write what the holder does once the kernel has ended."""
        return self._run(("sh", "-c", _ORDER, "fairlead-kernel", text))

    def send_signal(self, name: str) -> Future[int]:
        """Send a signal, such as INT, to the kernel's processes."""
        pid = 0 if self.state is None else self.state.pid
        return self._run(("sh", "-c", _SIGNAL, "fairlead-kernel", name, str(pid)))

    def cancel(self) -> None:
        """Cancel the job; what is over already stays."""
        if self._common is not None and self._job is not None:
            with suppress(NotFound):
                namespace, name = self._job.metadata.key
                self._common.connect().patch(JOBS, name, CANCEL.patch, namespace=namespace)

    def _work(self) -> None:
        try:
            self._submit()
            asyncio.run(self._lead())
        except (ApiError, CliError, Gone, click.ClickException) as error:
            if not self._begun.done():
                self._begun.set_exception(RuntimeError(str(error)))
            self._note(str(error))
        finally:
            self._loop, self.has_ended = None, True

    def _submit(self) -> None:
        """Submit the job and wait until it runs."""
        common_, options = _flags.main(["-q", *self._program.flags], standalone_mode=False)
        request, problems = parse_request(flag_values(options), os.environ, now=now())
        if problems:
            raise CliError(problems)
        require_one_program(request, "a kernel")
        text = Path(str(kernel_holder.__file__)).read_text()
        words = (str(self._program.lost_seconds), *self._program.command)
        api, job = submit_request(common_, request, Program(words, Script("kernel.py", text)))
        self._common, self._job, self._credential = common_, job, kept_api(common_)
        said = ""
        key = job.metadata.key
        for job in job_changes(api, key):
            if (line := state_line(job)) not in ("", said):
                self._note(f"{self.name} {line}")
                said = line
            if job.is_finished:
                raise fail(Code.NOT_STARTED, f"{self.name} {state_of(job)}: {ending(job)}",
                           help=(f"fairlead logs {self.name}",))  # fmt: skip
            if job.status.members.running:
                break
        self._job = job
        _, pods = running_members(api, job.metadata.namespace, MemberReference(self.name, None))
        self._pod = pods[0]

    async def _server(self) -> SocketServer:
        def fresh() -> SocketServer:
            with self._credential_lock:
                api: Api = self._credential()
                return SocketServer(api.connection, api.token())

        return await asyncio.to_thread(fresh)

    async def _lead(self) -> None:
        """Lead to the kernel until its attempt has ended; one more has nothing of its memory."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._watch()), group.create_task(self._listen())]
            await asyncio.to_thread(self._until_ended)
            for task in beside:
                task.cancel()
        await asyncio.to_thread(self.cancel)
        if not self._begun.done():
            self._begun.set_exception(
                RuntimeError(
                    f"{self.name} ended before its kernel began: fairlead logs {self.name}"
                )
            )

    def _until_ended(self) -> None:
        assert self._common is not None, "it was submitted"
        assert self._job is not None, "it was submitted"
        with suppress(Gone):
            connect = kept_api(self._common)
            while attempt_end(connect, self._job) is None:
                time.sleep(LOOK_SECONDS)

    async def _watch(self) -> None:
        """Read the holder's report, through as many connections as that takes."""
        said = ""
        while True:
            try:
                await self._session(("sh", "-c", _REPORT), LineCutter(b""), self._hear)
                said = ""
            except (ApiError, CliError) as error:
                if str(error) != said:  # each second otherwise
                    said = str(error)
                    self._note(f"{self.name}: {said}")
            await asyncio.sleep(RETRY_SECONDS)

    def _hear(self, lines: bytes) -> None:
        for line in lines.splitlines():
            for kind in (KernelConnection, KernelState):
                with suppress(ValueError):
                    found = msgspec.json.decode(line, type=kind)
                    if isinstance(found, KernelState):
                        self.state = found
                    elif self._loop is not None:
                        self._there = found
                        self._is_there.set()

    async def _listen(self) -> None:
        """Listen on a port of this machine for each of the kernel's, until cancelled."""
        await self._is_there.wait()
        assert self._there is not None, "it was heard"
        local: dict[str, int] = {}
        async with AsyncExitStack() as stack:
            for name in kernel_holder.PORTS:
                serve = partial(self._serve, getattr(self._there, name))
                listener = await asyncio.start_server(serve, "127.0.0.1", 0)
                await stack.enter_async_context(listener)
                local[name] = listener.sockets[0].getsockname()[1]
            self._begun.set_result(msgspec.structs.replace(self._there, **local))
            await asyncio.Event().wait()

    # Jupyter connects again at once, so what fails is said by the report alone.
    async def _serve(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert self._pod is not None, "it was submitted"
        try:
            forward = Forward(await self._server(), self._pod, Ports(0, port), _drop)
            await forward.serve(reader, writer)
        except (ApiError, CliError):
            writer.close()

    def _run(self, command: tuple[str, ...]) -> Future[int]:
        loop = self._loop
        if loop is None:
            ended: Future[int] = Future()
            ended.set_exception(RuntimeError("the kernel's job has ended"))
            return ended
        return asyncio.run_coroutine_threadsafe(self._session(command), loop)

    async def _session(
        self, command: tuple[str, ...], cutter: LineCutter | None = None,
        hear: Callable[[bytes], object] = len,
    ) -> int:  # fmt: skip
        """Run a command beside the kernel; ApiError, CliError."""
        assert self._pod is not None, "it was submitted"
        streams = Streams(
            stdin=False, tty=False, error=len,
            out=len if cutter is None else lambda data: hear(cutter.feed(data)),
        )  # fmt: skip
        return await run_session(await self._server(), self._pod, command, streams)


def _not_yet() -> Any:
    raise AssertionError("it is submitted first")


def _drop(_text: str) -> None:
    pass
