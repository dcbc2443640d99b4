"""Checks at every placement: topologies, maintenance, neighbours and spares.

Each checker reads requests, rules, windows and labels from the objects by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement, nodes_of
from fairlead.api.kubernetes.core import Node, Pod, PodSpec
from fairlead.api.kubernetes.pod_parts import PodAffinityTerm
from fairlead.api.values.times import parse_time
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.topology import DEFAULT_LEVELS
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.promises.checkers import offers_all

_GRACE_SECONDS = 30.0
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 # compared, not bound
#: Label by level.
Labels = Mapping[str, str]

# Topologies: a gang is in one domain of the level that it requires, and every slice in one domain
# of its level. A preference is no promise


@dataclass(slots=True)
class TopologyChecker(Observer):
    """An `Observer`. `checked` counts the placements that a topology binds."""

    levels: Labels = field(default_factory=lambda: {each.name: each.key for each in DEFAULT_LEVELS})
    checked: int = 0
    _placements: dict[ObjectKey, Placement] = field(default_factory=dict[ObjectKey, Placement])
    _labels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Check a new placement."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        if new is None or placement is None:
            self._placements.pop(key, None)
        elif self._placements.get(key) != placement:
            self._placements[key] = placement
            for number, (level, nodes) in enumerate(_together(new, placement)):
                self.checked += not number
                label = self.levels.get(level, level)
                domains = {self._labels.get(node, {}).get(label) for node in nodes}
                if len(domains) != 1 or None in domains:
                    found = ", ".join(sorted(str(each) for each in domains))
                    raise PromiseBroken(
                        f"2: {len(nodes)} members of {key[1]} must be in one {level}, but are in "
                        f"{found}"
                    )

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the labels of a node; one that is gone keeps them."""
        if new is not None:
            self._labels[name] = new.metadata.labels


def _together(job: Job, placement: Placement) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the nodes that must be in one domain, and of which level."""
    asked = job.spec.topology
    if asked is None:
        return
    if asked.required:
        yield asked.key, nodes_of(placement)
    for role in placement.roles if asked.slice_size else ():
        for start in range(0, len(role.nodes), asked.slice_size):
            yield asked.slice_level, role.nodes[start : start + asked.slice_size]


# Maintenance, promise 7: no attempt begins on a node that it may still hold when maintenance
# begins.
#
# A decision may be older than its write, and was made by a clock that may be wrong: only what is
# wrong by all such clocks is reported, and only where the window was known by then. Pods of other
# tools stay where they are, so their jobs are left out.


@dataclass(slots=True)
class MaintenanceChecker(Observer):
    """An `Observer`. `judged` counts attempts that begin while nodes have windows; `spared` their
    nodes whose window is still to come, long enough after.
    """

    clock_error_seconds: float = 0.0
    judged: int = 0
    spared: int = 0
    #: (start, end, known since)
    _windows: dict[str, tuple[float, float, float]] = field(
        default_factory=dict[str, tuple[float, float, float]]
    )
    _attempts: dict[ObjectKey, tuple[str, int]] = field(
        default_factory=dict[ObjectKey, tuple[str, int]]
    )

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """7: a placement of a further attempt."""
        placement = new.status.placement if new is not None else None
        if new is None:
            self._attempts.pop(key, None)
            return
        attempt = (new.metadata.uid, placement.attempt if placement is not None else 0)
        before, self._attempts[key] = self._attempts.get(key), attempt
        if placement is None or before == attempt or new.spec.adopts is not None:
            return
        self.judged += bool(self._windows)
        limit = new.spec.time_limit_seconds
        hold = float("inf") if limit is None else limit + _GRACE_SECONDS
        earliest = now - STALE_SECONDS - self.clock_error_seconds
        latest = now + self.clock_error_seconds
        for node in self._windows.keys() & set(nodes_of(placement)):
            start, end, since = self._windows[node]
            self.spared += latest + hold < start
            if since < now - STALE_SECONDS and latest < end and earliest + hold > start:
                raise PromiseBroken(
                    f"7: attempt {placement.attempt} of {'/'.join(key)} is placed on {node}, whose "
                    f"maintenance begins in {start - now:.0f} s, for up to {hold:g} s"
                )

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in the window of a node, or that it has none."""
        text = new.metadata.annotations.get(names.MAINTENANCE) if new is not None else None
        if text is None:
            self._windows.pop(name, None)
            return
        start, end = map(parse_time, text.split("/"))
        known = self._windows.get(name)
        if known is None or known[:2] != (start, end):
            self._windows[name] = (start, end, now)


# Neighbours: no member is put where a host port or an anti-affinity forbids it.
#
# Each member is compared with each other member and pod. Two of which neither states a rule cannot
# break one, so a member without rules is compared with those that have rules.


@dataclass(frozen=True, slots=True)
class _Resident:
    """A member that has a place, or a pod on a node."""

    who: str
    uid: str
    namespace: str
    labels: dict[str, str]
    spec: PodSpec
    node: str
    has_rules: bool


class _Residents:
    """What has a place, by object, and of it again what states rules."""

    def __init__(self) -> None:
        self._all: dict[ObjectKey, tuple[_Resident, ...]] = {}
        self._ruled: dict[ObjectKey, tuple[_Resident, ...]] = {}

    def put(self, key: ObjectKey, residents: tuple[_Resident, ...]) -> None:
        """Set the residents of an object; it comes last, in the order of changes."""
        ruled = tuple(each for each in residents if each.has_rules)
        for known, some in ((self._all, residents), (self._ruled, ruled)):
            known.pop(key, None)
            if some:
                known[key] = some

    def some(self, *, are_ruled: bool) -> dict[ObjectKey, tuple[_Resident, ...]]:
        """Return those that state rules, or all; only to be read."""
        return self._ruled if are_ruled else self._all


@dataclass(slots=True)
class NeighbourChecker(Observer):
    """An `Observer`. `checked` counts the members with rules that were placed."""

    checked: int = 0
    _members: _Residents = field(default_factory=_Residents)
    _placements: dict[ObjectKey, Placement] = field(default_factory=dict[ObjectKey, Placement])
    _pods: _Residents = field(default_factory=_Residents)
    _labels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Check the members of a new placement against each other and all others."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        if new is None or placement is None:
            self._members.put(key, ())
            self._placements.pop(key, None)
            return
        if self._placements.get(key) == placement:
            return
        self._placements[key] = placement
        members = tuple(_members(new, placement))
        self._members.put(key, members)
        others = self._others(new, are_ruled=not any(member.has_rules for member in members))
        for i, member in enumerate(members):
            self.checked += member.has_rules
            for other in (*members[:i], *others):
                self._check(member, other)

    def _others(self, job: Job, *, are_ruled: bool) -> list[_Resident]:
        """Return what has a place and is not of the job; where `are_ruled`, what states rules."""
        key, uid = job.metadata.key, job.metadata.uid
        found = self._members.some(are_ruled=are_ruled).items()
        others = [each for other, some in found for each in some if other != key]
        pods = self._pods.some(are_ruled=are_ruled).values()
        return others + [pod for some in pods for pod in some if pod.uid != uid]

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note which pods are on nodes."""
        if new is None or new.is_terminal or not new.spec.node_name:
            self._pods.put(key, ())
            return
        owner = next((o.uid for o in new.metadata.owner_references if o.controller), "")
        uid = new.metadata.labels.get(names.JOB_UID, owner)
        pod = _Resident(
            f"pod {key[1]}", uid, key[0], new.metadata.labels, new.spec, new.spec.node_name,
            has_rules=_has_rules(new.spec),
        )  # fmt: skip
        self._pods.put(key, (pod,))

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the labels of a node."""
        self._labels[name] = new.metadata.labels if new is not None else {}

    def _check(self, a: _Resident, b: _Resident) -> None:
        if a.node == b.node:
            for protocol, address, port in _ports(a.spec):
                for other in _ports(b.spec):
                    if (protocol, port) == (other[0], other[2]) and _overlap(address, other[1]):
                        raise PromiseBroken(
                            f"1: {a.who} and {b.who} both have {protocol} port {port} of {a.node}"
                        )
        for one, two in ((a, b), (b, a)):
            for term in _terms(one.spec):
                if self._is_near(one, two, term.topology_key) and _matches(term, one, two):
                    raise PromiseBroken(
                        f"1: {one.who} on {one.node} is near {two.who} on {two.node}, against its "
                        f"anti-affinity by {term.topology_key}"
                    )

    def _is_near(self, a: _Resident, b: _Resident, key: str) -> bool:
        domain = self._labels.get(a.node, {}).get(key)
        return domain is not None and domain == self._labels.get(b.node, {}).get(key)


def _members(job: Job, placement: Placement) -> Iterator[_Resident]:
    meta, nodes = job.metadata, {role.role: role.nodes for role in placement.roles}
    for role in job.spec.roles:
        spec = role.template.spec
        has_rules = _has_rules(spec)
        labels = role.template.metadata.labels | {
            names.JOB_NAME: meta.name, names.JOB_UID: meta.uid, names.ROLE: role.name,
        }  # fmt: skip
        for i, node in enumerate(nodes.get(role.name, ())):
            who = f"{meta.name} {role.name} {i}"
            yield _Resident(who, meta.uid, meta.namespace, labels, spec, node, has_rules=has_rules)


def _ports(spec: PodSpec) -> list[tuple[str, str, int]]:
    return [
        (port.protocol, port.host_ip, port.host_port)
        for container in spec.containers
        for port in container.ports
        if port.host_port
    ]


def _has_rules(spec: PodSpec) -> bool:
    return bool(_ports(spec) or _terms(spec))


def _overlap(a: str, b: str) -> bool:
    return a == b or a in _EVERY_ADDRESS or b in _EVERY_ADDRESS


def _terms(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    return anti.required if anti is not None else ()


def _matches(term: PodAffinityTerm, holder: _Resident, other: _Resident) -> bool:
    """True when a term is about another pod; the simulated ones use matchLabels alone."""
    assert term.label_selector is not None
    assert not term.label_selector.match_expressions
    is_in = other.namespace in (term.namespaces or (holder.namespace,))
    return is_in and term.label_selector.match_labels.items() <= other.labels.items()


# Spares only replace lost nodes: no gang begins on one, and none moves there unhurt.
#
# A decision may be older than its write: a node counts as a spare once that has been so for longer.


@dataclass(slots=True)
class SpareChecker(Observer):
    """An `Observer`. `judged` counts attempts that are placed while there are spares, `taken` the
    spares that they get.
    """

    judged: int = 0
    taken: int = 0
    #: Since when each node has been a spare.
    _since: dict[str, float] = field(default_factory=dict[str, float])
    #: Since when members could stay on each node.
    _sound_since: dict[str, float] = field(default_factory=dict[str, float])
    #: The attempt that each job was placed for, and its nodes.
    _placed: dict[ObjectKey, tuple[str, int, Counter[str]]] = field(
        default_factory=dict[ObjectKey, tuple[str, int, Counter[str]]]
    )

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """A placement of a further attempt."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        if new is None or placement is None:
            self._placed.pop(key, None)
            return
        nodes = Counter(nodes_of(placement))
        uid, attempt, before = self._placed.get(key, ("", 0, Counter[str]()))
        self._placed[key] = (new.metadata.uid, placement.attempt, nodes)
        if (uid, attempt) == (new.metadata.uid, placement.attempt):
            return  # where another scheduler has bound its members
        before = before if uid == new.metadata.uid else Counter[str]()
        self.judged += bool(self._since)
        known = now - STALE_SECONDS
        spares = [node for node in nodes - before if self._since.get(node, now) < known]
        if not spares:
            return
        self.taken += len(spares)
        what = f"attempt {placement.attempt} of {'/'.join(key)} is placed on spare {spares[0]}"
        if not before:
            raise PromiseBroken(f"11: {what}, and had no place before")
        lost = {node for record in new.status.attempts for node in record.nodes_lost}
        if all(n not in lost and self._sound_since.get(n, now) < known for n in before):
            raise PromiseBroken(f"11: {what}, and has lost no node")

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note whether a node is a spare, and whether members could stay there."""
        taints = new.spec.taints if new is not None else ()
        if any(t.key == names.TAINT_SPARE and t.effect == "NoSchedule" for t in taints):
            self._since.setdefault(name, now)
        else:
            self._since.pop(name, None)
        is_sound = (
            new is not None and not new.spec.unschedulable
            and any(c.type == names.READY and c.status == "True" for c in new.status.conditions)
            and not any(taint.effect == "NoExecute" for taint in taints)
            and offers_all(new)
        )  # fmt: skip
        if is_sound:
            self._sound_since.setdefault(name, now)
        else:
            self._sound_since.pop(name, None)
