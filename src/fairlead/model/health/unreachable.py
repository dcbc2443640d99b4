"""The mark of a node that was found unreachable: an annotation, and what it says.

It stays on the node for a while after the end of the outage (SINCE/UNTIL): the marks of all nodes
are the record of how many were taken for lost lately, and outlive every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api.kubernetes.core import Node
from fairlead.api.names import UNREACHABLE
from fairlead.api.values.times import format_time, parse_time


@dataclass(frozen=True, slots=True)
class UnreachableMark:
    """From when until when a node was unreachable; `until` None: it is."""

    since: float
    until: float | None = None

    @property
    def text(self) -> str:
        """The mark as it stands in the annotation."""
        since = format_time(self.since)
        return since if self.until is None else f"{since}/{format_time(self.until)}"


def mark_of(annotations: Mapping[str, str]) -> UnreachableMark | None:
    """Return the mark among a node's annotations; None: there is none, or it cannot be read."""
    since, slash, until = annotations.get(UNREACHABLE, "").partition("/")
    try:
        return UnreachableMark(parse_time(since), parse_time(until) if slash else None)
    except ValueError:
        return None


def unreachable_since(node: Node) -> float | None:
    """Return since when a node is unreachable by its mark; None: it is not."""
    if UNREACHABLE not in node.metadata.annotations:
        return None
    mark = mark_of(node.metadata.annotations)
    return None if mark is None or mark.until is not None else mark.since
