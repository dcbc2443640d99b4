"""Send a signal to a batch script or its steps, beside its first member, as scancel asks for it.

    step_signal SIGNAL steps|batch|full|STEP

It is started in the member (`cli/slurm_tools/job_signals.py`), so it has the environment of its
attempt, by which it finds the directory of steps. As srun does, it proves to be of this attempt.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import Signals

from fairlead.member.gang_link import LinkLost
from fairlead.member.srun import connected
from fairlead.member.step_layout import StepError
from fairlead.member.steps import ENV_STEPS, directory_prefix


def _directories() -> Iterator[Path]:
    """Yield the directories of this user's own that may be those of the attempt's steps."""
    for root in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108
        for each in Path(root).glob(f"{directory_prefix(os.environ)}*"):
            with suppress(OSError):
                if each.lstat().st_uid == os.geteuid():
                    yield each


async def _send(number: int, target: str) -> None:
    """Have the signal sent; StepError, LinkLost."""
    os.environ[ENV_STEPS] = str(next(_directories(), ""))
    link = await connected()
    try:
        await link.send({"deliver": number, "to": target})
        if error := (await link.receive())["error"]:
            raise StepError(error)
    finally:
        link.close()


def main(argv: list[str]) -> int:
    """Entry of `python -m fairlead.member.step_signal SIGNAL TARGET`."""
    name, target = argv
    try:
        asyncio.run(_send(Signals[f"SIG{name}"], target))
    except LinkLost:  # the signal has ended the script
        return 0
    except StepError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
