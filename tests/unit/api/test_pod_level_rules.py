"""What a pod may ask for as a whole, in the words and at the paths of the API server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.pods.pod_rules import pod_spec_causes
from fairlead.api.validation.validate import validate_job

AT = "spec.resources"


def spec_of(
    resources: dict[str, Any], *containers: dict[str, Any], first: dict[str, Any] | None = None
) -> dict[str, Any]:
    of = [{"name": f"c{i}", "resources": each} for i, each in enumerate(containers or ({},))]
    initial = [{"name": "first", "resources": first}] if first else []
    return {"containers": of, "initContainers": initial, "resources": resources}


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    (spec_of({"requests": {"nvidia.com/gpu": "1"}}), f"{AT}.requests[nvidia.com/gpu]",
     'Unsupported value: "nvidia.com/gpu": supported values: "cpu", "hugepages-", "memory"'),
    (spec_of({"limits": {"ephemeral-storage": "1Gi", "cpu": "1"}}),
     f"{AT}.limits[ephemeral-storage]", "Unsupported value"),
    (spec_of({"requests": {"cpu": "-1"}}), f"{AT}.requests[cpu]", "greater than or equal to 0"),
    (spec_of({"requests": {"cpu": "lots"}}), f"{AT}.requests[cpu]", "not a quantity"),
    (spec_of({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), f"{AT}.requests",
     'Invalid value: "2": must be less than or equal to cpu limit of 1'),
    (spec_of({"requests": {"cpu": "2500m"}}, {"requests": {"cpu": "2"}}, {"limits": {"cpu": "1"}}),
     f"{AT}.requests[cpu]",
     'Invalid value: "2500m": must be greater than or equal to aggregate container requests of 3'),
    (spec_of({"requests": {"memory": "2Gi"}}, first={"requests": {"memory": "3Gi"}}),
     f"{AT}.requests[memory]", "aggregate container requests of 3Gi"),
    # The request that follows from the containers exceeds the limit.
    (spec_of({"limits": {"cpu": "2"}}, {"requests": {"cpu": "3"}}), f"{AT}.requests",
     'Invalid value: "3": must be less than or equal to cpu limit of 2'),
    (spec_of({"limits": {"cpu": "2"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
     f"{AT}.containers[0][cpu].limits",
     'Invalid value: "3": must be less than or equal to pod limits of 2'),
    (spec_of({"requests": {"hugepages-2Mi": "2Mi", "cpu": "1"}}), f"{AT}.limits",
     "Limit must be set for non overcommitable resources"),
    (spec_of({"requests": {"hugepages-2Mi": "2Mi", "cpu": "1"},
              "limits": {"hugepages-2Mi": "4Mi"}}),
     f"{AT}.requests", "must be equal to hugepages-2Mi limit of 4Mi"),
    (spec_of({"limits": {"hugepages-2Mi": "2Mi"}}), AT, "HugePages require cpu or memory"),
    (spec_of({"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}},
             {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}}),
     f"{AT}.limits[hugepages-2Mi]",
     "must be greater than or equal to aggregate container limits of 4Mi"),
    (spec_of({"claims": [{"name": "gpu"}], "requests": {"cpu": "1"}}), f"{AT}.claims",
     "claims may not be set"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "path", "words"), MISTAKES)
def test_a_pod_that_asks_for_what_it_cannot_have_is_refused_at_its_path(
    spec: dict[str, Any], path: str, words: str
) -> None:
    found = pod_spec_causes(msgspec.convert(spec, PodSpec))
    assert any(each.field == path and words in each.message for each in found), found
    role = {"name": "worker", "template": {"spec": spec}}
    of_job = {each.field for each in validate_job({"roles": [role]})}
    assert path.replace("spec", "spec.roles[0].template.spec", 1) in of_job


@pytest.mark.parametrize(
    "spec",
    [
        spec_of({}), spec_of({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}),
        spec_of({"limits": {"cpu": "2"}}, {"requests": {"cpu": "1"}}, {"limits": {"cpu": "1"}}),
        spec_of({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}),
        # Containers may have limits that exceed the pod's together, not one by one.
        spec_of({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}},
                *[{"limits": {"cpu": "2"}, "requests": {"cpu": "100m"}}] * 3),
    ],
)  # fmt: skip
def test_a_pod_may_ask_as_a_whole_for_at_least_what_its_containers_ask_for(
    spec: dict[str, Any],
) -> None:
    assert pod_spec_causes(msgspec.convert(spec, PodSpec)) == []
    assert validate_job({"roles": [{"name": "worker", "template": {"spec": spec}}]}) == []


def test_what_no_pod_asks_as_a_whole_is_the_one_mistake_of_it() -> None:
    spec = msgspec.convert(spec_of({"limits": {"nvidia.com/gpu": "1"}}), PodSpec)
    assert [each.field for each in pod_spec_causes(spec)] == [f"{AT}.limits[nvidia.com/gpu]"]
