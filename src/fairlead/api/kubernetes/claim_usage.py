"""What a claim for devices uses of ResourceQuotas (`claimEvaluator.Usage`, Kubernetes 1.36)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

#: Claims by number, and devices by class (`resourceapi.ResourceClaimsPerClass`).
CLAIM_COUNT = "count/resourceclaims.resource.k8s.io"
CLASS_DEVICES = ".deviceclass.resource.k8s.io/devices"
#: What a request for all devices of a node counts as (`AllocationResultsMaxSize`).
_ALL_DEVICES = 32


def devices_by_class(requests: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many devices of each class a claim may get, given its requests as written: of
    alternatives the most.
    """
    totals = Counter[str]()
    for request in requests:
        most: dict[str, int] = {}
        for each in request.get("firstAvailable") or (request.get("exactly") or {},):
            name, mode = each.get("deviceClassName"), each.get("allocationMode") or "ExactCount"
            count = {"ExactCount": each.get("count") or 1, "All": _ALL_DEVICES}.get(mode, 0)
            if name:
                most[name] = max(count, most.get(name, 0))
        for name, count in most.items():
            totals[name] += count
    return dict(totals)
