"""Builds facts for tests: from pages of metrics, from objects as they are on the wire, flags."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.metrics import pair
from fairlead.doctor.objects import (
    SeenApiService,
    SeenConfigMap,
    SeenFlowSchema,
    SeenNode,
    SeenObjects,
    SeenPod,
    SeenWebhookConfiguration,
    SeenWorkload,
)
from fairlead.doctor.registry import wanted_samples
from fairlead.runtime.exported.metrics_page import parse_page

TYPES: dict[str, Any] = {
    "nodes": tuple[SeenNode, ...], "control_plane_nodes": tuple[SeenNode, ...],
    "dns_pods": tuple[SeenPod, ...], "control_plane_pods": tuple[SeenPod, ...],
    "deployments": tuple[SeenWorkload, ...], "daemonsets": tuple[SeenWorkload, ...],
    "webhooks": tuple[SeenWebhookConfiguration, ...], "flow_schemas": tuple[SeenFlowSchema, ...],
    "api_services": tuple[SeenApiService, ...], "config_maps": dict[str, SeenConfigMap],
}  # fmt: skip


def scraped(
    source: Source, page: str, *, before: str | None = None, nodes: int = 10
) -> ClusterFacts:
    """Facts of one instance whose page was `before` ten seconds ago."""
    wanted = wanted_samples()[source]
    now = parse_page(page.encode(), wanted)
    earlier = None if before is None else parse_page(before.encode(), wanted)
    scrapes = pair("a", now, before=earlier, seconds=10.0, at=1000.0)
    return ClusterFacts(nodes=nodes, scrapes={source: (scrapes,)})


def seen(nodes: int = 10, /, **parts: Any) -> ClusterFacts:
    """Facts of objects, given as on the wire."""
    typed = {
        name: msgspec.convert(value, TYPES[name]) if name in TYPES else value
        for name, value in parts.items()
    }
    return ClusterFacts(nodes=nodes, objects=SeenObjects(**typed))


def histogram(name: str, buckets: dict[str, int], labels: str = "") -> str:
    """A page of one histogram; `buckets` are cumulative counts by upper bound."""
    comma = f"{labels}," if labels else ""
    return "".join(f'{name}_bucket{{{comma}le="{le}"}} {n}\n' for le, n in buckets.items())
