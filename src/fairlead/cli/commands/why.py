"""`why`: the planner's own explanation of a job, asked on the state that the API shows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import click

from fairlead.api.core import Node
from fairlead.api.job import Job
from fairlead.api.node_pool import NodePool
from fairlead.api.placement import nodes_of
from fairlead.api.resources import NODE_POOLS, NODES, PRIORITY_CLASSES
from fairlead.api.status import Forbidden, NotFound
from fairlead.app.controller_settings import ControllerSettings
from fairlead.app.messages import ClusterStatus
from fairlead.cli.cluster_settings import NOT_READ, read_settings
from fairlead.cli.common import Common, Format, common, now, text_width
from fairlead.cli.completers import complete_jobs
from fairlead.cli.embedded import read_status
from fairlead.cli.fit import read_state
from fairlead.cli.flags import Flag
from fairlead.cli.hypothesis import Changes, changed_job, read_changes
from fairlead.cli.lookup import clean_reference, find_job
from fairlead.cli.past import past_job, stopped
from fairlead.cli.text import wrapped
from fairlead.cli.transport import Api
from fairlead.cli.views.fleet import Buying, buying_for
from fairlead.cli.views.teams import Owners, owners_of
from fairlead.cli.views.why import FACT_INDENT, supposed_text, why_facts, why_text
from fairlead.decide.explain import Explanation, explain, explain_changed
from fairlead.decide.fleet.growth import pools_that_hold
from fairlead.decide.forecast import Forecasts
from fairlead.decide.placement.fair_share import FairShareOrder
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.state import PlacementState
from fairlead.input.errors import CliError, Code, Exit, Problem, fail
from fairlead.model.node_health import NodeHealth

#: The expected start is left out where it takes longer: in queues of thousands of different jobs.
EXPECTED_SECONDS_MAX = 3.0


@click.command(
    epilog="""Examples:

    \b
      fairlead why train-1
      fairlead why train-1 -o json
      fairlead why train-1 --if nodes=4 --if priority=high
      fairlead why $(fairlead ps --state Waiting -o name)
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("--if", "words", metavar="FLAG=VALUE", multiple=True,
              help="Explain the job as if it had been submitted so: nodes, gpus, cpus, memory, "
              "time or priority; repeatable.")  # fmt: skip
@common()
def why(common_: Common, *, jobs: tuple[str, ...], words: tuple[str, ...]) -> int:
    """Explain why jobs wait, or what they do.

    Of a waiting job: the verdict, the numbers behind it, who is ahead and who holds the room, when
    it may start, and what would let it start now. Every suggestion was tried on the cluster's state
    before it is made.

    With --if, what the planner would do with the job if it had been submitted so; nothing is
    changed.

    Of a job that was deleted, or of a stopped cluster of this machine, how it ended.
    """
    changes = read_changes(words)
    if changes and len(jobs) > 1:
        raise fail(Code.BAD_VALUE, f"--if: explains one job, got {len(jobs)}")
    asking = _Asking(common_, changes, now())
    asked: list[_Answer] = []
    problems: list[Problem] = []
    for job in jobs:
        try:
            asked.append(asking.of(job))
        except CliError as error:
            if error.problems[0].code is not Code.NO_SUCH_JOB:
                raise
            problems += error.problems
    _show(common_, asked, changes, asking.instant)
    if problems:
        raise CliError(problems)
    return Exit.OK


def _show(common_: Common, asked: Sequence[_Answer], changes: Changes, instant: float) -> None:
    if not asked:
        return
    if common_.is_structured:
        facts = [each.facts(changes) for each in asked]
        common_.data(facts[0] if len(facts) == 1 else facts)
    elif common_.format is Format.NAME:
        common_.lines(each.job.metadata.name for each in asked)
    else:
        text = "\n".join(each.text(changes, instant) for each in asked)
        common_.emit(wrapped(text, text_width(0), FACT_INDENT))


@dataclass(frozen=True, slots=True)
class _Answer:
    """A job, what the planner says of it, since when nodes of it have not been ready, what node
    pools do for it, and whose the nodes are.
    """

    job: Job
    explanation: Explanation | None = None
    unready: Mapping[str, float] = field(default_factory=dict[str, float])
    buying: Buying | None = None
    owners: Owners = field(default_factory=dict[str, str])
    is_up: bool = False

    def facts(self, changes: Changes) -> dict[str, Any]:
        """Return it as data."""
        supposed = {"if": {flag.value: value for flag, value in changes.items()}} if changes else {}
        return {**supposed, **why_facts(self.job, self.explanation, self.owners)}

    def text(self, changes: Changes, instant: float) -> str:
        """Return it in words."""
        text = why_text(
            self.job, self.explanation, instant, is_up=self.is_up, unready=self.unready,
            buying=self.buying, owners=self.owners,
        )  # fmt: skip
        return supposed_text(self.job, self.explanation, changes, text) if changes else text


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster as the scheduler would see it, and the forecasts of all jobs in it."""

    nodes: Sequence[Node]
    state: PlacementState
    health: NodeHealth
    policy: PlacementPolicy
    forecasts: Forecasts
    pools: Sequence[NodePool]


class _Asking:
    """Answers about one job after the other; what they need of the cluster is read once."""

    def __init__(self, common_: Common, changes: Changes, instant: float) -> None:
        self._common, self._changes = common_, changes
        self.instant = instant
        self._give_up_at = time.monotonic() + EXPECTED_SECONDS_MAX
        self._is_stopped = stopped(common_) is not None

    def of(self, name: str) -> _Answer:
        """Return the answer about a job."""
        if self._is_stopped:
            found = past_job(self._common, clean_reference(name))
            if found is not None:
                found = changed_job(found, self._changes, ()) if self._changes else found
                return _Answer(found, is_up=True)
        space, is_up = self._common.space(self._api.connection.namespace), self._status is not None
        found = _find(self._common, self._api, (space, name), is_up=is_up)
        if self._changes:
            has_priority = Flag.PRIORITY in self._changes
            classes = self._api.list(PRIORITY_CLASSES) if has_priority else ()
            found = changed_job(found, self._changes, classes)
        if found.is_finished or (cluster := self._cluster) is None:
            return _Answer(found, is_up=is_up)
        return self._explained(found, cluster, is_up=is_up)

    def _explained(self, job: Job, cluster: _Cluster, *, is_up: bool) -> _Answer:
        state, key, policy = cluster.state, job.metadata.key, cluster.policy
        if self._changes:
            state.cluster.job_changed(job)
            found = explain_changed(state, key, self.instant, policy, is_late=self._is_late)
        else:
            found = explain(
                state, key, self.instant, policy, is_late=self._is_late,
                forecasts=cluster.forecasts,
            )  # fmt: skip
        placement = job.status.placement
        used = set(nodes_of(placement))
        since = cluster.health.unready_since
        pools = cluster.pools if found is not None and placement is None else ()
        gang = state.cluster.gang_of(job)
        holding = pools_that_hold(cluster.nodes, gang, pools) if pools else {}
        return _Answer(
            job, found, {name: at for name, at in since.items() if name in used},
            buying_for(job, pools, holding, self.instant), owners_of(cluster.nodes), is_up,
        )  # fmt: skip

    def _is_late(self) -> bool:
        return time.monotonic() > self._give_up_at

    @cached_property
    def _api(self) -> Api:
        return self._common.connect()

    @cached_property
    def _status(self) -> ClusterStatus | None:
        return read_status(self._api)

    @cached_property
    def _cluster(self) -> _Cluster | None:
        """The cluster, with the settings of the controllers where these can be read; None for a
        user who may not see it, and gets what the status of the job says.
        """
        settings = read_settings(self._api, self._status)
        try:
            nodes = self._api.list(NODES)
            levels = (settings or ControllerSettings()).levels()
            cluster = read_state(self._api, nodes, levels)
            state = PlacementState(cluster, order=FairShareOrder(cluster))
        except Forbidden:
            self._common.note(
                "note: you may not list what the cluster has; this is what the job says"
            )
            return None
        if settings is None:
            self._common.note(NOT_READ)
        health = NodeHealth()
        for node in nodes:
            health.put(node, self.instant)
        policy = (settings or ControllerSettings()).placement_policy()
        forecasts = Forecasts(state, self.instant, policy)
        return _Cluster(nodes, state, health, policy, forecasts, _pools(self._api))


def _pools(api: Api) -> Sequence[NodePool]:
    """Return the node pools; none where they cannot be read."""
    try:
        return api.list(NODE_POOLS)
    except (Forbidden, NotFound):
        return ()


def _find(common_: Common, api: Api, key: tuple[str, str], *, is_up: bool) -> Job:
    """Return the job, or the latest of its name that the history of a cluster of up has."""
    try:
        return find_job(api, *key)
    except CliError:
        past = past_job(common_, clean_reference(key[1])) if is_up else None
        if past is None:
            raise
        return past
