"""From which nodes one volume can be reached, as node selectors; see `model/claimed/volumes.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fairlead.api.kubernetes.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from fairlead.api.kubernetes.selectors import selector_of
from fairlead.api.kubernetes.volumes import (
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologySelectorTerm,
)
from fairlead.api.meta import Amount
from fairlead.api.values.quantity import QuantityError, to_base
from fairlead.model.asks.requests import Reach

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


def reach_of(volume: PersistentVolume) -> Reach:
    """Return the selectors that a node must fulfil to reach a volume; () from all nodes.

    Its node affinity and, as the plugin VolumeZone has it, its labels of zone and region; these
    bind no node that has none of them itself.
    """
    found: list[NodeSelector] = []
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        found.append(NodeSelector(joined(affinity.required.node_selector_terms)))
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


def node_term(term: TopologySelectorTerm) -> NodeSelectorTerm:
    """Return the nodes that a term of a class allows; `MatchTopologySelectorTerms`."""
    return NodeSelectorTerm(tuple(
        NodeSelectorRequirement(each.key, "In", tuple(sorted(set(each.values))))
        for each in term.match_label_expressions
    ))  # fmt: skip


def joined(terms: Iterable[NodeSelectorTerm]) -> tuple[NodeSelectorTerm, ...]:
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


def storage(amounts: Mapping[str, Amount]) -> int:
    """Return a size in bytes; 0 where none can be read."""
    try:
        return to_base(_STORAGE, amounts.get(_STORAGE, 0))
    except QuantityError:
        return 0


def candidates(
    key: tuple[str, str], claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]
) -> Iterator[PersistentVolume]:
    """Yield the volumes, of those of its class, that may be bound to a claim, by name:
    `FindMatchingVolume`.
    """
    wanted = storage(claim.spec.resources.requests)
    try:
        selector = selector_of(claim.spec.selector)
    except KeyError:  # no operator that is known: it selects nothing
        return
    for volume in sorted(volumes, key=lambda each: each.metadata.name):
        spec, owner = volume.spec, volume.spec.claim_ref
        is_own = owner is not None and (owner.namespace, owner.name) == key and (
            not owner.uid or owner.uid == claim.metadata.uid)  # fmt: skip
        if owner is not None and not is_own:
            continue
        if volume.metadata.deletion_timestamp is not None or storage(spec.capacity) < wanted:
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


def domains_of(
    claims: Iterable[PersistentVolumeClaim], classes: Mapping[str, StorageClass]
) -> Iterator[tuple[str, str]]:
    """Yield claims with the label of which one domain gets the volume, that of its first pod; none
    where no such volume is to be made, or it is known where.
    """
    for claim in claims:
        found = classes.get(claim.storage_class)
        if found is None or not (found.waits_for_consumer and found.makes_volumes):
            continue
        if claim.spec.volume_name or claim.metadata.annotations.get(SELECTED_NODE):
            continue
        rules = [rule for term in found.allowed_topologies for rule in term.match_label_expressions]
        keys = {rule.key for rule in rules}
        if len(keys) == 1 and len({value for rule in rules for value in rule.values}) > 1:
            yield claim.metadata.name, keys.pop()
