"""`tune`: what a tuning profile would change on the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import click
import msgspec

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.node_report import NodeReport, ReportedTuning
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import POOL, ZONE
from fairlead.api.resources import NODE_POOLS, NODE_REPORTS, NODES
from fairlead.cli.commands.agent import facts_of
from fairlead.cli.connection.common import Common, common
from fairlead.cli.views.tuning import (
    CHANGE_COLUMNS,
    change_rows,
    pace_line,
    roll_out_line,
)
from fairlead.decide.removal.books import budget_of
from fairlead.decide.removal.ledger import Charge
from fairlead.decide.removal.pace import least_seconds
from fairlead.node.tuning import load_profile, roll_out

#: A node that is emptied already is out for so long: it starts again and is tested.
OUT_SECONDS = 900.0


@click.group(
    epilog="""Examples:

    \b
      fairlead tune plan -f profile.yaml
      fairlead tune plan -f ml-node --fact nodes=2500 --fact pods=60000

    One node: fairlead node tune NODE. This machine: fairlead agent tune.
    """
)
def tune() -> None:
    """Show what a tuning profile would change on the nodes."""


@tune.command(
    epilog="""Examples:

    \b
      fairlead tune plan -f profile.yaml
      fairlead tune plan -f ml-node --fact nodes=2500 --fact pods=60000 -o json
    """
)
@click.option(
    "-f", "--file", "file", metavar="NAME|FILE", required=True, help="A shipped profile, or a file."
)
@click.option(
    "--fact",
    "facts",
    metavar="NAME=NUMBER",
    multiple=True,
    help="A fact in place of what the nodes' agents were given, such as nodes=2500.",
)
@common()
def plan(common_: Common, *, file: str, facts: tuple[str, ...]) -> None:
    """Show what would change where, from what the nodes' agents last reported.

    Where nodes have to be emptied and started again, it says how long that takes at least within
    the budgets for nodes out of service. Changes nothing. A setting that an agent does not report,
    since its own profile has no line for it, is listed as not judged.
    """
    profile, given = load_profile(file), facts_of(facts)
    api = common_.connect()
    reports = {each.metadata.name: each for each in api.list(NODE_REPORTS)}
    nodes = {each.metadata.name: each for each in api.list(NODES)}
    found = roll_out(profile, given, {
        name: _tuning(reports.get(name), node.metadata.uid) for name, node in nodes.items()
    })  # fmt: skip
    pools = api.list(NODE_POOLS) if found.restarted else ()
    seconds = _least_seconds(nodes, pools, found.restarted)
    if common_.is_structured:
        common_.data(msgspec.to_builtins(found) | {"leastSeconds": seconds})
        return
    is_blind = not found.changes and not found.as_wanted
    common_.table(
        CHANGE_COLUMNS, change_rows(found),
        empty="no node reports its settings: its agent needs a profile (tuning.profile)"
        if is_blind else "nothing would change",
    )  # fmt: skip
    common_.note(roll_out_line(found))
    if found.restarted:
        common_.note(pace_line(seconds, OUT_SECONDS))


def _least_seconds(
    nodes: Mapping[str, Node], pools: Iterable[NodePool], restarted: Sequence[str]
) -> float | None:
    """Return how long it takes at least to restart nodes within the budgets of removals."""
    charges = {
        name: Charge(node.metadata.labels.get(POOL, ""), node.metadata.labels.get(ZONE, ""),
                     RemovalCause.REPAIR)
        for name, node in nodes.items()
    }  # fmt: skip
    sizes = Counter[str]()
    for charge in charges.values():
        sizes.update((charge.pool, f"{charge.pool}/{charge.domain}"))
    return least_seconds(
        [charges[name] for name in restarted], sizes,
        {pool.metadata.name: budget_of(pool) for pool in pools}, out_seconds=OUT_SECONDS,
    )  # fmt: skip


def _tuning(report: NodeReport | None, uid: str) -> ReportedTuning | None:
    """Return what a node reports of itself, and not what an earlier one of its name did."""
    if report is None or report.status.node_uid != uid:
        return None
    return report.status.tuning
