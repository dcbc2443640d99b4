"""squeue: jobs that wait, run, or ended in the last 300 s."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from fairlead import terminal
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.slurm_tools.columns import Cell, parse_percent, parse_wide, table
from fairlead.cli.slurm_tools.fields import BY_LETTER, BY_WIDE, Field, partition_of
from fairlead.cli.slurm_tools.job_json import print_json, squeue_job
from fairlead.cli.slurm_tools.matching import matches, users_of
from fairlead.cli.slurm_tools.node_groups import node_list, partition_table, partitions_of
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    JobId,
    NoHistory,
    QueueRecord,
    ended_records,
    in_order,
    live_records,
    parse_ids,
)
from fairlead.cli.slurm_tools.states import SlurmState, parse_state

#: Slurm's MinJobAge: so long an ended job is shown.
ENDED_SECONDS = 300
FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
FORMAT_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
OPTIONS = ToolOptions(
    "A/account= ~a/all r/array h/noheader ~/hide j/jobs= /job= l/long ~M/clusters= ~/cluster= "
    "n/name= o/format= O/Format= p/partition= q/qos= R/reservation= S/sort= t/states= /state= "
    "u/user= /users= /me w/nodelist= ~/noconvert ~P/priority ~/local ~/federation ~/sibling "
    "~/only-job-state /start i/iterate= s/steps? ~v/verbose L/licenses= /json? /yaml?",
    {
        "iterate": "watch squeue",
        "steps": "a member is one task; fairlead ps JOB shows how many run",
        "licenses": "there are no licenses",
        "yaml": "fairlead ps -o yaml",
        "start": "fairlead why JOB says when it may start",
        "sort": "the order is that of the numbers; sort(1)",
    },
)  # fmt: skip


def run(common_: Common, arguments: list[str]) -> int:
    """Show the queue."""
    given = OPTIONS.parse(arguments)
    if given.operands:
        raise ToolError(f"Unrecognized option: {given.operands[0]}")
    before, cells, fields = _columns(given)
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    ids, now = parse_ids(given.listed("jobs", "job")), time.time()
    found = _records(common_, api, given, space=space, ids=ids, now=now)
    if len(ids) == 1 and not any(record.is_called(ids) for record in found):
        raise ToolError("slurm_load_jobs error: Invalid job id specified", code=1)
    shown = [record for record in found if _is_asked(record, given, ids, users_of(api, given))]
    if given.has("json"):
        print_json("jobs", map(squeue_job, shown))
        return 0
    lines = [] if given.has("noheader") else table(before, cells, [_titles(fields, given)])
    lines += table(before, cells, ([field.value(each) for field in fields] for each in shown))
    if given.has("long") and not given.has("noheader"):
        lines.insert(0, time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(now)))
    terminal.say_as_is("".join(f"{line.rstrip() if cells[-1].width else line}\n" for line in lines))
    return 0


def _columns(given: GivenOptions) -> tuple[str, list[Cell], list[Field]]:
    """Return the literal text before the columns, the columns, and their fields; ToolError."""
    if given.has("Format"):
        cells, before = parse_wide(given.last("Format")), ""
        unknown = [cell.field for cell in cells if cell.field not in BY_WIDE]
        if unknown:
            raise ToolError(f"Invalid job format specification: {unknown[0]}")
        return before, cells, [BY_WIDE[cell.field] for cell in cells]
    standard = FORMAT_LONG if given.has("long") else FORMAT
    before, cells = parse_percent(
        given.last("format", default=os.environ.get("SQUEUE_FORMAT", standard))
    )
    unknown = [cell.field for cell in cells if cell.field not in BY_LETTER]
    if unknown or not cells:
        raise ToolError(f"Invalid job format specification: {''.join(unknown[:1]) or before}")
    return before, cells, [BY_LETTER[cell.field] for cell in cells]


def _titles(fields: Iterable[Field], given: GivenOptions) -> list[str]:
    if given.has("Format"):
        return [field.wide.upper().replace("-", "_") for field in fields]
    return [field.title for field in fields]


def _states(given: GivenOptions) -> frozenset[SlurmState]:
    """Return the states to show; ToolError for what is none."""
    listed = given.listed("states", "state")
    if any(each.lower() == "all" for each in listed):
        return frozenset(SlurmState)
    chosen: set[SlurmState] = set()
    for text in listed:
        state = parse_state(text)
        if state is None:
            raise ToolError(f"Invalid job state specified: {text}")
        chosen.add(state)
    return frozenset(chosen) or frozenset(state for state in SlurmState if not state.is_end)


def _records(
    common_: Common, api: Api, given: GivenOptions, *, space: str, ids: list[JobId], now: float
) -> list[QueueRecord]:
    """Return the records that may be shown: of ended jobs those of the last seconds."""
    expands = given.has("array") or os.environ.get("SQUEUE_ARRAY") == "1"
    live = list(live_records(api, space, now, expands=expands))
    since = now - ENDED_SECONDS
    recent = [each for each in live if not each.state.is_end or (each.ended_at or now) >= since]
    if ids or any(state.is_end for state in _states(given)):
        with suppress(NoHistory):  # else what the API still has is shown
            recent += ended_records(common_, now, since=f"{since:.3f}")
    return _placed(common_, api, in_order(recent))


def _placed(common_: Common, api: Api, records: list[QueueRecord]) -> list[QueueRecord]:
    """Return the records, those of a list of partitions with the one that has their nodes."""
    if not any("," in partition_of(each) and each.nodes for each in records):
        return records
    found = partitions_of(node_list(api), partition_table(common_, api))
    hosts = {name: {node.name for node in nodes} for name, nodes in found.items()}
    return [
        replace(each, placed_in=next(
            (name for name in partition_of(each).split(",")
             if set(each.nodes) <= hosts.get(name, set())), "")
        ) if each.nodes else each
        for each in records
    ]  # fmt: skip


def _is_asked(
    record: QueueRecord, given: GivenOptions, ids: list[JobId], users: frozenset[str]
) -> bool:
    return (
        record.state in _states(given)
        and (not ids or record.is_called(ids))
        and matches(record, given, users)
    )
