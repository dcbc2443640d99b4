"""`why`: the planner's own explanation of a job, asked on the state that the API shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from fairlead.api.job import Job
from fairlead.api.node_pool import NodePool
from fairlead.api.resources import NODE_POOLS, NODES, PRIORITY_CLASSES
from fairlead.api.status import Forbidden, NotFound
from fairlead.app.controller_settings import ControllerSettings
from fairlead.cli.cluster_settings import read_settings
from fairlead.cli.common import Common, Format, common, dump, now
from fairlead.cli.completers import complete_jobs
from fairlead.cli.embedded import read_status
from fairlead.cli.fit import read_state
from fairlead.cli.flags import Flag
from fairlead.cli.hypothesis import changed_job, read_changes
from fairlead.cli.lookup import clean_reference, find_job
from fairlead.cli.past import past_job, stopped
from fairlead.cli.transport import Api
from fairlead.cli.views.fleet import Buying, buying_for
from fairlead.cli.views.teams import Owners, owners_of
from fairlead.cli.views.why import supposed_text, why_facts, why_text
from fairlead.decide.explain import Explanation, explain, explain_changed
from fairlead.decide.fleet.growth import pools_that_hold
from fairlead.decide.placement.fair_share import FairShareOrder
from fairlead.decide.placement.state import PlacementState
from fairlead.input.errors import CliError, Exit
from fairlead.model.node_health import NodeHealth

#: The expected start is left out where it takes longer: in queues of thousands of different jobs.
EXPECTED_SECONDS_MAX = 3.0


@click.command(
    epilog="""Examples:

    \b
      fairlead why train-1
      fairlead why train-1 -o json
      fairlead why train-1 --if nodes=4 --if priority=high
    """
)
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.option("--if", "words", metavar="FLAG=VALUE", multiple=True,
              help="Explain the job as if it had been submitted so: nodes, gpus, cpus, memory, "
              "time or priority; repeatable.")  # fmt: skip
@common()
def why(common_: Common, *, job: str, words: tuple[str, ...]) -> int:
    """Explain why a job waits, or what it does.

    Of a waiting job: the verdict, the numbers behind it, who is ahead and who holds the room, when
    it may start, and what would let it start now. Every suggestion was tried on the cluster's state
    before it is made.

    With --if, what the planner would do with the job if it had been submitted so; nothing is
    changed.

    Of a job that was deleted, or of a stopped cluster of this machine, how it ended.
    """
    instant, changes = now(), read_changes(words)
    explanation, unready, buying = None, {}, None
    owners: Owners = {}
    is_up = stopped(common_) is not None
    found = past_job(common_, clean_reference(job)) if is_up else None
    if found is None:
        api = common_.connect()
        status = read_status(api)
        space, is_up = common_.space(api.connection.namespace), status is not None
        found = _find(common_, api, (space, job), is_up=is_up)
        if changes:
            classes = api.list(PRIORITY_CLASSES) if Flag.PRIORITY in changes else ()
            found = changed_job(found, changes, classes)
        if not found.is_finished:
            asked = _Asked(found, read_settings(api, status), is_changed=bool(changes))
            explanation, unready, buying, owners = _read(common_, api, asked, instant)
    elif changes:
        found = changed_job(found, changes, ())
    if common_.format in (Format.JSON, Format.YAML):
        supposed = {"if": {flag.value: value for flag, value in changes.items()}} if changes else {}
        facts = why_facts(found, explanation, owners)
        common_.emit(dump({**supposed, **facts}, common_.format))
    elif common_.format is Format.NAME:
        common_.emit(f"{found.metadata.name}\n")
    else:
        text = why_text(
            found, explanation, instant, is_up=is_up, unready=unready, buying=buying,
            owners=owners,
        )  # fmt: skip
        common_.emit(supposed_text(found, explanation, changes, text) if changes else text)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Asked:
    """The job, the controllers' settings where they can be read, and whether the job is as `--if`
    supposes.
    """

    job: Job
    settings: ControllerSettings | None
    is_changed: bool


def _pools(api: Api) -> Sequence[NodePool]:
    """Return the node pools; none where they cannot be read."""
    try:
        return api.list(NODE_POOLS)
    except (Forbidden, NotFound):
        return ()


def _read(
    common_: Common, api: Api, asked: _Asked, instant: float
) -> tuple[Explanation | None, dict[str, float], Buying | None, Owners]:
    """Return what the planner says, since when nodes of the job have not been ready, what node
    pools do for it, and whose the nodes are.

    With the settings of the controllers, where they can be read. A user who may not see the cluster
    gets what the status of the job says.
    """
    job, settings = asked.job, asked.settings
    try:
        nodes = api.list(NODES)
        cluster = read_state(api, nodes, (settings or ControllerSettings()).levels())
        if asked.is_changed:
            cluster.job_changed(job)
        state = PlacementState(cluster, order=FairShareOrder(cluster))
    except Forbidden:
        common_.note("note: you may not list what the cluster has; this is what the job says")
        return None, {}, None, {}
    health = NodeHealth()
    for node in nodes:
        health.put(node, instant)
    placement = job.status.placement
    used = {node for role in placement.roles for node in role.nodes} if placement else set[str]()
    unready = {name: since for name, since in health.unready_since.items() if name in used}
    policy = (settings or ControllerSettings()).placement_policy()
    if settings is None:
        common_.note("note: the settings of the controllers cannot be read; defaults are assumed")
    ask = explain_changed if asked.is_changed else explain
    give_up_at = time.monotonic() + EXPECTED_SECONDS_MAX
    explanation = ask(
        state, job.metadata.key, instant, policy, is_late=lambda: time.monotonic() > give_up_at
    )
    pools = _pools(api) if explanation is not None and placement is None else ()
    holding = pools_that_hold(nodes, cluster.gang_of(job), pools) if pools else {}
    buying = buying_for(job, pools, holding, instant)
    return explanation, unready, buying, owners_of(nodes)


def _find(common_: Common, api: Api, key: tuple[str, str], *, is_up: bool) -> Job:
    """Return the job, or the latest of its name that the history of a cluster of up has."""
    try:
        return find_job(api, *key)
    except CliError:
        past = past_job(common_, clean_reference(key[1])) if is_up else None
        if past is None:
            raise
        return past
