"""Node pools in words and tables (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    BalloonCounts,
    Launch,
    NodePool,
    NodePoolStatus,
    PoolDecision,
    PoolMode,
)
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.times import format_time, parse_time
from fairlead.app.queries.messages import FleetLine
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.devices import shape_words
from fairlead.decide.words import duration, plural
from fairlead.model.inventory.spares import is_spare, is_spare_of_pool
from fairlead.terminal import joined

NONE = "-"
_DECISIONS_SHOWN_MAX = 5
_NODES_SHOWN_MAX = 3

COLUMNS: tuple[Column, ...] = (
    Column("POOL"),
    Column("MODE"),
    Column("NODES", Align.RIGHT),
    Column("READY", Align.RIGHT),
    Column("WANTED", Align.RIGHT),
    Column("MAX", Align.RIGHT),
    Column("CHANGES", may_cut=True),
    Column("HELD BACK BY", may_cut=True),
)

HISTORY_COLUMNS: tuple[Column, ...] = (
    Column("AT"),
    Column("POOL"),
    Column("ACTION"),
    Column("REASON"),
    Column("MESSAGE", may_cut=True),
)


def pool_rows(pools: Iterable[NodePool], fleet: Fleet) -> list[Row]:
    """Return one row for each pool, by name, then for each that does not exist and has nodes."""
    rows: list[Row] = []
    for pool in sorted(pools, key=_name):
        status, spec = pool.status, pool.spec
        counts = (f"{n:,}" for n in (status.nodes, status.ready, status.wanted, spec.max))
        message = status.message or NONE
        mode = "Deleted" if pool.is_deleted else spec.mode.value
        rows.append((_name(pool), mode, *counts, _changes(status), message))
    for name, count in sorted(fleet.status.unmanaged.items()):
        none = (NONE,) * 4
        rows.append((name, "Missing", f"{count:,}", *none, "no such pool: nothing manages these"))
    return rows


def _unmanaged(fleet: Fleet) -> list[str]:
    """Return a line for each pool that does not exist and has nodes."""
    return [
        f"{name}: does not exist; {plural(count, 'node')} of it, which nothing manages"
        for name, count in sorted(fleet.status.unmanaged.items())
    ]


def _changes(status: NodePoolStatus) -> str:
    """Return how many nodes come, go and stand by, such as "3 launching, 1 leaving, 2 spares"."""
    counts = status.balloons or BalloonCounts()
    changes = (
        (status.launching, "launching"), (status.joining, "joining"), (status.leaving, "leaving"),
        (counts.standing, "held by balloons"),
    )  # fmt: skip
    shown = [f"{count:,} {word}" for count, word in changes if count]
    return ", ".join([*shown, *([plural(status.spares, "spare")] if status.spares else [])]) or NONE


def fleet_note(fleet: Fleet) -> str:
    """Return why nothing is removed now; "" when removals are possible."""
    freeze = fleet.spec.freeze
    if freeze is not None:
        by = f" by {freeze.by}" if freeze.by else ""
        return f"The fleet is frozen{by}: {freeze.reason}. fairlead fleet resume ends it"
    if fleet.status.blind:
        return f"No node is removed now: {fleet.status.message}"
    return ""


def plan_text(pools: Iterable[NodePool], fleet: Fleet, jobs: Iterable[Job], now: float) -> str:
    """Return what each pool does next, line by line, and which jobs move so that nodes can go."""
    lines = [note] if (note := fleet_note(fleet)) else []
    lines += [f"{_name(pool)}: {_plan(pool)}" for pool in sorted(pools, key=_name)]
    lines += _unmanaged(fleet)
    lines += [
        f"{', '.join(emptied)}: {'empties' if len(emptied) == 1 else 'empty'}; {_move(job, now)}"
        for job in sorted(jobs, key=lambda job: job.metadata.key)
        if (emptied := _emptied_by(job))
    ]
    return joined(lines or ["no node pools"])


def _emptied_by(job: Job) -> tuple[str, ...]:
    """Return the nodes that a job is to leave so that they can be removed."""
    preemption = job.status.preemption
    return () if preemption is None else preemption.empties


def _move(job: Job, now: float) -> str:
    """Return where a job moves, such as "default/a moves to node-2, asked for 10s ago"."""
    nomination, preemption = job.status.nomination, job.status.preemption
    roles = nomination.roles if nomination is not None else ()
    kept = sorted({node for role in roles for node in role.nodes})
    more = f" and {len(kept) - _NODES_SHOWN_MAX} more" if len(kept) > _NODES_SHOWN_MAX else ""
    text = f"{'/'.join(job.metadata.key)} moves to {', '.join(kept[:_NODES_SHOWN_MAX])}{more}"
    if preemption is None or preemption.requested_at is None:
        return text
    return f"{text}, asked for {duration(now - parse_time(preemption.requested_at))} ago"


def _plan(pool: NodePool) -> str:
    status, spec = pool.status, pool.spec
    size = status.nodes + status.launching
    if pool.is_deleted and not pool.is_external:
        doing = f"has {plural(size, 'node')}"
    elif status.balloons is not None:
        doing = f"has {plural(size, 'node')}, wants {status.wanted}; {_balloons(status.balloons)}"
    elif spec.mode is PoolMode.DRY_RUN:
        doing = f"dry run, wants {plural(status.wanted, 'node')}, has {size}"
    elif status.wanted > size:
        has = f" with {devices} each" if (devices := shape_words(spec.template.devices)) else ""
        doing = f"buys {plural(status.wanted - size, 'node')}{has} to have {status.wanted}"
    elif status.wanted < size:
        idle = duration(spec.scale_down.idle_seconds)
        doing = (
            f"{plural(size - status.wanted, 'node')} more than wanted; idle ones go after {idle}"
        )
    elif status.launching:
        doing = f"waits for {status.launching} of the {plural(status.wanted, 'node')} that it wants"
    else:
        doing = f"has the {plural(status.wanted, 'node')} that it wants"
    if status.consolidates_to is not None:
        least = plural(status.consolidates_to, "node")
        doing += f"; moves jobs off nodes that they use little, down to {least} in use"
    return f"{doing}; {status.message}" if status.message else doing


def _balloons(counts: BalloonCounts) -> str:
    """Return how many balloons have a node, such as "3 of 4 balloons hold a node"."""
    holds = "holds" if counts.standing == 1 else "hold"
    return f"{counts.standing} of {plural(counts.wanted, 'balloon')} {holds} a node"


def pool_why(pool: NodePool, fleet: Fleet, now: float) -> str:
    """Return why a pool is as it is."""
    status = pool.status
    lines = [f"Pool {_name(pool)}: {_plan(pool)}"]
    if note := fleet_note(fleet):
        lines.append(f"  {note}")
    if devices := shape_words(pool.spec.template.devices):
        lines.append(f"  devices    {devices} of each node, by the template")
    for launch in status.launches:
        jobs = f" for {', '.join(launch.jobs[:3])}" if launch.jobs else ""
        age = duration(now - parse_time(launch.requested_at))
        is_late = launch.instances is None and launch.given_up_at is not None
        late = ", without an answer: not waited for any more" if is_late else ""
        lines.append(
            f"  launching  {plural(launch.count, 'node')}{jobs}, asked for {age} ago{late}"
        )
    if status.idle:
        cost = status.idle * pool.spec.price_micros / 1_000_000
        price = f", {cost:,.2f} an hour by its price" if cost else ""
        lines.append(f"  idle       {plural(status.idle, 'node')} of {status.nodes}{price}")
    if status.spares or pool.spec.spare_nodes:
        lines.append(
            f"  spares     {plural(status.spares, 'node')} of {pool.spec.spare_nodes} wanted, "
            f"kept for repairs"
        )
    for mark in status.unavailable:
        left = parse_time(mark.until) - now
        if left > 0:
            where = mark.domain or "the provider"
            lines.append(f"  avoided    {where} for {duration(left)} more: {mark.reason}")
    lines += (_decided(each, now) for each in reversed(status.decisions[-_DECISIONS_SHOWN_MAX:]))
    return joined(lines)


def node_why(
    node: Node, pools: Mapping[str, NodePool], fleet: Fleet, *, jobs: Iterable[Job], now: float
) -> str:
    """Return why a node is there, is kept, or will be removed; `jobs` are those that may move."""
    name, pool = node.metadata.name, pools.get(node.metadata.labels.get(names.POOL, ""))
    if pool is None:
        label = node.metadata.labels.get(names.POOL, "")
        whose = f"pool {label}, which does not exist" if label else "no node pool"
        does = "does not manage it" if label else "neither bought nor removes it"
        return joined([f"Node {name} belongs to {whose}: Fairlead {does}"])
    lines = [f"Node {name} belongs to pool {_name(pool)}"]
    moving = [job for job in jobs if name in _emptied_by(job)]
    grant = next((g for g in fleet.status.grants if g.node == name), None)
    mark = node.metadata.annotations.get(names.REMOVAL, "")
    if grant is not None:
        lines.append(f"  is being removed: {grant.cause.value}, granted {grant.granted_at}")
    elif mark:
        lines.append(f"  is marked for removal: {mark}")
        if note := fleet_note(fleet):
            lines.append(f"  {note}")
    elif any(taint.key == names.TAINT_JOINING for taint in node.spec.taints):
        lines.append("  joins: it takes work once it is ready and its turn has come")
    elif any(taint.key == names.TAINT_RETURNING for taint in node.spec.taints):
        lines.append("  was not ready: it takes work again once it is and its turn has come")
    elif is_spare(node.spec.taints):
        by = "" if is_spare_of_pool(node.spec.taints) else ", by a person's taint"
        lines.append(f"  is a spare{by}: kept to replace a lost node of a running gang")
    elif pool.is_external:
        lines.append("  its machine is another autoscaler's: Fairlead neither buys nor removes it")
    elif node.spec.unschedulable:
        lines.append("  is cordoned by a person, so it is neither used nor removed")
    elif moving:
        lines += [f"  empties, so that it can be removed: {_move(job, now)}" for job in moving]
    else:
        lines.append(f"  is kept: the pool wants {plural(pool.status.wanted, 'node')}")
    lines += (_decided(each, now) for each in pool.status.decisions if name in each.message)
    return joined(lines)


def _decided(decision: PoolDecision, now: float) -> str:
    age = duration(now - parse_time(decision.at))
    return f"  {decision.action.lower():<10} {age} ago, {decision.reason}: {decision.message}"


def history_rows(lines: Iterable[FleetLine]) -> list[Row]:
    """Return a row for each decision, in their order."""
    return [
        (format_time(each.at_ms / 1000), each.pool or NONE, each.action, each.reason, each.message)
        for each in lines
    ]


@dataclass(frozen=True, slots=True)
class Buying:
    """What node pools do for a waiting job, in words; `may_help`: they hold it, sooner or later."""

    text: str
    may_help: bool


def buying_for(
    job: Job,
    pools: Sequence[NodePool],
    holding: Mapping[str, int],
    now: float,
    *,
    is_impossible: bool = False,
) -> Buying | None:
    """Return what is being bought for a waiting job, or why nothing is; None without pools.

    `holding` is how many nodes of which pools could hold a job that the present nodes never can.
    `is_impossible`: they never can, and only other nodes would help.
    """
    coming = [*_launched_for(job, pools, now), *_requested_for(job, pools)]
    if coming:
        return Buying("; ".join(coming), may_help=True)
    held = [f"{_name(p)}: {p.status.message}" for p in sorted(pools, key=_name) if p.status.message]
    facts = [growth(pools, holding), *held[:3]] if holding else held[:3]
    if facts:
        # Pools are looked at again and again: one that is not held back buys with the next look.
        yet = " yet" if holding and not held and not _is_dry(pools, holding) else ""
        text = f"{_none(pools)} for it{yet}; {'; '.join(facts)}"
        return Buying(text, may_help=bool(holding))
    why = "no pool could hold it" if is_impossible else "fairlead fleet plan shows the pools"
    text = f"{_none(pools)} for it: {why}"
    return Buying(text, may_help=False) if pools else None


def _launched_for(job: Job, pools: Sequence[NodePool], now: float) -> list[str]:
    """Return what Fairlead buys for a job, in words."""
    key = "/".join(job.metadata.key)
    launches = [
        (pool, launch) for pool in pools for launch in pool.status.launches
        if key in launch.jobs and launch.given_up_at is None
    ]  # fmt: skip
    if not launches:
        return []
    count = sum(launch.count for _, launch in launches)
    left = max(_left(pool, launch, now) for pool, launch in launches)
    names_ = ", ".join(sorted({_name(pool) for pool, _ in launches}))
    soon = f"ready in about {duration(left)}" if left > 0 else "late; they are due any moment"
    are = "is" if count == 1 else "are"
    return [f"{plural(count, 'node')} of pool {names_} {are} being bought, {soon}"]


def _requested_for(job: Job, pools: Iterable[NodePool]) -> list[str]:
    """Return which nodes are requested from other autoscalers for a job, in words."""
    key, out = "/".join(job.metadata.key), list[str]()
    for pool in sorted(pools, key=_name):
        counts = pool.status.balloons
        if counts is not None and key in counts.jobs:
            are = "is" if counts.requested == 1 else "are"
            waits = "waits" if counts.waiting == 1 else "wait"
            out.append(
                f"{plural(counts.requested, 'node')} of pool {_name(pool)} {are} requested from its"
                f" autoscaler, {plural(counts.waiting, 'balloon')} {waits} for a node"
            )
    return out


def _none(pools: Sequence[NodePool]) -> str:
    """Return the words for "no nodes are coming", by the owner of the machines."""
    external = [pool.is_external for pool in pools]
    if all(external):
        return "none are requested from another autoscaler"
    return "none are being bought or requested" if any(external) else "none are being bought"


def growth(pools: Sequence[NodePool], holding: Mapping[str, int]) -> str:
    """Return which nodes of pools a job needs that the present nodes can never hold."""
    needs = ", ".join(f"{plural(n, 'node')} of pool {name}" for name, n in sorted(holding.items()))
    is_dry = _is_dry(pools, holding)
    return f"it needs {needs}" + (", in dry run (spec.mode: Active lets it buy)" if is_dry else "")


def _is_dry(pools: Sequence[NodePool], holding: Mapping[str, int]) -> bool:
    dry = {_name(pool) for pool in pools if pool.spec.mode is PoolMode.DRY_RUN}
    return bool(dry & holding.keys())


def _left(pool: NodePool, launch: Launch, now: float) -> float:
    return parse_time(launch.requested_at) + pool.spec.scale_up.expected_seconds - now


def _name(pool: NodePool) -> str:
    return pool.metadata.name
