"""Runs commands that notices are for: on the embedded cluster, as its owner, and nowhere else.

Who may create a job there may run any program of this machine in it, so a command gives no right
that its author lacks. On a cluster of several users it would: see decide/admission/notices.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from fairlead.decide.notices import Delivery, TryOutcome, TryReason, environment, json_body

#: A command that runs longer is killed, with what it started.
COMMAND_SECONDS = 30.0


class CommandNotices:
    """Runs deliveries that have a command; the letter is on its standard input, as JSON."""

    async def send(self, delivery: Delivery) -> TryOutcome:
        """Run it, once."""
        letter = delivery.letter
        try:
            process = await asyncio.create_subprocess_exec(
                *delivery.target.command, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, **environment(letter)}, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError):
            return TryOutcome(TryReason.COMMAND_FAILED, 127)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await process.communicate(json_body(letter))
        except TimeoutError:
            return TryOutcome(TryReason.TIMEOUT)
        finally:
            await _end(process)
        code = process.returncode
        reason = TryReason.DELIVERED if code == 0 else TryReason.COMMAND_FAILED
        return TryOutcome(reason, code)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the session that the command leads, if it still runs."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
