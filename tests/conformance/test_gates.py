"""What may be changed in a pod that is gated: it may only be kept to fewer nodes (KEP-3838)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.http_server import pod
from tests.conformance.target import Target
from tests.conformance.test_writes import PODS, patch

FIELD = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
PIN = {"key": "metadata.name", "operator": "In", "values": ["n"]}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {FIELD: {"nodeSelectorTerms": list(terms)}}}


async def change(target: Target, spec: dict[str, Any]) -> int:
    return (await patch(target, f"{PODS}/p", {"spec": spec})).status


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (None, affinity({"matchFields": [PIN]}), 200),
        (
            affinity({"matchExpressions": [ZONE]}),
            affinity({"matchExpressions": [ZONE], "matchFields": [PIN]}),
            200,
        ),
        (affinity({"matchExpressions": [ZONE]}), affinity({"matchFields": [PIN]}), 422),
        (
            affinity({"matchExpressions": [ZONE]}),
            affinity({"matchExpressions": [ZONE]}, {"matchFields": [PIN]}),
            422,
        ),
    ],
)
async def test_p15_a_gated_pod_may_be_kept_to_fewer_nodes_in_the_write_that_takes_its_gate_off(
    target: Target, before: Any, after: Any, status: int
) -> None:
    gates = [{"name": "example.dev/wait"}]
    given = {"affinity": before} if before else {}
    made = await target.request("POST", PODS, pod("p", schedulingGates=gates, **given))
    assert made.status == 201
    assert await change(target, {"affinity": after, "schedulingGates": None}) == status


async def test_p15_a_pod_without_a_gate_keeps_its_affinity(target: Target) -> None:
    await target.request("POST", PODS, pod("p"))
    assert await change(target, {"affinity": affinity({"matchFields": [PIN]})}) == 422
