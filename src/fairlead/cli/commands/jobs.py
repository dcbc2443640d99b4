"""`ps`: jobs, where they run or why they do not."""

from __future__ import annotations

from typing import Any

import click

from fairlead.api.job import Job
from fairlead.api.resources import JOBS
from fairlead.cli.common import Common, Format, common, now
from fairlead.cli.embedded import is_embedded
from fairlead.cli.views.jobs import (
    COLUMNS,
    NAMESPACE_COLUMN,
    JobChoice,
    choose_jobs,
    job_rows,
    name_lines,
)


@click.command(
    epilog="""Examples:

    \b
      fairlead ps                    live jobs and the last few
      fairlead ps -a -o wide         all of them, with more columns
      fairlead cancel $(fairlead ps -o name)
    """
)
@click.option("-a", "--all", "shows_all", is_flag=True, help="Finished jobs too, all of them.")
@common()
def ps(common_: Common, *, shows_all: bool) -> None:
    """Show jobs: live ones and the last few that ended, oldest first.

    The last column says where a job runs, or why it does not. TIME is how long it has run, or how
    long it has been waiting; LEFT what remains of its time limit.
    """
    api = common_.connect()
    space = "" if common_.all_namespaces else common_.space(api.connection.namespace)
    raw = api.list(JOBS.raw, namespace=space)
    typed = [(_typed(item), item) for item in raw]
    chosen = choose_jobs((job for job, _ in typed), JobChoice(shows_all))
    if common_.format in (Format.JSON, Format.YAML):
        by_uid = {job.metadata.uid: item for job, item in typed}
        common_.structured("List", [by_uid[job.metadata.uid] for job in chosen], is_list=True)
        return
    if common_.format is Format.NAME:
        common_.emit(name_lines(chosen))
        return
    spread = common_.all_namespaces
    columns = (NAMESPACE_COLUMN, *COLUMNS) if spread else COLUMNS
    rows = job_rows(chosen, now(), with_namespace=spread, is_up=is_embedded(api))
    where = "in any namespace" if spread else f"in namespace {space}"
    common_.table(columns, rows, empty=f"no jobs {where}; fairlead submit SCRIPT queues one")


def _typed(item: dict[str, Any]) -> Job:
    import msgspec

    return msgspec.convert(item, Job)
