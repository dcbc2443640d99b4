"""The tables of `fairlead agent network` (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.formats.text import bytes_text
from fairlead.node.traffic import PodLine, TrafficUsage

USAGE_COLUMNS = (
    Column("NAMESPACE"),
    Column("CLASS"),
    Column("SENT", Align.RIGHT),
    Column("RECEIVED", Align.RIGHT),
    Column("PACKETS SENT", Align.RIGHT, wide_only=True),
    Column("PACKETS RECEIVED", Align.RIGHT, wide_only=True),
)
POD_COLUMNS = (
    Column("NAMESPACE"),
    Column("POD"),
    Column("CLASS"),
    Column("DIRECTION"),
    Column("BYTES", Align.RIGHT),
)


def usage_rows(usage: TrafficUsage) -> list[Row]:
    """Return a row per namespace and class."""
    sums: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for each in usage.lines:
        row = sums.setdefault((each.namespace, each.traffic_class), {})
        row[each.direction] = each.bytes, each.packets
    rows: list[Row] = []
    for (namespace, traffic_class), row in sums.items():
        (sent, packets_sent), (received, packets_received) = (
            row.get(direction, (0, 0)) for direction in ("out", "in")
        )
        rows.append((
            namespace or "(node)", traffic_class, bytes_text(sent), bytes_text(received),
            f"{packets_sent:,}", f"{packets_received:,}",
        ))  # fmt: skip
    return rows


def pod_rows(pods: Iterable[PodLine]) -> list[Row]:
    """Return a row per line; a pod that the kubelet does not list has its uid."""
    return [
        (each.namespace, each.name or each.uid, each.traffic_class,
         {"out": "sent", "in": "received"}[each.direction], bytes_text(each.bytes))
        for each in pods
    ]  # fmt: skip
