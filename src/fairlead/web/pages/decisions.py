"""Decisions: what the scheduler decided in its latest cycles, each with its file."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.api.status import ApiError
from fairlead.cli.views.decisions import decision_rows
from fairlead.input.errors import CliError
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site
from fairlead.web.questions import DECISIONS_MAX, LatestDecisions
from fairlead.web.render import Page, link

PATIENCE_SECONDS = 0.4
_CYCLES_MAX = 10**9 - 1


class DecisionRow(NamedTuple):
    """One decision: its instant, and the cells of `fairlead decisions -o wide`."""

    at: float
    cells: tuple[str, ...]
    href: str


async def decisions_page(site: Site, asked: AskedPath) -> Page:
    """Return the page: the latest first; with `q` those with actions of such kinds."""
    found = await site.questions.decisions(patience_seconds=PATIENCE_SECONDS)
    latest, wanted = found or LatestDecisions(), asked.text("q")
    lines = sorted(latest.lines, key=lambda each: -each.cycle)
    chosen = [
        line for line in lines if not wanted or wanted.lower() in " ".join(line.actions).lower()
    ]
    rows = [
        DecisionRow(line.at, cells, link("decisions", str(line.cycle), "file"))
        for line, cells in zip(chosen, decision_rows(chosen), strict=True)
    ]
    values = {
        "is_read": found is not None, "problem": latest.problem, "rows": rows, "q": wanted,
        "total": len(lines), "replay_command": "fairlead decisions replay FILE",
    }  # fmt: skip
    command = site.command("decisions", "--limit", str(DECISIONS_MAX), filters=(wanted,))
    return Page("decisions.html", "Decisions", values, command, "decisions")


async def decision_file(site: Site, asked: AskedPath) -> tuple[str, str]:
    """Return a decision's file and what to call it; NoSuchPage where it cannot be read."""
    text = asked.path[1]
    cycle = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 0 < cycle <= _CYCLES_MAX:
        raise NoSuchPage(f"there is no decision {text}")
    try:
        body = await site.questions.decision_file(cycle)
    except (CliError, ApiError) as error:
        raise NoSuchPage(str(error)) from error
    return body.decode("utf-8", "replace"), f"decision-{cycle}.jsonl"
