"""Every error that a person can meet at the terminal: one table of codes, one form, exit codes.

    error[E110]: what is wrong, in one line
      --> file:line:column   `field.path`
      got, and what is accepted
      help: the next command or edit

A command raises `CliError` with one or more `Problem`s, all of them at once; `cli.main` prints
them on stderr and ends with the exit code of the first one's code. The table is data, so that the
reference page lists exactly the codes that exist.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum
from os import PathLike
from pathlib import Path
from typing import Self

PROBLEMS_SHOWN_MAX = 50


class Exit(IntEnum):
    """Exit codes, the same for every command."""

    _value_: int
    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """Make a member."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    OK = 0, "ok"
    FAILED = 1, "the job failed, or problems were found"
    USAGE = 2, "the command line or a file is wrong"
    NOT_FOUND = 3, "no such object"
    CONFLICT = 4, "a conflict, or a precondition does not hold"
    REFUSED = 5, "refused by policy, or no node could ever hold it"
    UNREACHABLE = 6, "the cluster cannot be reached"
    TIMED_OUT = 124, "waiting timed out"
    INTERRUPTED = 130, "interrupted; the job goes on"


class Code(Enum):
    """The closed set of error codes; `meaning` is one sentence for the reference page."""

    _value_: str
    exit: Exit
    meaning: str

    def __new__(cls, value: str, exit_: Exit, meaning: str) -> Self:
        """Make a member."""
        code = object.__new__(cls)
        code._value_, code.exit, code.meaning = value, exit_, meaning
        return code

    NO_SUCH_FLAG = "E001", Exit.USAGE, "The command has no such flag."
    NO_SUCH_COMMAND = "E002", Exit.USAGE, "There is no such command."
    MISSING_ARGUMENT = "E003", Exit.USAGE, "An argument or a flag's value is missing."
    BAD_VALUE = "E004", Exit.USAGE, "The value of a flag or argument is not accepted."
    BAD_COMBINATION = "E005", Exit.USAGE, "These flags do not go together."
    NOT_INSTALLED = "E006", Exit.USAGE, "A Python package is missing that the command needs."
    OTHER_SYSTEM = (
        "E007",
        Exit.USAGE,
        "The command needs Linux, and this machine has another system.",
    )
    SCRIPT_UNREADABLE = (
        "E010",
        Exit.USAGE,
        "The script does not exist, cannot be read, or is empty.",
    )
    SCRIPT_TOO_LARGE = (
        "E011", Exit.USAGE,
        "The script is larger than 512 KiB; keep data and code in files beside it.",
    )  # fmt: skip
    SCRIPT_HEADER = (
        "E012", Exit.USAGE,
        "A #FAIRLEAD or #SBATCH line asks for something that cannot be done.",
    )  # fmt: skip
    NOT_STARTABLE = (
        "E013", Exit.USAGE,
        "The program, its interpreter or its directory does not exist; nothing is stored.",
    )  # fmt: skip
    MANIFEST_UNREADABLE = (
        "E100", Exit.USAGE,
        "The manifest does not exist, cannot be read, or is not UTF-8.",
    )  # fmt: skip
    MANIFEST_SYNTAX = "E101", Exit.USAGE, "The manifest is not YAML that can be read."
    UNKNOWN_FIELD = "E102", Exit.USAGE, "The manifest has a field that its kind lacks."
    BAD_FIELD = "E103", Exit.USAGE, "A field is missing or its value is not accepted."
    UNKNOWN_KIND = "E105", Exit.USAGE, "The kind or the apiVersion is not known here."
    MANIFEST_TOO_LARGE = "E106", Exit.USAGE, "The manifest is over a limit of size or depth."
    DUPLICATE_KEY = "E107", Exit.USAGE, "A key occurs twice in one mapping."
    WRONG_KIND = "E108", Exit.USAGE, "The manifest has an object that is not a job."
    NO_NODE_LARGE_ENOUGH = (
        "E110", Exit.REFUSED,
        "One member asks for more than the largest node has; nothing was stored.",
    )  # fmt: skip
    EXCEEDS_CLUSTER = (
        "E111", Exit.REFUSED,
        "The gang is larger than all matching nodes together; nothing was stored.",
    )  # fmt: skip
    NO_MATCHING_NODE = (
        "E112", Exit.REFUSED,
        "No node matches the job's selectors and tolerations; nothing was stored.",
    )  # fmt: skip
    NAME_IN_USE = "E120", Exit.CONFLICT, "An object of this name exists already."
    NO_SUCH_DEPENDENCY = "E130", Exit.NOT_FOUND, "The job named by --after does not exist."
    NO_SUCH_JOB = "E300", Exit.NOT_FOUND, "There is no job of this name in the namespace."
    NO_SUCH_LOG = "E301", Exit.NOT_FOUND, "The job has no such member, attempt or log."
    JOB_FINISHED = "E302", Exit.CONFLICT, "The job has ended; it can no longer be changed."
    NO_SUCH_NAMESPACE = "E303", Exit.NOT_FOUND, "The namespace does not exist."
    JOB_ADOPTED = (
        "E304", Exit.CONFLICT,
        "The job represents pods of another tool; that tool's object decides.",
    )  # fmt: skip
    NO_SUCH_POD = "E305", Exit.NOT_FOUND, "There is no pod of this name in the namespace."
    NO_SUCH_MEMBER = "E307", Exit.NOT_FOUND, "The job has no such member."
    NOT_STARTED = "E308", Exit.CONFLICT, "The job, or this member of it, has no running process."
    NO_SUCH_DECISION = (
        "E306", Exit.NOT_FOUND,
        "The scheduler does not keep a decision of this number.",
    )  # fmt: skip
    JOB_UNFINISHED = "E309", Exit.CONFLICT, "The job, or an element, has not ended yet."
    UNAUTHORIZED = "E401", Exit.REFUSED, "The cluster does not accept the kubeconfig's credentials."
    FORBIDDEN = "E403", Exit.REFUSED, "The cluster's policy does not allow this."
    CONFLICT = "E409", Exit.CONFLICT, "The object changed since it was read."
    REFUSED = "E422", Exit.REFUSED, "The cluster refused the request; its words follow."
    CRASH = "E500", Exit.FAILED, "A fault of fairlead itself; a report was saved."
    WAIT_TIMED_OUT = "E510", Exit.TIMED_OUT, "The awaited state was not reached in time."
    UNREACHABLE = (
        "E600", Exit.UNREACHABLE,
        "The cluster does not answer. Running jobs are not affected by this.",
    )  # fmt: skip
    NO_CLUSTER = "E601", Exit.UNREACHABLE, "No cluster is running or configured."
    KUBECONFIG = "E602", Exit.USAGE, "The kubeconfig cannot be used."
    BAD_ANSWER = "E603", Exit.UNREACHABLE, "The server answered something unexpected."
    EXPORT = "E604", Exit.FAILED, "Runs cannot be written to the tracking server."
    AUDIT_DAMAGED = "E605", Exit.FAILED, "Audit records were changed, removed or put elsewhere."
    NO_CLUSTER_TAKES_IT = (
        "E606", Exit.REFUSED,
        "Of the clusters that were asked none can have this; nothing was stored.",
    )  # fmt: skip
    PORT_IN_USE = "E700", Exit.CONFLICT, "Another process listens on the address."
    DATA_IN_USE = "E701", Exit.CONFLICT, "Another process uses the data directory."
    DATA_VERSION = (
        "E702", Exit.CONFLICT,
        "The data directory, or the history, was written by another version of fairlead.",
    )  # fmt: skip
    DATA_UNWRITABLE = "E703", Exit.REFUSED, "A directory or a file cannot be written."
    DISK_FULL = (
        "E704", Exit.REFUSED,
        "The disk of the data directory is full, or a limit on file sizes is reached.",
    )  # fmt: skip
    START_FAILED = "E705", Exit.FAILED, "The cluster did not start; its log says why."
    NOT_RUNNING = "E706", Exit.UNREACHABLE, "No cluster runs on this data directory."
    LISTEN_ADDRESS = "E707", Exit.USAGE, "The listen address cannot be used."
    PROFILE = "E708", Exit.USAGE, "The profile cannot be used."
    DATA_DAMAGED = "E709", Exit.CONFLICT, "The data directory is damaged."
    STOP_FAILED = "E710", Exit.CONFLICT, "The cluster's process did not end."
    DATA_UNSAFE = (
        "E711", Exit.REFUSED,
        "Another user owns the data directory or a part of it, or can write to it.",
    )  # fmt: skip
    BACKUP = "E712", Exit.CONFLICT, "A backup cannot be made, or is not whole."
    SCENARIO = "E800", Exit.USAGE, "The scenario or the directory of a run cannot be used."
    TRACE = "E801", Exit.USAGE, "The file is not a trace of jobs that can be read."
    DECISION_FILE = (
        "E802", Exit.USAGE,
        "The file is not a recorded decision that can be made again.",
    )  # fmt: skip
    SLURM_FILE = "E803", Exit.USAGE, "A line of a file of Slurm is not what Slurm writes or reads."
    FACTS_FILE = "E804", Exit.USAGE, "The file has no records of the faults of nodes."


def anchor(code: Code) -> str:
    """Return the place in the documentation where the code is explained."""
    return f"docs/reference/cli.md#{code.value.lower()}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    `where` is `file:line:column` or empty, `field` a path such as `spec.roles[0].count` or empty;
    `detail` lines say what was got and what is accepted; `help` lines give the next command or
    edit.
    """

    code: Code
    message: str
    where: str = ""
    field: str = ""
    detail: tuple[str, ...] = ()
    help: tuple[str, ...] = ()


class CliError(Exception):
    """Ends the command: all that is wrong, in the order to be shown; never empty."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        assert self.problems, "an error needs a problem"
        super().__init__(self.problems[0].message)

    @property
    def exit(self) -> Exit:
        """The exit code of the first problem."""
        return self.problems[0].code.exit


def fail(
    code: Code,
    message: str,
    *,
    detail: Iterable[str] = (),
    help: Iterable[str] = (),  # noqa: A002
) -> CliError:
    """Return an error of one problem; the caller raises it."""
    return CliError(Problem(code, message, detail=tuple(detail), help=tuple(help)))


@contextmanager
def writing(path: str | PathLike[str]) -> Generator[None]:
    """Turn what keeps a file or directory of the user's from being written into E703."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        remedy = _REMEDIES.get(error.errno or 0, "name a place that you may write to")
        raise fail(
            Code.DATA_UNWRITABLE, f"'{where}' cannot be written: {error.strerror or error}",
            help=(remedy,),
        ) from error  # fmt: skip


def writable_directory(path: Path) -> None:
    """Make a directory, and see that files can be made in it; CliError."""
    import tempfile

    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass


_REMEDIES = {
    errno.ENOSPC: "free space there, or name another place",
    errno.EDQUOT: "your quota there is used up: free space, or name another place",
    errno.EFBIG: "ulimit -f shows the limit on the size of files",
    errno.ENOENT: "make the directory first, or name another place",
    errno.EEXIST: "a file of this name exists: name another place",
    errno.ENOTDIR: "a part of the path is a file: name another place",
    errno.EISDIR: "this is a directory: name a file",
}


def render_problem(problem: Problem) -> str:
    """Return the problem in the one form, lines ended by a line feed."""
    lines = [f"error[{problem.code.value}]: {_hanging(problem.message)}"]
    field = f"`{problem.field}`" if problem.field else ""
    if problem.where or field:
        lines.append("  --> " + "   ".join(part for part in (problem.where, field) if part))
    lines.extend(f"  {_hanging(line)}" for line in problem.detail)
    lines.extend(f"  help: {_hanging(line)}" for line in problem.help)
    return "\n".join(lines) + "\n"


def _hanging(text: str) -> str:
    """Return the text with its further lines indented, so that none looks like our own."""
    return text.replace("\n", "\n    ")


def render_error(error: CliError, *, with_anchors: bool = False) -> str:
    """Return all problems (at most PROBLEMS_SHOWN_MAX, then their number) as text for stderr."""
    shown = error.problems[:PROBLEMS_SHOWN_MAX]
    parts = [render_problem(problem) for problem in shown]
    rest = len(error.problems) - len(shown)
    if rest:
        parts.append(f"... and {rest} more problems of this kind\n")
    if with_anchors:
        codes = dict.fromkeys(problem.code for problem in shown)
        parts.extend(f"see {anchor(code)}\n" for code in codes)
    return "".join(parts)
