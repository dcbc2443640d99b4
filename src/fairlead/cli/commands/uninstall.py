"""`uninstall`: takes Fairlead off a Kubernetes cluster, with nothing left that waits for it."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

import click

from fairlead.api.names import OWN_NAMESPACE
from fairlead.cli.connection.common import Common, common
from fairlead.input.errors import Code, Exit, fail

if TYPE_CHECKING:
    from fairlead.install.remover import InstalledInventory, UninstallOptions

JOBS_SHOWN_MAX = 10


@click.command(
    epilog="""Examples:

    \b
      fairlead uninstall --dry-run                  say what would be done
      fairlead uninstall --keep-crds                jobs stay as objects; no controller runs them
      fairlead uninstall --delete-jobs --yes        end all jobs, then remove everything

    It may be repeated: it goes on where it stopped.
    """
)
@click.option("--keep-crds", is_flag=True,
              help="Keep definitions and jobs; jobs lose Fairlead's finalizer.")  # fmt: skip
@click.option("--delete-jobs", is_flag=True,
              help="End and delete all jobs; needed when there are any.")  # fmt: skip
@click.option("--timeout", "timeout_seconds", metavar="SECONDS", default=60.0, show_default=True,
              type=click.FloatRange(0.0, 3600.0),
              help="Wait so long for the controllers to end jobs in order.")  # fmt: skip
@click.option("--dry-run", "is_dry", is_flag=True, help="Change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common(output=False)
def uninstall(
    common_: Common, *, keep_crds: bool, delete_jobs: bool, timeout_seconds: float, is_dry: bool,
    yes: bool,
) -> int:  # fmt: skip
    """Take Fairlead off a Kubernetes cluster.

    Removes what `fairlead install` made (namespace -n, default fairlead-system), the controllers
    first; then no job keeps Fairlead's finalizer and no pod its scheduling gate.
    """
    from fairlead.install.installer import check_access
    from fairlead.install.manifests import Install
    from fairlead.install.remover import UninstallOptions, steps, take_inventory
    from fairlead.install.remover import uninstall as remove_all

    if keep_crds and delete_jobs:
        raise fail(
            Code.BAD_COMBINATION, "--keep-crds and --delete-jobs do not go together",
            help=("fairlead cancel ends single jobs",),
        )  # fmt: skip
    options = UninstallOptions(common_.namespace or OWN_NAMESPACE, keep_crds, timeout_seconds)
    with closing(common_.connect()) as api:
        check_access(api, Install(options.namespace))
        inventory = take_inventory(api, options)
        lines = list(steps(inventory, options))
        if is_dry:
            common_.lines(lines)
            return Exit.OK
        _refuse(inventory, options, is_deleting=delete_jobs)
        if lines and not yes:
            _ask(common_, inventory, lines)
        remove_all(api, options, say=lambda line: common_.emit(f"{line}\n"))
    if not lines:
        common_.note("Nothing of Fairlead was there.")
    return Exit.OK


def _refuse(inventory: InstalledInventory, options: UninstallOptions, *, is_deleting: bool) -> None:
    """Refuse what would surprise: Helm's objects under Helm's feet, jobs gone without a word."""
    if release := inventory.helm_release:
        raise fail(
            Code.REFUSED, f"Helm installed Fairlead here, as release '{release}'",
            detail=("nothing was changed",),
            help=(f"helm uninstall {release} -n {options.namespace}; then this again",),
        )  # fmt: skip
    if options.is_keeping_kinds or is_deleting or not inventory.jobs:
        return
    shown = inventory.unfinished[:JOBS_SHOWN_MAX]
    raise fail(
        Code.CONFLICT,
        f"{len(inventory.jobs)} jobs are there, {len(inventory.unfinished)} of them have not ended",
        detail=(*shown, "nothing was changed"),
        help=("--delete-jobs ends and deletes them; --keep-crds keeps them as objects",),
    )  # fmt: skip


def _ask(common_: Common, inventory: InstalledInventory, lines: list[str]) -> None:
    if not sys.stdin.isatty():
        raise fail(
            Code.MISSING_ARGUMENT, "there is no terminal to ask at",
            detail=("nothing was changed",), help=("--yes, or --dry-run to see what goes",),
        )  # fmt: skip
    for line in lines:
        common_.note(line)
    if inventory.unfinished:
        common_.note(f"{len(inventory.unfinished)} jobs have not ended.")
    click.confirm("Go on?", abort=True, err=True)
