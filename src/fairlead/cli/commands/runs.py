"""`runs`: what jobs recorded of themselves, as a list, one by one, and side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import element_name
from fairlead.api.resources import JOBS
from fairlead.api.values.times import parse_time
from fairlead.app.queries.messages import RunLine
from fairlead.cli.cluster.archive import direct_store
from fairlead.cli.commands.resubmit import resubmit
from fairlead.cli.connection.common import (
    Common,
    Format,
    check_choice,
    common,
    dump,
    now,
    seconds_of,
)
from fairlead.cli.connection.completers import complete_jobs, words
from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Column
from fairlead.cli.job_request.arrays import is_one, parse_reference
from fairlead.cli.records.ended_jobs import past_jobs, past_runs, present_or_past_job, stopped
from fairlead.cli.records.mlflow_server import MlflowServer, mlflow_target
from fairlead.cli.views.mlflow_run import (
    EXPORT_COLUMNS,
    RunExport,
    export_facts,
    export_rows,
    export_summary,
    kept_text,
    mlflow_run,
)
from fairlead.cli.views.runs import (
    default_columns,
    details,
    difference_rows,
    differences,
    keys_of,
    known_columns,
    run_columns,
    run_facts,
    run_line,
    run_rows,
    run_text,
    sorted_runs,
    value_of,
)
from fairlead.input.errors import Code, Exit, fail
from fairlead.input.suggest import nearest

LIMIT_DEFAULT, LIMIT_MAX = 50, 100_000
COMPARED_MAX = 20
_FORMATS = ("table", "json", "yaml", "csv", "name")
EPOCH = "1970-01-01T00:00:00Z"
_STORE_HELP = "Read from here. Also: FAIRLEAD_HISTORY_URL."
F = TypeVar("F", bound=Callable[..., Any])


def _filters(limit: int) -> Callable[[F], F]:
    """Return the decorator of a command that chooses runs."""
    options = (
        click.option("--tag", metavar="TAG", default="", help="Only runs with this tag."),
        click.option("--since", metavar="DURATION",
                     help="Only runs that ended this long ago or later."),
        click.option("--limit", metavar="N", default=limit, show_default=True,
                     type=click.IntRange(1, LIMIT_MAX), help="At most so many."),
        click.option("--history", "store", metavar="URL|FILE", default="", help=_STORE_HELP),
    )  # fmt: skip

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.group(
    invoke_without_command=True,
    epilog="""Examples:

    \b
      fairlead runs --tag sweep1 --sort -acc
      fairlead runs --tag sweep1 --columns name,lr,acc,acc.max -o csv
      fairlead runs show train-1
      fairlead runs compare train-1 train-2
      fairlead runs rerun train-1
      fairlead runs export --to mlflow:http://mlflow.example:5000 --tag sweep1
    """,
)
@_filters(LIMIT_DEFAULT)
@click.option("--sort", "sort", metavar="[-]COLUMN", default="",
              help="By this column, with a dash descending. [default: latest first]")  # fmt: skip
@click.option("--columns", metavar="NAME,...", default="",
              help="Fixed ones (name, state, user, time, ended, tags, note, commit), parameters, "
              "and metrics, as acc, acc.min, acc.max.")  # fmt: skip
@click.option("-o", "--output", "form", metavar="FORMAT", default="table", show_default=True,
              shell_complete=words(*_FORMATS), help="table, json, yaml, csv or name.")  # fmt: skip
@click.option("--no-headers", "headless", is_flag=True, help="Leave the header line out.")
@common(output=False)
def runs(
    common_: Common, *, tag: str, since: str | None, sort: str, columns: str, limit: int,
    store: str, form: str, headless: bool,
) -> int:  # fmt: skip
    """Show runs: jobs with parameters, tags, notes or metrics.

    Those that run are shown with what they reported so far, and those that ended also once their
    objects are gone. Elements of arrays are runs of their own.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return Exit.OK
    check_choice(form, _FORMATS, "-o")
    query = _query(tag, since, LIMIT_MAX if sort else limit)
    present = [line for _, line in _present_runs(common_, store, tag)]
    lines = [*present, *_past_runs(common_, store, query, present)]
    keys = [each.strip() for each in columns.split(",")] if columns else []
    _check_columns(lines, [*keys, *([sort.removeprefix("-")] if sort else [])])
    shown = (sorted_runs(lines, sort, now()) if sort else lines)[:limit]
    keys = keys or default_columns(shown, with_namespace=common_.all_namespaces)
    if form == "csv":
        rows = [[value_of(line, key, now()) for key in keys] for line in shown]
        common_.emit(as_csv(keys, rows))
    elif form == "name":
        common_.lines(line.name for line in shown)
    elif form != "table":
        common_.emit(dump([run_facts(line) for line in shown], Format(form)))
    else:
        replace(common_, headers=not headless).table(
            run_columns(keys), run_rows(shown, keys, now()),
            empty="no run was recorded that matches; fairlead submit --tag and fairlead.run do",
        )  # fmt: skip
    return Exit.OK


def _query(tag: str, since: str | None, limit: int) -> dict[str, str]:
    query = {"limit": str(limit), **({"tag": tag} if tag else {})}
    if since is not None:
        query["since"] = f"{now() - seconds_of(since, '--since'):.3f}"
    return query


def _past_runs(
    common_: Common, store: str, query: Mapping[str, str], present: Iterable[RunLine]
) -> list[RunLine]:
    """Return the runs that have ended, without those that are there."""
    known = {line.uid for line in present}
    return [line for line in past_runs(common_, store, query) if line.uid not in known]


def _present_runs(common_: Common, store: str, tag: str) -> list[tuple[Job, RunLine]]:
    """Return the runs that have not ended, the latest first; none where a store is read."""
    if direct_store(store, os.environ) or stopped(common_):
        return []
    api = common_.connect()
    space = "" if common_.all_namespaces else common_.space(api.connection.namespace)
    found: list[tuple[Job, RunLine]] = []
    for job in api.list(JOBS, namespace=space):
        line = None if job.is_finished else run_line(job)
        if line is None or (tag and tag not in line.run.tags):
            continue
        found.append((job, line))
    return sorted(found, key=_latest_first)


def _latest_first(run: tuple[Job, RunLine]) -> tuple[float, str]:
    job, line = run
    return -parse_time(job.metadata.creation_timestamp or EPOCH), line.name


def _check_columns(lines: Sequence[RunLine], keys: Sequence[str]) -> None:
    """Refuse a column that no run has; CliError."""
    known = known_columns(*keys_of(lines))
    for key in keys:
        if lines and key not in known:
            near = nearest(key, known)
            raise fail(Code.BAD_VALUE, f"no run that is listed has '{key}'",
                       help=(f"did you mean {near}?" if near else
                             f"there are: {', '.join(sorted(known))}",))  # fmt: skip


def _job(common_: Common, store: str, text: str) -> Job:
    """Return the job of a name, a number or NAME[INDEX], present or past; CliError."""
    reference = parse_reference(text)
    if is_one(reference):
        text = element_name(reference.name, int(reference.indices or 0))
    return present_or_past_job(common_, store, text)


@runs.command()
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.option("--history", "store", metavar="URL|FILE", default="", help=_STORE_HELP)
@common()
def show(common_: Common, *, job: str, store: str) -> int:
    """Show all that is known of a run: code, command, parameters, metrics with their course."""
    found = _job(common_, store, job)
    if common_.is_structured:
        common_.data(details(found))
    else:
        common_.lines(run_text(found, now()))
    return Exit.OK


@runs.command()
@click.argument("jobs", metavar="JOB JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("--all", "everything", is_flag=True, help="Also what is the same in all of them.")
@click.option("--history", "store", metavar="URL|FILE", default="", help=_STORE_HELP)
@common()
def compare(common_: Common, *, jobs: tuple[str, ...], everything: bool, store: str) -> int:
    """Show what differs between runs: parameters, code, image, command, metrics."""
    if not 2 <= len(jobs) <= COMPARED_MAX:
        raise fail(Code.BAD_VALUE, f"compare takes 2 to {COMPARED_MAX} runs, got {len(jobs)}",
                   help=("fairlead runs compare train-1 train-2",))  # fmt: skip
    found = differences([_job(common_, store, job) for job in jobs], everything=everything)
    if common_.is_structured:
        rows = [{"what": what, **dict(zip(jobs, values, strict=True))} for what, values in found]
        common_.data(rows)
        return Exit.OK
    columns = [Column("WHAT"), *(Column(job, may_cut=True) for job in jobs)]
    common_.table(columns, difference_rows(found), empty="these runs do not differ")
    return Exit.OK


@runs.command(
    epilog="""Examples:

    \b
      fairlead runs export --to mlflow:http://mlflow.example:5000 --tag sweep1
      fairlead runs export --to mlflow --since 7d --dry-run

    Credentials and certificates are those of the variables that MLflow's own client reads:
    MLFLOW_TRACKING_USERNAME, _PASSWORD, _TOKEN, _SERVER_CERT_PATH, _INSECURE_TLS.
    """,
)
@click.option("--to", "target", metavar="mlflow[:URI]", required=True,
              help="The tracking server. Without a URI: MLFLOW_TRACKING_URI.")  # fmt: skip
@click.option("--experiment", metavar="NAME", default="fairlead", show_default=True,
              envvar="MLFLOW_EXPERIMENT_NAME",
              help="Made where there is none. Also: MLFLOW_EXPERIMENT_NAME.")  # fmt: skip
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be written.")
@_filters(LIMIT_MAX)
@common()
def export(
    common_: Common, *, target: str, experiment: str, is_dry: bool, tag: str, since: str | None,
    limit: int, store: str,
) -> int:  # fmt: skip
    """Write runs to an MLflow tracking server.

    A run that was exported before is brought up to date, and nothing is written twice.
    """
    server = MlflowServer(mlflow_target(target, os.environ), experiment)
    server.check()
    done: list[RunExport] = []
    try:
        for job in _chosen(common_, store, _query(tag, since, limit)):
            done.append(server.export(mlflow_run(job), is_dry=is_dry))
            if done[-1].kept:
                common_.note(f"note: {kept_text(done[-1])}")
    finally:
        server.close()
        if done:
            _show(common_, done, server, is_dry=is_dry)
    if not done:
        common_.note("no run was recorded that matches; fairlead submit --tag and fairlead.run do")
    return Exit.OK


def _chosen(common_: Common, store: str, query: Mapping[str, str]) -> Iterator[Job]:
    """Yield whole runs, as lists have them: those that have not ended first."""
    present = _present_runs(common_, store, query.get("tag", ""))
    past = _past_runs(common_, store, query, (line for _, line in present))
    limit = int(query["limit"])
    yield from (job for job, _ in present[:limit])
    yield from past_jobs(
        common_, store, [line.uid for line in past][: max(0, limit - len(present))]
    )


def _show(
    common_: Common, done: Sequence[RunExport], server: MlflowServer, *, is_dry: bool
) -> None:
    if common_.is_structured:
        common_.data([export_facts(each) for each in done])
    elif common_.format is Format.NAME:
        common_.lines(each.run.name for each in done)
    else:
        common_.table(EXPORT_COLUMNS, export_rows(done), empty="")
    place = f"{server.address}, experiment {server.experiment}"
    common_.note(export_summary(done, place, is_dry=is_dry))


runs.add_command(resubmit, "rerun")
