"""salloc: queue a job that holds what is asked for, and run a command on its first node.

The command, by default a shell, has this terminal, and srun for all nodes. The job ends with it,
and with the terminal (`cli/sessions/terminal_job.py`). Options are those of sbatch that are about a
job.
Source: the manual page salloc(1), with LaunchParameters=use_interactive_step.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from fairlead import terminal
from fairlead.cli.commands.submit import submit_script
from fairlead.cli.connection.common import Common
from fairlead.cli.script.sbatch_lines import COLON, GivenOption, take_option
from fairlead.cli.script.slurm_options import LONG
from fairlead.cli.sessions.foreground import SHELL
from fairlead.cli.sessions.terminal_job import Allocation
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.cli.slurm_tools.sbatch import number_of

#: What an allocation without a command is called, as in Slurm.
INTERACTIVE = "interactive"
#: Options of sbatch that are about a script or about sbatch itself.
_OF_SCRIPTS = frozenset((
    "array", "output", "error", "open-mode", "input", "parsable", "wait", "test-only", "wrap",
    "requeue", "export",
))  # fmt: skip
#: Options of salloc alone that change nothing here: how it ends a command, and its bell.
_IGNORED = re.compile(r"--(no-)?bell|-K\w*|--kill-command(=\w+)?")
_REFUSED = {
    re.compile(r"--no-shell"): "an allocation ends with its command; sbatch --wrap 'sleep "
    "infinity' holds one, and fairlead shell JOB opens a shell in it",
    re.compile(r"-I\d*|--immediate(=\d+)?"): "sbatch --test-only says when a job may start",
    re.compile(r"--x11(=\w+)?"): "fairlead forward JOB PORT passes on a port",
}  # fmt: skip

#: What is said of an allocation: that it waits, that it has begun, and that it is over.
_SAID = {
    "salloc": (
        "Pending job allocation {}", "Granted job allocation {}", "Relinquishing job allocation {}",
    ),
    "srun": (
        "job {} queued and waiting for resources", "job {} has been allocated resources", "",
    ),
}  # fmt: skip


def refuse(word: str) -> None:
    """Refuse an option that no allocation can have; ToolError with what to do instead."""
    for pattern, instead in _REFUSED.items():
        if pattern.fullmatch(word):
            raise ToolError(f"{word} cannot be honoured: {instead}")


def _options(arguments: list[str]) -> tuple[list[list[GivenOption]], tuple[str, ...]]:
    """Return the options of each component, and the command; ToolError."""
    components, rest = [list[GivenOption]()], list(arguments)
    while rest:
        refuse(rest[0])
        if _IGNORED.fullmatch(rest[0]):
            rest.pop(0)
            continue
        if rest[0] == COLON:
            rest.pop(0)
            components.append([])
            continue
        given = take_option(rest)
        if given is None:
            break
        if given.option is not None and given.option.name in _OF_SCRIPTS:
            raise ToolError(f"{given.shown} is an option of sbatch, not of salloc")
        components[-1].append(given)
    return components, tuple(rest[1:] if rest[:1] == ["--"] else rest)


def run(common_: Common, arguments: list[str]) -> int:
    """Hold what is asked for while a command runs in it, and return the command's exit code."""
    options, command = _options(arguments)
    called = command[0].rpartition("/")[2] if command else INTERACTIVE
    wanted = AskedAllocation("salloc", options, "SALLOC_", has_terminal=sys.stdin.isatty())
    return allocate(common_, wanted, Allocation(command or ("sh", "-c", SHELL), called))


@dataclass(frozen=True, slots=True)
class AskedAllocation:
    """An allocation that a program asks for."""

    program: str
    #: Of each component.
    options: list[list[GivenOption]]
    #: What the variables begin with that give options a value.
    prefix: str
    #: The command has this process's terminal, if that has one for what is written as well.
    has_terminal: bool


def allocate(common_: Common, wanted: AskedAllocation, held: Allocation) -> int:
    """Queue a job, run the command in it, and return the command's exit code."""
    is_quiet = any(given.option is LONG["quiet"] for each in wanted.options for given in each)

    def say(text: str) -> None:
        if not is_quiet and text:
            terminal.tell(f"{wanted.program}: {text}")

    first, *further = map(tuple, wanted.options)
    never_again = GivenOption(LONG["no-requeue"], "--no-requeue")  # a terminal cannot move
    stored = submit_script(
        common_, held.program, wanted.program, {}, dry_run=False, ignore_unknown=False,
        warn=lambda note: say(f"warning: {note}"), options=((*first, never_again), *further),
        defaults=_defaults(wanted.prefix),
    )  # fmt: skip
    api = common_.connect()
    key = (str(stored["metadata"]["namespace"]), str(stored["metadata"]["name"]))
    number = number_of(api, key, is_array=False)
    pending, granted, over = _SAID[wanted.program]
    say(pending.format(number))
    has_terminal = wanted.has_terminal and terminal.is_terminal()
    code = held.run(common_, api, key, lambda: say(granted.format(number)), tty=has_terminal)
    say(over.format(number))
    return code


def _defaults(prefix: str) -> dict[str, str]:
    """Return the variables of a program as those of sbatch that give the same options a value."""
    return {
        f"SBATCH_{name.removeprefix(prefix)}": value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }
