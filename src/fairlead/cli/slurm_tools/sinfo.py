"""sinfo: partitions, which are those of the settings and pools, and nodes; `all` has every node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from fairlead import terminal
from fairlead.cli.connection.common import Common
from fairlead.cli.job_request.node_kinds import Labels
from fairlead.cli.script.slurm_names import DEFAULT_PARTITION
from fairlead.cli.slurm_tools.columns import Cell, parse_percent, parse_wide, table
from fairlead.cli.slurm_tools.job_json import print_json
from fairlead.cli.slurm_tools.node_groups import (
    NodeGroup,
    cpus_of,
    free_memory_of,
    gpus_of,
    gres_used,
    memory_of,
    node_list,
    partition_table,
    partitions_of,
    state_of,
)
from fairlead.cli.slurm_tools.node_json import sinfo_group
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, ToolOptions
from fairlead.cli.views.nodes import NodeUsability, NodeUse
from fairlead.decide.words import fold_names

FORMAT = "%9P %.5a %.10l %.6D %.6t %N"
FORMAT_LONG = "%9P %.5a %.10l %.6D %.11T %N"
FORMAT_NODES = "%N %.6D %.9P %6t"
FORMAT_SUMMARY = "%9P %.5a %.10l %.16F %N"
OPTIONS = ToolOptions(
    "~a/all d/dead e/exact h/noheader ~/hide i/iterate= l/long ~M/clusters= n/nodes= N/Node "
    "~/noconvert o/format= O/Format= p/partition= r/responding R/list-reasons s/summarize "
    "S/sort= t/states= T/reservation ~v/verbose ~/local ~/federation /json? /yaml?",
    {
        "iterate": "watch sinfo",
        "list-reasons": "fairlead nodes -R",
        "reservation": "fairlead reservations",
        "yaml": "kubectl get nodes -o yaml",
        "sort": "sort(1)",
    },
)  # fmt: skip

_COMPACT = {"allocated": "alloc", "mixed": "mix", "drained": "drain", "draining": "drng",
            "reserved": "resv"}  # fmt: skip


def _first(group: NodeGroup, value: Callable[[NodeUse], object]) -> str:
    return str(value(group.nodes[0])) if group.nodes else "0"


def _least(group: NodeGroup, value: Callable[[NodeUse], int]) -> str:
    """Return an amount of each node, the least one with a `+` where they differ."""
    found = {value(node) for node in group.nodes} or {0}
    return f"{min(found)}{'+' if len(found) > 1 else ''}"


def _free_memory(group: NodeGroup) -> str:
    """Return what is free on each node, LEAST-MOST where they differ."""
    free = {free_memory_of(node) for node in group.nodes} or {0}
    return str(min(free)) if len(free) == 1 else f"{min(free)}-{max(free)}"


def _is_busy(node: NodeUse) -> tuple[int, int]:
    return int(any(node.used.values())), 1


def _partition(group: NodeGroup) -> str:
    return group.partition + ("*" if group.partition == DEFAULT_PARTITION else "")


class Unequal(Enum):
    """What becomes of nodes that differ in a column that is shown."""

    TOGETHER = "one line, which says it of all of them"
    APART = "a line for each value"
    APART_IF_EXACT = "a line for each value with --exact, else one with the least"


@dataclass(frozen=True, slots=True)
class NodeField:
    """What is shown of a group of nodes: letter, name for -O, title."""

    letter: str
    wide: str
    title: str
    value: Callable[[NodeGroup], str]
    unequal: Unequal = Unequal.TOGETHER


FIELDS: tuple[NodeField, ...] = (
    NodeField("P", "partition", "PARTITION", _partition),
    NodeField("R", "partitionname", "PARTITION", lambda g: g.partition),
    NodeField("a", "available", "AVAIL", lambda _: "up"),
    NodeField("l", "time", "TIMELIMIT", lambda _: "infinite"),
    NodeField("D", "nodes", "NODES", lambda g: str(len(g.nodes))),
    NodeField("t", "statecompact", "STATE", lambda g: _COMPACT.get(g.state, g.state),
              Unequal.APART),
    NodeField("T", "statelong", "STATE", lambda g: g.state, Unequal.APART),
    NodeField("N", "nodelist", "NODELIST", lambda g: fold_names(n.name for n in g.nodes)),
    NodeField("n", "nodehost", "HOSTNAMES", lambda g: ",".join(n.name for n in g.nodes)),
    NodeField("F", "nodeaiot", "NODES(A/I/O/T)", lambda g: g.counts(_is_busy)),
    NodeField("C", "cpusstate", "CPUS(A/I/O/T)", lambda g: g.counts(cpus_of)),
    NodeField("c", "cpus", "CPUS", lambda g: _least(g, lambda n: cpus_of(n)[1]),
              Unequal.APART_IF_EXACT),
    NodeField("m", "memory", "MEMORY", lambda g: _least(g, memory_of), Unequal.APART_IF_EXACT),
    NodeField("G", "gres", "GRES",
              lambda g: f"gpu:{n}" if (n := int(_first(g, gpus_of))) else "(null)", Unequal.APART),
    NodeField("", "gresused", "GRES_USED", lambda g: _first(g, gres_used), Unequal.APART),
    NodeField("f", "features", "AVAIL_FEATURES", lambda _: "(null)"),
    NodeField("b", "features_act", "ACTIVE_FEATURES", lambda _: "(null)"),
    NodeField("E", "reason", "REASON", lambda g: _first(g, lambda n: n.reason) or "none",
              Unequal.APART),
    NodeField("O", "cpusload", "CPU_LOAD", lambda _: "N/A"),
    NodeField("e", "freemem", "FREE_MEM", _free_memory),
    NodeField("w", "weight", "WEIGHT", lambda _: "1"),
)  # fmt: skip
_BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
_BY_WIDE = {field.wide: field for field in FIELDS}


def run(common_: Common, arguments: list[str]) -> int:
    """Show partitions and nodes."""
    given = OPTIONS.parse(arguments)
    if given.operands:
        raise ToolError(f"Unrecognized option: {given.operands[0]}")
    before, cells, fields = _columns(given)
    api = common_.connect()
    found = _partitions(given, node_list(api), partition_table(common_, api))
    groups = list(_lines(given, found, fields))
    if given.has("json"):
        print_json("sinfo", map(sinfo_group, groups))
        return 0
    lines = [] if given.has("noheader") else table(before, cells, [[f.title for f in fields]])
    rows = dict.fromkeys(tuple(field.value(group) for field in fields) for group in groups)
    lines += table(before, cells, rows)
    terminal.say_as_is("".join(f"{line.rstrip() if cells[-1].width else line}\n" for line in lines))
    return 0


def _partitions(
    given: GivenOptions, nodes: Iterable[NodeUse], table: Mapping[str, Labels]
) -> dict[str, list[NodeUse]]:
    wanted, hosts = given.listed("partition"), given.listed("nodes")
    states = [each.lower() for each in given.listed("states")]
    chosen = [
        node for node in nodes
        if (not hosts or node.name in hosts)
        and (not states or "all" in states or state_of(node) in states
             or _COMPACT.get(state_of(node)) in states)
        and not (given.has("dead") and node.state is not NodeUsability.NOT_READY)
        and not (given.has("responding") and node.state is NodeUsability.NOT_READY)
    ]  # fmt: skip
    return {
        name: found for name, found in partitions_of(chosen, table).items()
        if not wanted or name in wanted
    }  # fmt: skip


def _lines(
    given: GivenOptions, partitions: dict[str, list[NodeUse]], fields: Iterable[NodeField]
) -> Iterator[NodeGroup]:
    """Yield a group for each line: a node, a whole partition, or those of one that look alike."""
    apart = {Unequal.APART, *((Unequal.APART_IF_EXACT,) if given.has("exact") else ())}
    telling = [field for field in fields if field.unequal in apart]
    for name, nodes in partitions.items():
        if given.has("Node"):
            yield from (NodeGroup(name, (node,)) for node in nodes)
        elif given.has("summarize") or not nodes:
            yield NodeGroup(name, tuple(nodes))
        else:
            alike: dict[tuple[str, ...], list[NodeUse]] = {}
            for node in sorted(nodes, key=state_of):
                one = NodeGroup(name, (node,))
                alike.setdefault(tuple(field.value(one) for field in telling), []).append(node)
            yield from (NodeGroup(name, tuple(each)) for each in alike.values())


def _columns(given: GivenOptions) -> tuple[str, list[Cell], list[NodeField]]:
    if given.has("Format"):
        cells = parse_wide(given.last("Format"))
        return "", cells, [_field(_BY_WIDE, cell.field) for cell in cells]
    standard = FORMAT_LONG if given.has("long") else FORMAT
    if given.has("Node"):
        standard = FORMAT_NODES
    elif given.has("summarize"):
        standard = FORMAT_SUMMARY
    before, cells = parse_percent(
        given.last("format", default=os.environ.get("SINFO_FORMAT", standard))
    )
    if not cells:
        raise ToolError(f"Invalid node format specification: {before}")
    return before, cells, [_field(_BY_LETTER, cell.field) for cell in cells]


def _field(known: dict[str, NodeField], name: str) -> NodeField:
    if name not in known:
        raise ToolError(f"Invalid node format specification: {name}")
    return known[name]
