"""What of a job can't be changed once it exists."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.validation.validate import validate_job_update

JOB: dict[str, Any] = {
    "metadata": {"name": "train"},
    "spec": {
        "roles": [
            {
                "name": "worker",
                "count": 4,
                "template": {"spec": {"containers": [{"name": "c"}], "dnsPolicy": "None"}},
            }
        ],
        "topology": {"key": "rack"},
    },
}


def _changed(*path: str | int, to: Any) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    at: Any = job
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return job


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (_changed("spec", "roles", 0, "count", to=5), "spec.roles"),
        (_changed("spec", "roles", 0, "template", to={"spec": {"containers": []}}), "spec.roles"),
        (_changed("spec", "topology", "required", to=True), "spec.topology"),
        (_changed("spec", "checkpoint", to={"path": "/x"}), "spec.checkpoint"),
    ],
)
def test_a_change_of_what_cannot_change_is_found(new: dict[str, Any], field: str) -> None:
    for old, other in ((JOB, new), (msgspec.convert(JOB, Job), msgspec.convert(new, Job))):
        [cause] = validate_job_update(old, other)
        assert (cause.field, cause.reason) == (field, "FieldValueInvalid")
        assert "field is immutable" in cause.message


def test_a_field_that_no_read_model_knows_counts_as_well() -> None:
    new = _changed("spec", "roles", 0, "template", "spec", "dnsPolicy", to="Default")
    assert [c.field for c in validate_job_update(JOB, new)] == ["spec.roles"]


def test_all_else_may_change_and_all_faults_are_told() -> None:
    new = _changed("spec", "priority", to=3)
    new["spec"] |= {"suspend": True, "cancel": True, "timeLimitSeconds": 60}
    new["metadata"]["labels"] = {"a": "b"}
    assert validate_job_update(JOB, new) == []
    del new["spec"]["topology"]
    new["spec"]["roles"] = []
    new["spec"]["checkpoint"] = {"path": "/x"}
    fields = [c.field for c in validate_job_update(JOB, new)]
    assert fields == ["spec.roles", "spec.topology", "spec.checkpoint"]
