"""What the home page says of waiting jobs."""

from __future__ import annotations

from fairlead.cli.views.nodes import node_uses
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH, make_node
from fairlead.web.pages.home import what_helps


def test_where_a_person_has_cordoned_nodes_the_page_says_how_that_ends() -> None:
    nodes = [make_node("n1"), make_node("n2", unschedulable=True)]
    uses = node_uses(nodes, [], [], EPOCH)
    assert what_helps(Reason.NODES_UNAVAILABLE, uses) == (
        "time; fairlead node resume ends a person's cordon"
    )
    assert what_helps(Reason.NODES_UNAVAILABLE, uses[:1]) == "time"
    assert what_helps(Reason.HELD, uses) == "somebody must act"
