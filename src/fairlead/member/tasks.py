"""The tasks of steps that run in one member: started, signalled, and heard; files that it is sent.

What a task (`task_process`) writes is sent in pieces of at most READ_BYTES_MAX to where the step
came from; a reader that is slow slows the task down, and nothing is kept. What it is sent to read
is reported back once it has been taken.
"""

from __future__ import annotations

import asyncio
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fairlead.member.file_copies import FilesFromFirst, Send
from fairlead.member.gang_link import LinkLost, Message, Spawn
from fairlead.member.task_process import Read, TaskProcess, start_task

#: A task as srun describes it: `tasks_of`.
_Asked: TypeAlias = Mapping[str, Any]
#: How long what a task wrote before its end may take.
DRAIN_SECONDS_MAX = 10.0
#: A program that cannot be started (a shell's "command not found").
EXIT_NOT_FOUND = 127
#: Pieces that wait for a task which has not begun: srun sends one, and then waits.
_PIECES_MAX = 2
#: Variables that each member has for itself, whatever the script's member has.
_OF_MEMBER = re.compile(
    r"FAIRLEAD_(INDEX|ROLE|RESUME_STEP|PROGRESS_FILE)|HOSTNAME"
    r"|(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES"
)


@dataclass(slots=True)
class _Task:
    """A task that begins or runs."""

    #: What it is to read.
    given: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(_PIECES_MAX))
    process: TaskProcess | None = None
    #: What it was sent before it had a process, each once.
    signals: dict[int, None] = field(default_factory=dict[int, None])

    def signal(self, number: int) -> None:
        if self.process is None:
            self.signals[number] = None
        else:
            self.process.signal(number)


def _devices(gpus: Sequence[int], environment: Mapping[str, str]) -> str:
    """Return the GPUs of a task, by number: of this member's from the first of them on so many."""
    first, count = gpus
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    there = range(int(environment.get("SLURM_GPUS_ON_NODE", "0")))
    devices = visible.split(",") if visible else list(map(str, there))
    return ",".join(devices[first : first + count])


class Tasks:
    """The running tasks of this member."""

    def __init__(self, send: Send, spawn: Spawn) -> None:
        self._send = send
        self._spawn = spawn
        self._files = FilesFromFirst(send)
        #: By step and rank.
        self._tasks: dict[tuple[int, int], _Task] = {}

    async def hear(self, message: Message) -> None:
        """Do what the first member says: launch the tasks of a step, send them a signal or what
        they read, or write a file.
        """
        match message:
            case {"launch": int(step), "tasks": list(tasks), "environment": dict(environment)}:
                for task in tasks:
                    self._tasks[step, task["rank"]] = _Task()
                    self._spawn(self._run(step, environment, task))
            case {"signal": int(number), "step": int(step)}:
                self.signal(number, step)
            case {"input": str(text), "step": int(step), "ranks": list(ranks)}:
                for rank in ranks:
                    self._give(step, rank, b64decode(text))
            case {"size": [int(rows), int(columns)], "step": int(step)}:
                for (of_step, _), task in self._tasks.items():
                    if of_step == step and task.process is not None:
                        task.process.resize(rows, columns)
            case {"copy": int(number)}:
                await self._files.hear(number, message)
            case _:
                raise LinkLost

    def signal(self, number: int, step: int | None = None) -> None:
        """Send a signal to the process groups of a step's tasks, or of all."""
        for (of_step, _), task in self._tasks.items():
            if step in (None, of_step):
                task.signal(number)

    def _give(self, step: int, rank: int, data: bytes) -> None:
        """Have a task read something; LinkLost where it has not taken what it was given before."""
        if (task := self._tasks.get((step, rank))) is not None:
            try:
                task.given.put_nowait(data)
            except asyncio.QueueFull:
                raise LinkLost from None

    async def _run(self, step: int, environment: Mapping[str, str], asked: _Asked) -> None:
        """Run a task to its end, and report what it writes and how it ends."""
        rank: int = asked["rank"]
        try:
            code = await self._run_process(step, environment, asked)
        except OSError as error:
            text = f"srun: error: cannot start '{asked['command'][0]}': {error.strerror}\n"
            await self._report(step, rank, 2, text.encode())
            code = EXIT_NOT_FOUND
        finally:
            del self._tasks[step, rank]
        await self._say({"ended": step, "rank": rank, "code": code})

    async def _run_process(self, step: int, environment: Mapping[str, str], asked: _Asked) -> int:
        """Return the exit code of a task, or -N for signal N; OSError: it cannot be started."""
        rank: int = asked["rank"]
        own = {k: v for k, v in os.environ.items() if _OF_MEMBER.fullmatch(k)}
        variables = {**environment, **own, **asked["variables"]}
        if "gpus" in asked:
            variables["CUDA_VISIBLE_DEVICES"] = _devices(asked["gpus"], os.environ)
        process = await start_task(
            asked["command"], variables, asked["directory"], asked.get("terminal")
        )
        task = self._tasks[step, rank]
        task.process = process
        for number in task.signals:
            process.signal(number)
        feeding = self._spawn(self._feed(step, rank, process))
        pumps = asyncio.gather(
            *(self._pump(step, rank, stream, read) for stream, read in process.outputs.items())
        )
        try:
            code = await process.process.wait()
        except asyncio.CancelledError:  # the script has ended first
            pumps.cancel()
            raise
        finally:
            feeding.cancel()
            process.kill_rest()
            await process.process.wait()
            try:
                with suppress(TimeoutError):  # a process that left the group may hold the pipes
                    async with asyncio.timeout(DRAIN_SECONDS_MAX):
                        await pumps
            finally:
                task.process = None
                process.close()
        return code

    async def _feed(self, step: int, rank: int, process: TaskProcess) -> None:
        given = self._tasks[step, rank].given
        while True:
            await process.write(await given.get())
            await self._say({"taken": step, "rank": rank})

    async def _pump(self, step: int, rank: int, stream: int, read: Read) -> None:
        while data := await read():
            await self._report(step, rank, stream, data)

    async def _report(self, step: int, rank: int, stream: int, data: bytes) -> None:
        text = b64encode(data).decode()
        await self._say({"wrote": step, "rank": rank, "stream": stream, "data": text})

    async def _say(self, message: Message) -> None:
        with suppress(LinkLost):  # the member is about to end
            await self._send(message)
