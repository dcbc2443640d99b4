"""`history`: jobs that have ended, also those whose objects are gone."""

from __future__ import annotations

from collections.abc import Iterable

import click

from fairlead.app.messages import HistoryLine
from fairlead.cli.connection.common import Common, Format, common, now, seconds_of
from fairlead.cli.connection.completers import words
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.records.past import past_lines, past_named
from fairlead.cli.views.words import reason_words
from fairlead.decide.words import duration
from fairlead.input.errors import Code, fail

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000


@click.command(
    epilog="""Examples:

    \b
      fairlead history
      fairlead history --since 7d --state Failed
      fairlead history train-1 -o json      the whole job as it was in the end
    """
)
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--since", metavar="DURATION", help="Only jobs that ended this long ago or later.")
@click.option(
    "--state",
    metavar="STATE",
    default="",
    shell_complete=words("Succeeded", "Failed", "Cancelled"),
    help="Succeeded, Failed or Cancelled.",
)
@click.option("--user", metavar="NAME", default="", help="Only that user's jobs.")
@click.option("--limit", metavar="N", default=LIMIT_DEFAULT, show_default=True,
              type=click.IntRange(1, LIMIT_MAX), help="At most so many.")  # fmt: skip
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@common()
def history(
    common_: Common,
    *,
    job: str | None,
    since: str | None,
    state: str,
    user: str,
    limit: int,
    store: str,
) -> None:
    """Show jobs that have ended, the latest first.

    The record of a job outlives its object. That of a stopped cluster of this machine is read from
    its data directory.
    """
    query = {"limit": str(limit)}
    if since is not None:
        query["since"] = f"{now() - seconds_of(since, '--since'):.3f}"
    wanted = {
        "state": state[:1].upper() + state[1:],
        "user": user,
    }
    query.update({key: value for key, value in wanted.items() if value})
    lines = past_named(common_, store, job, query) if job else past_lines(common_, store, query)
    if job and not lines:
        raise fail(Code.NO_SUCH_JOB, f"no job '{job}' that matches has ended",
                   help=("fairlead history lists all of them",))  # fmt: skip
    if common_.is_structured:
        common_.structured([line.document for line in lines], is_list=job is None)
    elif common_.format is Format.NAME:
        common_.lines(line.name for line in lines)
    else:
        spread = common_.all_namespaces
        columns = (NAMESPACE_COLUMN, *COLUMNS) if spread else COLUMNS
        rows = history_rows(lines, now(), with_namespace=spread)
        common_.table(
            columns,
            rows,
            empty="the history has no job that matches; fairlead ps -a shows those not deleted",
        )


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
    Column("UID", wide_only=True),
    Column("REASON", may_cut=True),
)
NAMESPACE_COLUMN = Column("NAMESPACE")


def history_rows(
    lines: Iterable[HistoryLine], now: float, *, with_namespace: bool = False
) -> list[Row]:
    """Return a row per job in the given order, preceded by the namespace when asked."""
    rows: list[Row] = []
    for line in lines:
        ended = line.finished_at_ms
        row = (
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
            line.uid,
            _why(line),
        )
        rows.append((line.namespace, *row) if with_namespace else row)
    return rows


def _why(line: HistoryLine) -> str:
    if line.state == "Succeeded" or not line.reason:
        return NONE
    return reason_words(line.reason, line.message)


def _between(start_ms: int | None, end_ms: int | None) -> str:
    return NONE if start_ms is None or end_ms is None else duration((end_ms - start_ms) / 1000)
