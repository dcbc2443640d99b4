"""Compares the nodes that a Slurm knows with those of a cluster.

What a Slurm says are the records of `scontrol show node` and tables of `sinfo` with a header.
Names of nodes are compared as they are; a node of a cluster has its `kubernetes.io/hostname`.

Source: scontrol(1), sinfo(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from fairlead.api import names
from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import NODES
from fairlead.api.values.quantity import resources_to_base
from fairlead.cli.connection.common import now
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.table import Column, Row
from fairlead.cli.job_request.flag_groups.flags import FlagValue
from fairlead.cli.job_request.node_kinds import KnownNodes, Labels, NamedNodes, What, resolve
from fairlead.cli.script.slurm_names import DEFAULT_PARTITION
from fairlead.cli.slurm_import.accounts import read_records
from fairlead.cli.slurm_import.conf import Findings
from fairlead.cli.slurm_import.fleet import gres_of, slug, whole
from fairlead.cli.views.nodes import NodeUsability, pool_of, state_of
from fairlead.decide.words import fold_names
from fairlead.member.hostlist import expand_hosts

COLUMNS = (Column("NODES", may_cut=True), Column("WHAT"), Column("SLURM"), Column("CLUSTER"))
_MIB = 1 << 20
#: States in which a node takes no jobs, by how their names begin.
_OUT = ("DOWN", "DRAIN", "FAIL", "MAINT", "INVAL", "ERROR", "DRNG", "POWER_DOWN")
_OUT_HERE = (NodeUsability.CORDONED, NodeUsability.NOT_READY, NodeUsability.UNHEALTHY)
#: Columns of sinfo by title: attribute of a node, as scontrol names it.
_TITLES = {
    "PARTITION": "partitions", "STATE": "state", "CPUS": "cputot", "MEMORY": "realmemory",
    "GRES": "gres", "AVAIL_FEATURES": "availablefeatures",
}  # fmt: skip


@dataclass(slots=True)
class SlurmNode:
    """What a Slurm says of a node; None where it does not say."""

    cpus: int | None = None
    memory_mib: int | None = None
    devices: Mapping[str, int] | None = None
    gpu_type: str = ""
    features: set[str] = field(default_factory=set[str])
    partitions: set[str] = field(default_factory=set[str])
    is_out: bool | None = None


class KnownBySlurm:
    """The nodes of a Slurm, by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, SlurmNode] = {}

    def take_nodes(self, file: str, text: str, found: Findings) -> None:
        """Take what scontrol shows of nodes."""
        count = 0
        for where, values in read_records(file, text, "nodename"):
            count += 1
            self._take(where, values["nodename"], values, found)
        if not count:
            found.wrong(file, "there is no NodeName=", "scontrol show node > FILE")

    def take_sinfo(self, file: str, text: str, found: Findings) -> None:
        """Take what a table of sinfo says."""
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        at = next((i for i, (_, line) in enumerate(lines) if "NODELIST" in line.split()), None)
        if at is None:
            found.wrong(file, "no line has the title NODELIST", "sinfo -o '%P %t %c %m %G %N'")
            return
        titles = lines[at][1].split()
        for number, line in lines[at + 1 :]:
            cells = line.split()
            if len(cells) != len(titles):
                message = f"the line has {len(cells)} columns, the titles are {len(titles)}"
                found.wrong(f"{file}:{number}", message, "sinfo -o '%P %t %c %m %G %N'")
                continue
            row = dict(zip(titles, cells, strict=True))
            values = {_TITLES[title]: row[title] for title in titles if title in _TITLES}
            self._take(f"{file}:{number}", row["NODELIST"], values, found)

    def _take(self, where: str, listed: str, values: Mapping[str, str], found: Findings) -> None:
        try:
            hosts = expand_hosts(listed)
            devices, kind = gres_of(values.get("gres", ""))
        except ValueError as error:
            found.wrong(where, f"{error}")
            return
        for host in hosts:
            node = self.nodes.setdefault(host, SlurmNode())
            for key, attribute in (("cputot", "cpus"), ("realmemory", "memory_mib")):
                if key in values:
                    number = whole(values[key].rstrip("+"))
                    if number is None:
                        found.wrong(where, f"'{values[key]}' is no whole number")
                        return
                    setattr(node, attribute, number)
            if "gres" in values:
                node.devices, node.gpu_type = devices, kind
            shown = values.get("availablefeatures", "(null)")
            node.features |= set(filter(None, shown.split(","))) if shown != "(null)" else set()
            listed_ = values.get("partitions", "").replace("*", "")
            node.partitions |= set(filter(None, listed_.split(",")))
            if "state" in values:
                node.is_out = _is_out(values["state"])


def _is_out(state: str) -> bool:
    words = re.split(r"[+*~#!%$@^-]", state.upper())
    return any(word.startswith(_OUT) for word in words)


def nodes_of(api: Api) -> dict[str, Node]:
    """Return the nodes of the cluster by the name of their host."""
    return {n.metadata.labels.get(names.HOSTNAME, n.metadata.name): n for n in api.list(NODES)}


def differences(
    known: KnownBySlurm, nodes: Mapping[str, Node], partitions: Mapping[str, Labels]
) -> list[Row]:
    """Return what differs as rows: the nodes, what it is, and what either side says."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for host, of_slurm in sorted(known.nodes.items()):
        node = nodes.get(host)
        if node is None:
            found.setdefault(("node", "known", "missing"), []).append(host)
            continue
        for difference in _of_node(of_slurm, node, partitions):
            found.setdefault(difference, []).append(host)
    for host in sorted(set(nodes) - set(known.nodes)):
        found.setdefault(("node", "missing", "known"), []).append(host)
    return [(fold_names(hosts), *what) for what, hosts in found.items()]


def _of_node(
    of_slurm: SlurmNode, node: Node, partitions: Mapping[str, Labels]
) -> Iterator[tuple[str, str, str]]:
    has = resources_to_base(node.status.allocatable)
    cpus, memory = has.get("cpu", 0), has.get("memory", 0)
    if of_slurm.cpus is not None and cpus < of_slurm.cpus * 1_000:
        yield "CPUs", str(of_slurm.cpus), f"{cpus / 1_000:g}"
    if of_slurm.memory_mib is not None and memory < of_slurm.memory_mib * _MIB:
        yield "memory", f"{of_slurm.memory_mib}Mi", f"{memory // _MIB}Mi"
    for resource, amount in sorted((of_slurm.devices or {}).items()):
        if has.get(resource, 0) < amount:
            yield resource, str(amount), str(has.get(resource, 0))
    labels = tuple(sorted(node.metadata.labels.items()))
    if of_slurm.gpu_type and not _has(labels, What.GPU_TYPE, of_slurm.gpu_type):
        yield "type of GPU", of_slurm.gpu_type, "no label"
    for feature in sorted(of_slurm.features):
        if not _has(labels, What.FEATURE, feature) and not _has(labels, What.FEATURE,
                                                               slug(feature)):  # fmt: skip
            yield "feature", feature, "no label"
    for partition in sorted(of_slurm.partitions):
        if not _is_in(partition, node, partitions):
            yield "partition", partition, "neither slurm.partitions nor its pool"
    is_out = state_of(node, now())[0] in _OUT_HERE
    if of_slurm.is_out is not None and of_slurm.is_out != is_out:
        words = ("takes jobs", "takes none")
        yield "state", words[of_slurm.is_out], words[is_out]


@cache
def _has(labels: tuple[tuple[str, str], ...], what: What, name: str) -> bool:
    """Return whether a label is what the name means to a script."""
    kind = NamedNodes(what, (name,), FlagValue(name, f"--{what.value}"))
    return resolve(kind, KnownNodes((dict(labels),), {})).problem is None


def _is_in(partition: str, node: Node, partitions: Mapping[str, Labels]) -> bool:
    labels = node.metadata.labels
    if partition in partitions:
        return all(labels.get(key) == value for key, value in partitions[partition].items())
    return partition in (DEFAULT_PARTITION, pool_of(node))
