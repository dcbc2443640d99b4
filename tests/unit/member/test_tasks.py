"""Tasks of a member, as the first member's messages start and signal them."""

from __future__ import annotations

import asyncio
import os
import signal

from fairlead.member.gang_link import Message, spawning
from fairlead.member.tasks import Tasks


async def test_a_signal_that_comes_while_a_task_is_being_started_reaches_it() -> None:
    ended: asyncio.Queue[Message] = asyncio.Queue()

    async def send(message: Message) -> None:
        if "ended" in message:
            ended.put_nowait(message)

    task = {"rank": 0, "command": ["sleep", "1000"], "variables": {}, "directory": ""}
    async with spawning() as spawn:
        tasks = Tasks(send, spawn)
        await tasks.hear({"launch": 4, "tasks": [task], "environment": dict(os.environ)})
        await tasks.hear({"signal": signal.SIGTERM, "step": 5})
        await tasks.hear({"signal": signal.SIGKILL, "step": 4})
        assert await ended.get() == {"ended": 4, "rank": 0, "code": -signal.SIGKILL}
