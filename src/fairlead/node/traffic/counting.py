"""Keeps the kernel's counting in step with the pods of the node, and reads what was counted.

The kernel has all state: who is counted where, what has ended, and which rules there are. So an
agent that ends after any line is followed by one that goes on where the kernel is. Each change is
one transaction; what cannot be changed is tried again from what the kernel has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.node.running.host import Absent, Host
from fairlead.node.traffic import netlink, nft, usage
from fairlead.node.traffic.classes import (
    FAMILIES,
    Address,
    PrefixList,
    by_prefix,
    classes_of,
    intervals,
    shipped_lists,
)
from fairlead.node.traffic.ended import EndedPods
from fairlead.node.traffic.flows import FlowGroup, FlowMeter
from fairlead.node.traffic.host_pods import find_hosts, host_rules
from fairlead.node.traffic.netlink import Counted
from fairlead.node.traffic.pods import PHASES_ENDED, CountedPod, PodSource, owners, read_pods
from fairlead.node.traffic.ruleset import (
    DIRECTIONS,
    ENDED,
    TABLE,
    AddressOwner,
    CountingPlan,
    CountingRules,
    KernelTable,
    change,
    delete_others,
    fold,
    prepare,
    put_into_force,
    remove,
)
from fairlead.node.traffic.usage import PodLine, TrafficUsage

#: Namespaces without pods whose sums are kept apart; those of others are kept together.
NAMESPACES_MAX = 1000
#: Fewer bytes between two looks say nothing about what is seen.
_COVERAGE_BYTES_MIN = 1 << 20
#: Pods of no job that are remembered as such; others are taken for members.
_JOBLESS_MAX = 4096
_OF_PODS = tuple(f"{each}/" for each in ENDED)
_OF_ENDED = tuple(f"{each}/" for each in ENDED.values())


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """One look. `unreadable` says what could not be read or is not counted."""

    usage: TrafficUsage
    was_removed: bool = False
    unreadable: tuple[str, ...] = ()


def plan_of(own: Sequence[PrefixList]) -> CountingPlan:
    """Return the plan of the shipped lists and an administrator's own; PrefixConflict."""
    shipped = shipped_lists()
    prefixes = by_prefix(shipped, own)
    found = {family: intervals(prefixes, family) for family in FAMILIES}
    return CountingPlan(classes_of((*shipped, *own)), found)


@dataclass(slots=True)
class Counting:
    """The counting of one machine. Used by one thread at a time."""

    host: Host
    pods: PodSource
    own: Sequence[PrefixList] = ()
    _plan: CountingPlan = field(init=False)
    _rules: CountingRules | None = None
    _has_older: bool = True
    _idle: frozenset[str] = frozenset()
    _seen: usage.SeenBytes | None = None
    _was_set_up: bool = False
    _has_failed: bool = False
    _usage: TrafficUsage | None = None
    #: Pods of the host's network by cgroup (None: not read yet), those that the kernel refused,
    #: and why some are not told apart.
    _hosts: Mapping[str, AddressOwner] | None = None
    _refused: Mapping[str, AddressOwner] = field(default_factory=dict[str, AddressOwner])
    _hosts_why: str = ""
    _refused_why: str = ""
    _flows: FlowMeter = field(default_factory=FlowMeter)
    _groups: dict[AddressOwner, FlowGroup] = field(default_factory=dict[AddressOwner, FlowGroup])
    _ended: EndedPods = field(default_factory=EndedPods)
    _jobless: set[AddressOwner] = field(default_factory=set[AddressOwner])

    def __post_init__(self) -> None:
        self._plan = plan_of(self.own)

    def last_usage(self) -> TrafficUsage | None:
        """Return what the last look counted; None before the first."""
        return self._usage

    def read(self) -> TrafficFacts:
        """Bring the kernel in step and return what was counted; OSError."""
        wanted, unreadable = self._wanted()
        try:
            self._delete_older()
            counters, was_removed = self._in_step(wanted)
            self._fold(counters)
        except OSError:
            self._rules, self._has_failed = None, True  # set up again, whatever there is
            raise
        links = netlink.links()
        now = usage.seen(counters, links)
        part = None
        if self._seen is not None and not was_removed:
            part = usage.coverage(self._seen, now, bytes_min=_COVERAGE_BYTES_MIN)
        self._seen = now
        spots = usage.blind_spots(links, has_rdma=self._has_rdma(), hosts=self._hosts_why)
        flows = self._flows.lines(counters, self._groups, self.host.now().uptime_seconds)
        lines = usage.usage_lines(counters)
        self._usage = TrafficUsage(lines, part, spots, flows, self._ended.lines)
        return TrafficFacts(self._usage, was_removed, unreadable)

    def _wanted(self) -> tuple[dict[Address, AddressOwner] | None, tuple[str, ...]]:
        """Return who is to be counted where; None, and why, while the pods cannot be read."""
        try:
            pods = read_pods(self.pods)
            self._groups = {each.owner: each.group for each in pods
                            if each.status.phase not in PHASES_ENDED}  # fmt: skip
            jobless = {each.owner for each in pods if not each.group.job}
            self._jobless = (
                jobless if len(self._jobless) > _JOBLESS_MAX else self._jobless | jobless
            )
            self._hosts, self._hosts_why = find_hosts(self.host, pods)
            return owners(pods, netlink.addresses())
        except OSError as error:
            return None, (f"pods: {error.filename or ''} {error.strerror or error}".strip(),)

    def _delete_older(self) -> None:
        """Delete what rules of before left, a whole look after those in force took their place.

        A packet that was on its way through them is counted by then.
        """
        if self._rules is not None and self._has_older:
            held = nft.held()
            nft.apply(delete_others(held, held.rules.number))
            self._has_older = False

    def _in_step(
        self, wanted: dict[Address, AddressOwner] | None
    ) -> tuple[dict[str, Counted], bool]:
        """Return the counters once rules and elements are as they should be."""
        there = netlink.counters(TABLE)
        was_removed = self._was_set_up and not there
        if self._rules is None and not self._has_failed:
            self._rules = nft.held().rules
        if self._rules is None or not self._is_whole(there, self._rules):
            new = self._set_up(nft.held(), wanted, there)
            self._has_older = True
        elif wanted is not None and wanted != self._rules.owners:
            new = self._rules._replace(owners=wanted)
            nft.apply(change(self._plan, self._rules, new, counters=there))
        else:
            new = self._rules
        if new is not self._rules:
            self._rules = new
            there = netlink.counters(TABLE)
        self._was_set_up, self._has_failed = True, False
        return there, was_removed

    def _set_up(
        self, held: KernelTable, wanted: dict[Address, AddressOwner] | None,
        there: dict[str, Counted],
    ) -> CountingRules:  # fmt: skip
        """Put new rules into force; they tell pods of the host's network apart if that can be."""
        owners_now = held.rules.owners if wanted is None else wanted
        new = CountingRules(held.next_number(), owners_now, self._told_apart(held.rules))
        nft.apply(prepare(self._plan, new, held, counters=there))
        told_apart = new.hosts
        if told_apart:
            try:
                nft.apply_text(host_rules(self._plan, new))
            except OSError as error:
                self._refused, self._refused_why = new.hosts, str(error)
                self._hosts_why, told_apart = self._refused_why, {}
        nft.apply(put_into_force(self._plan, new, counters=there))
        return new._replace(hosts=told_apart)

    def _told_apart(self, rules: CountingRules) -> Mapping[str, AddressOwner]:
        """Return the host pods that rules are to tell apart; none of those that were refused.

        Those of the rules in force while the pods could not be read yet.
        """
        if self._hosts is None:
            return rules.hosts
        if self._hosts and self._hosts == self._refused:
            self._hosts_why = self._refused_why
            return {}
        return self._hosts

    def _is_whole(self, there: dict[str, Counted], rules: CountingRules) -> bool:
        """False where other rules are in force, or somebody took elements out of our maps.

        So it is where there are older rules, too, of an agent that ended before it deleted them.
        """
        uses = sum(each.uses for each in there.values())
        led = len(rules.owners) + len(rules.hosts)
        wanted = len(DIRECTIONS) * len(self._plan.classes) * led
        is_ours = self._plan.marker(rules.number) in there and uses == wanted
        return is_ours and rules.hosts == self._told_apart(rules)

    def _fold(self, counters: dict[str, Counted]) -> None:
        """Add counters of pods that nothing has led to for a whole look to their namespaces'.

        A packet that was on its way when its element went is counted by then. Those of members of
        jobs stay for a while, so that they can be reported.
        """
        pods = ((name, each) for name, each in counters.items()
                if name.startswith(_OF_PODS))  # fmt: skip
        idle = frozenset(name for name, each in pods if not each.uses)
        finals = {name: counters[name] for name in idle & self._idle}
        surplus = self._ended.surplus(
            {name: each.size for name, each in finals.items()},
            self._jobless | self._groups.keys(), self.host.now().uptime_seconds,
        )  # fmt: skip
        ended = {name: counted[:2] for name, counted in counters.items()
                 if name.startswith(_OF_ENDED)}  # fmt: skip
        self._idle = idle - surplus
        if surplus:
            gone = {name: finals[name][:2] for name in surplus}
            nft.apply(fold(gone, ended, namespaces_max=NAMESPACES_MAX))

    def _has_rdma(self) -> bool:
        try:
            return bool(self.host.names("sys/class/infiniband"))
        except (Absent, OSError):
            return False


def read_usage(
    pods: Iterable[CountedPod], *, top: int
) -> tuple[TrafficUsage, tuple[PodLine, ...]] | None:
    """Return what was counted, and the pods with the most bytes; None without a table; OSError.

    Changes nothing, so that it can be read beside a running agent.
    """
    counters = netlink.counters(TABLE)
    if not counters:
        return None
    lines = usage.usage_lines(counters)
    spots = usage.blind_spots(netlink.links(), has_rdma=False)
    return TrafficUsage(lines, None, spots), usage.top_pods(counters, pods, top)


def remove_table() -> None:
    """Take back all that is set; OSError."""
    nft.apply(remove())
