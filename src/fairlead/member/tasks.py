"""The tasks of steps that run in one member: started, signalled, and heard; files that it is sent.

Each task is a process group of its own. What it writes is sent in pieces of at most CHUNK_BYTES_MAX
to where the step came from; a reader that is slow slows the task down, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fairlead.member.file_copies import FilesFromFirst, Send
from fairlead.member.gang_link import LinkLost, Message, Spawn

CHUNK_BYTES_MAX = 64 << 10
#: How long what a task wrote before its end may take.
DRAIN_SECONDS_MAX = 10.0
#: A program that cannot be started (a shell's "command not found").
EXIT_NOT_FOUND = 127
#: Variables that each member has for itself, whatever the script's member has.
_OF_MEMBER = re.compile(
    r"FAIRLEAD_(INDEX|ROLE|RESUME_STEP|PROGRESS_FILE)|(GROUP|NODE|PET_NODE)_RANK|HOSTNAME"
    r"|(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES"
)


class Tasks:
    """The running tasks of this member."""

    def __init__(self, send: Send, spawn: Spawn) -> None:
        self._send = send
        self._spawn = spawn
        self._files = FilesFromFirst(send)
        self._running: dict[tuple[int, int], asyncio.subprocess.Process] = {}

    async def hear(self, message: Message) -> None:
        """Do what the first member says: launch the tasks of a step, send them a signal, or write
        a file.
        """
        match message:
            case {"launch": int(step), "tasks": list(tasks), "environment": dict(environment)}:
                for task in tasks:
                    self._spawn(self._run(step, environment, task))
            case {"signal": int(number), "step": int(step)}:
                self.signal(number, step)
            case {"copy": int(number)}:
                await self._files.hear(number, message)
            case _:
                raise LinkLost

    def signal(self, number: int, step: int | None = None) -> None:
        """Send a signal to the process groups of a step's tasks, or of all."""
        for (of_step, _), process in tuple(self._running.items()):
            if step in (None, of_step) and process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    async def _run(
        self, step: int, environment: Mapping[str, str], task: Mapping[str, Any]
    ) -> None:
        """Run a task to its end, and report what it writes and how it ends."""
        rank: int = task["rank"]
        own = {k: v for k, v in os.environ.items() if _OF_MEMBER.fullmatch(k)}
        variables = {**environment, **own, **task["variables"]}
        try:
            process = await asyncio.create_subprocess_exec(
                *task["command"], env=variables, cwd=task["directory"] or None,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, process_group=0,
            )  # fmt: skip
        except OSError as error:
            text = f"srun: error: cannot start '{task['command'][0]}': {error.strerror}\n"
            await self._report(step, rank, 2, text.encode())
            await self._say({"ended": step, "rank": rank, "code": EXIT_NOT_FOUND})
            return
        self._running[step, rank] = process
        assert process.stdout is not None
        assert process.stderr is not None
        pumps = asyncio.gather(
            self._pump(step, rank, 1, process.stdout), self._pump(step, rank, 2, process.stderr)
        )
        try:
            code = await process.wait()
        finally:
            del self._running[step, rank]
            with suppress(ProcessLookupError):  # what it left behind in its group
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):  # a process that left the group may hold the pipes
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await pumps
        await self._say({"ended": step, "rank": rank, "code": code})

    async def _pump(self, step: int, rank: int, stream: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES_MAX):
            await self._report(step, rank, stream, data)

    async def _report(self, step: int, rank: int, stream: int, data: bytes) -> None:
        text = b64encode(data).decode()
        await self._say({"wrote": step, "rank": rank, "stream": stream, "data": text})

    async def _say(self, message: Message) -> None:
        with suppress(LinkLost):  # the member is about to end
            await self._send(message)
