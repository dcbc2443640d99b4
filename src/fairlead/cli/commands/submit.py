"""`submit` and `run`: from a script, a command or a manifest to a queued job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from fairlead.api.jobs.job import Job
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.identity import local_user
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.flag_groups.flags import FLAGS, Flag, FlagValue, FlagValues
from fairlead.cli.job_request.jobspec import SCRIPT_BYTES_MAX, Program, Script
from fairlead.cli.job_request.request import JobRequest, parse_request
from fairlead.cli.script.sbatch_lines import GivenOption
from fairlead.cli.sessions.foreground import IDLE_HELP, LOG_HELP, require_one_program
from fairlead.cli.submitting.standard_input import STANDARD_INPUT, read_input
from fairlead.cli.submitting.work import (
    CheckedManifest,
    CheckedWork,
    Looks,
    check_command,
    check_manifest,
    check_script,
    here,
)
from fairlead.input.errors import CliError, Code, Exit, fail

if TYPE_CHECKING:
    from fairlead.cli.sessions.terminal_job import TerminalJob

C = TypeVar("C", CheckedWork, CheckedManifest)


def job_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that describe a job."""
    for flag, info in reversed(FLAGS.items()):
        names = [f"--{name}" for name in (flag.value, info.also) if name]
        attribute = flag.value.replace("-", "_")
        if not info.metavar:
            option = click.option(*names, attribute, is_flag=True, help=info.help)
        else:
            option = click.option(*names, attribute, metavar=info.metavar, help=info.help,
                                  multiple=info.is_repeatable)  # fmt: skip
        function = option(function)
    return function


def flag_values(options: dict[str, Any]) -> FlagValues:
    """Take the job's flags out of `options` as they were given."""
    out: dict[Flag, tuple[FlagValue, ...]] = {}
    for flag in Flag:
        value = options.pop(flag.value.replace("-", "_"))
        values = value if isinstance(value, tuple) else (value,)
        texts = ["true" if v is True else str(v) for v in values if v not in (None, False)]
        if texts:
            out[flag] = tuple(FlagValue(text, f"--{flag.value}") for text in texts)
    return out


@click.command(
    epilog="""Examples:

    \b
      fairlead submit train.sh --nodes 4 --gpus 8 --time 12h
      fairlead submit sweep.sh --array 0-99%10
      fairlead submit train.sh --after ok:prepare-1 -- --learning-rate 0.1
      fairlead submit --gpus 1 - < train.sh
      fairlead submit -f job.yaml
      fairlead submit train.sh --cluster east,west
      fairlead submit train.sh --dry-run -o yaml > job.yaml

    The script may carry flags itself, in lines before its first command:

    \b
      #FAIRLEAD --nodes 4 --gpus 8 --time 12h
    """
)
@click.argument("script", required=False, type=click.Path())
@click.argument("arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("-f", "--file", "file", metavar="FILE", help="Manifest to submit; - reads stdin.")
@job_flags
@click.option("--dry-run", is_flag=True, help="Check everything, say where it fits, store nothing.")
@click.option("--check-image", is_flag=True,
              help="Ask the registry for each image: that it is there, its digest, size and "
                   "architectures.")  # fmt: skip
@click.option("--cluster", "clusters", metavar="auto|CONTEXT,...", default="",
              help="Ask the clusters of these contexts of the kubeconfig, or of all (auto), and "
                   "queue it where it starts soonest.")  # fmt: skip
@click.option("--ignore-unknown", is_flag=True,
              help="Ignore header lines that cannot be honoured instead of refusing.")  # fmt: skip
@common()
def submit(
    common_: Common, *, script: str | None, arguments: tuple[str, ...], file: str | None,
    dry_run: bool, check_image: bool, clusters: str, ignore_unknown: bool, **options: Any,
) -> int:  # fmt: skip
    """Queue a script or a manifest as a job.

    The script, read from standard input where it is -, runs in every member of the job; one with
    #SBATCH lines runs once, on the first node. The members start together. It is copied at
    submission, so later edits do not change a queued job. The job's id, its name, is printed on
    stdout. --name gives an exact id; a name in the script's header is numbered from the second job
    on.
    """
    common_.require_one_namespace()
    givens = flag_values(options)
    if file is not None:
        if script is not None or givens:
            wrong = "a script" if script is not None else f"--{next(iter(givens)).value}"
            raise fail(Code.BAD_COMBINATION, f"-f and {wrong} do not go together",
                       help=("write it into the manifest, or leave -f out",))  # fmt: skip
        looks = Looks(dry_run, check_image)
        return _submit_manifest(common_, file, clusters, looks=looks, dry_run=dry_run)
    if script is None:
        raise fail(Code.MISSING_ARGUMENT, "fairlead submit needs SCRIPT or -f FILE",
                   help=("fairlead run -- COMMAND queues a command",
                         "fairlead submit - reads the script from standard input"))  # fmt: skip
    program = Program(arguments, read_script(script))
    path = script

    def check(common_: Common) -> CheckedWork:
        return check_script(
            common_, program, path, givens, origin=here(), ignore_unknown=ignore_unknown,
            warn=lambda note: common_.note(f"note: {note}"), looks=Looks(dry_run, check_image),
        )  # fmt: skip

    stored = _finish(_checked(common_, clusters, check), dry_run=dry_run)
    if not dry_run:
        _show_stored(common_, [stored], [str(stored["metadata"]["name"])])
    return Exit.OK


def _checked(common_: Common, clusters: str, check: Callable[[Common], C]) -> C:
    """Check work in the cluster that is chosen, or in the one of several that starts it soonest."""
    if not clusters:
        return check(common_)
    from fairlead.cli.submitting.clusters import in_soonest  # threads

    return in_soonest(common_, clusters, check)


def submit_script(
    common_: Common, program: Program, file: str, givens: FlagValues, *, dry_run: bool,
    ignore_unknown: bool, warn: Callable[[str], None],
    options: tuple[tuple[GivenOption, ...], ...] | None = None,
    defaults: Mapping[str, str] = os.environ,
) -> dict[str, Any]:  # fmt: skip
    """Check and store the job or the array of a script (or only check it) and return it, as
    `check_script`; CliError. `defaults` has the variables of sbatch that give options a value.
    """
    return _finish(
        check_script(
            common_, program, file, givens, origin=replace(here(), defaults=defaults),
            ignore_unknown=ignore_unknown, warn=warn, options=options,
            looks=Looks(dry_run),
        ),
        dry_run=dry_run,
    )  # fmt: skip


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

    \b
      fairlead run -- python train.py --epochs 3
      fairlead run --nodes 2 --gpus 1 -- nvidia-smi
      fairlead run --pty --gpus 1 --time 2h -- bash
      fairlead run --simulate 30s -- anything
    """,
)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--pty", is_flag=True,
              help="Give the command this terminal; the job ends with the command.")  # fmt: skip
@click.option("--idle", metavar="DURATION", default="", help=IDLE_HELP)
@click.option("--log", "is_logged", is_flag=True, help=LOG_HELP)
@job_flags
@common(output=False)
def run(
    common_: Common, *, command: tuple[str, ...], pty: bool, idle: str, is_logged: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Queue a command as a job and follow it.

    Its logs go to stdout. Ctrl-C, or a closed stdout, stops the display only; the job goes on. The
    exit code is that of the command, or 1 where something else ended the job.

    Standard input that comes from a file or a pipe, at most 512 KiB of text, is given to every
    member; that of a terminal is not.

    With --pty the command has this terminal, and the job is there for it alone: Ctrl-C while it
    waits cancels it, and it ends when the command does. Ctrl-] d, or the loss of the terminal,
    leaves the command running, for fairlead attach to go on with.
    """
    from fairlead.cli.records.follow import follow_job

    common_.require_one_namespace()
    request, problems = parse_request(flag_values(options), os.environ, now=now())
    if problems:
        raise CliError(problems)
    if request.array is not None:
        help_ = ("fairlead submit SCRIPT --array INDICES; fairlead wait NAME",)
        raise fail(Code.BAD_COMBINATION, "run follows one job, --array makes many", help=help_)
    if pty:
        from fairlead.cli.sessions.terminal_job import TerminalJob

        return _run_in_terminal(common_, request, TerminalJob(command, idle, is_logged=is_logged))
    for flag in ("--idle",) * bool(idle) + ("--log",) * is_logged:
        raise fail(Code.BAD_COMBINATION, f"{flag} is about the terminal of --pty")
    program = Program(command, stdin=read_input(STANDARD_INPUT, common_.note))
    api, job = submit_request(common_, request, program)
    return follow_job(common_, api, job.metadata.key)


def _run_in_terminal(common_: Common, request: JobRequest, held: TerminalJob) -> int:
    """Queue a job that holds what the command needs, and run the command in it; CliError."""
    from fairlead.cli.commands.interactive import require_terminal

    require_terminal("--pty")
    require_one_program(request, "--pty")
    api, job = submit_request(common_, replace(request, restarts=False), held.program)
    return held.run(common_, api, job.metadata.key)


def submit_request(common_: Common, request: JobRequest, program: Program) -> tuple[Api, Job]:
    """Check and store the job of a command, not an array, and return it with its cluster."""
    checked = check_command(common_, request, program)
    return checked.api, msgspec.convert(checked.store(), Job)


def submit_array(
    common_: Common, request: JobRequest, program: Program, *, dry_run: bool
) -> None:  # fmt: skip
    """Check and store the array of a command, or only check it, and show it; CliError."""
    checked = check_command(common_, request, program, looks=Looks(dry_run))
    stored = _finish(checked, dry_run=dry_run)
    if not dry_run:
        _show_stored(common_, [stored], [str(stored["metadata"]["name"])])


def read_script(path: str) -> Script:
    """Return the script of a file, standard input for -; CliError."""
    try:
        with click.open_file(path, "rb") as file:
            data = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        help_ = ("fairlead run -- COMMAND queues a command that is no file",)
        message = f"script '{path}' cannot be read: {error.strerror}"
        is_absent = isinstance(error, FileNotFoundError)
        raise fail(Code.SCRIPT_UNREADABLE, message, help=help_ if is_absent else ()) from error
    if len(data) > SCRIPT_BYTES_MAX:
        raise fail(Code.SCRIPT_TOO_LARGE,
                   f"script '{path}' is larger than {SCRIPT_BYTES_MAX >> 10} KiB",
                   help=("keep it small and let it start the program beside it",))  # fmt: skip
    try:
        return Script("stdin" if path == "-" else Path(path).name, data.decode())
    except UnicodeDecodeError as error:
        raise fail(Code.SCRIPT_UNREADABLE, f"script '{path}' is not UTF-8 text",
                   help=(f"a program is run by: fairlead run -- {path}",)) from error  # fmt: skip


def _finish(checked: CheckedWork, *, dry_run: bool) -> dict[str, Any]:
    """Store what was checked, or show it, and return what was, or would be, stored."""
    if not dry_run:
        return checked.store()
    common_, objects = checked.common, checked.objects
    common_.note("Dry run: nothing was stored.")
    if common_.is_structured:
        common_.structured(objects, is_list=len(objects) > 1)
    else:
        common_.emit(f"{checked.name}\n")
    return checked.checked


def _show_stored(common_: Common, stored: list[dict[str, Any]], shown: list[str]) -> None:
    if common_.is_structured:
        common_.structured(stored, is_list=len(stored) > 1)
    else:
        common_.lines(shown)


def _submit_manifest(
    common_: Common, file: str, clusters: str, *, looks: Looks, dry_run: bool
) -> int:
    from fairlead.cli.submitting.manifest import read_bytes

    shown = "stdin" if file == "-" else file
    data = read_bytes(file)

    def check(common_: Common) -> CheckedManifest:
        return check_manifest(common_, data, shown, local_user(), looks=looks)

    checked = _checked(common_, clusters, check)
    if dry_run:
        common_.note("Dry run: nothing was stored.")
        _show_stored(common_, checked.objects, checked.work)
        return Exit.OK
    stored = checked.store()
    _show_stored(common_, stored, checked.work_of([str(i["metadata"]["name"]) for i in stored]))
    return Exit.OK
