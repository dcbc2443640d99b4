"""`why` of a job that has its place."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.meta import Condition
from fairlead.api.names import RUNNING
from fairlead.cli.views.why import why_text
from fairlead.decide.explain import explain
from fairlead.decide.placement.state import PlacementState
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement


def test_a_placed_job_whose_pods_the_server_takes_from_nobody_says_so_in_its_words() -> None:
    job = make_job("a", placement=make_placement(["node-0000"]))
    words = 'pods "a-1-worker-0" is forbidden: exceeded quota: team'
    held = Condition(RUNNING, "False", "PodHeldBack", words)
    state = PlacementState.of(make_nodes(1), [job])
    explanation = explain(state, job.metadata.key, EPOCH)
    assert "held back" not in why_text(job, explanation, EPOCH)
    told = replace(job, status=replace(job.status, conditions=(held,)))
    assert f"  held back  {words}; tried again\n" in why_text(told, explanation, EPOCH)
