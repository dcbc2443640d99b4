"""`python -m fairlead.cli.slurm_tools COMMAND ...` is Slurm's command of that name."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from fairlead import __version__, terminal
from fairlead.cli.script.slurm_names import COMMANDS, RELEASE
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions

#: What programs read of `--version`.
VERSION = f"slurm {RELEASE} (fairlead {__version__})"
_NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"
#: What Slurm's commands say before the reason, where no answer comes.
_BEFORE = {
    "salloc": "salloc: error: Job submit/allocate failed: ",
    "sbatch": "sbatch: error: Batch job submission failed: ",
    "squeue": "slurm_load_jobs error: ",
    "scontrol": "slurm_load_jobs error: ",
    "sinfo": "slurm_load_partitions: ",
}


def run(program: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; what goes wrong is on stderr, as Slurm says it."""
    if program not in COMMANDS:
        terminal.tell(f"no command '{program}'; there are {', '.join(COMMANDS)}")
        return 2
    if arguments and arguments[0] in ("-V", "--version"):
        terminal.say(f"{VERSION}\n")
        return 0
    if arguments and arguments[0] in ("--help", "--usage"):
        terminal.say("".join(f"{line}\n" for line in help_lines(program)))
        return 0
    try:
        return _run(program, list(arguments))
    except ToolError as error:
        for line in error.lines:
            is_whole = line.startswith("slurm_load")
            terminal.tell(line if is_whole else f"{program}: error: {line}")
        return error.code


def help_lines(program: str) -> list[str]:
    """Return what `--help` prints: the options, those that are refused with what to do instead."""
    module = importlib.import_module(f"fairlead.cli.slurm_tools.{program}")
    table: ToolOptions | None = getattr(module, "OPTIONS", None)
    if table is not None:
        found = [
            (shown, f"refused: {why}" if why else "no effect" if option.is_ignored else "")
            for shown, option, why in table.described()
        ]
    else:
        found = list(_script_options(program)) if program != "sbcast" else []
    lines = [f"  {shown:<28} {words}".rstrip() for shown, words in found]
    return [f"Usage: {program} [OPTIONS] ...", *lines]


def _script_options(program: str) -> Iterator[tuple[str, str]]:
    """Yield the options of sbatch and of salloc, in front of them those of the steps of srun."""
    from fairlead.cli.script.slurm_options import LONG, OPTIONS
    from fairlead.member.srun_options import READ

    steps = {name: letter for name, letter in READ.items() if name not in LONG}
    for name, letter in steps.items() if program == "srun" else ():
        yield f"-{letter}, --{name}" if letter else f"--{name}", "of a step"
    for option in OPTIONS:
        letters = f"-{option.letter}, " if option.letter else ""
        yield letters + option.shown, option.words.replace("`", "")


def _run(program: str, arguments: list[str]) -> int:
    from fairlead.api.status import ApiError
    from fairlead.cli.connection.common import Common, Format
    from fairlead.cli.connection.refusals import from_api
    from fairlead.input.errors import CliError, Code

    module = importlib.import_module(f"fairlead.cli.slurm_tools.{program}")
    common_ = Common(
        format=Format.JSON, namespace=os.environ.get("FAIRLEAD_NAMESPACE", ""),
        all_namespaces=False, kubeconfig="", context="", headers=True, color=False, quiet=True,
        verbosity=0,
    )  # fmt: skip
    try:
        return int(module.run(common_, arguments))
    except ApiError as error:
        found = from_api(error)
    except CliError as error:
        found = error
    if found.problems[0].code is Code.UNREACHABLE:
        terminal.tell(_BEFORE.get(program, f"{program}: error: ") + _NO_CONTROLLER)
        return 1
    for problem in found.problems:
        where = f"{problem.where}: " if problem.where else ""
        for text in (f"{where}{problem.message}", *problem.detail, *problem.help):
            terminal.tell(f"{program}: error: {text}")
    return 1


def main() -> None:
    """Run the command that is named first."""
    gc.disable()  # the process ends before there is anything to collect
    program, *arguments = sys.argv[1:] or [""]
    try:
        code = run(program, arguments)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    gc.freeze()  # from the collection that comes even so
    sys.exit(code)


if __name__ == "__main__":
    main()
