"""`sweep`: many runs of one command, each with other values of its parameters, as one array."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fairlead.cli.commands.submit import flag_values, job_flags, submit_array
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.job_request.flag_groups.array_flag import ArrayRequest
from fairlead.cli.job_request.jobspec import Program
from fairlead.cli.job_request.request import parse_request
from fairlead.cli.submitting.sweep_file import SweepFile, sweep_conflicts, sweep_values
from fairlead.input.errors import CliError, Code, Exit, fail
from fairlead.input.sections import load


@click.command(
    epilog="""Examples:

    \b
      fairlead sweep sweep.yaml --gpus 1 -- python train.py --lr {lr}
      fairlead sweep sweep.yaml --tag sweep1 --dry-run -o yaml
      fairlead runs --tag sweep1 --sort -acc

    \b
      method: random
      samples: 20
      seed: 7
      parameters:
        lr: {min: 0.0001, max: 0.1, log: true}
        batch: [32, 64, 128]
      earlyStop: {metric: loss, rule: median, firstStep: 100}
    """,
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@job_flags
@click.option("--dry-run", is_flag=True, help="Check everything, say where it fits, store nothing.")
@common()
def sweep(
    common_: Common, *, file: str, command: tuple[str, ...], dry_run: bool, **options: Any
) -> int:  # fmt: skip
    """Run a command with many values of its parameters, as one array.

    FILE says which: of a grid all combinations, or samples drawn at random. Each element has its
    values in variables FAIRLEAD_PARAM_<name>, in place of {name} in the command's words, and in its
    record. With earlyStop in FILE, elements stop that do worse than the others. The array's id, its
    name, is printed on stdout.
    """
    request, problems = parse_request(flag_values(options), os.environ, now=now())
    if problems:
        raise CliError(problems)
    if request.array is not None:
        raise fail(Code.BAD_COMBINATION, "sweep and --array do not go together",
                   help=("parallelism in the file says how many run at a time",))  # fmt: skip
    found = load(Path(file), SweepFile, sweep_conflicts)
    words = command or found.command
    if not words:
        raise fail(Code.MISSING_ARGUMENT, "fairlead sweep needs a command",
                   help=(f"fairlead sweep {file} -- python train.py --lr {{lr}}",))  # fmt: skip
    values = sweep_values(found)
    indices, stop = f"0-{len(values[0][1]) - 1}", found.early_stop.wire()
    array = ArrayRequest(indices, found.parallelism, values, stop)
    submit_array(common_, replace(request, array=array), Program(words), dry_run=dry_run)
    return Exit.OK
