"""`ps`: jobs, where they run or why they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fairlead.api.job import Job, JobState
from fairlead.api.resources import JOBS, NODES
from fairlead.api.status import Forbidden
from fairlead.cli.common import Common, Format, collector_paused, common, now
from fairlead.cli.completers import words
from fairlead.cli.embedded import is_embedded
from fairlead.cli.identity import submitter_name
from fairlead.cli.lookup import require_namespace
from fairlead.cli.transport import Api
from fairlead.cli.views.jobs import (
    COLUMNS,
    NAMESPACE_COLUMN,
    JobChoice,
    choose_jobs,
    job_rows,
    name_lines,
)
from fairlead.input.errors import Code, fail

if TYPE_CHECKING:
    from fairlead.cli.views.teams import Owners

STATES = tuple(state.value for state in JobState)


@click.command(
    epilog="""Examples:

    \b
      fairlead ps                    live jobs and the last few
      fairlead ps -a -o wide         all of them, with more columns
      fairlead ps --state Waiting --me
      fairlead cancel $(fairlead ps --state Waiting -o name)
    """
)
@click.option("-a", "--all", "shows_all", is_flag=True, help="Finished jobs too, all of them.")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    shell_complete=words(*STATES),
    help="Only jobs in this state, such as Waiting or Running; repeatable.",
)
@click.option("--user", metavar="NAME", default="", help="Only that user's jobs.")
@click.option("--me", "is_mine", is_flag=True, help="Only your own jobs.")
@common()
@collector_paused()
def ps(
    common_: Common, *, shows_all: bool, states: tuple[str, ...], user: str, is_mine: bool
) -> None:
    """Show jobs: live ones and the last few that ended, oldest first.

    The last column says where a job runs, or why it does not. TIME is how long it has run, or how
    long it has been waiting; LEFT what remains of its time limit.
    """
    in_states = frozenset(map(_state, states))
    api = common_.connect()
    user = submitter_name(api) if is_mine else user
    choice = JobChoice(shows_all, in_states, user)
    space = "" if common_.all_namespaces else common_.space(api.connection.namespace)
    jobs, stored = _listed(api, space, as_stored=common_.is_structured)
    if not jobs and space:
        require_namespace(api, space)
    chosen = choose_jobs(jobs, choice)
    if common_.is_structured:
        common_.structured([stored[job.metadata.uid] for job in chosen])
        return
    if common_.format is Format.NAME:
        common_.emit(name_lines(chosen))
        return
    spread = common_.all_namespaces
    columns = (NAMESPACE_COLUMN, *COLUMNS) if spread else COLUMNS
    rows = job_rows(
        chosen, now(), with_namespace=spread, is_up=is_embedded(api),
        owners=_owners(common_, api, chosen), is_wide=common_.format is Format.WIDE,
    )  # fmt: skip
    where = "in any namespace" if spread else f"in namespace {space}"
    hint = f"no jobs {where}; fairlead submit SCRIPT queues one"
    common_.table(columns, rows, empty=f"no such jobs {where}" if states or user else hint)


def _state(text: str) -> str:
    """Return the state that was written, in any case; CliError when there is none of that name."""
    state = text.capitalize()
    if state not in STATES:
        from fairlead.cli import slurm

        here = slurm.STATES.get(text.upper())
        raise fail(
            Code.BAD_VALUE, f"--state: '{text}' must be one of {', '.join(STATES)}",
            help=(f"{text.upper()} of Slurm is {here}: --state {here}",) if here else (),
        )  # fmt: skip
    return state


def _owners(common_: Common, api: Api, jobs: Sequence[Job]) -> Owners | None:
    """Return whose the nodes are, for -o wide; None where it is not shown or may not be known."""
    has_teams = any(job.status.placement and job.status.placement.team for job in jobs)
    if common_.format is not Format.WIDE or not has_teams:
        return None
    from fairlead.cli.views.teams import owners_of

    try:
        return owners_of(api.list(NODES))
    except Forbidden:
        return None


def _listed(
    api: Api, space: str, *, as_stored: bool
) -> tuple[Sequence[Job], dict[str, dict[str, Any]]]:
    """Return the jobs of a namespace, and if asked each as it is stored, by uid.

    That takes seven times as long as the jobs alone, of which thousands may have ended.
    """
    if not as_stored:
        return api.list(JOBS, namespace=space), {}
    import msgspec

    typed = [(msgspec.convert(item, Job), item) for item in api.list(JOBS.raw, namespace=space)]
    return [job for job, _ in typed], {job.metadata.uid: item for job, item in typed}
