"""Home: what a researcher asks in the morning, and an operator at night.

My jobs that run, wait and have just ended; then GPUs, what waits and why, what waits although there
is room, and the nodes that are not simply ready. Every number leads to the rows behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.names import HOSTNAME
from fairlead.cli.formats.table import Row
from fairlead.cli.views.jobs import verdict_of
from fairlead.cli.views.node import reason_rows
from fairlead.cli.views.nodes import NodeUsability, NodeUse
from fairlead.decide.reasons import Outcome, Reason, Trait
from fairlead.decide.words import plural
from fairlead.web.pages.room import Room, gpus_on, room_of
from fairlead.web.pages.site import AskedPath, Site, job_lines
from fairlead.web.render import Page, link

#: Of each list; the numbers beside it lead to all.
_SHOWN_MAX = 8
_ENDED_MAX = 5
_TEAMS_MAX = 4
PATIENCE_SECONDS = 0.1
#: Takes work, now or as a replacement.
_HEALTHY = (NodeUsability.READY, NodeUsability.SPARE, NodeUsability.TAINTED)


class Gpus(NamedTuple):
    """GPUs of all nodes: what there is, on nodes that are well, held by jobs and pods."""

    total: int
    healthy: int
    used: int
    free: int


_HELPS = {
    Outcome.WAITING: "time", Outcome.BLOCKED: "somebody must act",
    Outcome.IMPOSSIBLE: "the request must change", Outcome.PLACED: "",
}  # fmt: skip


class Waits(NamedTuple):
    """The jobs that wait for one reason."""

    reason: Reason
    jobs: int
    gpus: int
    href: str


class TeamShare(NamedTuple):
    """A team of the person: what it has and uses, in words."""

    name: str
    href: str
    words: str


class IdleUse(NamedTuple):
    """GPUs that are held, by what their jobs do: `busy` and `idle` ones, those of which it is not
    known, and how old that is; `problem` says why nothing is known.
    """

    busy: int
    idle: int
    unknown: int
    age_seconds: float
    problem: str


async def home_page(site: Site, _asked: AskedPath) -> Page:
    """Return the page."""
    cluster, now = site.cluster, site.cluster.clock.now()
    facts = cluster.facts()
    mine = _mine(site)
    ended = [each for each in mine if each.is_finished]
    waiting = [each for each in mine if not each.is_finished and not _holds(each)]
    running = [each for each in mine if not each.is_finished and _holds(each)]
    holding, waits = facts.once("waits", lambda: _holding_and_waits(site))
    faults = facts.once("faults", lambda: _faults(site))
    values = {
        "user": site.user, "rights": cluster.rights,
        "running": job_lines(site, running[:_SHOWN_MAX], now), "running_total": len(running),
        "waiting": job_lines(site, waiting[:_SHOWN_MAX], now), "waiting_total": len(waiting),
        "ended": job_lines(site, ended[:_ENDED_MAX], now),
        "gpus": facts.once("gpus", lambda: gpus_of(facts.uses.values())),
        "room": site_room(site), "use": await _use(site, now), "teams": _teams(site, mine),
        "holding": holding,
        "waits": waits, "waiting_jobs": sum(each.jobs for each in waits),
        "with_room": [each for each in waits if Trait.HAS_ROOM in each.reason.traits],
        "helps": {each.reason: what_helps(each.reason, facts.uses.values()) for each in waits},
        "impossible": [each for each in waits if each.reason.outcome is Outcome.IMPOSSIBLE],
        "faults": faults[:_SHOWN_MAX], "faults_total": len(faults),
        "nodes_total": len(facts.uses),
        "jobs_total": len(facts.jobs),
    }  # fmt: skip
    return Page("home.html", "Home", values, site.command("ps", "--me", namespace=""), "home")


def what_helps(reason: Reason, uses: Iterable[NodeUse]) -> str:
    """Return what lets jobs start that wait for this reason, on these nodes."""
    is_out = reason is Reason.NODES_UNAVAILABLE
    if is_out and any(each.state is NodeUsability.CORDONED for each in uses):
        return "time; fairlead node resume ends a person's cordon"
    return _HELPS[reason.outcome]


def site_room(site: Site) -> Room:
    """Return what is free of the cluster; gangs are close in the level above the narrowest."""
    keys = [level.key for level in site.levels if level.key != HOSTNAME][:-1]

    def domain(use: NodeUse) -> str:
        return "/".join(use.labels[key] for key in keys if use.labels.get(key))

    facts = site.cluster.facts()
    return facts.once("room", lambda: room_of(facts.uses.values(), domain))


async def _use(site: Site, now: float) -> IdleUse | None:
    """Return how many held GPUs are busy, for who sees all jobs and pods; None for others, and
    while nodes are being asked.
    """
    rights = site.cluster.rights
    if rights.jobs is not None or rights.pods is not None:
        return None
    found = await site.questions.cluster_use(
        site.cluster.facts().jobs, patience_seconds=PATIENCE_SECONDS
    )
    if found is None:
        return None
    return IdleUse(
        found.busy_gpus, found.idle_gpus, found.unknown_gpus, max(0.0, now - found.at),
        found.problem,
    )  # fmt: skip


def _faults(site: Site) -> list[Row]:
    """Return the nodes that are not simply ready: those that something is done about first, then
    those that are out by themselves, then those that a person has taken out.
    """
    facts, nodes = site.cluster.facts(), site.cluster.nodes.items()
    rank = {NodeUsability.UNHEALTHY: 0, NodeUsability.NOT_READY: 1}
    rows = sorted(
        reason_rows(nodes, facts.now), key=lambda row: rank.get(facts.uses[row[0]].state, 2)
    )
    uses = [facts.uses[name] for name, *_ in rows]
    return [  # in the words of the pages of the cluster and of the node
        (name, use.state.value, since, until, use.reason or reason)
        for use, (name, _, since, until, reason) in zip(uses, rows, strict=True)
    ]


def _teams(site: Site, mine: Iterable[Job | JobArray]) -> list[TeamShare]:
    """Return the teams of the person: those that name him, and those of his jobs' namespaces."""
    spaces = {each.metadata.namespace for each in mine}
    found: list[TeamShare] = []
    for team in sorted(site.cluster.teams.items(), key=lambda each: each.metadata.name):
        spec, status = team.spec, team.status
        people = {*spec.members.users, *spec.admins.users}
        if not site.user or not (site.user in people or spaces & set(spec.namespaces)):
            continue
        use, name = status.use, team.metadata.name
        idle = max(0, status.nodes - use.nodes_used - use.nodes_lent)
        words = f"{use.nodes_used} of {plural(status.nodes, 'node')} in use, {idle} idle"
        words += f", {use.nodes_lent} lent" if use.nodes_lent else ""
        words += f", {use.nodes_borrowed} borrowed" if use.nodes_borrowed else ""
        found.append(TeamShare(name, link("teams", name), words))
    return found[:_TEAMS_MAX]


def gpus_of(uses: Iterable[NodeUse]) -> Gpus:
    """Return the GPUs of nodes, those of all vendors together."""
    total = healthy = used = free = 0
    for use in uses:
        own, held = gpus_on(use)
        total += own
        used += held
        if use.state in _HEALTHY:
            healthy += own
        if use.state is NodeUsability.READY:
            free += own - held
    return Gpus(total, healthy, used, free)


def _mine(site: Site) -> Sequence[Job | JobArray]:
    """Return the person's jobs and arrays, the latest first; arrays are folded."""
    facts, user = site.cluster.facts(), site.user
    if not user:
        return ()
    arrays = [each for each in site.cluster.arrays.items() if _is_of(each, user)]
    arrays.sort(key=lambda each: each.metadata.creation_timestamp or "", reverse=True)
    return [*arrays, *facts.by_user.get(user, ())]


def _is_of(each: JobArray, user: str) -> bool:
    return each.metadata.annotations.get(names.SUBMITTED_BY) == user


def _holds(each: Job | JobArray) -> bool:
    """True for what has nodes now."""
    if isinstance(each, JobArray):
        return each.status.elements.running > 0
    return each.status.placement is not None


def _holding_and_waits(site: Site) -> tuple[int, list[Waits]]:
    """Return how many jobs hold nodes, and what waits by reason, most GPUs first."""
    counts: dict[Reason, tuple[int, int]] = {}
    holding = 0
    for job in site.cluster.facts().jobs:
        if job.is_finished:
            continue
        if _holds(job):
            holding += 1
            continue
        verdict = verdict_of(job)
        if verdict is not None and verdict.reason is not Reason.PLACED:
            jobs, gpus = counts.get(verdict.reason, (0, 0))
            counts[verdict.reason] = jobs + 1, gpus + site.cluster.gpus.of(job)
    found = [
        Waits(reason, jobs, gpus, link("jobs", reason=reason.value))
        for reason, (jobs, gpus) in counts.items()
    ]
    return holding, sorted(found, key=lambda each: (-each.gpus, -each.jobs, each.reason.value))
