"""The scheduler's decisions as tables (pure). What a file says is checked before it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.api.values.times import format_time
from fairlead.app.queries.decision_file import RecordedDecision, Write
from fairlead.app.queries.messages import DecisionLine
from fairlead.cli.formats.table import Align, Column, Row, render_table
from fairlead.decide.words import fold_names, plural
from fairlead.terminal import printable

NONE = "-"
_DIGEST_SHOWN = len("sha256:") + 12

COLUMNS: tuple[Column, ...] = (
    Column("CYCLE", Align.RIGHT),
    Column("AT"),
    Column("MS", Align.RIGHT),
    Column("WAITING", Align.RIGHT),
    Column("DIGEST", wide_only=True),
    Column("ACTIONS", may_cut=True),
)
WRITE_COLUMNS: tuple[Column, ...] = (
    Column(""),
    Column("ACTION"),
    Column("NAMESPACE"),
    Column("JOB"),
    Column("WHAT", may_cut=True),
)


def decision_rows(lines: Iterable[DecisionLine]) -> list[Row]:
    """Return a row per decision in the given order."""
    return [
        (
            str(line.cycle),
            format_time(line.at),
            f"{line.seconds * 1000:.1f}",
            str(line.waiting),
            line.digest[:_DIGEST_SHOWN],
            ", ".join(f"{count} {kind}" for kind, count in line.actions.items()) or NONE,
        )
        for line in lines
    ]


def replay_text(recorded: RecordedDecision, made: Sequence[Write], width: int | None) -> str:
    """Return the decision as it is made again, and where the recorded one differs.

    Lines that begin with - are recorded and not made again, lines with + are made and were not
    recorded.
    """
    objects = recorded.snapshot.objects
    text = (
        f"Decision {recorded.cycle} of {format_time(recorded.snapshot.now)}, by fairlead "
        f"{printable(recorded.release)}: {plural(len(objects.nodes), 'node')}, "
        f"{plural(len(objects.jobs), 'job')}, {plural(len(objects.pods), 'pod')}\n"
    )
    rows = _rows(recorded.actions, made)
    return text + (render_table(WRITE_COLUMNS, rows, width=width) if rows else "No actions\n")


def write_rows(writes: Iterable[Write]) -> list[Row]:
    """Return a row for each action, in their order."""
    return [_row("", write)[1:] for write in writes]


def verdict_counts(writes: Iterable[Write]) -> Mapping[str, int]:
    """Return how often each reason was given to a job, the most frequent first."""
    verdicts = (write.patch.get("verdict") for write in writes)
    counts = Counter(
        str(each["reason"]) for each in verdicts if isinstance(each, dict) and "reason" in each
    )
    return dict(counts.most_common())


def _rows(recorded: Sequence[Write], made: Sequence[Write]) -> list[Row]:
    if list(recorded) == list(made):
        return [_row("", write) for write in made]
    return [
        *(_row("-", write) for write in recorded if write not in made),
        *(_row("" if write in recorded else "+", write) for write in made),
    ]


def _row(sign: str, write: Write) -> Row:
    cells = (write.action, write.namespace, write.name, _what(write.patch))
    return (sign, *cells)


def _what(patch: dict[str, Any]) -> str:
    """Return what a patch of a status says: the reason, and nodes of a new place."""
    verdict, place = patch.get("verdict"), patch.get("placement") or patch.get("nomination")
    parts = [str(verdict["reason"])] if isinstance(verdict, dict) and "reason" in verdict else []
    nodes = _nodes(place)
    if nodes:
        parts.append(f"{plural(len(nodes), 'node')}: {fold_names(nodes)}")
    return ", ".join(parts) or f"changes {', '.join(sorted(patch)) or 'nothing'}"


def _nodes(place: Any) -> list[str]:
    roles = place.get("roles") if isinstance(place, dict) else None
    found: dict[str, None] = {}
    for role in roles if isinstance(roles, list) else ():
        nodes = role.get("nodes") if isinstance(role, dict) else None
        found |= dict.fromkeys(each for each in nodes or () if isinstance(each, str))
    return list(found)
