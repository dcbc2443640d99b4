"""What a pod's spec is filled in with, and what stays as it was given."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.embedded.verbs.strategies.pod_defaults import (
    TOLERATION_SECONDS,
    add_tolerations,
    default_pod_spec,
    qos_class,
)

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {NOT_READY, UNREACHABLE}),
        ({"key": NOT_READY, "operator": "Exists"}, {UNREACHABLE}),
        ({"key": NOT_READY, "operator": "Exists", "effect": "NoExecute"}, {UNREACHABLE}),
        ({"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"},
         {NOT_READY, UNREACHABLE}),
        ({"operator": "Exists"}, set()),
        ({"operator": "Exists", "effect": "NoSchedule"}, {NOT_READY, UNREACHABLE}),
    ],
)  # fmt: skip
def test_a_pod_tolerates_sick_nodes_for_some_time_unless_it_says_how_long(
    given: dict[str, Any], added: set[str]
) -> None:
    spec: dict[str, Any] = {"tolerations": [given] if given else []}
    add_tolerations(spec)
    own = [each for each in spec["tolerations"] if each is not given]
    assert {each["key"] for each in own} == added
    assert {each["tolerationSeconds"] for each in own} <= {TOLERATION_SECONDS}


def test_requests_that_are_given_stay_and_others_are_the_limits() -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    for field in ("containers", "initContainers"):
        spec = default_pod_spec({field: [{"name": "c", "resources": resources}]})
        found = spec[field][0]["resources"]
        assert found["requests"] == {"cpu": "1", "memory": "1Gi"}
        assert found["limits"] == resources["limits"]


ALL = {"limits": {"cpu": "1", "memory": "1Gi"}}
SOME = {"requests": {"cpu": "1"}}
SAME = {"limits": ALL["limits"], "requests": {"cpu": "1000m", "memory": "1024Mi"}}
LESS = {"limits": ALL["limits"], "requests": {"cpu": "500m"}}
NOTHING = {"limits": {"cpu": "0"}, "requests": {"memory": "0"}}


@pytest.mark.parametrize(
    ("main", "initial", "expected"),
    [
        ({}, {}, "BestEffort"), (ALL, ALL, "Guaranteed"), (SOME, {}, "Burstable"),
        (ALL, {}, "Burstable"), (ALL, SOME, "Burstable"), ({}, SOME, "Burstable"),
        (SAME, SAME, "Guaranteed"), (LESS, ALL, "Burstable"), (NOTHING, NOTHING, "BestEffort"),
    ],
)  # fmt: skip
def test_the_quality_of_service_is_that_of_all_containers(
    main: dict[str, Any], initial: dict[str, Any], expected: str
) -> None:
    containers = {"containers": main, "initContainers": initial}
    spec = {field: [{"name": "c", "resources": given}] for field, given in containers.items()}
    assert qos_class(default_pod_spec(spec)) == expected


WHOLE: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"requests": {"cpu": "4"}}, SOME, {"requests": {"cpu": "4"}}),
    ({"limits": {"cpu": "4", "memory": "1Gi"}}, SOME,
     {"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}),
    ({"limits": {"cpu": "4"}}, {"requests": {"cpu": "500m", "memory": "1Mi"}},
     {"limits": {"cpu": "4"}, "requests": {"cpu": "1", "memory": "2Mi"}}),
    ({"requests": {"cpu": "4"}}, {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}},
     {"limits": {"hugepages-2Mi": "8Mi"}, "requests": {"cpu": "4", "hugepages-2Mi": "8Mi"}}),
    ({}, SOME, {}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "of_containers", "expected"), WHOLE)
def test_a_pod_requests_as_a_whole_what_its_containers_do_or_its_limit(
    given: dict[str, Any], of_containers: dict[str, Any], expected: dict[str, Any]
) -> None:
    containers = [{"name": name, "resources": of_containers} for name in ("a", "b")]
    spec = default_pod_spec({"containers": containers, "resources": given})
    assert spec["resources"] == expected
    assert default_pod_spec(spec) == spec


@pytest.mark.parametrize(
    ("whole", "main", "expected"),
    [
        (ALL, {}, "Guaranteed"), (SOME, ALL, "Burstable"), ({}, ALL, "BestEffort"),
        ({"limits": {"cpu": "1"}}, ALL, "Burstable"), (ALL, SOME, "Guaranteed"),
    ],
)  # fmt: skip
def test_the_quality_of_service_of_a_pod_that_asks_as_a_whole_is_its_own(
    whole: dict[str, Any], main: dict[str, Any], expected: str
) -> None:
    spec = {"containers": [{"name": "c", "resources": main}], "resources": whole}
    assert qos_class(default_pod_spec(spec)) == expected
