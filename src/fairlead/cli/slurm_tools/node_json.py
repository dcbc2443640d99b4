"""Nodes and partitions as sinfo and scontrol print them with --json.

The names are those of Slurm's data parser v0.0.41 (`sinfo_resp`, `node`, `partition_info`), of
which those are written that are known here. Source: the manual pages sinfo(1) and scontrol(1),
"--json", and Slurm's OpenAPI page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cli.job_request.node_kinds import Labels
from fairlead.cli.script.slurm_names import CLUSTER
from fairlead.cli.slurm_tools.job_json import number_of
from fairlead.cli.slurm_tools.node_groups import (
    NodeGroup,
    cpus_of,
    free_memory_of,
    gpus_of,
    gres_used,
    memory_of,
    partitions_with,
    state_of,
)
from fairlead.cli.views.nodes import NodeUse
from fairlead.decide.words import fold_names

#: The states that are a base and a flag in Slurm.
_STATES = {
    "draining": ["MIXED", "DRAIN"], "drained": ["IDLE", "DRAIN"], "maint": ["IDLE", "MAINTENANCE"],
    "fail": ["DOWN", "FAIL"], "reserved": ["IDLE", "RESERVED"],
}  # fmt: skip


def _states(node: NodeUse) -> list[str]:
    word = state_of(node)
    return _STATES.get(word, [word.upper()])


def _gres(node: NodeUse) -> str:
    return f"gpu:{gpus}" if (gpus := gpus_of(node)) else ""


def node_info(node: NodeUse, table: Mapping[str, Labels]) -> dict[str, Any]:
    """Return a node as `scontrol show nodes` has it; `table`: the labels of partitions."""
    used, total = cpus_of(node)
    gpus = gpus_of(node)
    return {
        "name": node.name,
        "hostname": node.name,
        "address": node.name,
        "cluster_name": CLUSTER,
        "state": _states(node),
        "reason": node.reason,
        "reason_changed_at": number_of(node.since),
        "cpus": total,
        "alloc_cpus": used,
        "alloc_idle_cpus": total - used,
        "real_memory": memory_of(node),
        "alloc_memory": memory_of(node) - free_memory_of(node),
        "gres": _gres(node),
        "gres_used": gres_used(node) if gpus else "",
        "partitions": partitions_with(node, table),
        "tres": f"cpu={total},mem={memory_of(node)}M" + (f",gres/gpu={gpus}" if gpus else ""),
        "weight": 1,
    }


def partition_info(name: str, nodes: Iterable[NodeUse]) -> dict[str, Any]:
    """Return a partition as `scontrol show partitions` has it."""
    listed = list(nodes)
    return {
        "name": name,
        "cluster": CLUSTER,
        "nodes": {"configured": fold_names(each.name for each in listed), "total": len(listed)},
        "cpus": {"total": sum(cpus_of(each)[1] for each in listed)},
        "maximums": {"nodes": number_of(None, is_infinite=True),
                     "time": number_of(None, is_infinite=True)},
        "partition": {"state": ["UP"]},
    }  # fmt: skip


def sinfo_group(group: NodeGroup) -> dict[str, Any]:
    """Return a line of sinfo: nodes of one partition."""
    cpus = [cpus_of(each)[1] for each in group.nodes] or [0]
    memory = [memory_of(each) for each in group.nodes] or [0]
    free = [free_memory_of(each) for each in group.nodes] or [0]
    first = group.nodes[0] if group.nodes else None
    names = [each.name for each in group.nodes]
    return {
        "cluster": CLUSTER,
        "partition": partition_info(group.partition, group.nodes),
        "node": {"state": _states(first) if first is not None else []},
        "nodes": {
            **group.amounts(lambda node: (int(any(node.used.values())), 1)),
            "hostnames": names,
            "addresses": names,
            "nodes": names,
        },
        "cpus": {**group.amounts(cpus_of), "minimum": min(cpus), "maximum": max(cpus)},
        "memory": {
            "minimum": min(memory),
            "maximum": max(memory),
            "free": {"minimum": number_of(min(free)), "maximum": number_of(max(free))},
            "allocated": sum(memory) - sum(free),
        },
        "gres": {
            "total": _gres(first) if first is not None else "",
            "used": gres_used(first) if first is not None and _gres(first) else "",
        },
        "reason": {"description": first.reason if first is not None else ""},
    }
