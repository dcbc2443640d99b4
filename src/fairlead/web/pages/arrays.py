"""Arrays: a line each, and of one the grid of its elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, element_index_of, element_name
from fairlead.api.meta import is_true
from fairlead.api.values.indices import parse_indices
from fairlead.cli.job_request.arrays import Elements
from fairlead.cli.views.arrays import array_state, array_words
from fairlead.cli.views.jobs import state_of
from fairlead.model.element_sets import Members
from fairlead.web.pages.change import offers
from fairlead.web.pages.jobs import STATES, list_command, matching_arrays
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, job_lines
from fairlead.web.render import Page, link

CELLS_MAX = 2_000
ROWS_MAX = 100
#: States of elements that the status of an array counts.
_COUNTED = {"succeeded", "failed", "running", "waiting"}


class ElementCell(NamedTuple):
    """One element: its index as `number`, how it does in one word, and its job if it has one."""

    number: int
    state: str
    href: str


async def arrays_page(site: Site, asked: AskedPath) -> Page:
    """Return the list of arrays that match: those that go on first, the latest first."""
    given = {name: asked.text(name) for name in ("state", "user", "namespace", "q")}
    found = matching_arrays(site, given)
    found.sort(key=lambda each: each.is_finished)
    number = asked.number("page", len(found) // ROWS_MAX)
    part = found[number * ROWS_MAX : (number + 1) * ROWS_MAX]
    values = {
        "lines": job_lines(site, part, site.cluster.clock.now()), "total": len(found),
        "counts": {each.metadata.key: each.status.elements for each in part},
        "given": given, "states": STATES, "user": site.user,
        "mine": link("arrays", **{**given, "user": site.user}),
        "earlier": link("arrays", **given, page=number - 1 or None) if number else "",
        "later": link("arrays", **given, page=number + 1)
        if (number + 1) * ROWS_MAX < len(found) else "",
    }  # fmt: skip
    return Page("arrays.html", "Arrays", values, list_command(site, given), "arrays")


async def array_page(site: Site, asked: AskedPath) -> Page:
    """Return the page of an array; NoSuchPage."""
    key = asked.path[1], asked.path[2]
    array = site.cluster.arrays.get(*key)
    if array is None:
        raise NoSuchPage(f"there is no array {'/'.join(key)} (any more)")
    total = len(parse_indices(array.spec.indices))
    start = asked.number("from", max(0, total - 1)) // CELLS_MAX * CELLS_MAX
    jobs = site.cluster.facts().elements.get(array.metadata.uid, ())
    now = site.cluster.clock.now()
    jobs = sorted(jobs, key=lambda job: element_index_of(job.metadata) or 0)
    failed = [job for job in jobs if is_true(job.status.conditions, names.FAILED)]
    cells = list(_cells(array, jobs, start))
    live = [job for job in jobs if not job.is_finished]
    values = {
        "array": array, "offers": offers(array),
        "state": array_state(array), "words": array_words(array),
        "counts": array.status.elements, "total": total,
        "cells": cells, "start": start, "cells_max": CELLS_MAX,
        "others": sorted({each.state for each in cells} - _COUNTED),
        "earlier": link(*asked.path, from_=start - CELLS_MAX) if start else "",
        "later": link(*asked.path, from_=start + CELLS_MAX) if start + CELLS_MAX < total else "",
        "lines": job_lines(site, [*failed, *live][:ROWS_MAX], now),
        "jobs_total": len(failed) + len(live),
    }  # fmt: skip
    command = site.command("ps", key[1], namespace=key[0])
    return Page("array.html", key[1], values, command, "arrays")


def _cells(array: JobArray, jobs: Iterable[Job], start: int) -> Iterator[ElementCell]:
    """Yield the elements from a position on, CELLS_MAX at most."""
    namespace, name = array.metadata.key
    indices = parse_indices(array.spec.indices)
    elements = Elements(array, (1 << len(indices)) - 1)
    finished, failed = Members(elements.finished), Members(elements.failed)
    states = {element_index_of(job.metadata): state_of(job) for job in jobs}
    for position in range(start, min(start + CELLS_MAX, len(indices))):
        index = indices.at(position)
        if position in failed:
            state = "failed"
        elif position in finished:
            state = "succeeded"
        else:
            state = (states.get(index) or "waiting").lower()
        has_job = index in states
        href = link("jobs", namespace, element_name(name, index)) if has_job else ""
        yield ElementCell(index, state, href)
