"""What a pod takes of its node: containers, the pod as a whole, overhead, and a resize."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.core import Pod, PodSpec
from fairlead.api.pods.pod_asks import is_best_effort, is_resized, member_amounts, pod_amounts


def container(name: str = "main", **resources: Any) -> dict[str, Any]:
    return {"name": name, "resources": resources}


def spec_of(*containers: dict[str, Any], **more: Any) -> PodSpec:
    return msgspec.convert({"containers": list(containers), **more}, PodSpec)


ONE, TWO = container("a", requests={"cpu": "1"}), container("b", requests={"cpu": "2"})
GPU = container("g", limits={"nvidia.com/gpu": "8"})
PAGES = container("p", limits={"hugepages-2Mi": "4Mi", "cpu": "1"})
FIRST = {**container("first", requests={"cpu": "9"})}
SIDECAR = {**container("side", requests={"cpu": "3"}), "restartPolicy": "Always"}

WHOLE: list[tuple[PodSpec, dict[str, int]]] = [
    (spec_of(container(), resources={"requests": {"cpu": "50"}}), {"cpu": 50_000}),
    (spec_of(ONE, TWO, resources={"requests": {"cpu": "5"}}), {"cpu": 5_000}),
    # What is not named stays the sum of the containers.
    (spec_of(ONE, GPU, resources={"requests": {"memory": "1Ki"}}),
     {"cpu": 1_000, "memory": 1024, "nvidia.com/gpu": 8}),
    # Without a request: what the containers request, else the limit.
    (spec_of(container(), resources={"limits": {"cpu": "4", "memory": "1Ki"}}),
     {"cpu": 4_000, "memory": 1024}),
    (spec_of(ONE, TWO, resources={"limits": {"cpu": "4", "memory": "1Ki"}}),
     {"cpu": 3_000, "memory": 1024}),
    (spec_of(container(requests={"cpu": "0"}), resources={"limits": {"cpu": "4"}}), {}),
    # It replaces the peak of init containers as well, and overhead comes on top of it.
    (spec_of(ONE, initContainers=[SIDECAR, FIRST], overhead={"cpu": "100m"}), {"cpu": 12_100}),
    (spec_of(ONE, initContainers=[SIDECAR, FIRST], overhead={"cpu": "100m"},
             resources={"requests": {"cpu": "13"}}), {"cpu": 13_100}),
    # Hugepages are not shared: their request is the limit.
    (spec_of(PAGES, resources={"limits": {"hugepages-2Mi": "8Mi", "cpu": "2"}}),
     {"cpu": 1_000, "hugepages-2Mi": 8 << 20}),
    (spec_of(PAGES, resources={"requests": {"cpu": "2"}}),
     {"cpu": 2_000, "hugepages-2Mi": 4 << 20}),
    # What a pod cannot ask for as a whole does not count; admission refuses it.
    (spec_of(GPU, resources={"requests": {"nvidia.com/gpu": "1"}, "limits": {"x.y/z": "1"}}),
     {"nvidia.com/gpu": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "amounts"), WHOLE)
def test_what_a_pod_asks_as_a_whole_replaces_the_sum_of_its_containers(
    spec: PodSpec, amounts: dict[str, int]
) -> None:
    assert member_amounts(spec) == amounts
    assert pod_amounts(Pod(spec=spec)) == amounts


def pod(status: dict[str, Any], *containers: dict[str, Any], **spec: Any) -> Pod:
    return msgspec.convert(
        {"spec": {"containers": list(containers), **spec}, "status": status}, Pod
    )


def state(name: str, has: str, allocated: str = "") -> dict[str, Any]:
    given = {"allocatedResources": {"cpu": allocated}} if allocated else {}
    return {"name": name, "resources": {"requests": {"cpu": has}}, **given}


def pending(reason: str) -> list[dict[str, Any]]:
    return [{"type": "PodResizePending", "status": "True", "reason": reason}]


RESIZED: list[tuple[Pod, int]] = [
    # It grows: what it is to have counts at once. It shrinks: what it has, until it has less.
    (pod({"containerStatuses": [state("b", "1", "1")]}, TWO), 2_000),
    (pod({"containerStatuses": [state("b", "4", "2")]}, TWO), 4_000),
    (pod({"containerStatuses": [state("b", "2", "3")]}, TWO), 3_000),
    (pod({"containerStatuses": [state("b", "3")]}, ONE, TWO), 4_000),
    # The node can never carry it out: what is asked takes nothing.
    (pod({"containerStatuses": [state("b", "1", "1")], "conditions": pending("Infeasible")}, TWO),
     1_000),
    (pod({"containerStatuses": [state("b", "1", "1")], "conditions": pending("Deferred")}, TWO),
     2_000),
    # Of init containers sidecars alone are resized.
    (pod({"initContainerStatuses": [state("side", "5", "5")]}, ONE, initContainers=[SIDECAR]),
     6_000),
    (pod({"initContainerStatuses": [state("first", "20", "20")]}, ONE, initContainers=[FIRST]),
     9_000),
    (pod({"resources": {"requests": {"cpu": "7"}}, "allocatedResources": {"cpu": "6"}}, ONE,
         resources={"requests": {"cpu": "5"}}), 7_000),
    (pod({"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "2"},
          "conditions": pending("Infeasible")}, ONE, resources={"requests": {"cpu": "5"}}), 2_000),
    # What is reported of a container that is not there counts nowhere.
    (pod({"containerStatuses": [state("gone", "9", "9")]}, TWO), 2_000),
]  # fmt: skip


@pytest.mark.parametrize(("resized", "cpu"), RESIZED)
def test_of_what_a_pod_asks_for_is_allocated_and_has_the_largest_counts(
    resized: Pod, cpu: int
) -> None:
    assert pod_amounts(resized) == {"cpu": cpu}
    if cpu != member_amounts(resized.spec)["cpu"]:
        assert is_resized(resized)


def test_a_pod_that_has_what_it_asks_for_is_not_resized() -> None:
    usual = {"containerStatuses": [state("a", "1", "1"), state("b", "2", "2")]}
    assert not is_resized(pod(usual, ONE, TWO))
    assert not is_resized(pod({}, ONE, TWO))
    assert not is_resized(pod({"containerStatuses": [{"name": "a"}]}, ONE))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (spec_of(container()), True), (spec_of(ONE), False), (spec_of(GPU), True),
        (spec_of(container(limits={"memory": "1"})), False),
        (spec_of(container(), initContainers=[FIRST]), False),
        (spec_of(container(), resources={"limits": {"cpu": "1"}}), False),
        (spec_of(ONE, resources={}), True),
    ],
)  # fmt: skip
def test_a_pod_that_says_nothing_of_cpu_and_memory_is_best_effort(
    spec: PodSpec, expected: object
) -> None:
    assert is_best_effort(spec) is expected
