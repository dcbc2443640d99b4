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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

PROBLEMS_SHOWN_MAX = 50


class Exit(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    REFUSED = 5
    UNREACHABLE = 6
    TIMED_OUT = 124
    INTERRUPTED = 130


EXIT_MEANINGS: dict[Exit, str] = {
    Exit.OK: "ok",
    Exit.FAILED: "the job failed, or problems were found",
    Exit.USAGE: "the command line or a file is wrong",
    Exit.NOT_FOUND: "no such object",
    Exit.CONFLICT: "a conflict, or a precondition does not hold",
    Exit.REFUSED: "refused by policy, or no node could ever hold it",
    Exit.UNREACHABLE: "the cluster cannot be reached",
    Exit.TIMED_OUT: "waiting timed out",
    Exit.INTERRUPTED: "interrupted; the job goes on",
}


class Code(Enum):
    """The closed set of error codes."""

    NO_SUCH_FLAG = "E001"
    NO_SUCH_COMMAND = "E002"
    MISSING_ARGUMENT = "E003"
    BAD_VALUE = "E004"
    BAD_COMBINATION = "E005"
    SCRIPT_UNREADABLE = "E010"
    SCRIPT_TOO_LARGE = "E011"
    SCRIPT_HEADER = "E012"
    NOT_STARTABLE = "E013"
    MANIFEST_UNREADABLE = "E100"
    MANIFEST_SYNTAX = "E101"
    UNKNOWN_FIELD = "E102"
    BAD_FIELD = "E103"
    UNKNOWN_KIND = "E105"
    MANIFEST_TOO_LARGE = "E106"
    DUPLICATE_KEY = "E107"
    WRONG_KIND = "E108"
    NO_NODE_LARGE_ENOUGH = "E110"
    EXCEEDS_CLUSTER = "E111"
    NO_MATCHING_NODE = "E112"
    NAME_IN_USE = "E120"
    NO_SUCH_DEPENDENCY = "E130"
    NO_SUCH_JOB = "E300"
    NO_SUCH_LOG = "E301"
    JOB_FINISHED = "E302"
    NO_SUCH_NAMESPACE = "E303"
    JOB_ADOPTED = "E304"
    NO_SUCH_POD = "E305"
    NO_SUCH_DECISION = "E306"
    UNAUTHORIZED = "E401"
    FORBIDDEN = "E403"
    CONFLICT = "E409"
    REFUSED = "E422"
    CRASH = "E500"
    WAIT_TIMED_OUT = "E510"
    UNREACHABLE = "E600"
    NO_CLUSTER = "E601"
    KUBECONFIG = "E602"
    BAD_ANSWER = "E603"
    PORT_IN_USE = "E700"
    DATA_IN_USE = "E701"
    DATA_VERSION = "E702"
    DATA_UNWRITABLE = "E703"
    DISK_FULL = "E704"
    START_FAILED = "E705"
    NOT_RUNNING = "E706"
    LISTEN_ADDRESS = "E707"
    PROFILE = "E708"
    DATA_DAMAGED = "E709"
    STOP_FAILED = "E710"
    DATA_UNSAFE = "E711"
    SCENARIO = "E800"
    TRACE = "E801"
    DECISION_FILE = "E802"


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """The exit code, and one sentence for the reference page."""

    exit: Exit
    meaning: str


CODES: dict[Code, CodeInfo] = {
    Code.NO_SUCH_FLAG: CodeInfo(Exit.USAGE, "The command has no such flag."),
    Code.NO_SUCH_COMMAND: CodeInfo(Exit.USAGE, "There is no such command."),
    Code.MISSING_ARGUMENT: CodeInfo(Exit.USAGE, "An argument or a flag's value is missing."),
    Code.BAD_VALUE: CodeInfo(Exit.USAGE, "The value of a flag or argument is not accepted."),
    Code.BAD_COMBINATION: CodeInfo(Exit.USAGE, "These flags do not go together."),
    Code.SCRIPT_UNREADABLE: CodeInfo(Exit.USAGE, "The script does not exist or cannot be read."),
    Code.SCRIPT_TOO_LARGE: CodeInfo(
        Exit.USAGE, "The script is larger than 512 KiB; keep data and code in files beside it."
    ),
    Code.SCRIPT_HEADER: CodeInfo(
        Exit.USAGE, "A #FAIRLEAD or #SBATCH line asks for something that cannot be done."
    ),
    Code.NOT_STARTABLE: CodeInfo(
        Exit.USAGE,
        "The program, its interpreter or its directory does not exist; nothing is stored.",
    ),
    Code.MANIFEST_UNREADABLE: CodeInfo(
        Exit.USAGE, "The manifest does not exist, cannot be read, or is not UTF-8."
    ),
    Code.MANIFEST_SYNTAX: CodeInfo(Exit.USAGE, "The manifest is not YAML that can be read."),
    Code.UNKNOWN_FIELD: CodeInfo(Exit.USAGE, "The manifest has a field that its kind lacks."),
    Code.BAD_FIELD: CodeInfo(Exit.USAGE, "A field is missing or its value is not accepted."),
    Code.UNKNOWN_KIND: CodeInfo(Exit.USAGE, "The kind or the apiVersion is not known here."),
    Code.MANIFEST_TOO_LARGE: CodeInfo(Exit.USAGE, "The manifest is over a limit of size or depth."),
    Code.DUPLICATE_KEY: CodeInfo(Exit.USAGE, "A key occurs twice in one mapping."),
    Code.WRONG_KIND: CodeInfo(Exit.USAGE, "The manifest has an object that is not a job."),
    Code.NO_NODE_LARGE_ENOUGH: CodeInfo(
        Exit.REFUSED, "One member asks for more than the largest node has; nothing was stored."
    ),
    Code.EXCEEDS_CLUSTER: CodeInfo(
        Exit.REFUSED, "The gang is larger than all matching nodes together; nothing was stored."
    ),
    Code.NO_MATCHING_NODE: CodeInfo(
        Exit.REFUSED, "No node matches the job's selectors and tolerations; nothing was stored."
    ),
    Code.NAME_IN_USE: CodeInfo(Exit.CONFLICT, "An object of this name exists already."),
    Code.NO_SUCH_DEPENDENCY: CodeInfo(Exit.NOT_FOUND, "The job named by --after does not exist."),
    Code.NO_SUCH_JOB: CodeInfo(Exit.NOT_FOUND, "There is no job of this name in the namespace."),
    Code.NO_SUCH_LOG: CodeInfo(Exit.NOT_FOUND, "The job has no such member, attempt or log."),
    Code.JOB_FINISHED: CodeInfo(Exit.CONFLICT, "The job has ended; it can no longer be changed."),
    Code.NO_SUCH_POD: CodeInfo(Exit.NOT_FOUND, "There is no pod of this name in the namespace."),
    Code.NO_SUCH_DECISION: CodeInfo(
        Exit.NOT_FOUND, "The scheduler does not keep a decision of this number."
    ),
    Code.NO_SUCH_NAMESPACE: CodeInfo(Exit.NOT_FOUND, "The namespace does not exist."),
    Code.JOB_ADOPTED: CodeInfo(
        Exit.CONFLICT, "The job represents pods of another tool; that tool's object decides."
    ),
    Code.UNAUTHORIZED: CodeInfo(
        Exit.REFUSED, "The cluster does not accept the kubeconfig's credentials."
    ),
    Code.FORBIDDEN: CodeInfo(Exit.REFUSED, "The cluster's policy does not allow this."),
    Code.CONFLICT: CodeInfo(Exit.CONFLICT, "The object changed since it was read."),
    Code.REFUSED: CodeInfo(Exit.REFUSED, "The cluster refused the request; its words follow."),
    Code.CRASH: CodeInfo(Exit.FAILED, "A fault of fairlead itself; a report was saved."),
    Code.WAIT_TIMED_OUT: CodeInfo(Exit.TIMED_OUT, "The awaited state was not reached in time."),
    Code.UNREACHABLE: CodeInfo(
        Exit.UNREACHABLE, "The cluster does not answer. Running jobs are not affected by this."
    ),
    Code.NO_CLUSTER: CodeInfo(Exit.UNREACHABLE, "No cluster is running or configured."),
    Code.KUBECONFIG: CodeInfo(Exit.USAGE, "The kubeconfig cannot be used."),
    Code.BAD_ANSWER: CodeInfo(Exit.UNREACHABLE, "The server answered something unexpected."),
    Code.PORT_IN_USE: CodeInfo(Exit.CONFLICT, "Another process listens on the address."),
    Code.DATA_IN_USE: CodeInfo(Exit.CONFLICT, "Another process uses the data directory."),
    Code.DATA_VERSION: CodeInfo(
        Exit.CONFLICT, "The data directory was written by another version of fairlead."
    ),
    Code.DATA_UNWRITABLE: CodeInfo(Exit.REFUSED, "A directory or a file cannot be written."),
    Code.DISK_FULL: CodeInfo(
        Exit.REFUSED, "The disk of the data directory is full, or a limit on file sizes is reached."
    ),
    Code.START_FAILED: CodeInfo(Exit.FAILED, "The cluster did not start; its log says why."),
    Code.NOT_RUNNING: CodeInfo(Exit.UNREACHABLE, "No cluster runs on this data directory."),
    Code.LISTEN_ADDRESS: CodeInfo(Exit.USAGE, "The listen address cannot be used."),
    Code.PROFILE: CodeInfo(Exit.USAGE, "The profile cannot be used."),
    Code.DATA_DAMAGED: CodeInfo(Exit.CONFLICT, "The data directory is damaged."),
    Code.STOP_FAILED: CodeInfo(Exit.CONFLICT, "The cluster's process did not end."),
    Code.DATA_UNSAFE: CodeInfo(
        Exit.REFUSED, "Another user owns the data directory or a part of it, or can write to it."
    ),
    Code.SCENARIO: CodeInfo(Exit.USAGE, "The scenario or the directory of a run cannot be used."),
    Code.TRACE: CodeInfo(Exit.USAGE, "The file is not a trace of jobs that can be read."),
    Code.DECISION_FILE: CodeInfo(
        Exit.USAGE, "The file is not a recorded decision that can be made again."
    ),
}


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
        return CODES[self.problems[0].code].exit


def fail(
    code: Code,
    message: str,
    *,
    detail: Iterable[str] = (),
    help: Iterable[str] = (),  # noqa: A002
) -> CliError:
    """Return an error of one problem; the caller raises it."""
    return CliError(Problem(code, message, detail=tuple(detail), help=tuple(help)))


def render_problem(problem: Problem) -> str:
    """Return the problem in the one form, lines ended by a line feed."""
    lines = [f"error[{problem.code.value}]: {problem.message}"]
    field = f"`{problem.field}`" if problem.field else ""
    if problem.where or field:
        lines.append("  --> " + "   ".join(part for part in (problem.where, field) if part))
    lines.extend(f"  {line}" for line in problem.detail)
    lines.extend(f"  help: {line}" for line in problem.help)
    return "\n".join(lines) + "\n"


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
