"""sprio: the priorities of jobs that wait. A priority is that of the job's class, which is its QOS.

Source: the manual page sprio(1). The other factors of Slurm's sum are 0: the age of a job counts
among equal priorities, the share of its team between teams (docs/design/placement.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead import terminal
from fairlead.cli.connection.common import Common
from fairlead.cli.script.slurm_names import CLUSTER
from fairlead.cli.slurm_tools.columns import Cell, parse_percent, table
from fairlead.cli.slurm_tools.fields import BY_LETTER, partition_of
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import QueueRecord, in_order, live_records, parse_ids
from fairlead.cli.slurm_tools.states import SlurmState

FORMAT = "%.15i %9r %.10Y %.10S %.10Q"
FORMAT_LONG = "%.15i %9r %.8u %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %.11N"
OPTIONS = ToolOptions(
    "h/noheader j/jobs= l/long ~M/clusters= ~/cluster= n/norm o/format= p/partition= S/sort= "
    "u/user= ~v/verbose w/weights ~/federation ~/local ~/sibling",
    {
        "sort": "the order is that of the numbers; sort(1)",
        "norm": "priorities have no largest value; leave it out",
        "weights": "a priority is that of the job's class; kubectl get priorityclasses",
    },
)


@dataclass(frozen=True, slots=True)
class _Factor:
    """A column: its title, and what it shows of a job."""

    title: str
    value: Callable[[QueueRecord], str]


def _priority(record: QueueRecord) -> str:
    return str(record.job.spec.priority or 0)


def _none(_record: QueueRecord) -> str:
    return "0"


_FACTORS = {
    "i": _Factor("JOBID", lambda record: record.id),
    "r": _Factor("PARTITION", partition_of),
    "u": _Factor("USER", lambda record: record.user),
    "o": _Factor("ACCOUNT", BY_LETTER["a"].value),
    "n": _Factor("QOS_NAME", BY_LETTER["q"].value),
    "c": _Factor("CLUSTER", lambda _: CLUSTER),
    "Y": _Factor("PRIORITY", _priority),
    "Q": _Factor("QOS", _priority),
    "S": _Factor("SITE", _none),
    "A": _Factor("AGE", _none),
    "B": _Factor("ASSOC", _none),
    "F": _Factor("FAIRSHARE", _none),
    "J": _Factor("JOBSIZE", _none),
    "P": _Factor("PARTITION", _none),
    "N": _Factor("NICE", _none),
}


def run(common_: Common, arguments: list[str]) -> int:
    """Show the priorities of jobs that wait."""
    given = OPTIONS.parse(arguments)
    if given.operands:
        raise ToolError(f"Unrecognized option: {given.operands[0]}")
    before, cells = _columns(given.last("format"), is_long=given.has("long"))
    api = common_.connect()
    ids, users = parse_ids(given.listed("jobs")), given.listed("user")
    partitions = frozenset(given.listed("partition"))
    found = [
        record for record in live_records(api, common_.space(api.connection.namespace), time.time())
        if record.state is SlurmState.PENDING
        and (not ids or record.is_called(ids))
        and (not users or record.user in users)
        and (not partitions or not partitions.isdisjoint(partition_of(record).split(",")))
    ]  # fmt: skip
    if ids and not found:
        raise ToolError("Unable to find jobs matching user/id(s) specified")
    factors = [_FACTORS[cell.field] for cell in cells]
    titles = [] if given.has("noheader") else [[factor.title for factor in factors]]
    rows = [[factor.value(record) for factor in factors] for record in in_order(found)]
    lines = table(before, cells, [*titles, *rows])
    terminal.say_as_is("".join(f"{line}\n" for line in lines))
    return 0


def _columns(text: str, *, is_long: bool) -> tuple[str, list[Cell]]:
    before, cells = parse_percent(text or (FORMAT_LONG if is_long else FORMAT))
    unknown = [cell.field for cell in cells if cell.field not in _FACTORS]
    if unknown or not cells:
        raise ToolError(f"Invalid job format specification: {''.join(unknown[:1]) or before}")
    return before, cells
