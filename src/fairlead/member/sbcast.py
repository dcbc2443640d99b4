"""sbcast in a batch script: copies a file to all members of the job, over the links of srun.

    sbcast [-f] [-p] SOURCE DESTINATION

A destination that is a directory gets a file of the name of the source. Source: the manual page
sbcast(1); its options on how a file is sent (-C, -F, -s, -t) change nothing here.
"""

from __future__ import annotations

import asyncio
import getopt
import os
import re
import stat
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fairlead.member.file_copies import PIECE_BYTES
from fairlead.member.gang_link import LinkLost, Message
from fairlead.member.srun import EXIT_UNAVAILABLE, VERSION, connected
from fairlead.member.step_layout import StepError

_COMPRESS = re.compile(r"-C\w*|--compress(=\w+)?")
_LONG = ("fanout=", "force", "jobid=", "preserve", "size=", "timeout=", "verbose", "version")
_REFUSED = ("--send-libs", "--exclude", "--no-allocation")


@dataclass(frozen=True, slots=True)
class SbcastOptions:
    """What is copied where."""

    source: Path
    target: str
    replaces: bool = False
    keeps_times: bool = False
    shows_version: bool = False


def parse(arguments: Sequence[str]) -> SbcastOptions:
    """Return what a command line asks for; StepError."""
    words = [word for word in arguments if not _COMPRESS.fullmatch(word)]
    for word in words:
        if word.startswith(_REFUSED):
            raise StepError(f"{word}: only the file itself is copied; copy what it needs as well")
    try:
        options, operands = getopt.gnu_getopt(words, "fF:j:ps:t:vV", _LONG)
    except getopt.GetoptError as error:
        raise StepError(str(error)) from None
    given = {name for name, _ in options}
    if given & {"-V", "--version"}:
        return SbcastOptions(Path(), "", shows_version=True)
    if len(operands) != 2:
        raise StepError(f"Need two file names, have {len(operands)} names")
    source, target = operands
    return SbcastOptions(
        Path(source), str(Path.cwd() / target), bool(given & {"-f", "--force"}),
        bool(given & {"-p", "--preserve"}),
    )  # fmt: skip


async def _copy(options: SbcastOptions, file: BinaryIO) -> None:
    """Copy a file; StepError, LinkLost."""
    info = os.fstat(file.fileno())
    if not stat.S_ISREG(info.st_mode):
        raise StepError(f"{options.source} is not a file")
    link = await connected()
    times = [info.st_atime_ns, info.st_mtime_ns] if options.keeps_times else []
    asked = {
        "target": options.target, "name": options.source.name, "replaces": options.replaces,
        "mode": stat.S_IMODE(info.st_mode) & 0o777, "times": times,
    }  # fmt: skip
    try:
        await link.send({"copy": asked})
        _check(await link.receive())
        while data := file.read(PIECE_BYTES):
            await link.send({"data": b64encode(data).decode()})
        await link.send({"end": True})
        _check(await link.receive())
    finally:
        link.close()


def _check(answer: Message) -> None:
    """StepError where members could not do what they were asked."""
    if "error" in answer:
        raise StepError(str(answer["error"]))


def main(argv: list[str]) -> int:
    """Entry of `sbcast [OPTIONS] SOURCE DESTINATION`."""
    try:
        options = parse(argv)
        if options.shows_version:
            sys.stdout.write(f"{VERSION}\n")
            return 0
        with options.source.open("rb") as file:
            asyncio.run(_copy(options, file))
    except (StepError, OSError) as error:
        sys.stderr.write(f"sbcast: error: {error}\n")
        return 1
    except LinkLost:
        sys.stderr.write("sbcast: error: the first member of the job is gone\n")
        return EXIT_UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
