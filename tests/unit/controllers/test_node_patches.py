"""What the fleet controller writes on a node leaves what others wrote there."""

from __future__ import annotations

import pytest

from fairlead.api import names
from fairlead.api.core import Taint
from fairlead.api.meta import to_wire
from fairlead.controllers.node_patches import node_patch
from fairlead.decide.fleet.actions import Admit, AwaitTurn, SetSpare
from fairlead.model.spares import with_taint
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
