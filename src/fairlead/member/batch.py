"""Run a batch script of Slurm: `batch [OPTIONS] -- COMMAND` in every member of a job.

The first member runs the command, once all members are there; the others wait for the tasks that
`srun` starts (`steps`), and end with it: well if it ended well, else with EXIT_STOPPED, so that the
failure is the script's. The script finds srun in its PATH. Members find and prove each other as for
mpirun (`gang_link`, docs/design/mpi.md).

    --signal [B:]SIG@SECONDS   before the end, to all tasks or, with B, to the script alone
    --time SECONDS             the time limit, where there is one
    --output FILE              a copy of what the script writes, by Slurm's patterns
    --error FILE               the same of its standard error alone
    --open-mode MODE           append or truncate
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from fairlead.member.attempt_lock import EXIT_STOPPED, AttemptLock
from fairlead.member.end_signal import KILL_SECONDS, EndSignal, end_signal
from fairlead.member.gang_link import (
    Gang,
    Link,
    LinkLost,
    Reception,
    Spawn,
    spawning,
)
from fairlead.member.gang_peers import MpiError, all_here, any_of, link_to_first
from fairlead.member.het_groups import cpus_of_nodes
from fairlead.member.mpirun import (
    NotInstalledError,
    end_of,
    exit_code_of,
    kill_descendants,
    run_locked,
)
from fairlead.member.srun_options import pattern_path
from fairlead.member.step_layout import StepError
from fairlead.member.steps import ENV_STEPS, Steps, directory_prefix
from fairlead.member.task_process import READ_BYTES_MAX
from fairlead.member.tasks import Tasks

#: How long members may take to notice the end of the script.
END_SECONDS_MAX = 5.0
#: Signals that are passed on to the script and to all tasks.
PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: What srun sets for a task, under the names of other launchers: the script itself is none.
OF_LAUNCHERS = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
)
#: A socket's path has at most 107 bytes.
_PATH_BYTES_MAX = 70
#: Programs of the script's PATH, and their modules.
_PROGRAMS = {
    "srun": "fairlead.member.srun",
    "sbcast": "fairlead.member.sbcast",
    "scontrol": "fairlead.member.scontrol",
}


class Others:
    """The other members, as the first one sees them."""

    def __init__(self, size: int, steps: Steps) -> None:
        loop = asyncio.get_running_loop()
        #: Done once one of them is lost.
        self.lost: asyncio.Future[None] = loop.create_future()
        self._size = size
        self._steps = steps
        self._links: dict[int, Link] = {}
        self._has_all: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._is_over = False

    async def welcome(self, rank: int, link: Link) -> None:
        """Serve a member. One whose link breaks off before all are here makes another."""
        self._links[rank] = link
        self._steps.add_member(rank, link.send)
        if len(self._links) == self._size - 1 and not self._has_all.done():
            self._has_all.set_result(None)
        with suppress(LinkLost):
            while True:
                await self._steps.heard(await link.receive())
        if self._links.get(rank) is not link:
            return
        del self._links[rank]
        if self._has_all.done() and not self._is_over and not self.lost.done():
            self.lost.set_result(None)
        if not self._links and not self._gone.done():
            self._gone.set_result(None)

    async def gather(self, gang: Gang, spawn: Spawn) -> None:
        """Return once all members are here and ready; MpiError."""
        await all_here(Reception(gang, self.welcome, spawn), self._has_all, self._links)
        for link in tuple(self._links.values()):
            await link.send({"start": True})

    async def close(self, code: int) -> None:
        """Say how the script ended, and wait until all members have heard it."""
        self._is_over = True
        for link in tuple(self._links.values()):
            with suppress(LinkLost):
                await link.send({"close": code})
        if self._links:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS_MAX):
                    await self._gone


@dataclass(frozen=True, slots=True)
class Copies:
    """The files that have a copy of what the script writes, by stream; "" for none."""

    output: str = ""
    error: str = ""
    appends: bool = False

    def open(self) -> dict[int, BinaryIO]:
        """Open the files; both streams share one where no other is named. OSError."""
        mode = "ab" if self.appends else "wb"
        found: dict[int, BinaryIO] = {}
        for stream, pattern in ((1, self.output), (2, self.error or self.output)):
            if pattern == self.output and 1 in found:
                found[stream] = found[1]
            elif pattern:
                path = Path(pattern_path(pattern, os.environ, rank=0, step="batch"))
                path.parent.mkdir(parents=True, exist_ok=True)
                found[stream] = path.open(mode)
        return found


@dataclass(frozen=True, slots=True)
class AskedTasks:
    """What was asked for of a script beside its command."""

    warning: EndSignal | None = None
    #: The time limit in seconds.
    limit: int | None = None
    copies: Copies = Copies()  # frozen


async def _first(gang: Gang, command: list[str], asked: AskedTasks) -> int:
    """Run the script in the first member; return its exit code, or -N for signal N."""
    try:
        steps = Steps(cpus_of_nodes(os.environ, gang.size))
    except StepError as error:
        raise MpiError(str(error)) from None
    async with spawning() as spawn:
        steps.add_member(0, Tasks(steps.heard, spawn).hear)
        others = Others(gang.size, steps)
        if gang.size > 1:
            await others.gather(gang, spawn)
        with ExitStack() as stack:
            directory = _private_directory(stack)
            server = await steps.serve(directory, spawn)
            files = asked.copies.open()
            script = _start(command, directory, files)
            copying = [
                spawn(_copy(pipe, stream, files[stream]))
                for stream, pipe in ((1, script.stdout), (2, script.stderr))
                if pipe is not None
            ]
            signals = ScriptSignals(script, steps, asked)
            steps.add_script(signals.deliver)
            loop = asyncio.get_running_loop()
            for number in PASSED:
                loop.add_signal_handler(
                    number, lambda number=number: spawn(signals.pass_on(number)) and None
                )
            spawn(signals.warn_in_time())
            ended = end_of(script)
            await any_of(ended, others.lost)
            server.close()
            if not ended.done():
                sys.stderr.write("fairlead batch: a member of the job is lost\n")
                kill_descendants()
                return EXIT_STOPPED
            code = script.wait()
            await steps.signal_all(signal.SIGKILL)
            if copying:  # a process that the script left behind may hold the pipes
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_SECONDS_MAX):
                        await asyncio.gather(*copying)
            await others.close(code)
            return code


async def _copy(pipe: IO[bytes], stream: int, file: BinaryIO) -> None:
    """Write what comes through a pipe to this member's own stream and to a file."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while data := await reader.read(READ_BYTES_MAX):
            _write(stream, data)
            file.write(data)
            file.flush()
    finally:
        transport.close()


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]


def _private_directory(stack: ExitStack) -> Path:
    """Return a directory for the socket and for srun that no other user may enter."""
    root = tempfile.gettempdir()
    short = root if len(os.fsencode(root)) < _PATH_BYTES_MAX else "/tmp"  # noqa: S108
    made = tempfile.TemporaryDirectory(dir=short, prefix=directory_prefix(os.environ))
    directory = Path(stack.enter_context(made))
    (directory / "bin").mkdir()
    for name, module in _PROGRAMS.items():
        if name == "scontrol" and shutil.which(name) is not None:
            continue
        program = directory / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m {module} "$@"\n')
        program.chmod(stat.S_IRWXU)
    return directory


def _start(
    command: list[str], directory: Path, files: Mapping[int, BinaryIO]
) -> subprocess.Popen[bytes]:
    """Start the script in a group of its own: the signals of this member's group are passed on.

    Its streams are pipes where there is a copy of them.
    """
    pipes = dict.fromkeys(files, subprocess.PIPE)
    path = f"{directory / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    kept = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    variables = {**kept, "PATH": path, ENV_STEPS: str(directory)}
    try:
        return subprocess.Popen(
            command, env=variables, process_group=0, stdout=pipes.get(1), stderr=pipes.get(2)
        )
    except OSError as error:
        raise NotInstalledError(f"cannot start '{command[0]}': {error.strerror}") from None


class ScriptSignals:
    """The signals that reach the first member, as the script and the tasks have them."""

    def __init__(self, script: subprocess.Popen[bytes], steps: Steps, asked: AskedTasks) -> None:
        self._script = script
        self._steps = steps
        self._asked = asked
        self._is_warned = False

    async def pass_on(self, number: int) -> None:
        """Send a signal to the script and all tasks. One that ends them comes after that which was
        asked for before an end, and SIGKILL after it.
        """
        warning = self._asked.warning
        if number != signal.SIGTERM or warning is None:
            await self._send(number)
            return
        if not self._is_warned:
            await self._warn(warning)
            await asyncio.sleep(warning.lead_seconds)
        await self._send(number)
        await asyncio.sleep(KILL_SECONDS)
        await self._send(signal.SIGKILL)

    async def deliver(self, number: int, target: str) -> str:
        """Send a signal that scancel asks for: to the tasks of all `steps`, of the one of a number,
        to the script alone (`batch`), or to all of these (`full`). Return why not, "" if sent.
        """
        match target:
            case "batch":
                self._script.send_signal(number)
            case "full":
                await self._send(number)
            case "steps":
                await self._steps.signal_all(number)
            case _ if not await self._steps.signal_one(int(target), number):
                return "Job/step already completing or completed"
            case _:
                pass
        return ""

    async def warn_in_time(self) -> None:
        """Send what was asked for before the time limit, counted from now."""
        warning, limit = self._asked.warning, self._asked.limit
        if warning is None or limit is None:
            return
        await asyncio.sleep(max(0, limit - warning.before))
        if not self._is_warned:
            await self._warn(warning)

    async def _warn(self, warning: EndSignal) -> None:
        self._is_warned = True
        if not warning.is_to_script:
            await self._steps.signal_all(warning.number)
        elif self._script.poll() is None:
            self._script.send_signal(warning.number)

    async def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._script.pid, number)
        await self._steps.signal_all(number)


async def _other(gang: Gang, warning: EndSignal | None) -> int:
    """Run what the first member starts here; return this member's exit code.

    What was asked for before an end comes from the first member, in whose good time SIGTERM is
    passed on here.
    """
    link = await link_to_first(gang)
    async with spawning() as spawn:
        tasks, loop = Tasks(link.send, spawn), asyncio.get_running_loop()
        leads = {signal.SIGTERM: warning.lead_seconds if warning is not None else 0}
        for number in PASSED:
            lead = leads.get(number, 0)
            loop.add_signal_handler(number, loop.call_later, lead, tasks.signal, number)
        try:
            while True:
                match await link.receive():
                    case {"close": int(code)}:
                        return EXIT_STOPPED if code else 0
                    case message:
                        await tasks.hear(message)
        except LinkLost:
            return EXIT_STOPPED
        finally:
            link.close()


def run(command: list[str], asked: AskedTasks) -> int:
    """Run this member's part of the script; return the exit code."""

    async def part(gang: Gang) -> int:
        if gang.rank == 0:
            return await _first(gang, command, asked)
        return await _other(gang, asked.warning)

    return run_locked(AttemptLock.of_this_member(), part)


def main(argv: list[str]) -> int:
    """Entry of `python -m fairlead.member.batch [--signal S --time N] -- COMMAND`."""
    options, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    given = dict(zip(options[::2], options[1::2], strict=True))
    warning = end_signal(given["--signal"]) if "--signal" in given else None
    limit = int(given["--time"]) if "--time" in given else None
    is_appended = given.get("--open-mode") == "append"
    outputs = given.get("--output", ""), given.get("--error", "")
    return exit_code_of(
        "batch", lambda: run(command, AskedTasks(warning, limit, Copies(*outputs, is_appended)))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
