"""Nodes that come back after an outage take work one after another, as new nodes do.

Hundreds that are ready again at once cost the API server what hundreds of new ones cost. So a node
that has not been ready for a while gets a taint; once it is ready again, the token bucket of the
joins lifts it. What runs on it goes on: the taint keeps new members away.

A machine that is sick and whose agent is silent is restarted by its provider. That is asked for
soon after it was decided, or not at all: what decides later, such as another leader, would restart
a machine that is starting. It is not asked for once the node has another boot.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.decide.fleet.actions import RestartMachine
from fairlead.decide.fleet.census import AWAY_SECONDS, PoolCensus
from fairlead.decide.fleet.view import FleetView
from fairlead.decide.removal.trust import Blindness
from fairlead.model.pools.pool_nodes import PoolNode

#: Nodes that get the taint in one decision: each is a write, in a bad moment.
TAINTED_MAX = 50
#: After the decision a restart is asked for so long.
RESTART_SECONDS = 120.0
#: While the API server is in trouble, no node gets the taint.
NO_TAINTS = frozenset(
    (
        Blindness.NODE_LIST_STALE, Blindness.CONTROL_PLANE_UNHEALTHY, Blindness.ETCD_NEARLY_FULL,
        Blindness.API_SERVER_DEGRADED,
    )
)  # fmt: skip


def away(view: FleetView, census: PoolCensus) -> list[PoolNode]:
    """Return the nodes of a pool that are to wait for their turn once they are ready again."""
    found: list[PoolNode] = []
    for node in census.nodes.values():
        since = view.nodes.unready.get(node.name)
        is_away = since is not None and view.instant >= since + AWAY_SECONDS
        if is_away and _may_return(node) and node.name not in census.gone:
            found.append(node)
    return sorted(found, key=lambda node: node.name)


def away_turns(view: FleetView) -> Iterator[float]:
    """Yield when nodes that are not ready will have been away for long enough."""
    for name, since in view.nodes.unready.items():
        if since + AWAY_SECONDS > view.instant and _may_return(view.nodes.by_name[name]):
            yield since + AWAY_SECONDS


def restarts(view: FleetView, census: PoolCensus) -> Iterator[RestartMachine]:
    """Yield the machines of a pool that its provider is to restart."""
    for _, node in sorted(census.nodes.items()):
        asked = node.restart
        if asked is None or view.now >= asked.since + RESTART_SECONDS:
            continue
        boot_id = node.node.status.node_info.boot_id
        if boot_id in ("", asked.boot_id) and not view.nodes.is_used(node.name):
            yield RestartMachine(census.view.pool, node.instance, asked.id)


def _may_return(node: PoolNode) -> bool:
    return not (node.is_joining or node.is_returning or node.removal)
