"""Jobs: all of them, the latest first, filtered by what is in the URL; arrays are folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.placement import nodes_of
from fairlead.cli.views.arrays import array_state, array_words, is_element_of_listed
from fairlead.cli.views.jobs import state_of, verdict_of
from fairlead.web.pages.site import AskedPath, Site, job_lines
from fairlead.web.render import Page, link

ROWS_MAX = 100
_PAGES_MAX = 100_000
FILTERS = ("state", "user", "team", "namespace", "node", "reason", "q")
STATES = tuple(state.value for state in JobState)


async def jobs_page(site: Site, asked: AskedPath) -> Page:
    """Return one page of the jobs that match."""
    now = site.cluster.clock.now()
    given = {name: asked.text(name) for name in FILTERS}
    found = _chosen(site, given)
    last = max(0, (len(found) - 1) // ROWS_MAX)
    number = min(asked.number("page", _PAGES_MAX), last)
    part = slice(number * ROWS_MAX, (number + 1) * ROWS_MAX)
    shown, total = job_lines(site, found[part], now), len(found)

    def to(page: int) -> str:
        return link("jobs", **given, page=page or None)

    values = {
        "lines": shown, "total": total, "given": given, "states": STATES, "user": site.user,
        "first": number * ROWS_MAX + 1, "last": number * ROWS_MAX + len(shown),
        "earlier": to(number - 1) if number else "", "later": to(number + 1) if number < last
        else "", "mine": link("jobs", **{**given, "user": site.user}),
        "everyone": link("jobs", **{**given, "user": ""}),
    }  # fmt: skip
    return Page("jobs.html", "Jobs", values, list_command(site, given), "jobs")


def _chosen(site: Site, given: Mapping[str, str]) -> list[Job | JobArray]:
    """Return the arrays and jobs that match; arrays have no node, team or reason, so where one is
    asked for, their elements are rows.
    """
    facts, text = site.cluster.facts(), given["q"].lower()
    jobs: Iterable[Job] = facts.jobs
    arrays: list[JobArray] = []
    if any(given[name] for name in ("node", "team", "reason")):
        jobs = (job for job in jobs if _has_facts(job, given))
    else:
        arrays = matching_arrays(site, given)
        listed = facts.listed_arrays
        jobs = (job for job in jobs if not is_element_of_listed(job.metadata, listed))
    chosen = (job for job in jobs if _is_chosen(job, state_of(job), given))
    words = site.cluster.words
    return [*arrays, *(job for job in chosen if not text or text in words.of(job))]


def matching_arrays(site: Site, given: Mapping[str, str]) -> list[JobArray]:
    """Return the arrays with the state, user, namespace and text, the latest first."""
    found = [
        each for each in site.cluster.arrays.items()
        if _is_chosen(each, array_state(each), given) and given["q"].lower() in _array_text(each)
    ]  # fmt: skip
    found.sort(key=lambda each: each.metadata.creation_timestamp or "", reverse=True)
    return found


def _has_facts(job: Job, given: Mapping[str, str]) -> bool:
    """Return whether a job is on the node, of the team, and waits for the reason, that are asked
    for.
    """
    placed = job.status.placement
    if given["node"] and given["node"] not in nodes_of(placed):
        return False
    if given["team"] not in ("", job.spec.team, placed.team if placed is not None else ""):
        return False
    if not given["reason"]:
        return True
    verdict = None if job.is_finished or placed is not None else verdict_of(job)
    return verdict is not None and verdict.reason.value == given["reason"]


def _is_chosen(each: Job | JobArray, state: str, given: Mapping[str, str]) -> bool:
    meta = each.metadata
    return (
        given["state"] in ("", state)
        and given["user"] in ("", meta.annotations.get(names.SUBMITTED_BY, ""))
        and given["namespace"] in ("", meta.namespace)
    )


def _array_text(array: JobArray) -> str:
    """Return what a search of an array looks at."""
    meta = array.metadata
    user = meta.annotations.get(names.SUBMITTED_BY, "")
    return "\n".join((*meta.key, array_state(array), user, array_words(array))).lower()


def list_command(site: Site, given: Mapping[str, str]) -> str:
    """Return the command that lists the same jobs."""
    words = ["ps", "-o", "wide"]
    words += ["--state", given["state"]] if given["state"] else ["-a"]
    words += ["--user", given["user"]] if given["user"] else []
    patterns = [given[name] for name in ("q", "node", "team", "reason") if name in given]
    return site.command(*words, namespace=given["namespace"], filters=patterns)
