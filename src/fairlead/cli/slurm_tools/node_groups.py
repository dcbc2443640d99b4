"""Nodes as Slurm's commands show them: states, amounts, and the partitions that they are in.

Partitions are those of the settings and pools; one has every node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.cli.cluster.cluster_settings import slurm_settings
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.node_kinds import Labels
from fairlead.cli.script.slurm_names import DEFAULT_PARTITION
from fairlead.cli.views.nodes import NodeUsability, NodeUse, node_uses

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one partition that a line shows together."""

    partition: str
    nodes: tuple[NodeUse, ...]

    @property
    def state(self) -> str:
        """The state of the first one, as a word."""
        return state_of(self.nodes[0]) if self.nodes else "n/a"

    def amounts(self, amount: Callable[[NodeUse], tuple[int, int]]) -> dict[str, int]:
        """Return how much is used of what each node has: allocated, idle, other and total."""
        used = idle = other = 0
        for node in self.nodes:
            taken, total = amount(node)
            if state_of(node) in ("idle", "mixed", "allocated"):
                used, idle = used + taken, idle + total - taken
            else:
                other += total
        total = used + idle + other
        return {"allocated": used, "idle": idle, "other": other, "total": total}

    def counts(self, amount: Callable[[NodeUse], tuple[int, int]]) -> str:
        """Return the same as sinfo has it: allocated/idle/other/total."""
        return "/".join(map(str, self.amounts(amount).values()))


def state_of(node: NodeUse) -> str:
    """Return Slurm's word for what a node can be used for."""
    is_used = any(node.used.values())
    match node.state:
        case NodeUsability.NOT_READY:
            return "down"
        case NodeUsability.CORDONED:
            return "draining" if is_used else "drained"
        case NodeUsability.MAINTENANCE:
            return "maint"
        case NodeUsability.UNHEALTHY:
            return "fail"
        case NodeUsability.SPARE | NodeUsability.TAINTED:
            return "reserved"
        case NodeUsability.READY:
            pass
    whole = {"cpu", *(name for name in node.total if name.endswith("/gpu"))}
    is_full = any(node.used.get(each, 0) >= node.total.get(each, 0) > 0 for each in whole)
    if is_full:
        return "allocated"
    return "mixed" if is_used else "idle"


def gres_used(node: NodeUse) -> str:
    """Return the GPUs of a node that are used as sinfo has them: gpu:2."""
    used = sum(amount for name, amount in node.used.items() if name.endswith("/gpu"))
    return f"gpu:{used}"


def gpus_of(node: NodeUse) -> int:
    """Return the GPUs of a node."""
    return sum(amount for name, amount in node.total.items() if name.endswith("/gpu"))


def cpus_of(node: NodeUse) -> tuple[int, int]:
    """Return the CPUs of a node that are used, a part of one as a whole one, and all of them."""
    total = node.total.get("cpu", 0) // 1_000
    return min(total, -(-node.used.get("cpu", 0) // 1_000)), total


def memory_of(node: NodeUse) -> int:
    """Return the memory of a node in MiB."""
    return node.total.get("memory", 0) // _MIB


def free_memory_of(node: NodeUse) -> int:
    """Return the memory of a node that is not used, in MiB."""
    return (node.total.get("memory", 0) - node.used.get("memory", 0)) // _MIB


def node_list(api: Api) -> list[NodeUse]:
    """Return the nodes and what is used of them, by name."""
    others = api.list(PODS, label_selector=f"!{names.JOB_NAME}")
    found = node_uses(api.list(NODES), api.list(JOBS), others, time.time())
    return sorted(found, key=lambda node: node.name)


def partition_table(common_: Common, api: Api) -> Mapping[str, Labels]:
    """Return the labels of the nodes of each partition that the settings name."""
    return slurm_settings(common_, api).partitions


def partitions_with(node: NodeUse, table: Mapping[str, Labels]) -> list[str]:
    """Return the partitions that a node is in: that of all nodes, those of the settings, and that
    of its pool unless the settings say what its name is.
    """
    of_settings = [
        name for name, labels in sorted(table.items())
        if all(node.labels.get(key) == value for key, value in labels.items())
    ]  # fmt: skip
    pools = [] if node.pool in table else [node.pool]
    return list(dict.fromkeys((DEFAULT_PARTITION, *of_settings, *pools)))


def partitions_of(
    nodes: Iterable[NodeUse], table: Mapping[str, Labels]
) -> dict[str, list[NodeUse]]:
    """Return the nodes of each partition, that of all nodes first."""
    partitions: dict[str, list[NodeUse]] = {DEFAULT_PARTITION: []}
    for node in nodes:
        for name in partitions_with(node, table):
            partitions.setdefault(name, []).append(node)
    return partitions
