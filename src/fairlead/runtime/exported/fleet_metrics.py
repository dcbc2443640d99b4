"""What is measured of the fleet: pools, rails, calls to providers, and how fast demand is answered.

Pools and rails are read at the scrape, from the objects and from the latest decision. Calls and
waits are counted when they happen. Labels are names of pools, which administrators choose, and
closed sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import VALID, NodePool, NodePoolStatus, ProviderType
from fairlead.api.meta import is_true
from fairlead.decide.removal.ledger import AT_ONCE, DAY, HOUR, MINUTES_5
from fairlead.decide.removal.removals import RemovalOutcome, RemovalRule, Ruling
from fairlead.decide.removal.trust import Blindness, SightFinding

#: Pools with series of their own.
_POOLS_MAX = 500
_RAILS = frozenset(blindness.value for blindness in Blindness)
_WINDOWS = {int(AT_ONCE): "at once", int(MINUTES_5): "5m", int(HOUR): "1h", int(DAY): "24h"}
_CALL_SECONDS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
_DEMAND_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class ProviderCall(Enum):
    """What a provider is asked."""

    LIST = "list"
    LAUNCH = "launch"
    TERMINATE = "terminate"
    MAINTAIN = "maintain"
    RESTART = "restart"


class ProviderAnswer(Enum):
    """How a call to a provider ended."""

    DONE = "done"
    OUT_OF_CAPACITY = "out-of-capacity"
    REFUSED = "refused"
    FAILED = "failed"
    #: Our own code raised.
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class FleetSource:
    """What is read at the scrape. Reading must not wait."""

    pools: Callable[[], Iterable[NodePool]]
    fleet: Callable[[], Fleet | None]
    #: Of the latest decision; `blind` is None before the first one.
    rulings: Callable[[], Sequence[Ruling]]
    blind: Callable[[], Sequence[SightFinding] | None]


def _of_pools(pools: Sequence[NodePool]) -> Iterable[Metric]:
    nodes = GaugeMetricFamily(
        "fairlead_pool_nodes",
        "Machines of a pool by phase: launching, joining, ready, unusable (cordoned or not ready), "
        "leaving.",
        labels=["pool", "phase"],
    )
    wanted = GaugeMetricFamily(
        "fairlead_pool_wanted_nodes",
        "Nodes that demand, headroom, spares and limits ask for.",
        labels=["pool", "mode"],
    )
    limit = GaugeMetricFamily(
        "fairlead_pool_limit_nodes", "Most nodes that the pool may have.", labels=["pool"]
    )
    avoided = GaugeMetricFamily(
        "fairlead_pool_avoided_domains",
        "Domains that refused a launch and are avoided for a while.",
        labels=["pool"],
    )
    invalid = GaugeMetricFamily(
        "fairlead_pool_invalid", "1 while the spec breaks a rule: the pool is left alone.",
        labels=["pool"],
    )  # fmt: skip
    balloons = GaugeMetricFamily(
        "fairlead_pool_balloons",
        "Balloons of a pool by state: wanted, standing (they hold a node), waiting for a node.",
        labels=["pool", "state"],
    )
    idle = GaugeMetricFamily(
        "fairlead_pool_idle_nodes", "Nodes that can take work and have none.", labels=["pool"]
    )
    spares = GaugeMetricFamily(
        "fairlead_pool_spare_nodes",
        "Idle nodes that only replace lost nodes of running gangs, and how many are wanted.",
        labels=["pool", "state"],
    )
    idle_cost = GaugeMetricFamily(
        "fairlead_pool_idle_cost_per_hour",
        "What those nodes cost, by pricePerHour of the pool.",
        labels=["pool"],
    )
    for pool in pools:
        name, spec, status = pool.metadata.name, pool.spec, pool.status
        for phase, count in _phases(status).items():
            nodes.add_metric([name, phase], count)
        wanted.add_metric([name, spec.mode.value], status.wanted)
        limit.add_metric([name], spec.max if spec.hold is None else spec.hold)
        avoided.add_metric([name], len(status.unavailable))
        idle.add_metric([name], status.idle)
        for state, count in (("ready", status.spares), ("wanted", spec.spare_nodes)):
            spares.add_metric([name, state], count)
        if spec.price_micros:
            idle_cost.add_metric([name], status.idle * spec.price_micros / 1e6)
        is_judged = any(condition.type == VALID for condition in status.conditions)
        invalid.add_metric([name], is_judged and not is_true(status.conditions, VALID))
        if (counts := status.balloons) is not None:
            for state in ("wanted", "standing", "waiting"):
                balloons.add_metric([name, state], getattr(counts, state))
    return (nodes, wanted, limit, avoided, invalid, balloons, idle, spares, idle_cost)


def _phases(status: NodePoolStatus) -> dict[str, int]:
    working = status.ready + status.joining
    return {
        "launching": status.launching, "joining": status.joining, "ready": status.ready,
        "unusable": max(0, status.nodes - working - status.leaving), "leaving": status.leaving,
    }  # fmt: skip


def _of_rails(fleet: Fleet | None, findings: Sequence[SightFinding] | None) -> Iterable[Metric]:
    """Return what holds removals back: while etcd is full, no status can say so."""
    yield GaugeMetricFamily(
        "fairlead_fleet_frozen", "1 while a person has frozen the fleet.",
        value=float(fleet is not None and fleet.spec.freeze is not None),
    )  # fmt: skip
    holds = GaugeMetricFamily(
        "fairlead_fleet_rail_holds",
        "1 while no node is removed because what is seen cannot be trusted, by what is wrong.",
        labels=["rail"],
    )
    blind = set(fleet.status.blind) if fleet is not None else set[str]()
    if findings is not None:
        blind = {finding.blindness.value for finding in findings}
    for rail in sorted(_RAILS):
        holds.add_metric([rail], rail in blind)
    yield holds


def _held(rulings: Sequence[Ruling]) -> Metric:
    """Return how many removals wait, by the rule and the budget that hold them."""
    family = GaugeMetricFamily(
        "fairlead_pool_removals_held",
        "Removals that wait, by the rule that holds them, and by the budget that is used up.",
        labels=["pool", "rule", "budget"],
    )
    counts: dict[tuple[str, str, str], int] = {}
    for ruling in rulings:
        if ruling.outcome is RemovalOutcome.WAIT:
            key = (ruling.removal.charge.pool, ruling.rule.value, _budget(ruling))
            counts[key] = counts.get(key, 0) + 1
    for key, count in sorted(counts.items())[:_POOLS_MAX]:
        family.add_metric(key, count)
    return family


def _budget(ruling: Ruling) -> str:
    """Return the budget that holds a removal, such as "pool 5m"; "" when it is none."""
    if ruling.rule not in (RemovalRule.CEILING, RemovalRule.POOL_BUDGET, RemovalRule.CAUSE_BUDGET):
        return ""
    scope = str(ruling.facts["scope"]).partition("/")[0]
    return f"{scope} {_WINDOWS[int(ruling.facts['window'])]}"


class FleetMetrics(Collector):
    """The series of the fleet controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: FleetSource | None = None
        registry.register(self)
        self._calls = Histogram(
            "fairlead_fleet_cloud_call_duration_seconds",
            "Time of a call to a provider, by what it was asked and how it ended.",
            ["provider", "call", "outcome"],
            buckets=_CALL_SECONDS,
            registry=registry,
        )
        self._refusals = Counter(
            "fairlead_pool_launches_refused_total",
            "Launches that the provider refused, by reason.",
            ["pool", "reason"],
            registry=registry,
        )
        self._demand = Histogram(
            "fairlead_fleet_demand_to_launch_seconds",
            "Time from when a job lacked nodes to the first launch call for it.",
            buckets=_DEMAND_SECONDS,
            registry=registry,
        )

    def watch(self, source: FleetSource | None) -> None:
        """Read this at each scrape; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        if self._source is None:
            return ()
        pools = sorted(self._source.pools(), key=lambda pool: pool.metadata.name)[:_POOLS_MAX]
        fleet = self._source.fleet()
        rails = _of_rails(fleet, self._source.blind())
        return (*_of_pools(pools), *rails, _held(self._source.rulings()))

    def called(
        self, provider: ProviderType, call: ProviderCall, answer: ProviderAnswer, seconds: float
    ) -> None:
        """Note a call to a provider."""
        self._calls.labels(provider.value, call.value, answer.value).observe(seconds)

    def refused(self, pool: str, answer: ProviderAnswer) -> None:
        """Note a launch that was refused."""
        self._refusals.labels(pool, answer.value).inc()

    def demand_answered(self, seconds: float) -> None:
        """Note the first launch call for a job, so long after the job lacked nodes."""
        self._demand.observe(seconds)
