"""The node table: grouped by pool and state, with used and total GPUs (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.pods.pod_asks import member_amounts, pod_amounts
from fairlead.api.values import quantity
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.devices import NO_DEVICES, DeviceCounts, device_shares
from fairlead.decide.words import duration, fold_names
from fairlead.model.health.node_record import record_of
from fairlead.model.health.unreachable import unreachable_since
from fairlead.model.health.windows import drain_of, read_window
from fairlead.model.inventory.spares import is_spare

NONE = "-"
DEFAULT_POOL = "default"
_STANDARD_TAINTS = (
    names.TAINT_NOT_READY, names.TAINT_UNREACHABLE, names.TAINT_UNSCHEDULABLE, names.TAINT_LOCAL,
    names.TEAM,
)  # fmt: skip

COLUMNS: tuple[Column, ...] = (
    Column("POOL"),
    Column("STATE"),
    Column("NODES", Align.RIGHT),
    Column("GPUS(used/total)", Align.RIGHT),
    Column("CPUS(used/total)", Align.RIGHT, wide_only=True),
    Column("MEMORY(used/total)", Align.RIGHT, wide_only=True),
    Column("SINCE"),
    Column("REASON", may_cut=True),
    Column("NODELIST", wide_only=True, may_cut=True),
)

#: Behind the GPUs, where there are devices that claims ask for.
_AFTER_GPUS, _DEVICES = 4, Column("DEVICES(used/total)", may_cut=True)


class NodeUsability(Enum):
    """What a node can be used for, from best to worst."""

    READY = "ready"
    SPARE = "spare"
    TAINTED = "tainted"
    MAINTENANCE = "maintenance"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    NOT_READY = "not-ready"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node with what it has and what is used of it, in base units."""

    name: str
    pool: str
    state: NodeUsability
    reason: str
    since: float | None
    total: Mapping[str, int]
    used: Mapping[str, int]
    labels: Mapping[str, str]


def pool_of(node: Node) -> str:
    """Return the node's pool: its pool label, else its type (local, virtual), else "default"."""
    labels = node.metadata.labels
    return labels.get(names.POOL) or labels.get(names.NODE_TYPE) or DEFAULT_POOL


def state_of(node: Node, now: float) -> tuple[NodeUsability, str, float | None]:
    """Return the state, its reason in words, and since when if that is known.

    A node whose maintenance is still to come is ready, and the reason says when it begins.
    """
    if (unreachable := unreachable_since(node)) is not None:
        reason = "unreachable: its lease is not renewed, and its machine does not answer"
        return NodeUsability.NOT_READY, reason, unreachable
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None)
    if ready is None or ready.status != "True":
        reason = ready.reason if ready and ready.reason else "NoReport"
        since = ready.last_transition_time if ready else None
        return NodeUsability.NOT_READY, reason, parse_time(since) if since else None
    if node.spec.unschedulable:
        taint = next((t for t in node.spec.taints if t.key == names.TAINT_UNSCHEDULABLE), None)
        since = taint.time_added if taint else None
        who = node.metadata.annotations.get(names.CORDONED_BY, "")
        reason = f"by {who or 'hand'}{_drain_words(node, now)}"
        return NodeUsability.CORDONED, reason, parse_time(since) if since else None
    record = record_of(node.metadata.annotations)
    if record is not None and record.is_out:
        reason = f"{record.state.value.lower()}: {record.reason}"
        return NodeUsability.UNHEALTHY, reason, parse_time(record.entered_at)
    if is_spare(node.spec.taints):
        return NodeUsability.SPARE, "kept for repairs", None
    keeping = [t for t in node.spec.taints
               if t.effect != "PreferNoSchedule" and t.key not in _STANDARD_TAINTS]  # fmt: skip
    if keeping:
        texts = sorted(f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}"
                       for t in keeping)  # fmt: skip
        return NodeUsability.TAINTED, ", ".join(texts), None
    text = node.metadata.annotations.get(names.MAINTENANCE)
    window = read_window(text) if text is not None else None
    if window is None or now >= window.end:
        return NodeUsability.READY, "", None
    reason = f"maintenance {window.words}"
    if now < window.start:
        return NodeUsability.READY, reason, None
    return NodeUsability.MAINTENANCE, reason, None if window.error else window.start


def _drain_words(node: Node, now: float) -> str:
    """Return how far a person's drain of a cordoned node is; "" without one."""
    text = node.metadata.annotations.get(names.DRAIN)
    drain = drain_of({names.DRAIN: text}) if text is not None else None
    if drain is None or drain.error or drain.start == float("inf"):
        return ""
    return ", drained" if now >= drain.start else f", to be empty in {duration(drain.start - now)}"


def node_uses(
    nodes: Iterable[Node], jobs: Iterable[Job], other_pods: Iterable[Pod], now: float
) -> list[NodeUse]:
    """Return each node's use: the claims of unfinished jobs, and pods that belong to no job."""
    used: dict[str, dict[str, int]] = {}

    def take(node: str, amounts: Mapping[str, int]) -> None:
        column = used.setdefault(node, {})
        for resource, amount in amounts.items():
            column[resource] = column.get(resource, 0) + amount

    for job in jobs:
        if job.is_finished or job.status.placement is None:
            continue
        asked = {role.name: member_amounts(role.template.spec) for role in job.spec.roles}
        for role in job.status.placement.roles:
            for node in role.nodes:
                take(node, asked.get(role.role, {}))
    for pod in other_pods:
        if not pod.is_terminal and pod.spec.node_name:
            take(pod.spec.node_name, pod_amounts(pod))
    out: list[NodeUse] = []
    for node in nodes:
        state, reason, since = state_of(node, now)
        total = quantity.resources_to_base(node.status.allocatable)
        out.append(NodeUse(node.metadata.name, pool_of(node), state, reason, since, total,
                           used.get(node.metadata.name, {}), node.metadata.labels))  # fmt: skip
    return out


def columns(devices: DeviceCounts) -> tuple[Column, ...]:
    """Return the columns of `node_rows`."""
    return (*COLUMNS[:_AFTER_GPUS], _DEVICES, *COLUMNS[_AFTER_GPUS:]) if devices else COLUMNS


def node_rows(uses: Iterable[NodeUse], now: float, devices: DeviceCounts = NO_DEVICES) -> list[Row]:
    """Return a row per pool and state, pools by name, states from best to worst.

    With `devices`, those that claims ask for, where some node has any.
    """
    order = list(NodeUsability)
    groups: dict[tuple[str, int], list[NodeUse]] = {}
    for use in uses:
        groups.setdefault((use.pool, order.index(use.state)), []).append(use)
    rows: list[Row] = []
    for (pool, state), members in sorted(groups.items()):
        shares = device_shares(devices, (use.name for use in members))
        instants = [use.since for use in members if use.since is not None]
        rows.append(
            (
                pool,
                order[state].value,
                f"{len(members):,}",
                _share(members, quantity.GPU),
                *([shares or NONE] if devices else []),
                _share(members, quantity.CPU),
                _share(members, quantity.MEMORY),
                duration(now - min(instants)) if instants else NONE,
                _reasons(members),
                fold_names(use.name for use in members),
            )
        )
    return rows


def _share(members: list[NodeUse], resource: str) -> str:
    """Return what is used of what there is; GPUs of all vendors together."""
    counts = quantity.is_gpu if resource == quantity.GPU else resource.__eq__
    used = sum(n for use in members for name, n in use.used.items() if counts(name))
    total = sum(n for use in members for name, n in use.total.items() if counts(name))
    return f"{quantity.humanize(resource, used)}/{quantity.humanize(resource, total)}"


def _reasons(members: list[NodeUse]) -> str:
    by_reason: dict[str, list[str]] = {}
    for use in members:
        if use.reason:
            by_reason.setdefault(use.reason, []).append(use.name)
    if not by_reason:
        return NONE
    return "; ".join(f"{reason} {fold_names(found)}" for reason, found in sorted(by_reason.items()))
