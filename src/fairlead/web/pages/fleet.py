"""Fleet: each node pool, what it wants and has, what it does next, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.cli.views.fleet import COLUMNS, fleet_note, pool_rows, pool_why
from fairlead.web.pages.site import AskedPath, Site, cells_of
from fairlead.web.render import Page, link

WIDTH = 1_000
POOLS_MAX = 100


class PoolBar(NamedTuple):
    """The nodes of a pool in units of WIDTH; `wanted` is where the pool wants to be."""

    busy: int
    idle: int
    joining: int
    launching: int
    wanted: int
    words: str


class PoolLine(NamedTuple):
    """A row of the table of pools; `why` is what `fairlead fleet why` says, line by line."""

    name: str
    href: str
    cells: Mapping[str, str]
    launching: int
    idle: int
    refused: int
    bar: PoolBar | None
    #: What its nodes cost an hour, in millionths of its price's currency; 0 where it has no price.
    cost_micros: int
    why: str
    command: str


async def fleet_page(site: Site, asked: AskedPath) -> Page:
    """Return the page: the pools that match; with `held` those alone that something holds back."""
    cluster, now = site.cluster, site.cluster.clock.now()
    fleet = cluster.fleets.get("", FLEET_NAME) or Fleet()
    pools = {pool.metadata.name: pool for pool in cluster.pools.items()}
    given = {name: asked.text(name) for name in ("q", "held", "pool")}
    lines = [
        _line(site, cells_of(COLUMNS, row), pools.get(row[0]), fleet=fleet, now=now)
        for row in pool_rows(pools.values(), fleet)
        if _is_chosen(given, row[0], pools.get(row[0]), row[-1])
    ]
    freeze = fleet.spec.freeze
    values = {
        "rights": cluster.rights, "given": given, "lines": lines[:POOLS_MAX], "total": len(lines),
        "pools_total": len(pools), "cost": sum(line.cost_micros for line in lines) / 1_000_000,
        "unpriced": sum(1 for line in lines if not line.cost_micros and line.bar is not None),
        "width": WIDTH, "is_frozen": freeze is not None,
        "note": fleet_note(fleet), "grants": fleet.status.grants[:POOLS_MAX],
        "grants_total": len(fleet.status.grants),
        "plan_command": site.command("fleet", "plan"),
    }  # fmt: skip
    filters = (given["q"], given["pool"])
    return Page("fleet.html", "Fleet", values, site.command("fleet", filters=filters), "fleet")


def _is_chosen(given: Mapping[str, str], name: str, pool: NodePool | None, message: str) -> bool:
    """Tell whether a row is asked for; a pool that does not exist counts as held back."""
    if given["held"] and pool is not None and not pool.status.message:
        return False
    text = f"{name}\n{message}".lower()
    return given["pool"] in ("", name) and given["q"].lower() in text


def _line(
    site: Site, cells: Mapping[str, str], pool: NodePool | None, *, fleet: Fleet, now: float
) -> PoolLine:
    name = cells["pool"]
    href = link("fleet", pool=name)
    if pool is None:
        command = site.command("fleet", "history", name)
        return PoolLine(name, href, cells, 0, 0, 0, None, 0, "", command)
    status = pool.status
    return PoolLine(
        name, href, cells, status.launching, status.idle,
        sum(each.refusals for each in status.unavailable), _bar(pool),
        status.nodes * pool.spec.price_micros, pool_why(pool, fleet, now),
        site.command("fleet", "why", name),
    )  # fmt: skip


def _bar(pool: NodePool) -> PoolBar:
    status = pool.status
    idle = min(status.idle, status.ready)
    busy = status.ready - idle
    joining = max(0, status.nodes - status.ready)
    counts = (busy, idle, joining, status.launching)
    most = max(pool.spec.max, sum(counts), status.wanted, 1)
    words = "{} busy, {} idle, {} not ready, {} launching".format(*counts)
    return PoolBar(
        *(WIDTH * count // most for count in (*counts, status.wanted)),
        words=f"{words}; {status.wanted} wanted of at most {pool.spec.max}",
    )
