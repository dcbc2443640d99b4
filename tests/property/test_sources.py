"""The objects of other tools are JSON of any shape: to read them raises nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.decide.adoption.sources import read_source
from fairlead.model.pools.grouping import Tool

_NAMES = (
    "completions", "parallelism", "replicatedJobs", "template", "spec", "name", "replicas", "size",
    "dependsOn", "startupPolicy", "leaderWorkerTemplate", "workerGroupSpecs", "groupName",
    "pytorchReplicaSpecs", "Worker", "minMember", "conditions", "status", "type", "metadata", "uid",
)  # fmt: skip
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=6)
    ),
    max_leaves=12,
)
_DOCUMENTS = st.fixed_dictionaries({}, optional={"spec": _JSON, "status": _JSON, "metadata": _JSON})


@pytest.mark.parametrize("tool", Tool)
@settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=30
)
@given(document=_DOCUMENTS)
def test_a_document_of_any_shape_is_read(tool: Tool, document: dict[str, Any]) -> None:
    facts = read_source(tool, document)
    assert all(count >= 0 for count in facts.roles.values())
    assert isinstance(facts.uid, str)


@pytest.mark.parametrize(
    ("spec", "count", "more"),
    [
        ({"parallelism": 4, "completions": 2}, 2, False),
        ({"parallelism": 2, "completions": 4}, 2, True),
        ({"parallelism": 2, "completions": "many"}, 2, False),
        ({"parallelism": 2, "completions": None}, 2, False),
        ({"parallelism": [], "completions": 3}, 1, True),
    ],
)
def test_what_cannot_be_read_of_a_job_counts_as_missing(
    spec: dict[str, Any], count: int, *, more: bool
) -> None:
    facts = read_source(Tool.JOB, {"spec": spec})
    assert (facts.roles, facts.has_more_rounds) == ({"worker": count}, more)
