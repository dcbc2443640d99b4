"""`why`: the planner's own explanation of a job, asked on the state that the API shows."""

from __future__ import annotations

import click

from fairlead.api.job import Job
from fairlead.api.resources import NODE_POOLS, NODES
from fairlead.api.status import Forbidden, NotFound
from fairlead.app.controller_settings import ControllerSettings
from fairlead.cli.cluster_settings import read_settings
from fairlead.cli.common import Common, Format, common, dump, now
from fairlead.cli.completers import complete_jobs
from fairlead.cli.embedded import read_status
from fairlead.cli.fit import read_state
from fairlead.cli.lookup import clean_reference, find_job
from fairlead.cli.past import past_job, stopped
from fairlead.cli.transport import Api
from fairlead.cli.views.fleet import buying_for
from fairlead.cli.views.why import why_facts, why_text
from fairlead.decide.explain import Explanation, explain
from fairlead.decide.placement.fair_share import FairShareOrder
from fairlead.decide.placement.state import PlacementState
from fairlead.input.errors import CliError, Exit
from fairlead.model.node_health import NodeHealth


@click.command(
    epilog="""Examples:

    \b
      fairlead why train-1
      fairlead why train-1 -o json
    """
)
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@common()
def why(common_: Common, *, job: str) -> int:
    """Explain why a job waits, or what it does.

    Of a waiting job: the verdict, the numbers behind it, who is ahead and who holds the room, when
    it may start, and what would let it start now. Every suggestion was tried on the cluster's state
    before it is made.

    Of a job that was deleted, or of a stopped cluster of this machine, how it ended.
    """
    instant = now()
    explanation, unready, buying = None, {}, ""
    is_up = stopped(common_) is not None
    found = past_job(common_, clean_reference(job)) if is_up else None
    if found is None:
        api = common_.connect()
        status = read_status(api)
        space, is_up = common_.space(api.connection.namespace), status is not None
        found = _find(common_, api, (space, job), is_up=is_up)
        if not found.is_finished:
            settings = read_settings(api, status)
            explanation, unready = _read(common_, api, (found, settings), instant)
        if explanation is not None and found.status.placement is None:
            buying = _buying(api, found, instant)
    if common_.format in (Format.JSON, Format.YAML):
        common_.emit(dump(why_facts(found, explanation), common_.format))
    elif common_.format is Format.NAME:
        common_.emit(f"{found.metadata.name}\n")
    else:
        text = why_text(
            found, explanation, instant, is_up=is_up, unready=unready, buying=buying
        )  # fmt: skip
        common_.emit(text)
    return Exit.OK


def _buying(api: Api, job: Job, instant: float) -> str:
    """Return what is being bought for a job; "" without node pools that can be read."""
    try:
        return buying_for(job, api.list(NODE_POOLS), instant)
    except (Forbidden, NotFound):
        return ""


def _read(
    common_: Common, api: Api, asked: tuple[Job, ControllerSettings | None], instant: float
) -> tuple[Explanation | None, dict[str, float]]:
    """Return what the planner says, and since when nodes of the job have not been ready.

    With the settings of the controllers, where they can be read. A user who may not see the cluster
    gets what the status of the job says.
    """
    job, settings = asked
    try:
        nodes = api.list(NODES)
        cluster = read_state(api, nodes)
        state = PlacementState(cluster, order=FairShareOrder(cluster))
    except Forbidden:
        common_.note("note: you may not list what the cluster has; this is what the job says")
        return None, {}
    health = NodeHealth()
    for node in nodes:
        health.put(node, instant)
    placement = job.status.placement
    used = {node for role in placement.roles for node in role.nodes} if placement else set[str]()
    unready = {name: since for name, since in health.unready_since.items() if name in used}
    policy = (settings or ControllerSettings()).placement_policy()
    if settings is None:
        common_.note("note: the settings of the controllers cannot be read; defaults are assumed")
    return explain(state, job.metadata.key, instant, policy), unready


def _find(common_: Common, api: Api, key: tuple[str, str], *, is_up: bool) -> Job:
    """Return the job, or the latest of its name that the history of a cluster of up has."""
    try:
        return find_job(api, *key)
    except CliError:
        past = past_job(common_, clean_reference(key[1])) if is_up else None
        if past is None:
            raise
        return past
