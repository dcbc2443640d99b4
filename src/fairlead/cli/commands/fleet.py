"""`fleet`: node pools, what they do and why, and the switch that stops it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
import msgspec

from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.jobs.job import Job
from fairlead.api.resources import FLEETS, JOBS, NODE_POOLS, NODES
from fairlead.api.status import AlreadyExists, NotFound
from fairlead.cli.connection.common import Common, common, now, seconds_of
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.ended_jobs import past_decisions
from fairlead.cli.views.fleet import (
    COLUMNS,
    HISTORY_COLUMNS,
    fleet_note,
    history_rows,
    node_why,
    plan_text,
    pool_rows,
    pool_why,
)
from fairlead.input.errors import Code, fail
from fairlead.input.suggest import nearest

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000


@click.group(
    invoke_without_command=True,
    epilog="""Examples:

    \b
      fairlead fleet                       pools and what holds each back
      fairlead fleet plan                  what would be bought and removed now
      fairlead fleet why h100              why a pool is as it is, or why a node is there or leaves
      fairlead fleet history h100 --since 1d
      fairlead fleet freeze "move of rack 7"
      fairlead fleet resume
    """,
)
@common()
def fleet(common_: Common) -> None:
    """Show node pools, and what holds each back."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    api = common_.connect()
    if common_.is_structured:
        common_.structured(api.list(NODE_POOLS.raw))
        return
    found = _fleet(api)
    rows = pool_rows(api.list(NODE_POOLS), found)
    common_.table(COLUMNS, rows, empty="no node pools; docs/howto/node-pools.md shows one")
    note = fleet_note(found)
    if note:
        common_.note(note)


@fleet.command()
@common()
def plan(common_: Common) -> None:
    """Show what each pool does next, or would do if it were not in dry run, and why."""
    api = common_.connect()
    pools = api.list(NODE_POOLS)
    common_.emit(plan_text(pools, _fleet(api), _jobs(api, pools), now()))


@fleet.command()
@click.argument("name", metavar="NODE|POOL")
@common()
def why(common_: Common, *, name: str) -> None:
    """Explain a pool, or why a node of a pool was bought, is kept or will be removed."""
    api = common_.connect()
    pools = {pool.metadata.name: pool for pool in api.list(NODE_POOLS)}
    if name in pools:
        common_.emit(pool_why(pools[name], _fleet(api), now()))
        return
    nodes = {node.metadata.name: node for node in api.list(NODES)}
    if name not in nodes:
        near = nearest(name, [*pools, *nodes])
        help_ = (f"fairlead fleet why {near}",) if near else ("fairlead fleet",)
        raise fail(Code.BAD_VALUE, f"there is no node or pool '{name}'", help=help_)
    jobs = _jobs(api, pools.values())
    common_.emit(node_why(nodes[name], pools, _fleet(api), jobs=jobs, now=now()))


@fleet.command()
@click.argument("pool", metavar="[POOL]", required=False)
@click.option("--since", metavar="DURATION", help="Only decisions of this long ago or later.")
@click.option("--action", metavar="ACTION", default="",
              help="Only these: Launch, Launched, Refused, Admit, Mark, Unmark, Remove, Removed, "
              "Kept, Balloons, Drain, Release, Unmanaged, Hold or Resume; of the health of nodes: "
              "Faults, WouldCordon, Grant, Cordon, Over or a state.")  # fmt: skip
@click.option("--limit", metavar="N", default=LIMIT_DEFAULT, show_default=True,
              type=click.IntRange(1, LIMIT_MAX), help="At most so many.")  # fmt: skip
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@common()
def history(
    common_: Common, *, pool: str | None, since: str | None, action: str, limit: int, store: str
) -> None:
    """Show what was decided about pools, newest first.

    Records outlive their pools. -o json and yaml also have what each was decided on: sizes,
    budgets before and after, and the alternatives.
    """
    query = {"limit": str(limit)}
    if since is not None:
        query["since"] = f"{now() - seconds_of(since, '--since'):.3f}"
    query |= {key: text for key, text in (("pool", pool), ("action", action)) if text}
    lines = past_decisions(common_, store, query)
    if common_.is_structured:
        common_.structured([msgspec.to_builtins(line) for line in lines])
    else:
        common_.table(HISTORY_COLUMNS, history_rows(lines), empty="no decision that matches")


@fleet.command()
@click.argument("reason")
@click.option("--by", metavar="WHO", default="", help="Who freezes it; for those who find it.")
@common()
def freeze(common_: Common, *, reason: str, by: str) -> None:
    """Stop buying and removing nodes in all pools, until resume."""
    api = common_.connect()
    spec = {"freeze": {"reason": reason, **({"by": by} if by else {})}}
    try:
        api.create(FLEETS, {"metadata": {"name": FLEET_NAME}, "spec": spec})
    except AlreadyExists:
        api.patch(FLEETS, FLEET_NAME, {"spec": spec})
    common_.note("The fleet is frozen: no node is bought or removed. fairlead fleet resume ends it")


@fleet.command()
@common()
def resume(common_: Common) -> None:
    """End a freeze; nodes are removed again after two loops with clear sight."""
    api = common_.connect()
    if _fleet(api).spec.freeze is None:
        common_.note("The fleet is not frozen")
        return
    api.patch(FLEETS, FLEET_NAME, {"spec": {"freeze": None}})
    common_.note("The fleet resumes")


def _jobs(api: Api, pools: Iterable[NodePool]) -> Sequence[Job]:
    """Return the jobs, which may move where a pool is consolidated; else none."""
    return api.list(JOBS) if any(pool.spec.scale_down.consolidates for pool in pools) else ()


def _fleet(api: Api) -> Fleet:
    try:
        return api.get(FLEETS, FLEET_NAME)
    except NotFound:
        return Fleet()
