"""The first member's side of srun: takes steps, starts their tasks in all members, merges the rest.
The same of sbcast, which copies a file to all members, and of scancel, which signals them.

srun reaches it at a socket in a directory that only this user may enter, and both ends prove that
they belong to this attempt of this job (`gang_link`). So no other user of the machine, and no other
job of the same one, starts anything through it. The members were proved when the gang came
together.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.member.file_copies import CopyToMembers, Send
from fairlead.member.gang_link import (
    PROOF_SECONDS_MAX,
    Gang,
    Link,
    LinkLost,
    Message,
    Spawn,
    Stranger,
    prove_first,
)

#: Names the directory of a batch script's steps.
ENV_STEPS = "FAIRLEAD_STEPS"
SOCKET = "socket"
KEY = "key"
KEY_BYTES = 32
STEPS_MAX = 4096
#: Sends a signal to what scancel names, and returns why not; "" where it was sent.
Deliver = Callable[[int, str], Awaitable[str]]


def steps_gang(rank: int, key: bytes, environment: Mapping[str, str]) -> Gang:
    """Return the gang of two that srun and the first member of a job are; KeyError."""
    scope = f"{environment['FAIRLEAD_JOB_UID']}/{environment['FAIRLEAD_ATTEMPT']}/steps"
    return Gang(rank=rank, size=2, address="", port=0, scope=scope, key=key)


def directory_prefix(environment: Mapping[str, str]) -> str:
    """Return what the name of the directory of an attempt's steps begins with; KeyError."""
    return f"steps-{environment['FAIRLEAD_JOB_UID'][:8]}-{environment['FAIRLEAD_ATTEMPT']}-"


@dataclass(slots=True)
class _Step:
    """A step that runs: its srun, and the tasks that have not ended, by rank: the node of each."""

    link: Link
    nodes: dict[int, int] = field(default_factory=dict[int, int])


class Steps:
    """All steps of a batch script. Node k is member k."""

    def __init__(self, cpus: Sequence[int]) -> None:
        """`cpus` is what each node has."""
        self._members: dict[int, Send] = {}
        self._steps: dict[int, _Step] = {}
        self._count = 0
        self._copies: dict[int, CopyToMembers] = {}
        self._copies_count = 0
        self._cpus = cpus
        self._used: dict[int, int] = {}
        self._freed = asyncio.Condition()
        self._deliver: Deliver | None = None

    def add_script(self, deliver: Deliver) -> None:
        """Say how the script and its steps are sent a signal that scancel asks for."""
        self._deliver = deliver

    def add_member(self, node: int, send: Send) -> None:
        """Say how a member is reached."""
        self._members[node] = send

    async def serve(self, directory: Path, spawn: Spawn) -> asyncio.Server:
        """Listen for srun and sbcast in a directory of this user's own."""
        key = secrets.token_bytes(KEY_BYTES)
        descriptor = os.open(directory / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
        gang = steps_gang(0, key, os.environ)

        async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(PROOF_SECONDS_MAX):
                    _, link = await prove_first(gang, reader, writer)
                await self._serve(link)
            except (Stranger, LinkLost, TimeoutError):
                return
            finally:
                writer.close()

        return await asyncio.start_unix_server(
            lambda reader, writer: spawn(converse(reader, writer)) and None,
            directory / SOCKET, limit=1 << 16,
        )  # fmt: skip

    async def heard(self, message: Message) -> None:
        """Pass on what a member says of a task; LinkLost for what no member says."""
        match message:
            case {"copied": int(number), "member": str(member), "error": str(error)}:
                if (copying := self._copies.get(number)) is not None:
                    copying.heard(member, error)
                return
            case {"wrote": int(number), "rank": int()} | {"taken": int(number), "rank": int()}:
                pass
            case {"ended": int(number), "rank": int(rank)}:
                if (step := self._steps.get(number)) is not None:
                    step.nodes.pop(rank, None)
            case _:
                raise LinkLost
        if (step := self._steps.get(number)) is not None:
            with suppress(LinkLost):  # its srun is gone; the step is being ended
                await step.link.send(message)

    async def signal_all(self, number: int) -> None:
        """Send a signal to the tasks of all steps."""
        for step in tuple(self._steps):
            await self._signal(step, number)

    async def signal_one(self, step: int, number: int) -> bool:
        """Send a signal to the tasks of one step; False where it does not run."""
        if is_there := step in self._steps:
            await self._signal(step, number)
        return is_there

    async def _serve(self, link: Link) -> None:
        match await link.receive():
            case {"copy": dict(asked)}:
                number, self._copies_count = self._copies_count, self._copies_count + 1
                self._copies[number] = CopyToMembers(number, self._members)
                try:
                    await self._copies[number].serve(link, asked)
                finally:
                    del self._copies[number]
            case {"deliver": int(number), "to": str(target)} if self._deliver is not None:
                await link.send({"error": await self._deliver(number, target)})
            case request:
                await self._serve_step(link, request)

    async def _serve_step(self, link: Link, request: Message) -> None:
        """Run a step; LinkLost."""
        if len(self._steps) >= STEPS_MAX:
            await link.send({"error": f"there are {STEPS_MAX} steps already"})
            return
        number, self._count = self._count, self._count + 1
        needs: dict[int, int] = {}
        if request["is_exclusive"]:
            for part in request["parts"]:
                cpus = int(part["cpus"])
                needs |= {int(node): len(tasks) * cpus for node, tasks in part["tasks"].items()}
        await self._take(needs)
        try:
            await self._run(number, link, request)
        finally:
            async with self._freed:
                for node, cpus in needs.items():
                    self._used[node] -= cpus
                self._freed.notify_all()

    async def _take(self, needs: Mapping[int, int]) -> None:
        """Wait until the CPUs of a step are free; one that asks for more than a node has, alone."""

        def fits() -> bool:
            used = self._used
            return all(
                used.get(node, 0) + cpus <= self._cpus[node] or not used.get(node, 0)
                for node, cpus in needs.items()
            )

        async with self._freed:
            await self._freed.wait_for(fits)
            for node, cpus in needs.items():
                self._used[node] = self._used.get(node, 0) + cpus

    async def _run(self, number: int, link: Link, request: Message) -> None:
        """Start the tasks of a step, and pass on signals until all have ended."""
        step = self._steps[number] = _Step(link)
        of_step = {"SLURM_STEP_ID": str(number), "SLURM_STEPID": str(number)}
        await link.send({"step": number})
        try:
            for part in request["parts"]:
                environment = {**part["environment"], **of_step}
                for node, tasks in part["tasks"].items():
                    step.nodes.update((task["rank"], int(node)) for task in tasks)
                    launch = {"launch": number, "tasks": tasks, "environment": environment}
                    await self._members[int(node)](launch)
            while True:
                match await link.receive():
                    case {"signal": int(which)}:
                        await self._signal(number, which)
                    case {"input": str(text), "ranks": list(ranks)}:
                        await self._give(number, text, ranks)
                    case {"size": [int(), int()] as size}:
                        await self._send(step.nodes.values(), {"size": size, "step": number})
                    case {"done": True}:
                        return
                    case _:
                        raise LinkLost
        finally:
            if step.nodes:
                await self._signal(number, signal.SIGKILL)
            del self._steps[number]

    async def _give(self, step: int, text: str, ranks: list[int]) -> None:
        """Send tasks something to read; those that have ended have said so."""
        nodes = self._steps[step].nodes
        of_node: dict[int, list[int]] = {}
        for rank in ranks:
            if rank in nodes:
                of_node.setdefault(nodes[rank], []).append(rank)
        for node, listed in of_node.items():
            await self._send([node], {"input": text, "ranks": listed, "step": step})

    async def _signal(self, step: int, number: int) -> None:
        await self._send(self._steps[step].nodes.values(), {"signal": number, "step": step})

    async def _send(self, nodes: Iterable[int], message: Message) -> None:
        for node in sorted(set(nodes)):
            with suppress(LinkLost):
                await self._members[node](message)
