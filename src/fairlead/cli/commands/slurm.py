"""`slurm`: Slurm's own commands, for people and programs that call them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from fairlead.cli.common import Common, common
from fairlead.cli.slurm_tools.__main__ import COMMANDS
from fairlead.input.errors import Code, fail

#: What tells a command of ours from one of a real Slurm, which is never replaced.
MARK = "fairlead.cli.slurm_tools"
_PROGRAM = """#!/bin/sh
exec {python} -m {module} {command} "$@"
"""


@click.group()
def slurm() -> None:
    """Put Slurm's commands into a directory."""


@slurm.command(
    epilog="""Examples:

    \b
      fairlead slurm install ~/.local/bin
      fairlead slurm install /opt/fairlead/slurm && export PATH=/opt/fairlead/slurm:$PATH
    """
)
@click.argument("directory", metavar="DIR", type=click.Path())
@common(output=False, cluster=False)
def install(common_: Common, *, directory: str) -> None:
    """Put sbatch, squeue, sacct and their like into a directory.

    They are small programs that call this Fairlead, and use the cluster that `fairlead` uses; the
    namespace is the kubeconfig's, or $FAIRLEAD_NAMESPACE. A command of a real Slurm that is in the
    directory is never replaced.
    """
    target = Path(directory).expanduser()
    foreign = [name for name in COMMANDS if _is_foreign(target / name)]
    if foreign:
        raise fail(
            Code.BAD_VALUE, f"{target / foreign[0]} exists and is not of Fairlead",
            help=("choose another directory, before that one in $PATH",),
        )  # fmt: skip
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            _write(target / name, name)
    except OSError as error:
        raise fail(
            Code.BAD_VALUE, f"{error.filename or target} cannot be written: {error.strerror}"
        ) from error
    common_.note(f"{', '.join(COMMANDS)} are in {target}")
    if str(target.absolute()) not in os.environ.get("PATH", "").split(os.pathsep):
        common_.note(f"export PATH={shlex.quote(str(target.absolute()))}:$PATH")


def _is_foreign(path: Path) -> bool:
    try:
        return MARK.encode() not in path.read_bytes()[:4_096]
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _write(path: Path, name: str) -> None:
    """Write one command, in one step: another process may be about to start it."""
    text = _PROGRAM.format(python=shlex.quote(sys.executable), module=MARK, command=name)
    beside = path.with_name(f".{name}.{os.getpid()}")
    beside.write_text(text)
    beside.chmod(0o755)
    beside.replace(path)
