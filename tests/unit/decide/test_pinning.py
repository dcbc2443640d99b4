"""Pods that ask for one node and no other."""

from __future__ import annotations

import pytest

from fairlead.api.kubernetes.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from fairlead.decide.pinning import pinned_affinity, pinned_node, repinned_affinity
from fairlead.testing.builders import make_pod_spec

ZONES = tuple(
    NodeSelectorTerm(match_expressions=(NodeSelectorRequirement("zone", "In", (zone,)),))
    for zone in "ab"
)


def named(*nodes: str) -> NodeSelectorTerm:
    requirement = NodeSelectorRequirement("metadata.name", "In", nodes)
    return NodeSelectorTerm(match_fields=(requirement,))


def affinity(*terms: NodeSelectorTerm) -> Affinity:
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(terms)))


@pytest.mark.parametrize(
    ("terms", "node"),
    [
        ((), ""),
        (ZONES, ""),
        ((named("n0"),), "n0"),
        ((named("n0"), named("n0")), "n0"),
        ((named("n0"), named("n1")), ""),
        ((named("n0"), ZONES[0]), ""),
        ((ZONES[0], named("n0")), ""),
        ((named("n0", "n1"),), ""),
    ],
)
def test_a_pod_is_pinned_when_each_alternative_names_the_same_one_node(
    terms: tuple[NodeSelectorTerm, ...], node: str
) -> None:
    assert pinned_node(make_pod_spec(affinity=affinity(*terms))) == node


@pytest.mark.parametrize("own", [None, affinity(*ZONES), affinity(named("n0", "n1"))])
def test_a_pin_narrows_each_alternative_and_can_be_changed(own: Affinity | None) -> None:
    pinned = pinned_affinity(own, "n0")
    assert pinned_node(make_pod_spec(affinity=pinned)) == "n0"
    assert repinned_affinity(pinned, "n0", "n1") == pinned_affinity(own, "n1")
