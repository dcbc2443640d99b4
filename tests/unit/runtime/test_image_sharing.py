"""Nodes share equal images, within bounds."""

from __future__ import annotations

from fairlead.kube.decoding import ImageSharing
from fairlead.testing.builders import make_node


def test_equal_images_are_one_object_until_the_tables_are_full() -> None:
    sharing = ImageSharing(sets_max=2, images_max=3)
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
