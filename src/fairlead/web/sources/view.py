"""What a viewer sees of the mirrors, and what follows from all of it.

The mirrors are shared; a view has what its rights allow, so that no page can show more. Viewers
with the same rights share a view. What goes through all jobs or nodes is computed at most once for
a version of the mirrors, however many look; nothing is computed while there are no viewers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar, cast

from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import SUBMITTED_BY
from fairlead.app.queries.messages import RunLine
from fairlead.cli.views.arrays import is_element_of_listed
from fairlead.cli.views.jobs import JobChoice, choose_jobs
from fairlead.cli.views.nodes import NodeUse, node_uses
from fairlead.model.inventory.reserved_nodes import NodeReservation, reserved_by
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import HasMetadata, Mirror
from fairlead.web.sources.cluster import WebMirrors
from fairlead.web.sources.rights import NOWHERE, Rights, Scope

T = TypeVar("T", bound=HasMetadata)
U = TypeVar("U")
VIEWS_MAX = 64


class Visible(Generic[T]):
    """The objects of a mirror in some namespaces, or all."""

    def __init__(self, mirror: Mirror[T], scope: Scope) -> None:
        self._mirror, self._scope = mirror, scope

    def items(self) -> Sequence[T]:
        """Return all that are visible."""
        found = self._mirror.items()
        scope = self._scope
        if scope is None:
            return found
        return [each for each in found if each.metadata.namespace in scope] if scope else []

    def get(self, namespace: str, name: str) -> T | None:
        """Return one; None where it is not there or not visible."""
        is_visible = self._scope is None or namespace in self._scope
        return self._mirror.get(namespace, name) if is_visible else None


class ClusterView:
    """What is visible with some rights."""

    def __init__(self, mirrors: WebMirrors, rights: Rights) -> None:
        self.rights, self.mirrors = rights, mirrors
        self.jobs: Visible[Job] = Visible(mirrors.jobs, rights.jobs)
        self.arrays: Visible[JobArray] = Visible(mirrors.arrays, rights.arrays)
        self.others: Visible[Pod] = Visible(mirrors.others, rights.pods)
        self.nodes: Visible[Node] = Visible(mirrors.nodes, _all(may=rights.nodes))
        self.reports: Visible[NodeReport] = Visible(mirrors.reports, _all(may=rights.reports))
        self.teams: Visible[Team] = Visible(mirrors.teams, _all(may=rights.teams))
        self.pools: Visible[NodePool] = Visible(mirrors.pools, _all(may=rights.pools))
        self.fleets: Visible[Fleet] = Visible(mirrors.fleets, _all(may=rights.fleets))
        self.findings: Visible[ClusterReport] = Visible(mirrors.findings, _all(may=rights.findings))
        self.gpus, self.words, self.runs = mirrors.gpus, mirrors.words, mirrors.runs
        self._facts: PageFacts | None = None

    @property
    def clock(self) -> Clock:
        """What says how late it is."""
        return self.mirrors.clock

    @property
    def version(self) -> int:
        """As `WebMirrors.version`."""
        return self.mirrors.version

    @property
    def age_seconds(self) -> float | None:
        """As `WebMirrors.age_seconds`."""
        return self.mirrors.age_seconds

    def facts(self) -> PageFacts:
        """Return what follows from all objects as they are now."""
        if self._facts is None or self._facts.version != self.version:
            self._facts = PageFacts(self, self.version, self.clock.now())
        return self._facts

    async def changed(self, since: int) -> None:
        """Return once something has changed since this version."""
        await self.mirrors.changed(since)

    async def member_pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the pods of a job's current attempt; none where they are not visible."""
        scope = self.rights.pods
        if scope is not None and job.metadata.namespace not in scope:
            return ()
        return await self.mirrors.member_pods(job)


def _all(*, may: bool) -> Scope:
    return None if may else NOWHERE


class ClusterViews:
    """The views that were used last, VIEWS_MAX at most."""

    def __init__(self, mirrors: WebMirrors) -> None:
        self.mirrors = mirrors
        self._views: OrderedDict[Rights, ClusterView] = OrderedDict()

    def of(self, rights: Rights) -> ClusterView:
        """Return the view with these rights."""
        view = self._views.pop(rights, None) or ClusterView(self.mirrors, rights)
        self._views[rights] = view
        if len(self._views) > VIEWS_MAX:
            self._views.popitem(last=False)
        return view


class PageFacts:
    """What follows from all that is visible of one version of the mirrors; each part on demand."""

    def __init__(self, cluster: ClusterView, version: int, now: float) -> None:
        self.version, self.now = version, now
        self._cluster = cluster
        self._once: dict[str, object] = {}

    def once(self, name: str, compute: Callable[[], U]) -> U:
        """Return what `compute` returned for the first page that asked under this name."""
        if name not in self._once:
            self._once[name] = compute()
        return cast("U", self._once[name])

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, in the order of `fairlead ps`, the latest first; arrays are not folded."""
        chosen = choose_jobs(self._cluster.jobs.items(), JobChoice(shows_all=True))
        return tuple(reversed(chosen))

    @cached_property
    def runs(self) -> tuple[RunLine, ...]:
        """What the jobs recorded of themselves, in their order."""
        return tuple(line for job in self.jobs if (line := self._cluster.runs.of(job)) is not None)

    @cached_property
    def listed_arrays(self) -> frozenset[str]:
        """The uids of the arrays that have a line of their own."""
        return frozenset(each.metadata.uid for each in self._cluster.arrays.items())

    @cached_property
    def elements(self) -> Mapping[str, tuple[Job, ...]]:
        """The jobs of each array, by the array's uid."""
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            owner = array_reference_of(job.metadata)
            if owner is not None:
                found.setdefault(owner.uid, []).append(job)
        return {uid: tuple(jobs) for uid, jobs in found.items()}

    @cached_property
    def by_user(self) -> Mapping[str, tuple[Job, ...]]:
        """The jobs of each user, in their order; elements of listed arrays are folded."""
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            if not is_element_of_listed(job.metadata, self.listed_arrays):
                user = job.metadata.annotations.get(SUBMITTED_BY, "")
                found.setdefault(user, []).append(job)
        return {user: tuple(jobs) for user, jobs in found.items()}

    @cached_property
    def uses(self) -> Mapping[str, NodeUse]:
        """Each node with what it has and what is used of it, by name."""
        cluster = self._cluster
        nodes, others = cluster.nodes.items(), cluster.others.items()
        return {each.name: each for each in node_uses(nodes, self.jobs, others, self.now)}

    @cached_property
    def reservations(self) -> tuple[NodeReservation, ...]:
        """The reservations that last now."""
        found = reserved_by(self._cluster.teams.items())
        return tuple(each for each in found if each.window.start <= self.now < each.window.end)

    @cached_property
    def on_node(self) -> Mapping[str, tuple[Job, ...]]:
        """The unfinished jobs with a place on each node."""
        return self._by_node(lambda job: nodes_of(job.status.placement))

    @cached_property
    def kept(self) -> Mapping[str, tuple[Job, ...]]:
        """The jobs for which each node is kept while others leave it."""
        return self._by_node(lambda job: nodes_of(job.status.nomination))

    def _by_node(self, places: Callable[[Job], tuple[str, ...]]) -> Mapping[str, tuple[Job, ...]]:
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            for node in dict.fromkeys(() if job.is_finished else places(job)):
                found.setdefault(node, []).append(job)
        return {node: tuple(jobs) for node, jobs in found.items()}
