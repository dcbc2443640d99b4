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
from fairlead.api.values import quantity
from fairlead.cli.views.arrays import is_element_of_listed
from fairlead.cli.views.jobs import verdict_of
from fairlead.cli.views.node import reason_rows
from fairlead.cli.views.nodes import NodeUsability, NodeUse
from fairlead.decide.reasons import Outcome, Reason, Trait
from fairlead.web.pages.site import AskedPath, Site, job_lines
from fairlead.web.render import Page, link

#: Of each list; the numbers beside it lead to all.
_SHOWN_MAX = 8
_ENDED_MAX = 5
#: Takes work, now or as a replacement.
_HEALTHY = (NodeUsability.READY, NodeUsability.SPARE, NodeUsability.TAINTED)


class Gpus(NamedTuple):
    """GPUs of all nodes: what there is, on nodes that are well, held by jobs and pods."""

    total: int
    healthy: int
    used: int
    free: int


class Waits(NamedTuple):
    """The jobs that wait for one reason."""

    reason: Reason
    jobs: int
    gpus: int
    href: str


async def home_page(site: Site, _asked: AskedPath) -> Page:
    """Return the page."""
    facts, now = site.cluster.facts(), site.cluster.clock.now()
    live = [job for job in facts.jobs if not job.is_finished]
    mine = _mine(site)
    ended = [each for each in mine if each.is_finished]
    waiting = [each for each in mine if not each.is_finished and not _holds(each)]
    running = [each for each in mine if not each.is_finished and _holds(each)]
    waits = _waits(site, live)
    faults = reason_rows(site.cluster.nodes.items(), now)
    values = {
        "user": site.user, "rights": site.cluster.rights,
        "running": job_lines(site, running[:_SHOWN_MAX], now), "running_total": len(running),
        "waiting": job_lines(site, waiting[:_SHOWN_MAX], now), "waiting_total": len(waiting),
        "ended": job_lines(site, ended[:_ENDED_MAX], now),
        "gpus": gpus_of(facts.uses.values()),
        "holding": sum(1 for job in live if _holds(job)),
        "waits": waits, "waiting_jobs": sum(each.jobs for each in waits),
        "with_room": [each for each in waits if Trait.HAS_ROOM in each.reason.traits],
        "impossible": [each for each in waits if each.reason.outcome is Outcome.IMPOSSIBLE],
        "faults": faults[:_SHOWN_MAX], "faults_total": len(faults),
        "nodes_total": len(facts.uses),
        "jobs_total": len(facts.jobs),
    }  # fmt: skip
    return Page("home.html", "Home", values, site.command("ps", "--me", namespace=""), "home")


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


def gpus_on(use: NodeUse) -> tuple[int, int]:
    """Return how many GPUs a node has, and how many are held; never more than it has."""
    total = sum(n for name, n in use.total.items() if quantity.is_gpu(name))
    used = sum(n for name, n in use.used.items() if quantity.is_gpu(name))
    return total, min(used, total)


def _mine(site: Site) -> Sequence[Job | JobArray]:
    """Return the person's jobs and arrays, the latest first; arrays are folded."""
    facts, user = site.cluster.facts(), site.user
    if not user:
        return ()
    arrays = [each for each in site.cluster.arrays.items() if _is_of(each, user)]
    arrays.sort(key=lambda each: each.metadata.creation_timestamp or "", reverse=True)
    listed = facts.listed_arrays
    own = (job for job in facts.jobs if _is_of(job, user))
    return [*arrays, *(job for job in own if not is_element_of_listed(job, listed))]


def _is_of(each: Job | JobArray, user: str) -> bool:
    return each.metadata.annotations.get(names.SUBMITTED_BY) == user


def _holds(each: Job | JobArray) -> bool:
    """True for what has nodes now."""
    if isinstance(each, JobArray):
        return each.status.elements.running > 0
    return each.status.placement is not None


def _waits(site: Site, live: Iterable[Job]) -> list[Waits]:
    """Return what waits by reason, most GPUs first."""
    counts: dict[Reason, tuple[int, int]] = {}
    for job in live:
        verdict = None if _holds(job) else verdict_of(job)
        if verdict is not None and verdict.reason is not Reason.PLACED:
            jobs, gpus = counts.get(verdict.reason, (0, 0))
            counts[verdict.reason] = jobs + 1, gpus + site.cluster.gpus.of(job)
    found = [
        Waits(reason, jobs, gpus, link("jobs", q=f"{reason.value}:"))
        for reason, (jobs, gpus) in counts.items()
    ]
    return sorted(found, key=lambda each: (-each.gpus, -each.jobs, each.reason.value))
