"""What the fleet controller writes on a node leaves what others wrote there."""

from __future__ import annotations

import pytest

from fairlead.api import names
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import to_wire
from fairlead.controllers.nodes.node_patches import OWNER, node_patch
from fairlead.decide.fleet.actions import Admit, AwaitTurn, Mark, SetSpare, Unmark
from fairlead.model.inventory.spares import with_taint
from fairlead.testing.builders import make_node

THEIRS = Taint("nvidia.com/gpu", "NoSchedule", "present")
JOINING, RETURNING = (
    Taint(key, "NoSchedule") for key in (names.TAINT_JOINING, names.TAINT_RETURNING)
)
[SPARE] = with_taint((), is_spare=True)
NODE = make_node("n0", taints=[THEIRS])


@pytest.mark.parametrize(
    ("action", "taints"),
    [
        (AwaitTurn(NODE), [THEIRS, RETURNING]),
        (Admit(make_node("n0", taints=[JOINING, THEIRS, RETURNING])), [THEIRS]),
        (Admit(make_node("n0", taints=[JOINING, THEIRS]), is_spare=True), [THEIRS, SPARE]),
        (SetSpare(NODE, is_spare=True), [THEIRS, SPARE]),
        (SetSpare(make_node("n0", taints=[SPARE, THEIRS]), is_spare=False), [THEIRS]),
    ],
)
def test_the_taints_of_others_stay(
    action: AwaitTurn | Admit | SetSpare, taints: list[Taint]
) -> None:
    assert node_patch(action) == {"spec": {"taints": [to_wire(taint) for taint in taints]}}


def test_a_mark_cordons_a_node_and_taking_it_off_ends_that() -> None:
    patch = node_patch(Mark(make_node("n1"), "Idle"))
    assert patch["spec"] == {"unschedulable": True}
    assert patch["metadata"]["annotations"][names.CORDONED_BY] == OWNER
    notes = {names.REMOVAL: "Idle", names.CORDONED_BY: OWNER}
    marked = make_node("n1", unschedulable=True, annotations=notes)
    patch = node_patch(Unmark(marked))
    assert patch["spec"] == {"unschedulable": None}
    assert patch["metadata"]["annotations"] == dict.fromkeys(notes)


def test_a_cordon_of_a_person_from_before_the_mark_or_after_it_outlives_it() -> None:
    notes = {names.CORDONED_BY: "ann: noisy fan"}
    before = make_node("n1", unschedulable=True, annotations=notes)
    patch = node_patch(Mark(before, "Maintenance: retired"))
    assert names.CORDONED_BY not in patch["metadata"]["annotations"]
    for by in ("ann: noisy fan", None):
        notes = {names.REMOVAL: "Idle", **({names.CORDONED_BY: by} if by else {})}
        marked = make_node("n1", unschedulable=True, annotations=notes)
        assert node_patch(Unmark(marked)) == {"metadata": {"annotations": {names.REMOVAL: None}}}
