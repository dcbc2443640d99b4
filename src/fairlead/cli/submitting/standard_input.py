"""Standard input of `run`, read whole when the job is queued.

A job outlives the terminal that queued it, so its input must be complete when it is queued. A
terminal is therefore not read, nor a pipe that brings nothing for some seconds: some programs
leave one open that never ends.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable

from fairlead.cli.job_request.jobspec import SCRIPT_BYTES_MAX, Script
from fairlead.input.errors import Code, fail

STANDARD_INPUT = 0
SILENT_SECONDS_MAX = 2.0
FILE_NAME = "stdin"


def read_input(descriptor: int, note: Callable[[str], None]) -> Script | None:
    """Return what a file or pipe brings until its end; None for nothing, or for a terminal.

    CliError when it is more than SCRIPT_BYTES_MAX, or not text.
    """
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    if not stat.S_ISREG(mode) and not select.select([descriptor], [], [], SILENT_SECONDS_MAX)[0]:
        note(f"note: standard input brought nothing for {SILENT_SECONDS_MAX:g}s; the job runs "
             "without it")  # fmt: skip
        return None
    data = b""
    while chunk := os.read(descriptor, SCRIPT_BYTES_MAX + 1 - len(data)):
        data += chunk
        if len(data) > SCRIPT_BYTES_MAX:
            raise fail(Code.SCRIPT_TOO_LARGE,
                       f"standard input is larger than {SCRIPT_BYTES_MAX >> 10} KiB",
                       help=("read a file in the job: fairlead run -- sh -c 'PROGRAM < FILE'",
                             "< /dev/null runs it without input"))  # fmt: skip
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise fail(Code.SCRIPT_UNREADABLE, "standard input is not UTF-8 text",
                   help=("read a file in the job: fairlead run -- sh -c 'PROGRAM < FILE'",),
                   ) from error  # fmt: skip
    return Script(FILE_NAME, text) if text else None
