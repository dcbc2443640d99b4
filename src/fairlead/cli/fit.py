"""Whether the cluster could ever hold a job, and whether it fits now: the planner's own answer.

The code that will place the job is asked, on a state built from the API's nodes, jobs and pods;
there is no second algorithm here, only words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlead.api import names, quantity
from fairlead.api.core import Node
from fairlead.api.job import Job
from fairlead.api.status import Forbidden
from fairlead.app.messages import Fitted
from fairlead.cli.answers import ask_fit
from fairlead.cli.objects import read_objects, read_state
from fairlead.cli.transport import Api
from fairlead.cli.views.outlook import verdict_text
from fairlead.cli.views.plan import line
from fairlead.cli.views.words import amount_text, amount_words, message_of
from fairlead.decide.placement.patience import unreachable_level
from fairlead.decide.placement.whatif import fits_empty, largest_shape
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.input.errors import CliError, Code, Problem
from fairlead.input.suggest import nearest
from fairlead.model.cluster import ClusterState
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.objects import Objects
from fairlead.model.requests import request_of
from fairlead.model.spares import is_spare

if TYPE_CHECKING:
    from fairlead.app.controller_settings import ControllerSettings

_OF_TEAMS = (
    "nodes are kept for teams, and the job belongs to none: kubectl get teams shows them; "
    "submit it in the namespace of your team"
)


def check_fit(api: Api, job: Job, now: float) -> str:
    """Return the line that says what a decision would do with the job now: where it starts, which
    jobs leave for it, or why it waits and until when.

    CliError with the largest shape there is when no node could ever hold a member, or all nodes
    together not the gang, nor node pools with them. A cluster without any node refuses nothing: it
    may get some. For a user who may not see the cluster the process that decides says whether the
    job fits; where none answers, nothing is checked.
    """
    try:
        objects = read_objects(api)
    except Forbidden:
        return line("Place", _answered(ask_fit(api, job), job))
    settings = _settings(api)
    state = read_state(objects, settings.levels(), now)
    state.fits.advance(now)
    gang = state.gang_of(job)
    shape = largest_shape(state)
    if not shape:
        return line("Place", "waits: the cluster has no node yet")
    verdict = fits_empty(state, gang)
    if verdict.outcome is Outcome.IMPOSSIBLE:
        if waits := _growth(objects, gang):
            return line("Place", f"waits for nodes: {waits}")
        help_ = _smaller(state, job, gang, verdict)
        if verdict.reason is Reason.NO_MATCHING_NODE:
            help_ = (*_taints(objects.nodes, job), *help_)
        raise CliError(impossible(verdict, shape, help_))
    from fairlead.cli.views.outlook import outlook_text  # all of the planner
    from fairlead.decide.explain import preview

    found = preview(state, job, now, settings.placement_policy())
    return line("Place", outlook_text(job, found, now) + _unreachable_words(state, gang))


def _settings(api: Api) -> ControllerSettings:
    from fairlead.app.controller_settings import ControllerSettings
    from fairlead.cli.cluster_settings import read_settings
    from fairlead.cli.embedded import read_status

    return read_settings(api, read_status(api)) or ControllerSettings()


def _unreachable_words(state: ClusterState, gang: GangRequest | InvalidGang) -> str:
    """Return that a gang prefers a level that can never hold it; "" for any other."""
    found = None if isinstance(gang, InvalidGang) else unreachable_level(state, gang)
    if found is None or found.reason not in (Reason.NO_DOMAIN_FITS, Reason.NO_SUCH_TOPOLOGY):
        return ""
    level, members = found.facts["topology_key"], found.facts["members"]
    if found.reason is Reason.NO_SUCH_TOPOLOGY:
        return f"; no node is in a {level}, so it waits for none"
    most = f"(the largest holds {found.facts['members_fit']})"
    return f"; no {level} could ever hold its {members} members {most}, so it waits for none"


def _growth(objects: Objects, gang: GangRequest | InvalidGang) -> str:
    """Return which node pools would hold the gang, and with how many nodes; "" when none would."""
    from fairlead.cli.views.fleet import growth
    from fairlead.decide.fleet.growth import pools_that_hold  # half of the planner

    holding = pools_that_hold(objects.nodes, gang, objects.pools)
    return growth(objects.pools, holding) if holding else ""


def _answered(fitted: Fitted | None, job: Job) -> str:
    """Return what the process that decides says, in words; CliError for what can never start."""
    from fairlead.cli.views.fleet import growth

    if fitted is None:
        return "not checked: you may not list what the cluster has"
    verdict, shape = fitted.verdict, fitted.shape
    if not shape:
        return "waits: the cluster has no node yet"
    if verdict.outcome is Outcome.IMPOSSIBLE and fitted.holding:
        return f"waits for nodes: {growth(fitted.pools, fitted.holding)}"
    if verdict.outcome is Outcome.IMPOSSIBLE:
        raise CliError(impossible(verdict, shape, ()))
    return verdict_text(verdict, is_elastic=job.is_elastic)


def impossible(verdict: Verdict, shape: Mapping[str, int], help_: tuple[str, ...]) -> Problem:
    """Return the problem of a job that these nodes can never hold, with what they can."""
    detail = (f"largest node: {shape_text(shape)}",)
    facts = verdict.facts
    if verdict.reason is Reason.NO_NODE_SHAPE_FITS:
        resource = str(facts["resource"])
        asked = amount_words(resource, facts["asked"])
        most = amount_text(resource, facts["largest"])
        which = "no node"
        if int(facts["largest"]) < shape.get(resource, 0):
            which = f"no node that role {facts['role']} may use"
            detail = (f"largest of all nodes: {shape_text(shape)}",)
        message = f"{which} has {asked} (largest: {most})"
        return Problem(Code.NO_NODE_LARGE_ENOUGH, message, detail=detail, help=help_)
    if verdict.reason is Reason.NO_MATCHING_NODE:
        message = message_of(verdict)
        return Problem(Code.NO_MATCHING_NODE, message, detail=detail, help=help_)
    if verdict.reason is Reason.INVALID_REQUEST:
        return Problem(Code.BAD_VALUE, message_of(verdict))
    return Problem(Code.EXCEEDS_CLUSTER, message_of(verdict), detail=detail, help=help_)


def _taints(nodes: Sequence[Node], job: Job) -> tuple[str, ...]:
    """Return the toleration that would let a member onto nodes that its selector allows.

    Those of teams are for their jobs, which get the toleration; no user is to write it.
    """
    for role in job.spec.roles:
        spec = role.template.spec
        tolerated = {toleration.key for toleration in spec.tolerations}
        taints = {
            taint.key: taint.effect
            for node in nodes
            if spec.node_selector.items() <= node.metadata.labels.items()
            for taint in node.spec.taints
            if taint.effect != "PreferNoSchedule"
            and taint.key not in tolerated
            and not is_spare((taint,))
        }
        if taints and "" not in tolerated:
            return tuple(
                _OF_TEAMS
                if key == names.TEAM
                else f"nodes are tainted with {key}; to use them write in role {role.name}: "
                f"tolerations: [{{key: {key}, operator: Exists}}]"
                for key in sorted(taints)
            )
    return ()


def _smaller(
    state: ClusterState, job: Job, gang: GangRequest | InvalidGang, verdict: Verdict
) -> tuple[str, ...]:
    """Return what could be asked instead; flags are named only when that would fit."""
    facts = verdict.facts
    if verdict.reason is Reason.NO_MATCHING_NODE:
        return ("fairlead nodes -o wide shows what there is",)
    if verdict.reason is Reason.NO_SUCH_TOPOLOGY:
        return _topology(state, str(facts["topology_key"]))
    if verdict.reason is Reason.NO_DOMAIN_FITS and isinstance(gang, GangRequest):
        return _wider(state, gang)
    if isinstance(gang, InvalidGang) or len(gang.roles) != 1:
        return ()
    if verdict.reason is Reason.EXCEEDS_CLUSTER and int(facts.get("members_fit", 0)):
        most = f"-{job.member_count}" if job.is_elastic else ""
        return (f"--nodes {facts['members_fit']}{most}",)
    if verdict.reason is not Reason.NO_NODE_SHAPE_FITS or facts["resource"] != quantity.GPU:
        return ()
    asked, largest, role = int(facts["asked"]), int(facts["largest"]), gang.roles[0]
    if largest == 0:
        return ("fairlead nodes shows which nodes have GPUs; --on virtual takes virtual ones",)
    amounts = {**dict(role.member.request), quantity.GPU: largest}
    member = replace(role.member, request=request_of(amounts.items()))
    spread = replace(role, member=member, count=-(-asked * role.count // largest))
    fits = fits_empty(state, replace(gang, roles=(spread,))).outcome is Outcome.PLACED
    return (f"--nodes {spread.count} --gpus {largest}",) if fits else (f"--gpus {largest}",)


def _wider(state: ClusterState, gang: GangRequest) -> tuple[str, ...]:
    """Return what to ask of the topology instead of a level that can never hold the gang."""
    level = gang.topology.required
    index = state.levels.index(level) if level in state.levels else 0
    wider = (
        f"--topology {each.name}" for each in reversed(state.levels[:index])
        if fits_empty(state, gang.within_level(each)).outcome is Outcome.PLACED
    )  # fmt: skip
    return (f"--topology {level.name}:preferred", *islice(wider, 1))


def _topology(state: ClusterState, asked: str) -> tuple[str, ...]:
    """Return the level that was meant, or those that some node has a label of."""
    known = [level.name for level in state.levels]
    near = nearest(asked, known)
    if near is not None and near != asked:
        return (f"did you mean --topology {near}?",)
    return (f"levels: {', '.join(known)}; {asked}:preferred starts without it",)


def shape_text(shape: Mapping[str, int]) -> str:
    """Return e.g. `8 GPUs, 96 CPUs, 1Ti memory`."""
    shown = (*sorted(filter(quantity.is_gpu, shape)), quantity.CPU, quantity.MEMORY)
    parts = [amount_words(name, shape[name]) for name in shown if shape.get(name)]
    return ", ".join(parts) or "nothing"
