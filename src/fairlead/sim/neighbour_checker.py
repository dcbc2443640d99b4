"""Checks at every placement that no member is put where a host port or an anti-affinity forbids it.

It reads the rules from the objects by itself: of each member and pod it asks each other one, which
takes time in proportion to their product. Simulated worlds are small enough for that.
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


@dataclass(slots=True)
class NeighbourChecker:
    """An `Observer`. `checked` counts the members with rules that were placed."""

    checked: int = 0
    _members: dict[ObjectKey, list[_Resident]] = field(
        default_factory=dict[ObjectKey, list[_Resident]]
    )
    _placements: dict[ObjectKey, Placement] = field(default_factory=dict[ObjectKey, Placement])
    _pods: dict[ObjectKey, _Resident] = field(default_factory=dict[ObjectKey, _Resident])
    _labels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Check the members of a new placement against each other and all others."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        if new is None or placement is None:
            self._members.pop(key, None)
            self._placements.pop(key, None)
            return
        if self._placements.get(key) == placement:
            return
        self._placements[key] = placement
        members = self._members[key] = list(_members(new, placement))
        uid = new.metadata.uid
        others = [each for other in self._members for each in self._members[other] if other != key]
        others += [pod for pod in self._pods.values() if pod.uid != uid]
        for i, member in enumerate(members):
            self.checked += bool(_ports(member.spec) or _terms(member.spec))
            for other in (*members[:i], *others):
                self._check(member, other)

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note which pods are on nodes."""
        self._pods.pop(key, None)
        if new is None or new.is_terminal or not new.spec.node_name:
            return
        owner = next((o.uid for o in new.metadata.owner_references if o.controller), "")
        uid = new.metadata.labels.get(names.JOB_UID, owner)
        self._pods[key] = _Resident(
            f"pod {key[1]}", uid, key[0], new.metadata.labels, new.spec, new.spec.node_name
        )

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the labels of a node."""
        self._labels[name] = new.metadata.labels if new is not None else {}

    def wrote(self, kind: str) -> None:
        """Nothing: other kinds do not matter."""

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
        labels = role.template.metadata.labels | {
            names.JOB_NAME: meta.name, names.JOB_UID: meta.uid, names.ROLE: role.name,
        }  # fmt: skip
        for i, node in enumerate(nodes.get(role.name, ())):
            who = f"{meta.name} {role.name} {i}"
            yield _Resident(who, meta.uid, meta.namespace, labels, role.template.spec, node)


def _ports(spec: PodSpec) -> list[tuple[str, str, int]]:
    return [
        (port.protocol, port.host_ip, port.host_port)
        for container in spec.containers
        for port in container.ports
        if port.host_port
    ]


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
