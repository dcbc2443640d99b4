"""LimitRanges of the embedded API: what they fill in, what they refuse, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.embedded.quota import filled_item, filled_spec, range_problems, range_violations

BOUNDS: dict[str, Any] = {
    "type": "Container", "max": {"cpu": "2", "memory": "2Gi"}, "min": {"cpu": "100m"},
    "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "250m"},
    "maxLimitRequestRatio": {"cpu": "4"},
}  # fmt: skip


def limit_range(*items: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"limits": [filled_item(item) for item in items]}}


def pod(*containers: tuple[dict[str, Any], dict[str, Any]], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [
        {"name": f"c{i}", "resources": {"requests": requests, "limits": limits}}
        for i, (requests, limits) in enumerate(containers)
    ], **spec}}  # fmt: skip


def test_defaults_follow_from_the_bounds() -> None:
    item = filled_item({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}})
    assert item["default"] == {"cpu": "2"}
    assert item["defaultRequest"] == {"cpu": "2", "memory": "1Mi"}
    assert filled_item({"type": "Pod", "max": {"cpu": "2"}}) == {"type": "Pod", "max": {"cpu": "2"}}


def test_containers_get_what_they_do_not_say_and_an_annotation_says_which() -> None:
    given = pod(({"cpu": "1"}, {}), ({}, {}), initContainers=[{"name": "first"}])["spec"]
    spec, note = filled_spec([limit_range(BOUNDS)], given)
    assert [c["resources"]["requests"] for c in spec["containers"]] == [
        {"cpu": "1", "memory": "2Gi"}, {"cpu": "250m", "memory": "2Gi"},
    ]  # fmt: skip
    assert spec["initContainers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": "2Gi"}
    assert note == (
        "LimitRanger plugin set: memory request for container c0; cpu, memory limit for container "
        "c0; cpu, memory request for container c1; cpu, memory limit for container c1; cpu, memory "
        "request for init container first; cpu, memory limit for init container first"
    )
    assert filled_spec([limit_range(BOUNDS)], spec) == (spec, "")
    assert given["containers"][0]["resources"]["limits"] == {}


REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"cpu": "50m"}, {"cpu": "1"}, "minimum cpu usage per Container is 100m, but request is 50m"),
    ({"cpu": "1"}, {"cpu": "3"}, "maximum cpu usage per Container is 2, but limit is 3"),
    ({"cpu": "1"}, {}, "maximum cpu usage per Container is 2.  No limit is specified"),
    ({}, {"cpu": "1"}, "minimum cpu usage per Container is 100m.  No request is specified"),
    ({"cpu": "100m"}, {"cpu": "1"},
     "cpu max limit to request ratio per Container is 4, but provided ratio is 10.000000"),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "limits", "words"), REFUSALS)
def test_a_container_out_of_bounds_is_refused(
    requests: dict[str, Any], limits: dict[str, Any], words: str
) -> None:
    bounds = {**BOUNDS, "max": {"cpu": "2"}}
    assert words in range_violations(limit_range(bounds), "pods", pod((requests, limits)))


def test_a_container_within_bounds_is_not() -> None:
    sized = ({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"})
    assert range_violations(limit_range(BOUNDS), "pods", pod(sized)) == []
    assert range_violations(limit_range(BOUNDS), "configmaps", {"data": {}}) == []


def test_a_pod_is_judged_by_what_runs_together() -> None:
    whole = limit_range({"type": "Pod", "max": {"cpu": "2"}})
    one = ({"cpu": "1"}, {"cpu": "1"})
    assert range_violations(whole, "pods", pod(one, one)) == []
    assert range_violations(whole, "pods", pod(one, one, one)) == [
        "maximum cpu usage per Pod is 2, but limit is 3"
    ]
    first = {"name": "first", "resources": {"limits": {"cpu": "4"}}}
    assert range_violations(whole, "pods", pod(one, initContainers=[first])) == [
        "maximum cpu usage per Pod is 2, but limit is 4"
    ]
    sidecar = {**first, "restartPolicy": "Always", "resources": {"limits": {"cpu": "1500m"}}}
    assert range_violations(whole, "pods", pod(one, initContainers=[sidecar])) == [
        "maximum cpu usage per Pod is 2, but limit is 2500m"
    ]


def test_claims_have_bounds_of_their_own() -> None:
    bounds = limit_range({
        "type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"},
    })  # fmt: skip

    def found(size: str) -> list[str]:
        claim = {"spec": {"resources": {"requests": {"storage": size}}}}
        return range_violations(bounds, "persistentvolumeclaims", claim)

    start = "storage usage per PersistentVolumeClaim is"
    assert found("1Mi") == [f"minimum {start} 1Gi, but request is 1Mi"]
    assert found("3Gi") == [f"maximum {start} 2Gi, but request is 3Gi"]
    assert found("2Gi") == []


@pytest.mark.parametrize(
    ("item", "field", "words"),
    [
        ({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}, "min[cpu]",
         "min value 2 is greater than max value 1"),
        ({"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}},
         "maxLimitRequestRatio[cpu]", "ratio 500m is less than 1"),
        ({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"},
          "maxLimitRequestRatio": {"cpu": "3"}}, "maxLimitRequestRatio[cpu]",
         "ratio 3 is greater than max/min = 2.000000"),
        ({"type": "Pod", "default": {"cpu": "1"}}, "default", "may not be specified"),
        ({"type": "Thing"}, "type", "must be a standard limit type"),
        ({"type": "PersistentVolumeClaim"}, "limits", "either minimum or maximum storage"),
    ],
)  # fmt: skip
def test_a_range_that_makes_no_sense_is_refused(item: Any, field: str, words: str) -> None:
    found = {each.field: each.message for each in range_problems({"limits": [item]})}
    assert words in found[f"spec.limits[0].{field}"]
    assert list(range_problems({"limits": [BOUNDS]})) == []


def test_what_a_pod_asks_as_a_whole_is_judged_in_place_of_its_containers_sum() -> None:
    whole = limit_range({"type": "Pod", "max": {"cpu": "2"}})
    one = ({"cpu": "1"}, {"cpu": "1"})
    asked = {"requests": {"cpu": "1"}, "limits": {"cpu": "3", "hugepages-2Mi": "4Mi"}}
    assert range_violations(whole, "pods", pod(one, one, one, resources=asked)) == [
        "maximum cpu usage per Pod is 2, but limit is 3"
    ]
    pages = limit_range({"type": "Pod", "max": {"hugepages-2Mi": "2Mi"}})
    assert range_violations(pages, "pods", pod(one, resources=asked)) == [
        "maximum hugepages-2Mi usage per Pod is 2Mi.  No limit is specified"
    ]
