"""`ps`: jobs, where they run or why they do not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fairlead import terminal
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOBS, NODES
from fairlead.api.status import Forbidden
from fairlead.cli.cluster.embedded import is_embedded
from fairlead.cli.cluster.lookup import (
    STATES,
    list_arrays,
    missing_job,
    read_state,
    require_namespace,
)
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.cluster.recent_jobs import recent_jobs
from fairlead.cli.connection.common import (
    CLEAR,
    WATCH_SECONDS,
    Common,
    Format,
    collector_paused,
    common,
    now,
    seconds_of,
)
from fairlead.cli.connection.completers import complete_jobs, words
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import parse_reference, select
from fairlead.cli.views.arrays import array_row, choose_arrays, is_element_of_listed
from fairlead.cli.views.jobs import (
    COLUMNS,
    FINISHED_SHOWN_MAX,
    NAMESPACE_COLUMN,
    JobChoice,
    choose_jobs,
    job_rows,
    name_lines,
)
from fairlead.input.errors import CliError, Code, fail

if TYPE_CHECKING:
    from fairlead.cli.views.teams import Owners


@click.command(
    epilog="""Examples:

    \b
      fairlead ps                    live jobs and the last few
      fairlead ps -a -o wide         all of them, with more columns
      fairlead ps --state Waiting --me
      fairlead ps sweep-1            the elements of an array that are jobs now
      fairlead ps --node gpu-7 --since 2h --sort -time
      fairlead ps -a -o name,state,user,where
    """
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_jobs)
@click.option("-a", "--all", "shows_all", is_flag=True, help="Finished jobs too, all of them.")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    shell_complete=words(*STATES),
    help="Only jobs in this state, such as Waiting or Running; repeatable.",
)
@click.option("-l", "--long", "is_long", is_flag=True,
              help="More columns, the numbers of jobs among them, as -o wide.")  # fmt: skip
@click.option("-u", "--user", metavar="NAME", default="", help="Only that user's jobs.")
@click.option("--me", "is_mine", is_flag=True, help="Only your own jobs.")
@click.option("--name", "pattern", metavar="PATTERN", default="",
              help="Only jobs of such a name: * matches any text, ? any letter.")  # fmt: skip
@click.option("--node", metavar="NODE", default="", help="Only jobs on that node.")
@click.option("--since", metavar="DURATION", default="",
              help="Only jobs submitted this long ago or later.")  # fmt: skip
@click.option("--until", metavar="DURATION", default="",
              help="Only jobs submitted this long ago or earlier.")  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Show it again every 5s, until Ctrl-C.")
@common(columns=True)
@collector_paused()
def ps(
    common_: Common, *, names: tuple[str, ...], is_long: bool, watch: bool, **given: Any
) -> None:  # fmt: skip
    """Show jobs: live ones and the last few that ended, oldest first.

    An array has one line, with its elements counted in TASKS; with its NAME its elements are shown
    that are next in line, run or have just ended, else itself, and with the NAME of a job that job.

    The last column says where a job runs, or why it does not. TIME is how long it has run, or how
    long it has been waiting; LEFT what remains of its time limit.
    """
    if is_long and common_.format is Format.TABLE:
        common_ = replace(common_, format=Format.WIDE)
    is_table = common_.format in (Format.TABLE, Format.WIDE) and not common_.is_csv
    if watch and not is_table:
        raise fail(Code.BAD_COMBINATION, "--watch is for a table", help=("leave out one of them",))
    states = frozenset(map(read_state, given["states"]))
    api = common_.connect()
    user = submitter_name(api) if given["is_mine"] else given["user"]
    choice = JobChoice(
        given["shows_all"], states, user, given["pattern"],
        given["node"], _ago(given["since"], "--since"), _ago(given["until"], "--until"),
    )  # fmt: skip
    _show(common_, api, choice, names)
    while watch:
        time.sleep(WATCH_SECONDS)
        if terminal.is_terminal():
            terminal.say_as_is(CLEAR)
        _show(common_, api, choice, names)


def _ago(text: str, flag: str) -> float | None:
    """Return the instant so long ago; None for none. CliError."""
    return now() - seconds_of(text, flag) if text else None


def _show(common_: Common, api: Api, choice: JobChoice, names: tuple[str, ...]) -> None:
    """Show the jobs that are chosen, of all or of those that are named."""
    space = "" if common_.all_namespaces else common_.space(api.connection.namespace)
    arrays = list_arrays(api, space)
    listed = frozenset(str(each["metadata"]["uid"]) for each in arrays)
    stored: dict[str, dict[str, Any]] = {}
    if choice.shows_few and not (names or common_.is_structured):
        jobs = recent_jobs(
            api, space, lambda metadata: choice.includes_meta(metadata)
            and not is_element_of_listed(metadata, listed), FINISHED_SHOWN_MAX,
        )  # fmt: skip
    else:
        jobs, stored = _listed(api, space, as_stored=common_.is_structured)
    if not (jobs or arrays) and space:
        require_namespace(api, space)
    unused: list[dict[str, Any]] = []
    if names:
        (jobs, unused), arrays = _named(api, space, jobs=jobs, arrays=arrays, named=names), []
    elif not choice.node:  # where an array is, its elements say
        jobs = [job for job in jobs if not is_element_of_listed(job.metadata, listed)]
    chosen = choose_jobs(jobs, replace(choice, shows_all=choice.shows_all or bool(names)))
    chosen_arrays = choose_arrays(map(_array, arrays), choice)
    if common_.is_structured:
        of_arrays = {str(each["metadata"]["uid"]): each for each in arrays}
        stored |= of_arrays
        common_.structured([stored[each.metadata.uid] for each in (*chosen, *chosen_arrays)])
        return
    if common_.format is Format.NAME:
        common_.emit(name_lines((*chosen, *chosen_arrays)))
        return
    spread = common_.all_namespaces
    columns = (NAMESPACE_COLUMN, *COLUMNS) if spread else COLUMNS
    rows = job_rows(
        chosen, now(), with_namespace=spread, is_up=is_embedded(api),
        owners=_owners(common_, api, chosen), is_wide=common_.format is Format.WIDE,
    )  # fmt: skip
    chosen_arrays += choose_arrays(map(_array, unused), replace(choice, shows_all=True))
    rows += [array_row(array, now(), with_namespace=spread) for array in chosen_arrays]
    where = "in any namespace" if spread else f"in namespace {space}"
    hint = f"no jobs {where}; fairlead submit SCRIPT queues one"
    if unused:
        common_.note(
            f"no element is a job now; fairlead history {names[0]}-INDEX shows how one ended"
        )
    common_.table(columns, rows, empty=hint if choice.is_of_all else f"no such jobs {where}")


def _array(stored: dict[str, Any]) -> JobArray:
    import msgspec

    return msgspec.convert(stored, JobArray)


def _named(
    api: Api,
    space: str,
    *,
    jobs: Sequence[Job],
    arrays: Sequence[dict[str, Any]],
    named: Sequence[str],
) -> tuple[list[Job], list[dict[str, Any]]]:
    """Return the jobs that names mean: a job of its own, or the elements of an array that are jobs
    now. The second are arrays of which none is; CliError for a name of neither.
    """
    by_name = {job.metadata.name: job for job in jobs}
    arrays_by_name = {str(each["metadata"]["name"]): each for each in arrays}
    found: dict[str, Job] = {}
    without: dict[str, dict[str, Any]] = {}
    for reference in (parse_reference(name_of(api, space, each)) for each in named):
        stored = arrays_by_name.get(reference.name)
        if reference.indices is None and reference.name in by_name:
            found[reference.name] = by_name[reference.name]
        elif stored is not None:
            elements = select(_array(stored), reference).jobs_among(jobs)
            found |= {job.metadata.name: job for job in elements}
            if not elements:
                without[reference.name] = stored
        else:
            raise CliError(missing_job(api, space, reference.name))
    return list(found.values()), list(without.values())


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
