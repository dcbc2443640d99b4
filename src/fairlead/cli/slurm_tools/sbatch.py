"""sbatch: queue a script as a job or an array.

The options of the command line are read as those of `#SBATCH` lines are, and win over them; `:`
separates the components of a heterogeneous job. What
programs read is on stdout: `Submitted batch job N`, or with --parsable N.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead import terminal
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.cli.commands.submit import read_script, submit_script
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.jobspec import SCRIPT_BYTES_MAX, Program, Script
from fairlead.cli.records.watching import changes
from fairlead.cli.script.het_components import separated
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.cli.views.jobs import exit_code

#: So long a new job is waited for to get its number.
NUMBER_SECONDS_MAX = 30.0
NO_SCRIPT = (
    "This does not look like a batch script.  The first",
    "line must start with #! followed by the path to an interpreter.",
    "For instance: #!/bin/sh",
)
#: Options about sbatch itself.
_OWN = frozenset(("parsable", "wait", "test-only", "quiet", "verbose", "wrap"))


class _Line:
    """A command line, taken apart: sbatch's own options, those of the job, and the script."""

    def __init__(self, arguments: list[str]) -> None:
        rest = list(arguments)
        components = separated(rest)
        #: The last value of each, whichever component it is in.
        self.own = {
            given.option.name: given.value
            for options in components for given in options
            if given.option is not None and given.option.name in _OWN
        }  # fmt: skip
        self.options = tuple(
            tuple(each for each in options if each.option is None or each.option.name not in _OWN)
            for options in components
        )
        self.script = rest[1:] if rest[:1] == ["--"] else rest


def run(common_: Common, arguments: list[str]) -> int:
    """Submit a script."""
    line = _Line(arguments)
    file, program = _program(line)
    assert program.script is not None
    if not program.script.text.startswith("#!"):
        raise ToolError(*NO_SCRIPT)
    stored = submit_script(
        common_, program, file, {}, dry_run="test-only" in line.own,
        ignore_unknown=_ignores_unknown(), warn=_warn, options=line.options,
    )  # fmt: skip
    if "test-only" in line.own:
        terminal.tell("sbatch: the job could be queued; nothing was stored")
        return 0
    api = common_.connect()
    key = (str(stored["metadata"]["namespace"]), str(stored["metadata"]["name"]))
    number = number_of(api, key, is_array=stored["kind"] == JOB_ARRAYS.kind)
    if "parsable" in line.own:
        terminal.say(f"{number}\n")
    elif "quiet" not in line.own:
        terminal.say(f"Submitted batch job {number}\n")
    return _ended(api, key, stored["kind"]) if "wait" in line.own else 0


def _program(line: _Line) -> tuple[str, Program]:
    """Return the script and what it is called; ToolError where there is none, or two."""
    if "wrap" in line.own:
        if line.script:
            raise ToolError("Script arguments not permitted with --wrap option")
        return "wrap", Program((), Script("wrap", f"#!/bin/sh\n{line.own['wrap']}\n"))
    if line.script and line.script[0] != "-":
        path, *arguments = line.script
        if path in ("/dev/stdin", "/proc/self/fd/0"):
            return "stdin", Program(tuple(arguments), _of_stdin())
        if not Path(path).exists():
            raise ToolError(f"Unable to open file {path}")
        return path, Program(tuple(arguments), read_script(path))
    return "stdin", Program(tuple(line.script[1:]), _of_stdin())


def _of_stdin() -> Script:
    data = sys.stdin.buffer.read(SCRIPT_BYTES_MAX + 1)
    if len(data) > SCRIPT_BYTES_MAX:
        raise ToolError(f"the script is larger than {SCRIPT_BYTES_MAX >> 10} KiB")
    if not data.strip():
        raise ToolError("Batch script is empty!")
    return Script("stdin", data.decode("utf-8", "replace"))


def _ignores_unknown() -> bool:
    """True where what cannot be honoured is warned of; programs that call sbatch cannot ask."""
    return os.environ.get("FAIRLEAD_IGNORE_UNKNOWN", "") not in ("", "0")


def _warn(note: str) -> None:
    terminal.tell(f"sbatch: warning: {note}")


def number_of(api: Api, key: tuple[str, str], *, is_array: bool) -> int:
    """Return the number of a job or an array that was stored, once it has one; ToolError."""
    deadline = time.monotonic() + NUMBER_SECONDS_MAX
    found: Iterator[Job | JobArray]
    if is_array:
        found = changes(api, JOB_ARRAYS, key, deadline=deadline)
    else:
        found = changes(api, JOBS, key, deadline=deadline)
    try:
        for work in found:
            if work.status.number:
                return work.status.number
    except TimeoutError:
        pass
    raise ToolError(
        f"job {key[1]} is queued, but has no number yet: Fairlead's controllers do not answer"
    )


def _ended(api: Api, key: tuple[str, str], kind: str) -> int:
    """Wait for the end and return the exit code; of an array 1 where an element failed."""
    if kind == JOB_ARRAYS.kind:
        for array in changes(api, JOB_ARRAYS, key):
            if array.is_finished:
                return 1 if array.status.elements.failed or array.status.state != "Succeeded" else 0
    for job in changes(api, JOBS, key):
        if job.is_finished:
            return exit_code(job)
    raise AssertionError("the changes of an object never end")
