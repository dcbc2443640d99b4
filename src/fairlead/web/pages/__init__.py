"""The pages: what each shows, as values for its template.

A page is a function of the site and of what was asked; it is made again whenever something has
changed, for as long as somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from fairlead.web.pages.arrays import array_page, arrays_page
from fairlead.web.pages.cluster import cluster_page
from fairlead.web.pages.decisions import decision_page, decisions_page
from fairlead.web.pages.doctor import doctor_page
from fairlead.web.pages.fleet import fleet_page
from fairlead.web.pages.home import home_page
from fairlead.web.pages.job import job_page
from fairlead.web.pages.jobs import jobs_page
from fairlead.web.pages.network import network_page
from fairlead.web.pages.node import node_page
from fairlead.web.pages.run_details import run_page
from fairlead.web.pages.runs import runs_page
from fairlead.web.pages.simulator import simulator_page
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site
from fairlead.web.pages.teams import team_page, teams_page
from fairlead.web.pages.usage import usage_page
from fairlead.web.pages.use import use_page
from fairlead.web.render import Page

__all__ = ["AskedPath", "NoSuchPage", "Site", "make_page"]

Maker: TypeAlias = Callable[[Site, AskedPath], Awaitable[Page]]
#: By the first part of the path and the number of parts.
_PAGES: dict[tuple[str, int], Maker] = {
    ("", 0): home_page,
    ("jobs", 1): jobs_page,
    ("jobs", 3): job_page,
    ("arrays", 1): arrays_page,
    ("arrays", 3): array_page,
    ("cluster", 1): cluster_page,
    ("nodes", 2): node_page,
    ("teams", 1): teams_page,
    ("teams", 2): team_page,
    ("fleet", 1): fleet_page,
    ("doctor", 1): doctor_page,
    ("network", 1): network_page,
    ("decisions", 1): decisions_page,
    ("decisions", 2): decision_page,
    ("usage", 1): usage_page,
    ("use", 1): use_page,
    ("runs", 1): runs_page,
    ("runs", 2): run_page,
    ("simulator", 1): simulator_page,
}


async def make_page(site: Site, asked: AskedPath) -> Page:
    """Return the page of a path; NoSuchPage."""
    first = asked.path[0] if asked.path else ""
    maker = _PAGES.get((first, len(asked.path)))
    if maker is None:
        raise NoSuchPage(f"there is no page /{'/'.join(asked.path)}")
    return await maker(site, asked)
