"""Nodes and partitions of slurm.conf, and the node pools that they are here (pure).

A pool is the nodes that are in the same partitions and have the same shape. It has the name of the
smallest of these partitions. A partition that is one pool of that name needs no more; any other
one is a label of its nodes, which the setting `slurm.partitions` names.

Source: slurm.conf(5), NODE CONFIGURATION and PARTITION CONFIGURATION; gres.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairlead.api.causes import LABEL
from fairlead.api.values.quantity import GPU, gpu_resource
from fairlead.cli.slurm_import.conf import ConfLine, Findings
from fairlead.member.hostlist import HOSTS_MAX, expand_hosts

DEFAULT = "DEFAULT"
FEATURE_LABEL = "feature.fairlead.dev/"
GPU_TYPE_LABEL = "feature.fairlead.dev/gpu-type"
PARTITION_LABEL = "partition.fairlead.dev/"
#: States of nodes that are bought when they are needed.
_BOUGHT = frozenset(("CLOUD", "FUTURE"))
_NODE_KEYS = frozenset((
    "nodename", "cpus", "procs", "sockets", "boards", "socketsperboard", "corespersocket",
    "threadspercore", "realmemory", "gres", "feature", "features", "state",
))  # fmt: skip
_PARTITION_KEYS = frozenset((
    "partitionname", "nodes", "default", "maxtime", "defaulttime", "state",
))  # fmt: skip
_GRES = re.compile(r"([a-z_]+)(?::([^:,()]*(?::[^:,()]+)*?))??(?::(\d{1,9}))?(?:\([^)]*\))?")
_GRES_PART = re.compile(r"(?:[^,(]|\([^)]*\))+")


@dataclass(frozen=True, slots=True)
class SlurmShape:
    """What a node has: CPUs, memory in MiB, other resources, and what its features are called."""

    cpus: int
    memory_mib: int
    devices: tuple[tuple[str, int], ...]
    gpu_type: str
    features: tuple[str, ...]
    is_bought: bool


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """A partition: its nodes, by name, and how long its jobs may take, in seconds."""

    name: str
    where: str
    nodes: tuple[str, ...]
    is_default: bool
    max_seconds: int | None
    default_seconds: int | None


@dataclass(frozen=True, slots=True)
class SlurmPool:
    """Nodes of one shape in the same partitions; `labels` are those that each of them needs."""

    name: str
    nodes: tuple[str, ...]
    shape: SlurmShape
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SlurmFleet:
    """All nodes as pools, the partitions, and the labels of those that are no pool."""

    pools: tuple[SlurmPool, ...]
    partitions: tuple[SlurmPartition, ...]
    partition_labels: Mapping[str, Mapping[str, str]]


def read_fleet(lines: Iterable[ConfLine], found: Findings) -> SlurmFleet:
    """Return the nodes and partitions of a configuration; what is wrong goes to `found`."""
    listed = list(lines)
    nodes = _nodes([line for line in listed if line.key == "nodename"], found)
    sets = {line.name: line for line in listed if line.key == "nodeset"}
    partitions: list[SlurmPartition] = []
    seen = dict[str, str]()
    for line, values in _with_defaults(listed, "partitionname"):
        _note_keys(line, _PARTITION_KEYS, found)
        if line.name in seen:
            found.wrong(line.where, f"partition '{line.name}' is that of {seen[line.name]}, too")
            continue
        seen[line.name] = line.where
        members = _members(line, values.get("nodes", ""), nodes, sets, found=found)
        partitions.append(SlurmPartition(
            line.name, line.where, members, values.get("default", "").upper() == "YES",
            _seconds(line, values, "maxtime", found), _seconds(line, values, "defaulttime", found),
        ))  # fmt: skip
        if values.get("state", "UP").upper() != "UP":
            found.note(line.where, f"State={values['state']}: hold jobs, or cordon its nodes")
    return _pooled(nodes, partitions, found)


def slug(text: str) -> str:
    """Return the nearest text that may be the name of an object and the value of a label."""
    short = re.sub(r"[^a-z0-9]+", "-", text.lower())[:50].strip("-")
    return short if LABEL.fullmatch(short) else f"x-{short}".rstrip("-")


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return a slug for each name; those that would be equal are numbered."""
    out, used = dict[str, str](), set(taken)
    for name in names:
        base = short = slug(name)
        number = 2
        while short in used:
            short, number = f"{base}-{number}", number + 1
        used.add(short)
        out[name] = short
    return out


def whole(text: str, *, most: int = 10**9) -> int | None:
    """Return a whole number of a file; None for what is none, or is above `most`."""
    digits = text.isascii() and text.isdigit() and len(text) <= 12
    return int(text) if digits and int(text) <= most else None


def slurm_seconds(text: str) -> int | None:
    """Return the seconds of a time limit; 0 for none, None where it cannot be read."""
    from fairlead.cli.formats.text import parse_slurm_time

    if text.upper() in ("UNLIMITED", "INFINITE", "NONE", "-1", ""):
        return 0
    try:
        return int(parse_slurm_time(text)) if len(text) <= 32 else None
    except ValueError:
        return None


def gres_of(text: str) -> tuple[dict[str, int], str]:
    """Return the resources of nodes that a Gres value is, and the type of its GPUs.

    GPUs alone have an equal; ValueError for a text that is no list of generic resources.
    """
    devices: dict[str, int] = {}
    kind = ""
    if text in ("", "(null)", "N/A"):
        return devices, kind
    for part in _GRES_PART.findall(text):
        match = _GRES.fullmatch(part.strip().lower())
        if match is None:
            raise ValueError(f"'{part}' is not NAME[:TYPE][:COUNT]")
        if match[1] != "gpu":
            continue
        type_ = match[2] or ""
        resource, whole = gpu_resource(type_.removesuffix(":no_consume"))
        devices[resource] = devices.get(resource, 0) + int(match[3] or 1)
        kind = kind or (whole if resource == GPU else "")
    return devices, kind


def _with_defaults(
    lines: Iterable[ConfLine], key: str
) -> Iterator[tuple[ConfLine, dict[str, str]]]:
    """Yield the records of a kind with what the DEFAULT lines before them say."""
    defaults: dict[str, str] = {}
    for line in lines:
        if line.key != key:
            continue
        if line.name.upper() == DEFAULT:
            defaults |= {k: v for k, v in line.values.items() if k != key}
        else:
            yield line, {**defaults, **line.values}


def _note_keys(line: ConfLine, known: frozenset[str], found: Findings) -> None:
    others = [f"{line.written[key]}={line.values[key]}" for key in line.values if key not in known]
    if others:
        found.note(line.where, f"{line.name}: without a counterpart: {' '.join(others)}")


def _nodes(lines: Sequence[ConfLine], found: Findings) -> dict[str, SlurmShape]:
    nodes: dict[str, SlurmShape] = {}
    for line, values in _with_defaults(lines, "nodename"):
        _note_keys(line, _NODE_KEYS, found)
        try:
            hosts = expand_hosts(line.name)
        except ValueError as error:
            found.wrong(line.where, f"NodeName: {error}")
            continue
        shape = _shape(line, values, found)
        for host in hosts:
            if host in nodes:
                found.wrong(line.where, f"node '{host}' occurs twice")
                break
            nodes[host] = shape
        if len(nodes) > HOSTS_MAX:
            found.wrong(line.where, f"there are more than {HOSTS_MAX:,} nodes")
            break
    return nodes


def _shape(line: ConfLine, values: Mapping[str, str], found: Findings) -> SlurmShape:
    def number(key: str, otherwise: int) -> int:
        text = values.get(key)
        value = otherwise if text is None else whole(text, most=10**8)
        if value is None:
            found.wrong(line.where, f"{line.written.get(key, key)}: '{text}' is no whole number")
        return value or otherwise

    sockets = number("sockets", 0) or number("boards", 1) * number("socketsperboard", 1)
    threads = sockets * number("corespersocket", 1) * number("threadspercore", 1)
    gres = values.get("gres", "")
    try:
        devices, kind = gres_of(gres)
    except ValueError as error:
        found.wrong(line.where, f"Gres: {error}", "Gres=gpu:a100:8")
        devices, kind = {}, ""
    others = sorted({part.partition(":")[0] for part in gres.lower().split(",")} - {"gpu", ""})
    if others and all(name.isidentifier() for name in others):
        found.note(line.where, f"Gres: {', '.join(others)} are resources of a device plugin")
    features = values.get("features", values.get("feature", ""))
    state = values.get("state", "UNKNOWN").upper()
    if state not in ("UNKNOWN", *_BOUGHT):
        found.note(line.where, f"State={values['state']}: fairlead node cordon NODE")
    return SlurmShape(
        number("cpus", 0) or number("procs", 0) or threads, number("realmemory", 1),
        tuple(sorted(devices.items())), slug(kind) if kind else "",
        tuple(sorted({slug(each) for each in re.split(r"[,&]", features) if each.strip()})),
        state in _BOUGHT,
    )  # fmt: skip


def _members(
    line: ConfLine, text: str, nodes: Mapping[str, SlurmShape], sets: Mapping[str, ConfLine],
    *, found: Findings,
) -> tuple[str, ...]:  # fmt: skip
    """Return the nodes of a partition, in the order of the nodes."""
    if text.upper() == "ALL":
        return tuple(nodes)
    chosen: set[str] = set()
    rest: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+|\[", text):
        record = sets.get(part.strip())
        if record is None:
            rest.append(part)
            continue
        feature = slug(record.values.get("feature", "")) if "feature" in record.values else None
        chosen |= {host for host, shape in nodes.items() if feature in shape.features}
        rest += [record.values["nodes"]] if "nodes" in record.values else []
    try:
        hosts = expand_hosts(",".join(rest)) if rest and text.upper() != "(NULL)" else ()
    except ValueError as error:
        found.wrong(line.where, f"Nodes: {error}")
        hosts = ()
    unknown = [host for host in hosts if host not in nodes]
    if unknown:
        message = f"partition '{line.name}' has the node '{unknown[0]}', which no NodeName names"
        found.wrong(line.where, message)
    chosen.update(hosts)
    return tuple(host for host in nodes if host in chosen)


def _seconds(line: ConfLine, values: Mapping[str, str], key: str, found: Findings) -> int | None:
    if key not in values:
        return None
    seconds = slurm_seconds(values[key])
    if seconds is None:
        written = line.written.get(key, key)
        found.wrong(line.where, f"{written}: '{values[key]}' is no time such as 1-12:00:00")
    return seconds or None


def _pooled(
    nodes: Mapping[str, SlurmShape], partitions: Sequence[SlurmPartition], found: Findings
) -> SlurmFleet:
    within: dict[str, list[SlurmPartition]] = {host: [] for host in nodes}
    for partition in partitions:
        for host in partition.nodes:
            if host in within:
                within[host].append(partition)
    groups: dict[tuple[tuple[str, ...], SlurmShape], list[str]] = {}
    for host, shape in nodes.items():
        key = tuple(partition.name for partition in within[host])
        groups.setdefault((key, shape), []).append(host)
    sizes = {partition.name: len(partition.nodes) for partition in partitions}
    called: list[str] = []
    for names, _ in groups:
        smallest = min(names, key=lambda name: (sizes[name], name), default="nodes")
        called.append(distinct([smallest], called)[smallest])
    whole_pools = {name for hosts, name in zip(groups.values(), called, strict=True)
                   if len(hosts) == sizes.get(name)}  # fmt: skip
    labelled = distinct(each.name for each in partitions
                        if each.nodes and each.name not in whole_pools)  # fmt: skip
    for partition in partitions:
        if not partition.nodes:
            found.note(partition.where, f"partition '{partition.name}' has no nodes: left out")
    pools = tuple(
        SlurmPool(name, tuple(hosts), shape, _labels(shape, names, labelled))
        for ((names, shape), hosts), name in zip(groups.items(), called, strict=True)
    )
    labels = {name: {PARTITION_LABEL + short: "true"} for name, short in labelled.items()}
    return SlurmFleet(pools, tuple(partitions), labels)


def _labels(
    shape: SlurmShape, partitions: Iterable[str], labelled: Mapping[str, str]
) -> dict[str, str]:
    labels = {PARTITION_LABEL + labelled[name]: "true" for name in partitions if name in labelled}
    labels |= {FEATURE_LABEL + feature: "true" for feature in shape.features}
    return {**labels, **({GPU_TYPE_LABEL: shape.gpu_type} if shape.gpu_type else {})}
