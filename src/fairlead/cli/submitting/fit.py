"""Whether the cluster could ever hold a job, and what a decision would do with it now, in words.

The process that decides says it (`cluster/answers.py`); where none answers, the same code does on
a state that is built from the API's objects (`cluster/own_answers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import inf

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.image_names import images_of
from fairlead.api.status import Forbidden
from fairlead.api.values import quantity
from fairlead.app.queries.messages import Fitted
from fairlead.cli.cluster.answers import ask_fit
from fairlead.cli.connection.transport import Api
from fairlead.cli.views.outlook import outlook_text
from fairlead.cli.views.plan import line
from fairlead.cli.views.words import amount_text, amount_words, message_of
from fairlead.decide.answers.explanation import Forecast, PreemptionAhead
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.input.errors import CliError, Code, Problem
from fairlead.input.suggest import nearest

_OF_TEAMS = (
    "nodes are kept for teams, and the job belongs to none: kubectl get teams shows them; "
    "submit it in the namespace of your team"
)


class StartKind(IntEnum):
    """How well a start is known, the best first."""

    NOW = 0
    #: By an instant: jobs end by their limits, or leave by preemption.
    BY_INSTANT = 1
    #: Once nodes are bought.
    WITH_NODES = 2
    UNKNOWN = 3
    NOT_CHECKED = 4


@dataclass(frozen=True, slots=True, order=True)
class JobStart:
    """When a job starts; the less, the sooner. `at` is an instant, infinite where none is known."""

    kind: StartKind
    at: float = inf


@dataclass(frozen=True, slots=True)
class JobFit:
    """What a decision would do with a job now, in words, and when that starts it. `pulls` are
    lines about images that nodes of its place lack.
    """

    words: str
    start: JobStart
    pulls: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The lines of a plan that say it."""
        pulls = (line("" if i else "Images", each) for i, each in enumerate(self.pulls))
        return "\n".join((line("Place", self.words), *pulls))


#: Of a manifest without jobs.
NOTHING_TO_START = JobFit("", JobStart(StartKind.NOW, -inf))


def check_fit(api: Api, job: Job, now: float, *, shows_pulls: bool = False) -> JobFit:
    """Return what a decision would do with the job now: where it starts, which jobs leave for it,
    or why it waits and until when; with `shows_pulls` what nodes of its place have to pull, too.

    CliError with the largest shape there is when no node could ever hold a member, or all nodes
    together not the gang, nor node pools with them. A cluster without any node refuses nothing: it
    may get some. Nothing is checked where no process answers and the user may not see the cluster.
    """
    fitted = ask_fit(api, job)
    if fitted is None:
        from fairlead.cli.cluster.own_answers import own_answers  # loads the planner

        try:
            fitted = own_answers(api, now).fit(job)
        except Forbidden:
            words = "not checked: you may not list what the cluster has"
            return JobFit(words, JobStart(StartKind.NOT_CHECKED))
    words, start = _words(fitted, job, now), _start_of(fitted)
    pulls = any(images_of(role.template.spec) for role in job.spec.roles)
    if not (shows_pulls and pulls) or fitted.place is None:
        return JobFit(words, start)
    from fairlead.cli.cluster.image_outlook import image_outlook  # loads what plans pulls

    return JobFit(words, start, tuple(image_outlook(api, job, fitted.place).lines))


def _start_of(fitted: Fitted) -> JobStart:
    """Return when the job of an answer starts. A preemption whose end is not known counts from its
    beginning: victims that save a checkpoint take minutes at most.
    """
    if fitted.verdict.reason is Reason.PLACED:
        return JobStart(StartKind.NOW)
    match fitted.forecast:
        case Forecast(may_start_by=at):
            return JobStart(StartKind.BY_INSTANT, at)
        case PreemptionAhead(begins_at=begins_at, ends_by=ends_by):
            return JobStart(StartKind.BY_INSTANT, begins_at if ends_by is None else ends_by)
        case _:
            buys = fitted.verdict.outcome is Outcome.IMPOSSIBLE and fitted.holding
            return JobStart(StartKind.WITH_NODES if buys else StartKind.UNKNOWN)


def _words(fitted: Fitted, job: Job, now: float) -> str:
    """Return the answer in words; CliError for what can never start."""
    verdict, shape = fitted.verdict, fitted.shape
    if not shape:
        return "waits: the cluster has no node yet"
    if verdict.outcome is Outcome.IMPOSSIBLE and fitted.holding:
        from fairlead.cli.views.fleet import growth

        return f"waits for nodes: {growth(fitted.pools, fitted.holding)}"
    if verdict.outcome is Outcome.IMPOSSIBLE:
        raise CliError(impossible(verdict, shape, _instead(fitted, job)))
    return outlook_text(job, fitted, now) + _unreachable_words(fitted.unreachable)


def _unreachable_words(found: Verdict | None) -> str:
    """Return that a gang prefers a level that can never hold it; "" for any other."""
    if found is None or found.reason not in (Reason.NO_DOMAIN_FITS, Reason.NO_SUCH_TOPOLOGY):
        return ""
    level, members = found.facts["topology_key"], found.facts["members"]
    if found.reason is Reason.NO_SUCH_TOPOLOGY:
        return f"; no node is in a {level}, so it waits for none"
    most = f"(the largest holds {found.facts['members_fit']})"
    return f"; no {level} could ever hold its {members} members {most}, so it waits for none"


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


def _instead(fitted: Fitted, job: Job) -> tuple[str, ...]:
    """Return what could be asked instead; flags are named only when that would fit."""
    facts, instead = fitted.verdict.facts, fitted.alternatives
    match fitted.verdict.reason:
        case Reason.NO_MATCHING_NODE:
            taints = dict.fromkeys(_taint_words(role, key) for role, key in instead.taints)
            return (*taints, "fairlead nodes -o wide shows what there is")
        case Reason.NO_SUCH_TOPOLOGY if instead.levels:
            return _topology(instead.levels, str(facts["topology_key"]))
        case Reason.NO_DOMAIN_FITS:
            wider = (instead.wider_level,) if instead.wider_level else ()
            return tuple(f"--topology {n}" for n in (f"{facts['topology_key']}:preferred", *wider))
        case Reason.EXCEEDS_CLUSTER if facts.get("members_fit") and len(job.spec.roles) == 1:
            most = f"-{job.member_count}" if job.is_elastic else ""
            return (f"--nodes {facts['members_fit']}{most}",)
        case Reason.NO_NODE_SHAPE_FITS if facts["resource"] == quantity.GPU:
            return _fewer_gpus(job, int(facts["largest"]), instead.spread_members)
        case _:
            return ()


def _fewer_gpus(job: Job, largest: int, members: int) -> tuple[str, ...]:
    if len(job.spec.roles) != 1:
        return ()
    if not largest:
        return ("fairlead nodes shows which nodes have GPUs; --on virtual takes virtual ones",)
    return (f"--nodes {members} --gpus {largest}",) if members else (f"--gpus {largest}",)


def _taint_words(role: str, key: str) -> str:
    """Return the toleration that would let a member onto nodes that its selector allows.

    Those of teams are for their jobs, which get the toleration; no user is to write it.
    """
    if key == names.TEAM:
        return _OF_TEAMS
    return (
        f"nodes are tainted with {key}; to use them write in role {role}: "
        f"tolerations: [{{key: {key}, operator: Exists}}]"
    )


def _topology(known: tuple[str, ...], asked: str) -> tuple[str, ...]:
    """Return the level that was meant, or those that some node has a label of."""
    near = nearest(asked, known)
    if near is not None and near != asked:
        return (f"did you mean --topology {near}?",)
    return (f"levels: {', '.join(known)}; {asked}:preferred starts without it",)


def shape_text(shape: Mapping[str, int]) -> str:
    """Return e.g. `8 GPUs, 96 CPUs, 1Ti memory`."""
    shown = (*sorted(filter(quantity.is_gpu, shape)), quantity.CPU, quantity.MEMORY)
    parts = [amount_words(name, shape[name]) for name in shown if shape.get(name)]
    return ", ".join(parts) or "nothing"
