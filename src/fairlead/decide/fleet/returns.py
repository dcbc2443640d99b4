"""Nodes that come back after an outage take work one after another, as new nodes do.

Hundreds that are ready again at once cost the API server what hundreds of new ones cost. So a node
that has not been ready for a while gets a taint; once it is ready again, the token bucket of the
joins lifts it. What runs on it goes on: the taint keeps new members away.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.decide.fleet.census import AWAY_SECONDS, PoolCensus
from fairlead.decide.fleet.view import FleetView
from fairlead.decide.rails.sight import Blindness
from fairlead.model.pools.pool_nodes import PoolNode

#: Nodes that get the taint in one decision: each is a write, in a bad moment.
TAINTED_MAX = 50
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


def _may_return(node: PoolNode) -> bool:
    return not (node.is_joining or node.is_returning or node.removal)
