"""seff: what a job used of what it asked for, with the labels of Slurm's contribs/seff."""

from __future__ import annotations

import time

from fairlead import terminal
from fairlead.cli.connection.common import Common
from fairlead.cli.script.slurm_names import CLUSTER
from fairlead.cli.slurm_tools.fields import (
    cpu_milliseconds,
    cpus,
    exit_status,
    long_clock,
    node_count,
    total_bytes,
)
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    NoHistory,
    QueueRecord,
    ended_records,
    in_order,
    live_records,
    parse_ids,
)
from fairlead.cli.slurm_tools.states import SlurmState

OPTIONS = ToolOptions("h/help ~d/debug", {})
USAGE = "Usage: seff [Options] <Jobid>\n"
UNKNOWN = "unknown"
_NOT_FOUND, _BAD_ID = 2, 3
_UNITS = ("KB", "MB", "GB", "TB", "PB")
_KIB = 1_024


def run(common_: Common, arguments: list[str]) -> int:
    """Show the efficiency of one job, or of one element of an array."""
    given = OPTIONS.parse(arguments)
    if given.has("help") or len(given.operands) != 1:
        terminal.say(USAGE)
        return 0 if given.has("help") else 1
    ids = parse_ids(given.operands)
    api, now = common_.connect(), time.time()
    space = common_.space(api.connection.namespace)
    live = list(live_records(api, space, now))
    try:
        ended = ended_records(common_, now, number=ids[0].number)
    except NoHistory as error:
        raise ToolError(f"the history cannot be read: {error}") from error
    found = [each for each in in_order([*live, *ended]) if each.is_called(ids)]
    if not found:
        raise ToolError("Job not found.", code=_NOT_FOUND)
    if found[0].offset is not None:
        name = found[0].job.metadata.name
        text = f"what job {ids[0].number} used is known of all components: fairlead eff {name}"
        raise ToolError(text, code=_BAD_ID)
    if len(found) > 1:
        text = f"{ids[0].number} is an array: name one of its tasks, such as {found[0].id}"
        raise ToolError(text, code=_BAD_ID)
    terminal.say("".join(f"{line}\n" for line in seff_lines(found[0])))
    return 0


def seff_lines(record: QueueRecord) -> list[str]:
    """Return what seff prints of a job."""
    lines = [f"Job ID: {record.number}"]
    if record.array is not None:
        lines.append(f"Array Job ID: {record.id}")
    user = record.user or "nobody"
    code = exit_status(record).partition(":")[0]
    lines += [f"Cluster: {CLUSTER}", f"User/Group: {user}/{user}"]
    if record.state is SlurmState.PENDING:
        return [*lines, f"State: {record.state.value}",
                "Efficiency not available for jobs in the PENDING state."]  # fmt: skip
    lines.append(f"State: {record.state.value} (exit code {code})")
    nodes, cores = node_count(record), cpus(record)
    if nodes > 1:
        lines += [f"Nodes: {nodes}", f"Cores per node: {cores // nodes}"]
    else:
        lines.append(f"Cores: {cores}")
    lines += [*_cpu_lines(record, cores), *_memory_lines(record, nodes)]
    if not record.state.is_end:
        lines.append(
            f"WARNING: Efficiency statistics may be misleading for {record.state.value} jobs."
        )
    return lines


def _cpu_lines(record: QueueRecord, cores: int) -> list[str]:
    used, walltime = cpu_milliseconds(record), cores * record.elapsed
    if used is None:
        share, shown = UNKNOWN, UNKNOWN
    else:
        shown = long_clock(used // 1_000)
        share = f"{used / 10 / walltime:.2f}%" if walltime else UNKNOWN
    return [
        f"CPU Utilized: {shown}",
        f"CPU Efficiency: {share} of {long_clock(walltime)} core-walltime",
        f"Job Wall-clock time: {long_clock(record.elapsed)}",
    ]


def _memory_lines(record: QueueRecord, nodes: int) -> list[str]:
    used, asked = total_bytes(record), record.amount("memory")
    shown = UNKNOWN if used is None else size(used)
    if not asked:
        return [f"Memory Utilized: {shown}"]
    share = UNKNOWN if used is None else f"{used * 100 / asked:.2f}%"
    whole = f"{size(asked)} ({size(asked // nodes)}/node)"
    return [f"Memory Utilized: {shown}", f"Memory Efficiency: {share} of {whole}"]


def size(count: int) -> str:
    """Return bytes as seff does: 1.50 GB."""
    amount, place = count / _KIB, 0
    while amount >= _KIB and place < len(_UNITS) - 1:
        amount, place = amount / _KIB, place + 1
    return f"{amount:.2f} {_UNITS[place]}"
