"""The ResourceQuotas of the tenant's namespace, which the API counts and enforces."""

from __future__ import annotations

from typing import Any

from fairlead.api.values.quantity import GPU

#: What his pods may ask for together; and the class of which he may have none.
GPUS_MAX, PODS_MAX = 12, 60
CLOSED_CLASS = "high"
_CLOSED = {"scopeName": "PriorityClass", "operator": "In", "values": [CLOSED_CLASS]}

QUOTAS: tuple[dict[str, Any], ...] = (
    {
        "metadata": {"name": "compute"},
        "spec": {"hard": {"pods": str(PODS_MAX), f"requests.{GPU}": str(GPUS_MAX),
                          "requests.cpu": "64"}},
    },
    {
        "metadata": {"name": "no-high"},
        "spec": {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [_CLOSED]}},
    },
)  # fmt: skip
