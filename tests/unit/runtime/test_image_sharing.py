"""Nodes share what they say alike, within bounds."""

from __future__ import annotations

import msgspec
from bench.objects import node_body

from fairlead.api.kubernetes.core import Node
from fairlead.runtime.watching.sharing import NodeSharing
from fairlead.testing.builders import make_node


def test_equal_images_are_one_object_until_the_tables_are_full() -> None:
    sharing = NodeSharing(sets_max=2, images_max=3)
    nodes = [make_node("n", images=each) for each in ("ab", "ab", "bc", "ab", "d", "ab", "cd")]
    plain = [node.status.images for node in nodes]
    for node in nodes:
        sharing.share(node)
    assert [node.status.images for node in nodes] == plain
    first, same, other, again, _, later, last = (node.status.images for node in nodes)
    assert same is first
    assert other is not first
    assert other[0] is first[1]
    assert again is first
    assert later is not first, "it was forgotten with the other sets"
    assert later[0] is not first[0], "and each image with the others"
    assert len(last) == 2
    assert make_node("n").status.images == ()


def test_nodes_are_what_they_were_and_share_amounts_versions_and_conditions() -> None:
    def decoded(name: str) -> Node:
        return msgspec.json.decode(msgspec.json.encode(node_body(name)), type=Node)

    sharing, first, second = NodeSharing(), decoded("a"), decoded("b")
    for node in (first, second):
        sharing.share(node)
    assert (first, second) == (decoded("a"), decoded("b"))
    assert second.status.capacity is first.status.capacity is first.status.allocatable
    assert second.status.node_info.kernel_version is first.status.node_info.kernel_version
    assert second.status.conditions[0].message is first.status.conditions[0].message
    zone = "topology.kubernetes.io/zone"
    assert second.metadata.labels[zone] is first.metadata.labels[zone]
    assert second.metadata.labels != first.metadata.labels
