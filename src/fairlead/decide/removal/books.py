"""The Fleet object as the one account of what automation takes: who books in it shares budgets.

The fleet controller books removals, the health controller repairs. Each writes the version that it
read (compare-and-swap), so what one of them takes the other one sees before it takes more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api.cluster.fleet import Fleet, FleetStatus, Override
from fairlead.api.cluster.node_pool import NodePool, PoolDecision
from fairlead.api.meta import Condition, set_condition
from fairlead.api.names import FROZEN
from fairlead.api.values.node_limit import parse_limit
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.removal.ledger import PoolBudget, RemovalLedger
from fairlead.decide.removal.removals import Permit


@dataclass(frozen=True, slots=True)
class CreateFleet:
    """Create the one Fleet object."""


@dataclass(frozen=True, slots=True)
class WriteFleet:
    """Write the ledger, which grants what is booked; `decided` is for events and records."""

    fleet: Fleet
    status: FleetStatus
    decided: tuple[PoolDecision, ...] = ()


@dataclass(slots=True)
class LedgerClock:
    """The version of the Fleet object that a process read last, and when, by a monotonic clock."""

    version: str = ""
    read_at: float = 0.0

    def ledger(self, fleet: Fleet, instant: float) -> RemovalLedger:
        """Return the ledger now: as it was read, and the time since."""
        status, version = fleet.status, fleet.metadata.resource_version
        if self.version != version:
            self.version, self.read_at = version, instant
        return RemovalLedger(status.clock, status.removed).at(status.clock + instant - self.read_at)


def leaving_of(status: FleetStatus) -> Counter[str]:
    """Return how many nodes of each pool are out or on their way at the moment."""
    going = {grant.node for grant in status.grants if grant.node}
    out = (each.pool for each in status.repairs if each.node not in going)
    return Counter([*(grant.pool for grant in status.grants), *out])


def with_frozen(fleet: Fleet, status: FleetStatus, now: float) -> FleetStatus:
    """Return a new status of the fleet with the condition Frozen."""
    freeze, generation = fleet.spec.freeze, fleet.metadata.generation or None
    said = ("False", "NotFrozen", "") if freeze is None else ("True", "Frozen", freeze.reason)
    condition = Condition(FROZEN, *said, generation, format_time(now))
    return replace(status, conditions=set_condition(fleet.status.conditions, condition))


def permits_of(fleet: Fleet, now: float) -> list[Permit]:
    """Return the overrides that are in force."""
    return [
        Permit(override.name, frozenset(override.nodes))
        for override in fleet.spec.overrides
        if _end_of(override) > now
    ]


def budget_of(pool: NodePool) -> PoolBudget:
    """Return the limits of a pool's own."""
    own = pool.spec.disruption
    limits = (own.nodes_at_once_max, own.nodes_per_hour_max, own.nodes_per_day_max)
    return PoolBudget(*(None if limit is None else parse_limit(limit) for limit in limits))


def _end_of(override: Override) -> float:
    """Return when an override ends; one whose end cannot be read allows nothing."""
    try:
        return parse_time(override.expires_at)
    except ValueError:
        return float("-inf")
