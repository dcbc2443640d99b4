"""Where the claims of a job's members can be had: on which nodes, or why on none.

    claims, volumes, classes -> VolumeTable -> Reach      the nodes that reach all volumes of a role
                                            -> what is wrong with a claim, whatever the node

The rules are those of kube-scheduler (plugins VolumeBinding, VolumeZone and VolumeRestrictions,
1.36), so that what is placed here is not refused there. A reach is a conjunction of node selectors,
which the planner evaluates as it does the affinity of a pod; it names no claim, so jobs whose
volumes are in one zone stay alike. docs/design/volumes.md has the table of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

from fairlead.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec
from fairlead.api.job import JobSpec
from fairlead.api.meta import Amount
from fairlead.api.quantity import QuantityError, to_base
from fairlead.api.selectors import selector_of
from fairlead.api.volumes import (
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologySelectorTerm,
)
from fairlead.model.gangs import JobKey
from fairlead.model.requests import Reach

#: (namespace, name) of a claim.
ClaimKey: TypeAlias = tuple[str, str]
#: The names of the claims of each role, in the order of the roles.
Claims: TypeAlias = tuple[tuple[str, ...], ...]
#: From where they can be reached, in the same order.
Reaches: TypeAlias = tuple[Reach, ...]
K = TypeVar("K")
V = TypeVar("V")

_STORAGE = "storage"
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
#: Labels that say where a volume, or a node, is; the old name of each, and its present one.
_PRESENT_NAMES = {
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
    _ZONE: _ZONE,
    _REGION: _REGION,
}
#: Between the zones of a volume that is in several of them.
_ZONES_SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class MissingClaim:
    """There is no such claim."""

    claim: str


@dataclass(frozen=True, slots=True)
class DeletedClaim:
    """The claim is being deleted."""

    claim: str


@dataclass(frozen=True, slots=True)
class LostClaim:
    """The volume of the claim is gone, with its data."""

    claim: str
    volume: str


@dataclass(frozen=True, slots=True)
class UnboundClaim:
    """The claim waits for its volume, and no pod that uses it is waited for."""

    claim: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class VolumelessClaim:
    """No volume that is there will do for the claim, and its class makes none."""

    claim: str
    storage_class: str


UnusableClaim = MissingClaim | DeletedClaim | LostClaim | UnboundClaim | VolumelessClaim


def claims_of(spec: JobSpec) -> Claims:
    """Return the names of the claims of each role; () for a job that asks for none.

    Asked at each new spec of a job: most have no volume at all.
    """
    found = tuple([claims_of_pod(role.template.spec) for role in spec.roles])
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.claim_name and not checkpoint.path:
        found = tuple([tuple(dict.fromkeys((*each, checkpoint.claim_name))) for each in found])
    return found if any(found) else ()


def claims_of_pod(spec: PodSpec) -> tuple[str, ...]:
    """Return the names of the claims that are volumes of a pod."""
    if not spec.volumes:
        return ()
    sources = [volume.persistent_volume_claim for volume in spec.volumes]
    return tuple(dict.fromkeys([each.claim_name for each in sources if each is not None]))


class VolumeTable:
    """The claims, volumes and storage classes of a cluster, and which jobs use which claims."""

    def __init__(
        self,
        claims: Iterable[PersistentVolumeClaim] = (),
        volumes: Iterable[PersistentVolume] = (),
        classes: Iterable[StorageClass] = (),
    ) -> None:
        self._claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        #: By claim: the jobs that use it and have not ended.
        self._users: dict[ClaimKey, dict[JobKey, None]] = {}
        self._used_by: dict[JobKey, tuple[ClaimKey, ...]] = {}
        #: The claims that name a volume, by its name, and the others by their class.
        self._by_volume: dict[str, dict[ClaimKey, None]] = {}
        self._by_class: dict[str, dict[ClaimKey, None]] = {}
        self._volumes_by_class: dict[str, dict[str, None]] = {}
        #: Jobs for which a claim, a volume or a class has changed.
        self._stale: dict[JobKey, None] = {}
        for claim in claims:
            self.put_claim(claim.metadata.key, claim)
        for volume in volumes:
            self.put_volume(volume.metadata.name, volume)
        for each in classes:
            self.put_class(each.metadata.name, each)

    @property
    def is_used(self) -> bool:
        """True while some job that has not ended asks for a claim."""
        return bool(self._users)

    def use(self, key: JobKey, claims: Claims) -> Reaches | UnusableClaim:
        """Note which claims a job uses, () for none (any more), and read them."""
        before = self._used_by.get(key, ())
        if not claims and not before:  # of most jobs at each of their events
            return ()
        names = dict.fromkeys(name for each in claims for name in each)
        after = tuple((key[0], name) for name in names)
        if before != after:
            self._set_uses(key, before, after)
        return self.read(key[0], claims)

    def _set_uses(
        self, key: JobKey, before: tuple[ClaimKey, ...], after: tuple[ClaimKey, ...]
    ) -> None:
        for claim in before:
            _drop(self._users, claim, key)
        for claim in after:
            self._users.setdefault(claim, {})[key] = None
        if after:
            self._used_by[key] = after
        else:
            del self._used_by[key]
            self._stale.pop(key, None)

    def pop_stale(self) -> list[JobKey]:
        """Return the jobs for whose claims something has changed since the last call."""
        found = sorted(self._stale)
        self._stale.clear()
        return found

    def put_claim(self, key: ClaimKey, claim: PersistentVolumeClaim | None) -> bool:
        """Take in a claim, or that it is gone; False when no job asks for it."""
        before = self._claims.pop(key, None)
        if before is not None:
            self._index(before, key, is_there=False)
        if claim is not None:
            self._claims[key] = claim
            self._index(claim, key, is_there=True)
        return self._mark((key,))

    def put_volume(self, name: str, volume: PersistentVolume | None) -> bool:
        """Take in a volume, or that it is gone; False when it matters to no job."""
        before = self._volumes.pop(name, None)
        if before is not None:
            _drop(self._volumes_by_class, before.storage_class, name)
        if volume is not None:
            self._volumes[name] = volume
            self._volumes_by_class.setdefault(volume.storage_class, {})[name] = None
        names = dict.fromkeys(v.storage_class for v in (before, volume) if v is not None)
        unbound = chain.from_iterable(self._by_class.get(each, ()) for each in names)
        return self._mark(chain(self._by_volume.get(name, ()), unbound))

    def put_class(self, name: str, found: StorageClass | None) -> bool:
        """Take in a storage class, or that it is gone; False when it matters to no job."""
        if found is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = found
        return self._mark(self._by_class.get(name, ()))

    def read(self, namespace: str, claims: Claims) -> Reaches | UnusableClaim:
        """Return from where the claims of each role can be reached, or the first that cannot be."""
        found: list[Reach] = []
        for names in claims:
            reach: dict[NodeSelector, None] = {}
            for name in names:
                selectors = self._reach_of((namespace, name))
                if not isinstance(selectors, tuple):
                    return selectors
                reach.update(dict.fromkeys(selectors))
            found.append(tuple(sorted(reach, key=repr)))
        return tuple(found)

    def _index(self, claim: PersistentVolumeClaim, key: ClaimKey, *, is_there: bool) -> None:
        by_name = bool(claim.spec.volume_name)
        index = self._by_volume if by_name else self._by_class
        name = claim.spec.volume_name if by_name else claim.storage_class
        if is_there:
            index.setdefault(name, {})[key] = None
        else:
            _drop(index, name, key)

    def _mark(self, claims: Iterable[ClaimKey]) -> bool:
        users = [key for claim in claims for key in self._users.get(claim, ())]
        self._stale.update(dict.fromkeys(users))
        return bool(users)

    def _reach_of(self, key: ClaimKey) -> Reach | UnusableClaim:
        """Return the selectors that a node must fulfil to reach the volume of a claim.

        In the order in which kube-scheduler looks: `podHasPVCs`, `GetPodVolumeClaims`.
        """
        name, claim = key[1], self._claims.get(key)
        if claim is None:
            return MissingClaim(name)
        if claim.status.phase == "Lost":
            return LostClaim(name, claim.spec.volume_name)
        if claim.metadata.deletion_timestamp is not None:
            return DeletedClaim(name)
        if claim.is_bound:
            volume = self._volumes.get(claim.spec.volume_name)
            return LostClaim(name, claim.spec.volume_name) if volume is None else reach_of(volume)
        found = self._classes.get(claim.storage_class)
        if found is None or not found.waits_for_consumer or claim.spec.volume_name:
            return UnboundClaim(name, claim.storage_class)
        return self._reach_of_unbound(key, claim, found)

    def _reach_of_unbound(
        self, key: ClaimKey, claim: PersistentVolumeClaim, found: StorageClass
    ) -> Reach | UnusableClaim:
        """Return from where a claim that waits for its first pod can get a volume: one that is
        there, or one that is made.
        """
        node = claim.metadata.annotations.get(SELECTED_NODE, "")
        pins: Reach = ()
        if node:
            pin = NodeSelectorRequirement("metadata.name", "In", (node,))
            pins = (NodeSelector((NodeSelectorTerm(match_fields=(pin,)),)),)
        terms: list[NodeSelectorTerm] = []
        for volume in () if node else self._candidates(key, claim):
            affinity = volume.spec.node_affinity
            if affinity is None or affinity.required is None:
                return ()
            terms += affinity.required.node_selector_terms
        if found.makes_volumes:
            if not found.allowed_topologies:
                return pins
            terms += map(_node_term, found.allowed_topologies)
        if not terms:
            return VolumelessClaim(key[1], claim.storage_class)
        return (*pins, NodeSelector(_joined(terms)))

    def _candidates(
        self, key: ClaimKey, claim: PersistentVolumeClaim
    ) -> Iterable[PersistentVolume]:
        """Yield the volumes that may be bound to a claim: `FindMatchingVolume`."""
        names = self._volumes_by_class.get(claim.storage_class, {})
        wanted, labels = _storage(claim.spec.resources.requests), claim.spec.selector
        try:
            selector = selector_of(labels)
        except KeyError:  # no operator that is known: it selects nothing
            return
        for volume in sorted(map(self._volumes.__getitem__, names), key=_by_name):
            spec, owner = volume.spec, volume.spec.claim_ref
            is_own = owner is not None and (owner.namespace, owner.name) == key and (
                not owner.uid or owner.uid == claim.metadata.uid)  # fmt: skip
            if owner is not None and not is_own:
                continue
            if volume.metadata.deletion_timestamp is not None or _storage(spec.capacity) < wanted:
                continue
            if spec.volume_mode != claim.spec.volume_mode:
                continue
            if is_own:
                yield volume
                continue
            if volume.status.phase != "Available":
                continue
            if not selector.matches(volume.metadata.labels):
                continue
            if set(claim.spec.access_modes) <= set(spec.access_modes):
                yield volume


def reach_of(volume: PersistentVolume) -> Reach:
    """Return the selectors that a node must fulfil to reach a volume; () from all nodes.

    Its node affinity and, as the plugin VolumeZone has it, its labels of zone and region; these
    bind no node that has none of them itself.
    """
    found: list[NodeSelector] = []
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        found.append(NodeSelector(_joined(affinity.required.node_selector_terms)))
    absent = tuple(NodeSelectorRequirement(key, "DoesNotExist") for key in _PRESENT_NAMES)
    for key, present in _PRESENT_NAMES.items():
        text = volume.metadata.labels.get(key)
        if text is None:
            continue
        zones = tuple(sorted(set(text.split(_ZONES_SEPARATOR))))
        terms = [NodeSelectorTerm((NodeSelectorRequirement(key, "In", zones),))]
        if present != key:
            lacks = NodeSelectorRequirement(key, "DoesNotExist")
            translated = NodeSelectorRequirement(present, "In", zones)
            terms.append(NodeSelectorTerm((lacks, translated)))
        found.append(NodeSelector((*terms, NodeSelectorTerm(absent))))
    return tuple(found)


def _node_term(term: TopologySelectorTerm) -> NodeSelectorTerm:
    """Return the nodes that a term of a class allows; `MatchTopologySelectorTerms`."""
    return NodeSelectorTerm(tuple(
        NodeSelectorRequirement(each.key, "In", tuple(sorted(set(each.values))))
        for each in term.match_label_expressions
    ))  # fmt: skip


def _joined(terms: Iterable[NodeSelectorTerm]) -> tuple[NodeSelectorTerm, ...]:
    """Return the same alternatives in order, those by one label as one: thousands of local volumes
    name a node each.
    """
    values: dict[str, set[str]] = {}
    others: dict[NodeSelectorTerm, None] = {}
    for term in terms:
        match term:
            case NodeSelectorTerm((NodeSelectorRequirement(key, "In", given),), ()):
                values.setdefault(key, set()).update(given)
            case _:
                others[term] = None
    joined = [
        NodeSelectorTerm((NodeSelectorRequirement(key, "In", tuple(sorted(given))),))
        for key, given in sorted(values.items())
    ]
    return (*joined, *sorted(others, key=repr))


def _storage(amounts: Mapping[str, Amount]) -> int:
    """Return a size in bytes; 0 where none can be read."""
    try:
        return to_base(_STORAGE, amounts.get(_STORAGE, 0))
    except QuantityError:
        return 0


def _by_name(volume: PersistentVolume) -> str:
    return volume.metadata.name


def _drop(index: dict[K, dict[V, None]], key: K, value: V) -> None:
    """Take a value out of an index, and its key with the last one."""
    values = index[key]
    values.pop(value, None)
    if not values:
        del index[key]
