"""srun where no batch script runs; in one, the srun of the script's own PATH comes first.

By itself it is salloc of the same options whose command is srun in the allocation: so tasks are
started as in a script, with what reads and writes them here. With --jobid, its one task runs beside
the first node of a job that runs, or beside the one of --nodelist.
Source: the manual page srun(1).
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field

from fairlead import terminal
from fairlead.cli.connection.common import Common
from fairlead.cli.records.members import MemberReference, running_members
from fairlead.cli.script.sbatch_lines import COLON, GivenOption, take_option
from fairlead.cli.script.slurm_options import LONG
from fairlead.cli.sessions.foreground import HeldSession, idle_limit, run_one
from fairlead.cli.sessions.terminal_job import Allocation
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.cli.slurm_tools.salloc import AskedAllocation, allocate, refuse
from fairlead.cli.slurm_tools.sattach import job_of
from fairlead.member.het_groups import SIZE
from fairlead.member.hostlist import expand_hosts
from fairlead.member.srun import main
from fairlead.member.srun_options import parse_step, separated, take
from fairlead.member.step_layout import StepError
from fairlead.member.steps import ENV_STEPS

_ONE_TASK = "--jobid starts one task; fairlead exec JOB --all -- COMMAND: one a node"
#: Options of a job that in srun are about its step.
_OF_STEP = frozenset(("output", "error", "input", "open-mode", "wait", "verbose"))


def run(common_: Common, arguments: list[str]) -> int:
    """Start tasks of the batch script that this is in, or of a job of their own."""
    if ENV_STEPS in os.environ:
        return main(arguments)
    if "FAIRLEAD_JOB_UID" in os.environ:
        raise ToolError("this is a job without steps; for another job: fairlead run -- COMMAND")
    try:
        return _run_alone(common_, arguments)
    except (StepError, ValueError) as error:
        raise ToolError(str(error)) from None


@dataclass(slots=True)
class _Line:
    """A command line, taken apart: options of the job and of the step, and the command."""

    options: list[GivenOption] = field(default_factory=list[GivenOption])
    of_step: list[str] = field(default_factory=list[str])
    command: tuple[str, ...] = ()
    #: The number of a job that runs, or "".
    job: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The options of the step and the command, as srun in the allocation is given them."""
        return (*self.of_step, "--", *self.command) if self.command else tuple(self.of_step)

    @classmethod
    def of(cls, arguments: list[str]) -> _Line:
        """Read a command line, or one part of it; ToolError, StepError."""
        line, rest = cls(), list(arguments)
        while rest and rest[0].startswith("-") and len(rest[0]) > 1 and rest[0] != "--":
            refuse(rest[0])
            line._take(rest)
        line.command = tuple(rest[1:] if rest[:1] == ["--"] else rest)
        return line

    def _take(self, rest: list[str]) -> None:
        before = list(rest)
        name, value, words = take(rest)
        if name == "jobid":
            self.job = value
        elif name in LONG and name not in _OF_STEP:
            self.options.append(GivenOption(LONG[name], LONG[name].shown, value))
        elif name:
            self.of_step += words
        else:
            given = take_option(before)
            rest[:] = before
            assert given is not None  # the word begins with a dash, and has a name
            if given.option is None:
                raise ToolError(f"unrecognized option '{words[0]}'")
            self.options.append(given)


def _run_alone(common_: Common, arguments: list[str]) -> int:
    lines = [_Line.of(part) for part in separated(arguments)]
    words = [word for line in lines for word in (COLON, *line.words)][1:]
    first = parse_step(words, {SIZE: str(len(lines))})[0].options
    if first.mpi == "list":
        return main(["--mpi=list"])
    has_terminal = sys.stdin.isatty() and first.has_terminal
    jobs = [line for line in lines if line.job]
    if jobs:
        if len(lines) > 1:
            raise ToolError(
                "--jobid starts one task; fairlead exec JOB --all -- COMMAND: one a node"
            )
        return _beside(common_, lines[0], tty=has_terminal and terminal.is_terminal())
    held = Allocation(("srun", *words), first.command[0].split("/")[-1])
    options = [line.options for line in lines]
    return allocate(
        common_, AskedAllocation("srun", options, "SLURM_", has_terminal=has_terminal), held
    )


def _beside(common_: Common, line: _Line, *, tty: bool) -> int:
    """Run a command beside a node of a job that runs, and return its exit code; ToolError."""
    given = {each.option.name: each.value for each in line.options if each.option is not None}
    if any(given.get(name, "1") != "1" for name in ("ntasks", "nodes", "ntasks-per-node")):
        raise ToolError(_ONE_TASK)
    api = common_.connect()
    job = job_of(api, common_.space(api.connection.namespace), line.job)
    namespace, name = job.metadata.key
    job, pods = running_members(api, namespace, MemberReference(name, None))
    if "nodelist" in given:
        wanted = expand_hosts(given["nodelist"])
        pods = [pod for pod in pods if pod.spec.node_name in wanted]
    if not pods:
        raise ToolError(f"job {line.job} is on none of the nodes {given['nodelist']}")
    if not tty:
        return run_one(api, pods[0], line.command, tty=False)
    held = HeldSession(common_, job, pods[0])
    return held.open(line.command, idle_limit(common_, api), shlex.join(line.command)).code
