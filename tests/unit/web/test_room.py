"""What could start now: free GPUs by kind, and the largest gangs of whole nodes."""

from __future__ import annotations

from fairlead.api.values.quantity import GPU
from fairlead.cli.views.nodes import NodeUsability, NodeUse
from fairlead.web.pages.room import FreeGang, KindRoom, room_of


def use(
    name: str, block: str, *, used: int = 0, kind: str = "H100", total: int = 8,
    state: NodeUsability = NodeUsability.READY,
) -> NodeUse:  # fmt: skip
    labels = {"block": block, "nvidia.com/gpu.product": kind}
    return NodeUse(name, "", state, "", None, {GPU: total}, {GPU: used}, labels)


def test_kinds_count_all_nodes_as_total_and_ready_ones_as_free() -> None:
    out = use("c", "b2", kind="A100", state=NodeUsability.CORDONED)
    room = room_of([use("a", "b1", used=5), use("b", "b1"), out], lambda each: each.labels["block"])
    assert room.kinds == (KindRoom("H100", 11, 16), KindRoom("A100", 0, 8))
    assert room.shapes == ((8, 1), (3, 1))


def test_a_gang_is_of_nodes_that_nothing_holds_in_the_domain_with_most_of_them() -> None:
    uses = [use("a", "b1"), use("b", "b1", used=1), use("c", "b2"), use("d", "b2"),
            use("e", "b3", state=NodeUsability.NOT_READY)]  # fmt: skip
    room = room_of(uses, lambda each: each.labels["block"])
    assert room.in_domain == FreeGang("b2", 2, 16)
    assert room.anywhere == FreeGang("", 3, 24)


def test_a_cluster_without_room_has_no_gang() -> None:
    room = room_of([use("a", "b1", used=8)], lambda _: "")
    assert (room.shapes, room.in_domain.nodes, room.anywhere.nodes) == ((), 0, 0)
