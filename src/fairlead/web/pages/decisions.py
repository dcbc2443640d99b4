"""Decisions: what the scheduler decided in its latest cycles, each with its file."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.api.status import ApiError
from fairlead.cli.views.decisions import WRITE_COLUMNS, decision_rows
from fairlead.input.errors import CliError
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, table_of
from fairlead.web.render import Page, link
from fairlead.web.sources.history_reads import DECISIONS_MAX, LatestDecisions, OpenedDecision

PATIENCE_SECONDS = 0.4
ROWS_MAX = 200
_CYCLES_MAX = 10**9 - 1


class DecisionRow(NamedTuple):
    """One decision: its instant, and the cells of `fairlead decisions -o wide`."""

    at: float
    cells: tuple[str, ...]
    href: str
    file: str


async def decisions_page(site: Site, asked: AskedPath) -> Page:
    """Return the page: the latest first; with `q` those with actions of such kinds."""
    found = await site.questions.decisions(patience_seconds=PATIENCE_SECONDS)
    latest, wanted = found or LatestDecisions(), asked.text("q")
    lines = sorted(latest.lines, key=lambda each: -each.cycle)
    chosen = [
        line for line in lines if not wanted or wanted.lower() in " ".join(line.actions).lower()
    ]
    rows = [
        DecisionRow(
            line.at,
            cells,
            link("decisions", str(line.cycle)),
            link("decisions", str(line.cycle), "file"),
        )
        for line, cells in zip(chosen, decision_rows(chosen), strict=True)
    ]
    values = {
        "is_read": found is not None, "problem": latest.problem, "rows": rows, "q": wanted,
        "total": len(lines), "replay_command": "fairlead decisions replay FILE",
    }  # fmt: skip
    command = site.command("decisions", "--limit", str(DECISIONS_MAX), filters=(wanted,))
    return Page("decisions.html", "Decisions", values, command, "decisions")


async def decision_page(site: Site, asked: AskedPath) -> Page:
    """Return one decision: what it was made on, its verdicts, and what it did; NoSuchPage."""
    cycle = _cycle(asked.path[1])
    found = await site.questions.decision(cycle, patience_seconds=PATIENCE_SECONDS)
    opened, wanted = found or OpenedDecision(), asked.text("q").lower()
    rows = [row for row in opened.rows if wanted in " ".join(row).lower()]
    name = f"decision-{cycle}.jsonl"
    values = {
        "cycle": cycle, "is_read": found is not None, "opened": opened, "q": asked.text("q"),
        "total": len(rows), "table": table_of(WRITE_COLUMNS[1:], rows[:ROWS_MAX]),
        "file": link("decisions", str(cycle), "file"),
        "replay_command": f"fairlead decisions replay {name}",
    }  # fmt: skip
    command = site.command("decisions", "save", str(cycle), name)
    return Page("decision.html", f"Decision {cycle}", values, command, "decisions")


def _cycle(text: str) -> int:
    """Return the number of a decision; NoSuchPage for what is none."""
    cycle = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 0 < cycle <= _CYCLES_MAX:
        raise NoSuchPage(f"there is no decision {text}")
    return cycle


async def decision_file(site: Site, asked: AskedPath) -> tuple[str, str]:
    """Return a decision's file and what to call it; NoSuchPage where it cannot be read."""
    cycle = _cycle(asked.path[1])
    try:
        body = await site.questions.decision_file(cycle)
    except (CliError, ApiError) as error:
        raise NoSuchPage(str(error)) from error
    return body.decode("utf-8", "replace"), f"decision-{cycle}.jsonl"
