"""What of the cluster a viewer may see: what the API server lets him list, kind by kind.

`rights_of` asks with the credentials of the person; `rights_of_user` has the API server judge a
user (SubjectAccessReview), where one process serves many. Where the jobs of all namespaces may not
be listed, each namespace that has some is asked about; arrays and pods only where jobs are seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from fairlead.api.resources import (
    CLUSTER_REPORTS,
    FLEETS,
    JOB_ARRAYS,
    JOBS,
    NODE_POOLS,
    NODE_REPORTS,
    NODES,
    PODS,
    TEAMS,
    Resource,
)
from fairlead.api.reviews import ResourceAttributes, UserInfo
from fairlead.api.status import Forbidden, NotFound
from fairlead.app.queries.access_reviews import AccessReviews
from fairlead.runtime.client import Client

#: The namespaces in which something may be listed; None: all.
Scope: TypeAlias = frozenset[str] | None
NOWHERE: Scope = frozenset()
#: Namespaces that a text names.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Rights:
    """What may be listed: in which namespaces, or at all."""

    jobs: Scope = None
    arrays: Scope = None
    #: Pods of others than our jobs.
    pods: Scope = None
    nodes: bool = True
    reports: bool = True
    teams: bool = True
    pools: bool = True
    fleets: bool = True
    #: What the doctor found.
    findings: bool = True

    @property
    def namespace(self) -> str:
        """The only namespace whose jobs are seen; "" where there are more, or none."""
        return next(iter(self.jobs)) if self.jobs is not None and len(self.jobs) == 1 else ""

    @property
    def namespaces_text(self) -> str:
        """The namespaces whose jobs are seen, for people; "" for all."""
        if self.jobs is None:
            return ""
        names = sorted(self.jobs)
        more = len(names) - _NAMED_MAX
        return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

    @property
    def fleet(self) -> bool:
        """True where the page of the fleet may be seen."""
        return self.pools and self.fleets


#: By the field of `Rights`; those of namespaces first.
_NAMESPACED: dict[str, Resource[Any]] = {"jobs": JOBS, "arrays": JOB_ARRAYS, "pods": PODS}
_CLUSTER_WIDE: dict[str, Resource[Any]] = {
    "nodes": NODES, "reports": NODE_REPORTS, "teams": TEAMS, "pools": NODE_POOLS,
    "fleets": FLEETS, "findings": CLUSTER_REPORTS,
}  # fmt: skip
assert {*_NAMESPACED, *_CLUSTER_WIDE} == {each.name for each in fields(Rights)}


async def rights_of(client: Client, namespace: str) -> Rights:
    """Return what the API server lets the client's user list.

    `namespace` is the one that was asked for; where none was, and jobs of all may not be listed,
    the caller asks again with one. Forbidden, ApiError.
    """
    await _may(client, JOBS, namespace, must=True)
    here: Scope = frozenset({namespace}) if namespace else None
    wide = {name: await _may(client, each) for name, each in _CLUSTER_WIDE.items()}
    return Rights(here, here, here if await _may(client, PODS, namespace) else NOWHERE, **wide)


async def _may(
    client: Client, resource: Resource[Any], namespace: str = "", *, must: bool = False
) -> bool:
    try:
        await client.read(resource.path(namespace), {"limit": "1"})
    except NotFound:
        return True  # the kind is not there (yet)
    except Forbidden:
        if must:
            raise
        return False
    return True


async def rights_of_user(
    reviews: AccessReviews, user: UserInfo, namespaces: Iterable[str]
) -> Rights:
    """Return what a user may list, in all namespaces or among these; Unavailable."""

    async def may(resource: Resource[Any], namespace: str = "") -> bool:
        wanted = ResourceAttributes("list", resource.plural, resource.group, namespace=namespace)
        return await reviews.is_allowed(user, wanted)

    async def scope(resource: Resource[Any], among: Iterable[str]) -> Scope:
        if await may(resource):
            return None
        found = await asyncio.gather(*(_named(may(resource, each), each) for each in among))
        return frozenset(each for each in found if each)

    wide = dict(
        zip(_CLUSTER_WIDE, await asyncio.gather(*map(may, _CLUSTER_WIDE.values())), strict=True)
    )
    jobs = await scope(JOBS, namespaces)
    seen = tuple(namespaces) if jobs is None else tuple(jobs)
    arrays, pods = await scope(JOB_ARRAYS, seen), await scope(PODS, seen)
    return Rights(jobs, _both(jobs, arrays), pods, **wide)


async def _named(is_allowed: Any, name: str) -> str:
    return name if await is_allowed else ""


def _both(one: Scope, other: Scope) -> Scope:
    """Return the namespaces of both."""
    if one is None or other is None:
        return other if one is None else one
    return one & other
