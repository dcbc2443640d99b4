"""Checks at every placement that no member is put where a host port or an anti-affinity forbids it.

It reads the rules from the objects by itself: of each member it asks each other member and pod. Two
of which neither states a rule cannot break one, so a member without rules asks those with rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.affinity import PodAffinityTerm
from fairlead.api.core import Node, Pod, PodSpec
from fairlead.api.job import Job
from fairlead.api.placement import Placement
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.observer import Observer

_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 # compared, not bound


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
