"""Teams: their shares as bars, and of one its queue, its jobs, its people and its reservations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.cli.commands.reservations import COLUMNS as RESERVATION_COLUMNS
from fairlead.cli.commands.reservations import NodeLabels, labels_of, reservation_rows
from fairlead.cli.views.teams import (
    COLUMNS,
    age_note,
    is_of_team,
    owners_of,
    quota_text,
    team_rows,
    with_use,
)
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.placement.waiting.order import OrderKey, age_of
from fairlead.model.gang.job_users import user_of
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, cells_of, job_lines, table_of
from fairlead.web.render import Page, link

WIDTH = 1_000
ROWS_MAX = 100
_PAGES_MAX = 100_000
#: The page comes with the numbers in the status of the teams where the answer takes longer.
USE_PATIENCE_SECONDS = 0.4


class ShareBar(NamedTuple):
    """A team's nodes side by side, in units of WIDTH: its own and, beyond them, borrowed ones."""

    used: int
    lent: int
    idle: int
    borrowed: int
    words: str


class TeamLine(NamedTuple):
    """A row of the table of teams."""

    name: str
    cells: Mapping[str, str]
    bar: ShareBar


class PersonLine(NamedTuple):
    """One who may submit for the team, or has jobs of it that have not ended."""

    user: str
    href: str
    is_admin: bool
    jobs: int
    waiting: int
    gpus: int


async def teams_page(site: Site, asked: AskedPath) -> Page:
    """Return the list of teams that match, by name."""
    wanted = asked.text("q")
    teams, note = await _current(site)
    scale = _scale(teams)
    rows = zip(sorted(teams, key=_name), team_rows(teams), strict=True)
    lines = [
        TeamLine(_name(team), cells_of(COLUMNS, row), _bar(team, scale))
        for team, row in rows
        if wanted.lower() in "\n".join((_name(team), *team.spec.namespaces, row[-1])).lower()
    ]
    rows_ = reservation_rows(sorted(teams, key=_name), _labels(site), site.cluster.clock.now())
    number = asked.number("page", max(0, (len(lines) - 1) // ROWS_MAX))
    shown = slice(number * ROWS_MAX, (number + 1) * ROWS_MAX)
    values = {
        "rights": site.cluster.rights, "q": wanted, "note": note, "width": WIDTH,
        "lines": lines[shown], "total": len(lines), "teams_total": len(teams),
        "reservations": table_of(RESERVATION_COLUMNS, rows_[:ROWS_MAX]),
        "reservations_total": len(rows_),
        "earlier": link("teams", q=wanted, page=number - 1 or None) if number else "",
        "later": link("teams", q=wanted, page=number + 1)
        if (number + 1) * ROWS_MAX < len(lines) else "",
        "reservations_command": site.command("reservations"),
    }  # fmt: skip
    command = site.command("teams", "-o", "wide", filters=(wanted,))
    return Page("teams.html", "Teams", values, command, "teams")


async def team_page(site: Site, asked: AskedPath) -> Page:
    """Return the page of a team; NoSuchPage."""
    cluster, now = site.cluster, site.cluster.clock.now()
    name = asked.path[1]
    teams, note = await _current(site)
    team = next((each for each in teams if _name(each) == name), None)
    if team is None:
        why = "" if cluster.rights.teams else ": you may not list teams"
        raise NoSuchPage(f"there is no team {name}{why}")
    facts = cluster.facts()
    live = facts.once("live", lambda: [job for job in facts.jobs if not job.is_finished])
    jobs = [job for job in live if is_of_team(job, team)]
    queue = sorted((job for job in jobs if phase_of(job) is Phase.QUEUED), key=_order)
    running = [job for job in jobs if job.status.placement is not None]
    number = asked.number("page", min(max(0, (len(queue) - 1) // ROWS_MAX), _PAGES_MAX))
    part = slice(number * ROWS_MAX, (number + 1) * ROWS_MAX)
    owners = facts.once("owners", lambda: owners_of(cluster.nodes.items()))
    people = _people(team, jobs)
    rows = reservation_rows([team], _labels(site), now)
    values = {
        "name": name, "note": note, "rights": cluster.rights, "width": WIDTH,
        "namespaces": cluster.rights.namespaces_text,
        "cells": cells_of(COLUMNS, team_rows([team])[0]), "bar": _bar(team, _scale([team])),
        "text": quota_text(team, live, owners),
        "queue": job_lines(site, queue[part], now), "queue_total": len(queue),
        "first": part.start + 1,
        "earlier": link("teams", name, page=number - 1 or None) if number else "",
        "later": link("teams", name, page=number + 1) if part.stop < len(queue) else "",
        "running": job_lines(site, running[:ROWS_MAX], now), "running_total": len(running),
        "people": people[:ROWS_MAX], "people_total": len(people),
        "reservations": table_of(RESERVATION_COLUMNS, rows),
        "reservations_command": site.command("reservations"),
    }  # fmt: skip
    return Page("team.html", name, values, site.command("quota", name), "teams")


async def _current(site: Site) -> tuple[Sequence[Team], str]:
    """Return the teams with what they use now; else as their status has it, and how old that is."""
    teams = site.cluster.teams.items()
    if not teams:
        return teams, ""
    uses = await site.questions.team_uses(patience_seconds=USE_PATIENCE_SECONDS)
    if uses is None:
        return teams, age_note(teams, site.cluster.clock.now())
    return [with_use(team, uses.get(_name(team))) for team in teams], ""


def _name(team: Team) -> str:
    return team.metadata.name


def _labels(site: Site) -> NodeLabels | None:
    return labels_of(site.cluster.nodes.items()) if site.cluster.rights.nodes else None


def _order(job: Job) -> OrderKey:
    """Return the place of a job in the queue of its team, as the planner sorts one team's jobs."""
    return OrderKey((-(job.spec.priority or 0),), age_of(job))


def _scale(teams: Iterable[Team]) -> int:
    """Return the nodes that the whole width of the bars of these teams stands for."""
    return max((each.status.nodes + each.status.use.nodes_borrowed for each in teams), default=0)


def _bar(team: Team, scale: int) -> ShareBar:
    use, own = team.status.use, team.status.nodes
    used = min(use.nodes_used, own)
    lent = min(use.nodes_lent, own - used)
    counts = (used, lent, own - used - lent, use.nodes_borrowed)
    words = "{} in use, {} lent, {} idle, {} borrowed".format(*counts)
    return ShareBar(*(WIDTH * count // max(scale, 1) for count in counts), words=words)


def _people(team: Team, jobs: Iterable[Job]) -> list[PersonLine]:
    """Return those who have jobs, most GPUs first, then the others that the team names."""
    found: dict[str, list[int]] = {}
    for job in jobs:
        counts = found.setdefault(user_of(job.metadata, job.spec.adopts), [0, 0, 0])
        holds = job.status.placement is not None
        own = (1, phase_of(job) is Phase.QUEUED, gpu_count(job) if holds else 0)
        for number, count in enumerate(own):
            counts[number] += count
    admins = set(team.spec.admins.users)
    for user in (*team.spec.admins.users, *team.spec.members.users):
        found.setdefault(user, [0, 0, 0])
    lines = [
        PersonLine(user, link("jobs", user=user) if user else "", user in admins, *counts)
        for user, counts in found.items()
    ]
    return sorted(lines, key=lambda each: (-each.gpus, -each.jobs, each.user))
