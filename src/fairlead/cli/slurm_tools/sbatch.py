"""sbatch: queue a script as a job or an array.

The options of the command line are read as those of `#SBATCH` lines are, and win over them. What
programs read is on stdout: `Submitted batch job N`, or with --parsable N.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead import terminal
from fairlead.api.job import Job
from fairlead.api.job_array import JobArray
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.cli.commands.submit import read_script, submit_script
from fairlead.cli.common import Common
from fairlead.cli.flags import FlagValues
from fairlead.cli.header import SBATCH, SBATCH_SHORT, parse_header
from fairlead.cli.jobspec import SCRIPT_BYTES_MAX, Program, Script
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.cli.transport import Api
from fairlead.cli.views.jobs import exit_code
from fairlead.cli.watching import changes
from fairlead.input.errors import CliError

#: So long a new job is waited for to get its number.
NUMBER_SECONDS_MAX = 30.0
NO_SCRIPT = (
    "This does not look like a batch script.  The first",
    "line must start with #! followed by the path to an interpreter.",
    "For instance: #!/bin/sh",
)
_OWN = frozenset(("parsable", "wait", "test-only", "quiet", "verbose"))
_OWN_SHORT = {"W": "wait", "Q": "quiet", "v": "verbose"}
#: Options without a value; all others take the word that follows.
_SWITCHES = frozenset(
    (
        "contiguous", "exclusive", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit",
        "oversubscribe", "propagate", "reboot", "requeue", "share", "spread-job", "use-min-nodes",
        "nice", "get-user-env", "kill-on-invalid-dep",
    )
)  # fmt: skip
_SHORT_SWITCHES = frozenset("HIkOs")


class _Line:
    """A command line, taken apart: sbatch's own switches, options of the job, and the script."""

    def __init__(self, arguments: list[str]) -> None:
        self.own: set[str] = set()
        self.wrapped: str | None = None
        self.options: list[str] = []
        self.script: list[str] = []
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word in ("-", "--"):
                self.script = rest if word == "--" else [word, *rest]
                break
            self._take(word, rest)

    def _take(self, word: str, rest: list[str]) -> None:
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            if all(letter in _OWN_SHORT for letter in word[1:]):
                self.own.update(_OWN_SHORT[letter] for letter in word[1:])
                return
            needs_value = len(word) == 2 and word[1] not in _SHORT_SWITCHES
            self.options.append(word)
            if needs_value and rest:
                self.options[-1] = f"--{SBATCH_SHORT[word[1]]}={rest.pop(0)}" if (
                    word[1] in SBATCH_SHORT) else f"{word}{rest.pop(0)}"  # fmt: skip
            return
        if name in _OWN:
            self.own.add(name)
        elif name == "wrap":
            self.wrapped = value if equals else (rest.pop(0) if rest else "")
        elif equals or name in _SWITCHES or not rest:
            self.options.append(word)
        else:
            self.options.append(f"{word}={rest.pop(0)}")


def run(common_: Common, arguments: list[str]) -> int:
    """Submit a script."""
    line = _Line(arguments)
    file, program = _program(line)
    assert program.script is not None
    if not program.script.text.startswith("#!"):
        raise ToolError(*NO_SCRIPT)
    stored = submit_script(
        common_, program, file, _givens(line.options), dry_run="test-only" in line.own,
        ignore_unknown=_ignores_unknown(), warn=_warn,
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
    if line.wrapped is not None:
        if line.script:
            raise ToolError("Script arguments not permitted with --wrap option")
        return "wrap", Program((), Script("wrap", f"#!/bin/sh\n{line.wrapped}\n"))
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


def _givens(options: list[str]) -> FlagValues:
    """Return the flags that options of the command line mean, as a header with them would."""
    if not options:
        return {}
    text = f"{SBATCH} {shlex.join(options)}\n"
    header = parse_header(text, file="command line", ignore_unknown=_ignores_unknown())
    for note in header.notes:
        _warn(note)
    if header.problems:
        raise CliError(list(header.problems))
    return header.givens


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
