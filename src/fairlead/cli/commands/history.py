"""`history`: jobs that have ended, also those whose objects are gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

import click
import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import HistoryLine
from fairlead.cli.connection.common import Common, Format, common, now, seconds_of
from fairlead.cli.connection.completers import words
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.formats.text import bytes_text
from fairlead.cli.records.ended_jobs import past_lines, past_named
from fairlead.cli.views.jobs import latest_attempt
from fairlead.cli.views.usage import cost_text
from fairlead.cli.views.words import reason_words
from fairlead.decide.attempts.usage import account_of
from fairlead.decide.words import duration, fold_names
from fairlead.input.errors import Code, fail

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000


@click.command(
    epilog="""Examples:

    \b
      fairlead history
      fairlead history --since 7d --state Failed
      fairlead history --name 'train-*' --sort -gpu-hours -o name,gpu-hours,exit,reason
      fairlead history train-1 -o json      the whole job as it was in the end
    """
)
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--since", metavar="DURATION", help="Only jobs that ended this long ago or later.")
@click.option("--until", metavar="DURATION", default="",
              help="Only jobs that ended this long ago or earlier.")  # fmt: skip
@click.option(
    "--state",
    metavar="STATE",
    default="",
    shell_complete=words("Succeeded", "Failed", "Cancelled"),
    help="Succeeded, Failed or Cancelled.",
)
@click.option("-u", "--user", metavar="NAME", default="", help="Only that user's jobs.")
@click.option("--name", "pattern", metavar="PATTERN", default="",
              help="Only jobs of such a name: * matches any text, ? any letter.")  # fmt: skip
@click.option("--node", metavar="NODE", default="",
              help="Only jobs whose last attempt was on that node.")  # fmt: skip
@click.option("--limit", metavar="N", default=LIMIT_DEFAULT, show_default=True,
              type=click.IntRange(1, LIMIT_MAX), help="At most so many.")  # fmt: skip
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@common(columns=True)
def history(
    common_: Common, *, job: str | None, since: str | None, state: str, user: str, limit: int,
    store: str, until: str, pattern: str, node: str,
) -> None:  # fmt: skip
    """Show jobs that have ended, the latest first.

    The record of a job outlives its object. That of a stopped cluster of this machine is read from
    its data directory. COST, where one is known, is what all attempts held, by the prices of the
    node pools when they were placed.
    """
    chooses = bool(until or pattern or node)  # here, of all that the archive has
    query = {"limit": str(LIMIT_MAX if chooses else limit)}
    if since is not None:
        query["since"] = f"{now() - seconds_of(since, '--since'):.3f}"
    wanted = {
        "state": state[:1].upper() + state[1:],
        "user": user,
    }
    query.update({key: value for key, value in wanted.items() if value})
    lines = past_named(common_, store, job, query) if job else past_lines(common_, store, query)
    if chooses:
        before = now() - seconds_of(until, "--until") if until else None
        lines = [line for line in lines if _is_chosen(line, before, pattern, node)][:limit]
    if job and not lines:
        raise fail(Code.NO_SUCH_JOB, f"no job '{job}' that matches has ended",
                   help=("fairlead history lists all of them",))  # fmt: skip
    if common_.is_structured:
        common_.structured([line.document for line in lines], is_list=job is None)
    elif common_.format is Format.NAME:
        common_.lines(line.name for line in lines)
    else:
        columns, rows = history_table(lines, now(), with_namespace=common_.all_namespaces)
        common_.table(
            columns,
            rows,
            empty="the history has no job that matches; fairlead ps -a shows those not deleted",
        )


def _is_chosen(line: HistoryLine, before: float | None, pattern: str, node: str) -> bool:
    ended = (line.finished_at_ms or 0) / 1000
    if (before is not None and ended > before) or not fnmatchcase(line.name, pattern or "*"):
        return False
    return not node or node in _nodes(_job_of(line))


NONE = "-"

COLUMNS: tuple[Column, ...] = (
    Column("NAME"),
    Column("STATE"),
    Column("TASKS", Align.RIGHT),
    Column("ATTEMPTS", Align.RIGHT),
    Column("WAITED"),
    Column("TIME"),
    Column("ENDED"),
    Column("USER", wide_only=True),
    Column("NUMBER", Align.RIGHT, wide_only=True),
    Column("PRIORITY", Align.RIGHT, wide_only=True),
    Column("START", wide_only=True),
    Column("END", wide_only=True),
    Column("EXIT", Align.RIGHT, wide_only=True),
    Column("NODES", wide_only=True),
    Column("GPU-HOURS", Align.RIGHT, wide_only=True),
    Column("INTERNET-SENT", Align.RIGHT, wide_only=True),
    Column("INTERNET-RECEIVED", Align.RIGHT, wide_only=True),
    Column("UID", wide_only=True),
    Column("REASON", may_cut=True),
)
#: The class of addresses that no list of prefixes has.
_INTERNET = "internet"
NAMESPACE_COLUMN = Column("NAMESPACE")
COST_COLUMN = Column("COST", Align.RIGHT)
#: The column before which that of the cost is, where a cost is known.
_AFTER_COST = 6


def history_table(
    lines: Sequence[HistoryLine], now: float, *, with_namespace: bool = False
) -> tuple[list[Column], list[Row]]:
    """Return the columns, and a row per job in the given order; with the namespace when asked, and
    with the cost where that of any job is known.
    """
    jobs = [_job_of(line) for line in lines]
    costs = [_cost(line, job) for line, job in zip(lines, jobs, strict=True)]
    columns = list(COLUMNS)
    rows = [list(_row(line, job, now)) for line, job in zip(lines, jobs, strict=True)]
    if any(cost is not None for cost in costs):
        columns.insert(_AFTER_COST, COST_COLUMN)
        for row, cost in zip(rows, costs, strict=True):
            row.insert(_AFTER_COST, cost_text(cost or 0.0, 0.0))
    if with_namespace:
        columns.insert(0, NAMESPACE_COLUMN)
        for row, line in zip(rows, lines, strict=True):
            row.insert(0, line.namespace)
    return columns, [tuple(row) for row in rows]


def _job_of(line: HistoryLine) -> Job | None:
    """Return the job as it was in the end; None where the record does not have it."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(line.document, Job) if line.document else None
    return None


def _cost(line: HistoryLine, job: Job | None) -> float | None:
    """Return what all attempts cost; None where a part of their GPU-hours has no known price."""
    if job is None or line.finished_at_ms is None:
        return None
    return account_of(job, line.finished_at_ms / 1000).cost


def _nodes(job: Job | None) -> list[str]:
    """Return the nodes of the last attempt."""
    placement = None if job is None else job.status.placement
    return [] if placement is None else sorted(set(nodes_of(placement)))


def _details(line: HistoryLine, job: Job | None) -> Row:
    """Return the cells of START, END, EXIT, NODES and GPU-HOURS."""
    instants = (line.started_at_ms, line.finished_at_ms)
    start, end = (NONE if at is None else format_time(at // 1000) for at in instants)
    if job is None:
        return start, end, NONE, NONE, NONE
    code = 0 if line.state == "Succeeded" else getattr(latest_attempt(job), "exit_code", None)
    hours = account_of(job, (line.finished_at_ms or 0) / 1000).gpu_hours
    exit_ = NONE if code is None else str(code)
    return start, end, exit_, fold_names(_nodes(job)) or NONE, f"{hours:.2f}"


def _internet(line: HistoryLine) -> Row:
    """Return what members had sent to the internet and received from it, where it was counted."""
    if line.traffic is None:
        return NONE, NONE
    found = [each for each in line.traffic.classes if each.traffic_class == _INTERNET]
    return (bytes_text(sum(each.sent for each in found)),
            bytes_text(sum(each.received for each in found)))  # fmt: skip


def _row(line: HistoryLine, job: Job | None, now: float) -> Row:
    ended = line.finished_at_ms
    return (
        line.name,
        line.state or NONE,
        str(line.member_count),
        str(line.attempt_count),
        _between(line.submitted_at_ms, line.started_at_ms or ended),
        _between(line.started_at_ms, ended),
        f"{duration(now - ended / 1000)} ago" if ended is not None else NONE,
        line.user or NONE,
        str(line.number or NONE),
        str(line.priority),
        *_details(line, job),
        *_internet(line),
        line.uid,
        _why(line),
    )


def _why(line: HistoryLine) -> str:
    if line.state == "Succeeded" or not line.reason:
        return NONE
    return reason_words(line.reason, line.message)


def _between(start_ms: int | None, end_ms: int | None) -> str:
    return NONE if start_ms is None or end_ms is None else duration((end_ms - start_ms) / 1000)
