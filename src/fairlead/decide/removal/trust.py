"""Whether what the controller sees of the fleet can be trusted. Blind, it removes nothing.

Three sources name the nodes: the provider's list, the Node objects, and our own records. A list
that is old, incomplete, or tells another story than the others is more often wrong than right: in
the outages that removed whole fleets, an empty or partial list was believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.api.cluster.cluster_report import ClusterReport, ReportCondition
from fairlead.api.meta import find_condition
from fairlead.api.values.times import parse_time
from fairlead.decide.verdict import Fact


class Blindness(Enum):
    """Why nothing may be removed. The closed set; the order is that in which they are checked.

    `words` say it, with the facts of a finding.
    """

    _value_: str
    words: str

    def __new__(cls, value: str, words: str) -> Self:
        """Make a member."""
        made = object.__new__(cls)
        made._value_, made.words = value, words
        return made

    FROZEN = "Frozen", "the fleet is frozen"
    NODE_LIST_STALE = "NodeListStale", "the list of nodes is {age_seconds} s old, {max} s at most"
    CLOUD_LIST_STALE = (
        "CloudListStale",
        "the provider's list is {age_seconds} s old, {max} s at most",
    )  # fmt: skip
    LIST_PARTIAL = "ListPartial", "the list of {list} is incomplete"
    LISTS_DIFFER = (
        "ListsDiffer",
        "machines without a node: {only_in_cloud}, nodes without a machine: "
        "{only_in_nodes}",
    )  # fmt: skip
    RECORDS_DIFFER = (
        "RecordsDiffer",
        "the provider has {cloud} machines, the records have {recorded}",
    )  # fmt: skip
    COUNT_CHANGED = "CountChanged", "there are {nodes} nodes, there were {before}"
    CONTROL_PLANE_UNHEALTHY = (
        "ControlPlaneUnhealthy",
        "the API server fails {error_share:.0%} of the requests and "
        "takes {latency_seconds} s",
    )  # fmt: skip
    ETCD_NEARLY_FULL = (
        "EtcdNearlyFull",
        "etcd is nearly full by the report of the doctor, "
        "{report_age_seconds} s old: {evidence}",
    )  # fmt: skip
    API_SERVER_DEGRADED = (
        "APIServerDegraded",
        "the API server is degraded by the report of the doctor, "
        "{report_age_seconds} s old: {evidence}",
    )  # fmt: skip
    NODES_UNREADY = "NodesUnready", "{unready} of {nodes} nodes are not ready"
    UNREADY_RISES = "UnreadyRises", "{rise} of {nodes} nodes became not ready within {seconds} s"
    NODES_SICK = "NodesSick", "{sick} of {nodes} nodes report faults that ask for them to go"
    SIGHT_RETURNING = (
        "SightReturning",
        "all is clear, in {clear_loops} of the {needed} looks that it takes",
    )  # fmt: skip


_OF_REPORT = {
    ReportCondition.ETCD_NEARLY_FULL: Blindness.ETCD_NEARLY_FULL,
    ReportCondition.API_SERVER_DEGRADED: Blindness.API_SERVER_DEGRADED,
}
_LISTS = {Blindness.NODE_LIST_STALE: "nodes", Blindness.CLOUD_LIST_STALE: "machines"}


class SightFinding(Struct, frozen=True):
    """One reason, and the numbers behind it."""

    blindness: Blindness
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The reason in words, with its numbers and its name."""
        words = self.blindness.words.format(**self.facts)
        if self.facts.get("age_seconds") == float("inf"):
            words = f"there is no list of {_LISTS[self.blindness]} yet"
        return f"{words} ({self.blindness.value})"


class Listing(Struct, frozen=True):
    """Provider ids as one source lists them. `age_seconds` is by a monotonic clock."""

    ids: frozenset[str]
    age_seconds: float = 0.0
    is_complete: bool = True


class Sight(Struct, frozen=True):
    """What one loop sees of the nodes that belong to pools."""

    nodes: Listing
    cloud: Listing
    #: Instances by our own records; None: there are none yet.
    recorded: int | None = None
    #: Instances that have no node yet, and whose deadline has not passed.
    joining: frozenset[str] = frozenset()
    #: Instances whose removal was granted: each list may or may not show them.
    leaving: frozenset[str] = frozenset()
    unready: int = 0
    #: Nodes with faults that are acted on.
    sick: int = 0
    #: Requests of this process to the API server that failed lately, 0 to 1, and their latency.
    api_error_share: float = 0.0
    api_latency_seconds: float = 0.0
    #: What the doctor reports; it counts while the report is fresh.
    reported: tuple[Reported, ...] = ()
    is_frozen: bool = False


@dataclass(frozen=True, slots=True)
class SightLimits:
    """What still counts as seeing."""

    #: A list of the provider that is older is stale.
    age_seconds_max: float = 60.0
    #: So is the list of nodes after its watch was silent for longer; bookmarks come each minute.
    nodes_age_seconds_max: float = 180.0
    #: Lists may differ by this share of the larger one, and by `differ_least` nodes in any case.
    differ_share_max: float = 0.05
    differ_least: int = 3
    unready_share_max: float = 0.2
    sick_share_max: float = 0.2
    unready_rise_share_max: float = 0.05
    rise_seconds: float = 300.0
    #: A count that has changed for no reason of ours is believed after this long.
    settle_seconds: float = 600.0
    api_error_share_max: float = 0.1
    api_latency_seconds_max: float = 2.0
    #: A report of the doctor that is older is no evidence. It is confirmed every 15 minutes.
    report_age_seconds_max: float = 1800.0
    #: Nor is one from so far in the future: a clock was wrong when it was written.
    report_ahead_seconds_max: float = 300.0
    #: Loops with clear sight before anything is removed again.
    clear_loops_min: int = 2

    def tolerance(self, count: int) -> int:
        """Return by how many nodes counts of that size may differ."""
        return max(self.differ_least, int(count * self.differ_share_max))


class SightMemory(Struct, frozen=True):
    """What is kept from loop to loop; a process begins with the defaults, which is blind."""

    clear_loops: int = 0
    #: The last count that all lists agreed on, and for how long another one has stood against it.
    stable_count: int | None = None
    changed_seconds: float = 0.0
    #: For how long this process has looked, and how many nodes it saw unready in the last few
    #: minutes: each count with the latest such moment at which it still was so, oldest first.
    watched_seconds: float = 0.0
    unready: tuple[tuple[float, int], ...] = ()


def look(
    memory: SightMemory, sight: Sight, limits: SightLimits, elapsed: float, *, own_change: int = 0
) -> tuple[SightMemory, tuple[SightFinding, ...]]:
    """Return what to remember, and every reason why nothing may be removed; () when it may be.

    `elapsed` is the time since the last call by a monotonic clock. `own_change` is by how many
    nodes our own launches and removals changed the fleet since then.
    """
    findings = [
        *_frozen(sight),
        *_freshness(sight, limits),
        *_plausibility(sight, limits),
        *_control_plane(sight, limits),
    ]
    memory, changed = _stability(memory, sight, limits, elapsed, own_change=own_change)
    findings += changed
    memory, rising = _rise(memory, sight, limits, elapsed)
    findings += rising
    if findings:
        return replace(memory, clear_loops=0), tuple(findings)
    memory = replace(memory, clear_loops=min(memory.clear_loops + 1, limits.clear_loops_min + 1))
    is_empty = not (sight.nodes.ids or sight.cloud.ids)  # there is nothing that could be removed
    if memory.clear_loops <= limits.clear_loops_min and not is_empty:
        facts = {"clear_loops": memory.clear_loops, "needed": limits.clear_loops_min + 1}
        return memory, (SightFinding(Blindness.SIGHT_RETURNING, facts),)
    return memory, ()


def _frozen(sight: Sight) -> list[SightFinding]:
    return [SightFinding(Blindness.FROZEN)] if sight.is_frozen else []


def _freshness(sight: Sight, limits: SightLimits) -> list[SightFinding]:
    out: list[SightFinding] = []
    for listing, blindness, most in (
        (sight.nodes, Blindness.NODE_LIST_STALE, limits.nodes_age_seconds_max),
        (sight.cloud, Blindness.CLOUD_LIST_STALE, limits.age_seconds_max),
    ):
        if not listing.age_seconds <= most:
            age = round(listing.age_seconds, 1)
            out.append(SightFinding(blindness, {"age_seconds": age, "max": most}))
    for listing, name in ((sight.nodes, "nodes"), (sight.cloud, "cloud")):
        if not listing.is_complete:
            out.append(SightFinding(Blindness.LIST_PARTIAL, {"list": name}))
    return out


def _staying(sight: Sight) -> tuple[frozenset[str], frozenset[str]]:
    """Return the nodes and the machines that are not leaving; the same set where the lists are one,
    as those of thousands of nodes take a millisecond to compare.
    """
    nodes = sight.nodes.ids - sight.leaving if sight.leaving else sight.nodes.ids
    if sight.cloud.ids is sight.nodes.ids:
        return nodes, nodes
    return nodes, sight.cloud.ids - sight.leaving if sight.leaving else sight.cloud.ids


def _plausibility(sight: Sight, limits: SightLimits) -> list[SightFinding]:
    nodes, cloud = _staying(sight)
    only_cloud, only_nodes = 0, 0
    if nodes is not cloud:
        only_cloud, only_nodes = len(cloud - nodes - sight.joining), len(nodes - cloud)
    out: list[SightFinding] = []
    if only_cloud + only_nodes > limits.tolerance(max(len(nodes), len(cloud))):
        facts = {
            "nodes": len(nodes), "cloud": len(cloud), "only_in_cloud": only_cloud,
            "only_in_nodes": only_nodes,
        }  # fmt: skip
        out.append(SightFinding(Blindness.LISTS_DIFFER, facts))
    if sight.recorded is not None:
        off = abs(len(cloud) - sight.recorded)
        if off > limits.tolerance(max(len(cloud), sight.recorded)):
            facts = {"cloud": len(cloud), "recorded": sight.recorded}
            out.append(SightFinding(Blindness.RECORDS_DIFFER, facts))
    return out


def _control_plane(sight: Sight, limits: SightLimits) -> list[SightFinding]:
    out: list[SightFinding] = []
    if (
        sight.api_error_share > limits.api_error_share_max
        or sight.api_latency_seconds > limits.api_latency_seconds_max
    ):
        facts = {
            "error_share": round(sight.api_error_share, 3),
            "latency_seconds": round(sight.api_latency_seconds, 3),
        }
        out.append(SightFinding(Blindness.CONTROL_PLANE_UNHEALTHY, facts))
    for each in sight.reported:
        if -limits.report_ahead_seconds_max <= each.age_seconds <= limits.report_age_seconds_max:
            facts = {"evidence": each.evidence, "report_age_seconds": int(each.age_seconds)}
            out.append(SightFinding(_OF_REPORT[each.condition], facts))
    count = len(sight.nodes.ids)
    if sight.unready > max(limits.differ_least, count * limits.unready_share_max):
        out.append(
            SightFinding(Blindness.NODES_UNREADY, {"unready": sight.unready, "nodes": count})
        )
    # A wrong agent or a wrong rule is more likely than that so many machines are.
    if sight.sick > max(limits.differ_least, count * limits.sick_share_max):
        out.append(SightFinding(Blindness.NODES_SICK, {"sick": sight.sick, "nodes": count}))
    return out


def _stability(
    memory: SightMemory, sight: Sight, limits: SightLimits, elapsed: float, *, own_change: int
) -> tuple[SightMemory, list[SightFinding]]:
    """Compare with the last count that was believed; one that lasts is believed in the end."""
    count = min(map(len, _staying(sight)))
    stable = memory.stable_count
    if stable is None:
        return replace(memory, stable_count=count, changed_seconds=0.0), []
    stable = max(0, stable + own_change)
    changed = memory.changed_seconds + elapsed
    # More nodes than before are no danger: what is removed is bounded by shares of the smaller.
    if count >= stable - limits.tolerance(stable) or changed >= limits.settle_seconds:
        return replace(memory, stable_count=count, changed_seconds=0.0), []
    facts = {"nodes": count, "before": stable, "for_seconds": int(changed)}
    memory = replace(memory, stable_count=stable, changed_seconds=changed)
    return memory, [SightFinding(Blindness.COUNT_CHANGED, facts)]


def _rise(
    memory: SightMemory, sight: Sight, limits: SightLimits, elapsed: float
) -> tuple[SightMemory, list[SightFinding]]:
    """Many nodes that turn NotReady within minutes: rather we cannot see than they are all ill."""
    at = memory.watched_seconds + elapsed
    seen = [each for each in memory.unready if each[0] >= at - limits.rise_seconds]
    rise = sight.unready - min([unready for _, unready in seen], default=sight.unready)
    if seen and seen[-1][1] == sight.unready:
        seen.pop()  # it still is so
    kept = (*seen[-_samples_max(limits) :], (at, sight.unready))
    memory = replace(memory, watched_seconds=at, unready=kept)
    allowed = max(limits.differ_least, len(sight.nodes.ids) * limits.unready_rise_share_max)
    if rise <= allowed:
        return memory, []
    facts = {"rise": rise, "nodes": len(sight.nodes.ids), "seconds": int(limits.rise_seconds)}
    return memory, [SightFinding(Blindness.UNREADY_RISES, facts)]


def _samples_max(limits: SightLimits) -> int:
    """Return how many samples are kept at most, however often the controller is woken."""
    return max(8, int(limits.rise_seconds / 2))


# What the doctor's report says about the control plane, as evidence for the rails.
#
# A report counts only while it is fresh. Without one, or with a stale one, the rails rest on what
# they see themselves.


class Reported(Struct, frozen=True):
    """A condition that is True in a report of that age, by the wall clock, with its evidence."""

    condition: ReportCondition
    evidence: str
    age_seconds: float


def reported_of(report: ClusterReport | None, now: float) -> tuple[Reported, ...]:
    """Return the conditions of a report that are True. Unknown is no evidence."""
    if report is None or report.status.observed_at is None:
        return ()
    age = now - parse_time(report.status.observed_at)
    out: list[Reported] = []
    for type_ in ReportCondition:
        condition = find_condition(report.status.conditions, type_.value)
        if condition is not None and condition.status == "True":
            out.append(Reported(type_, condition.message, age))
    return tuple(out)


# How the API server answers us: averages of our own requests, which age when none is sent.
#
# A controller that stops because its requests fail sends no more of them. Without ageing, it would
# never learn that the API server has recovered.


#: Share of the newest sample in the averages.
_NEWEST = 0.1
#: Without a request, the averages halve in this time.
HALF_LIFE_SECONDS = 60.0


class Pulse(Struct, frozen=True):
    """Averages at an instant of a monotonic clock."""

    latency_seconds: float = 0.0
    error_share: float = 0.0
    at: float = 0.0

    def aged(self, instant: float) -> Pulse:
        """Return the averages at a later instant, when nothing was sent since."""
        kept = 0.5 ** (max(0.0, instant - self.at) / HALF_LIFE_SECONDS)
        return Pulse(self.latency_seconds * kept, self.error_share * kept, instant)

    def after(self, seconds: float, *, failed: bool, instant: float) -> Pulse:
        """Take in one request that took so long and ended at an instant."""
        latency = self.latency_seconds + (seconds - self.latency_seconds) * _NEWEST
        errors = self.error_share + (float(failed) - self.error_share) * _NEWEST
        return Pulse(latency, errors, instant)
