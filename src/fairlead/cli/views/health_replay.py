"""What another policy would have done about the faults of nodes: rows of nodes, and sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from fairlead.api.values.times import format_time
from fairlead.app.queries.health_replay import PolicyComparison
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.health.remembered.replay import CORDON, HealthStep, HealthTally

NODE_COLUMNS = (Column("NODE"), Column("BEFORE"), Column("AFTER", may_cut=True))
SUM_COLUMNS = (Column("SUM"), Column("BEFORE", Align.RIGHT), Column("AFTER", Align.RIGHT))
_NOTHING = "stays in service"
#: Of a node that goes on with its drain nothing is said: it follows from the time.
_PASSED = frozenset(("Cordoned", "Draining", "Validating"))


def node_rows(found: PolicyComparison) -> list[Row]:
    """Return a row for each node about which other things are done."""
    return [(name, _path(old), _path(new)) for name, (old, new) in found.nodes.items()]


def _path(steps: Iterable[HealthStep]) -> str:
    """Return the steps of a node, each session with its begin."""
    parts = list[str]()
    shown = [each for each in steps if each.action not in _PASSED]
    for action, group in groupby(shown, key=lambda each: each.action):
        same = list(group)
        text = f"{action} {format_time(same[0].at)}" if action == CORDON else action
        parts.append(text if len(same) == 1 else f"{text} ({len(same)} times)")
    return ", ".join(parts) or _NOTHING


def sum_rows(tallies: tuple[HealthTally, HealthTally]) -> list[Row]:
    """Return the sums of both sides."""
    return [(title, *(_figure(each, name) for each in tallies)) for name, title in _SUMS]


_SUMS: Sequence[tuple[str, str]] = (
    ("cordons", "nodes taken out"),
    ("in_use", "of these in use, and drained"),
    ("in_vain", "back without a repair"),
    ("resets", "GPU resets"),
    ("reboots", "reboots"),
    ("replacements", "replacements"),
    ("persons", "persons asked"),
    ("holds", "times that nothing was taken, as too many nodes were sick"),
    ("node_hours", "node-hours out of service"),
)


def _figure(tally: HealthTally, name: str) -> str:
    value = getattr(tally, name)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
