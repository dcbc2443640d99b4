"""`usage`: GPU-hours and cost by team, user, job and more, of jobs that ended and that run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import click
import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS
from fairlead.app.queries.messages import HistoryLine
from fairlead.cli.cluster.archive import direct_store
from fairlead.cli.connection.common import (
    Common,
    Format,
    check_choice,
    common,
    dump,
    now,
    seconds_of,
)
from fairlead.cli.connection.completers import words
from fairlead.cli.records.ended_jobs import past_lines, stopped
from fairlead.cli.views.usage import (
    KEYS,
    Totals,
    columns,
    csv_text,
    totals,
    usage_facts,
    usage_rows,
)
from fairlead.decide.attempts.usage import usage_of, weeks_of

RECORDS_MAX = 100_000
CUT_NOTE = f"only the latest {RECORDS_MAX:,} jobs are counted"
_FORMATS = ("table", "json", "yaml", "csv")


@click.command(
    epilog="""Examples:

    \b
      fairlead usage -A
      fairlead usage -A --by team,week --since 90d
      fairlead usage -A --by team,user --since 30d
      fairlead usage -A --by pool,job --since 7d -o csv > usage.csv
    """
)
@click.option("--by", metavar="KEYS", default="team", show_default=True,
              shell_complete=words(*KEYS), help=f"One or more of {', '.join(KEYS)}.")  # fmt: skip
@click.option("--since", metavar="DURATION", default="30d", show_default=True,
              help="Count from so long ago.")  # fmt: skip
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@click.option("-o", "--output", "form", metavar="FORMAT", default="table", show_default=True,
              shell_complete=words(*_FORMATS), help="table, json, yaml or csv.")  # fmt: skip
@common(output=False)
def usage(common_: Common, *, by: str, since: str, store: str, form: str) -> None:
    """Show GPU-hours: held, busy, borrowed and lost.

    HELD are the hours between the begin and the end of each attempt, BUSY those in which all
    members ran, BORROWED those on nodes of other teams. LOST is what failed attempts did after
    their last checkpoint, PREEMPTED the same of preempted ones. COST is what was held by the prices
    of the node pools when attempts were placed; with a plus, a part of it had none. Records of the
    history are counted, and jobs that have not ended.
    """
    check_choice(form, _FORMATS, "-o")
    keys = _keys(by)
    until = now()
    begin = until - seconds_of(since, "--since")
    records = read_records(common_, store, begin)
    if records.is_cut:
        common_.note(f"note: {CUT_NOTE}")
    found = records.totals(keys, begin, until)
    if form == "csv":
        common_.emit(csv_text(found, keys))
    elif form == "table":
        rows = usage_rows(found)
        common_.table(columns(keys, found), rows, empty=f"no GPU-hours in the last {since}")
    else:
        common_.emit(dump(usage_facts(found, keys), Format(form)))


class UsageRecords(NamedTuple):
    """Jobs to sum up: `lines` are those of the history, `jobs` these and those that go on."""

    lines: Sequence[HistoryLine]
    jobs: Sequence[Job]

    @property
    def is_cut(self) -> bool:
        """True where the history may have more."""
        return len(self.lines) == RECORDS_MAX

    def totals(self, keys: Sequence[str], begin: float, until: float) -> Totals:
        """Return the hours between two instants; each week by itself where that is a key."""
        spans = list(weeks_of(begin, until)) if "week" in keys else [(begin, until)]
        return totals(
            (one for job in self.jobs for span in spans for one in usage_of(job, *span)), keys
        )


def read_records(common_: Common, store: str, begin: float) -> UsageRecords:
    """Return the jobs that ended since `begin`, the latest first, and those that have not ended."""
    query = {"since": f"{begin:.3f}", "limit": str(RECORDS_MAX)}
    lines = past_lines(common_, store, query)
    ended = {line.uid: msgspec.convert(line.document, Job) for line in lines}
    live = (job for job in _live(common_, store) if job.metadata.uid not in ended)
    return UsageRecords(lines, [*ended.values(), *live])


def _keys(by: str) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(key.strip() for key in by.split(",")))
    for key in keys:
        check_choice(key, KEYS, "--by")
    return keys


def _live(common_: Common, store: str) -> list[Job]:
    """Return the jobs of the cluster; none where a store or a stopped cluster is read."""
    if direct_store(store, os.environ) or stopped(common_):
        return []
    api = common_.connect()
    space = "" if common_.all_namespaces else common_.space(api.connection.namespace)
    return list(api.list(JOBS, namespace=space))
