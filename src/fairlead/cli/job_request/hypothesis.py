"""`why --if`: a waiting job as it would be with other flags (pure); the planner then judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import PriorityClass, ResourceRequirements
from fairlead.api.pods.pod_asks import is_pod_level
from fairlead.api.values import quantity
from fairlead.cli.job_request.flag_groups.flags import NAMED, Flag, FlagValue
from fairlead.cli.job_request.request import JobRequest, parse_request
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.input.suggest import nearest
from fairlead.model.gang.phase import Phase, phase_of

#: What can be changed; the first four are of a role, the others of the job.
CHANGEABLE = (Flag.NODES, Flag.GPUS, Flag.CPUS, Flag.MEMORY, Flag.TIME, Flag.PRIORITY)
_OF_A_ROLE = frozenset(CHANGEABLE[:4])
_RESOURCES = {Flag.GPUS: quantity.GPU, Flag.CPUS: quantity.CPU, Flag.MEMORY: quantity.MEMORY}
_ORIGIN = "--if"

Changes = Mapping[Flag, str]


def read_changes(words: Sequence[str]) -> Changes:
    """Return the value of each flag of `FLAG=VALUE` words; CliError with all that is wrong."""
    known = {name: flag for name, flag in NAMED.items() if flag in CHANGEABLE}
    changes: dict[Flag, str] = {}
    problems: list[Problem] = []
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if name in known and equals:
            changes[known[name]] = value
            continue
        near = nearest(name, known)
        problems.append(Problem(
            Code.BAD_VALUE, f"{_ORIGIN}: '{word}' is not FLAG=VALUE with one of {', '.join(known)}",
            help=(f"{_ORIGIN} {near}={value or 'VALUE'}",) if near else (),
        ))  # fmt: skip
    if problems:
        raise CliError(problems)
    return changes


def changed_job(job: Job, changes: Changes, classes: Sequence[PriorityClass]) -> Job:
    """Return the job as it would have been submitted, without what was decided on it as it is.

    `classes` are read for a changed priority only. CliError for a value that `submit` refuses, for
    a job that does not wait, and where it is not clear which role is meant.
    """
    if phase_of(job) is not Phase.QUEUED:
        raise fail(
            Code.BAD_VALUE, f"{_ORIGIN}: job {job.metadata.name} does not wait for a place",
            help=(f"fairlead why {job.metadata.name}",),
        )  # fmt: skip
    givens = {flag: (FlagValue(value, _ORIGIN),) for flag, value in changes.items()}
    request, problems = parse_request(givens, {}, now=0.0)  # none is a time
    if problems:
        raise CliError(problems)
    spec = job.spec
    if not _OF_A_ROLE.isdisjoint(changes):
        if len(spec.roles) != 1:
            roles = ", ".join(role.name for role in spec.roles)
            raise fail(Code.BAD_VALUE, f"{_ORIGIN}: only a job of one role; this has {roles}")
        spec = replace(spec, roles=(_changed_role(spec.roles[0], request, changes),))
    if Flag.TIME in changes:
        spec = replace(spec, time_limit_seconds=request.time_seconds)
    if Flag.PRIORITY in changes:
        found = _class(changes[Flag.PRIORITY], classes)
        spec = replace(spec, priority_class_name=found.metadata.name, priority=found.value)
    return replace(job, spec=spec, status=replace(job.status, verdict=None, nomination=None))


def _class(name: str, classes: Sequence[PriorityClass]) -> PriorityClass:
    by_name = {each.metadata.name: each for each in classes}
    if name not in by_name:
        raise fail(
            Code.BAD_VALUE, f"{_ORIGIN}: there is no PriorityClass '{name}'",
            detail=(f"there are {', '.join(sorted(by_name)) or 'none'}",),
        )  # fmt: skip
    return by_name[name]


def _changed_role(role: Role, request: JobRequest, changes: Changes) -> Role:
    amounts = {
        Flag.GPUS: request.gpus, Flag.CPUS: request.cpu_millis, Flag.MEMORY: request.memory_bytes,
    }  # fmt: skip
    asked = {_RESOURCES[f]: n for f, n in amounts.items() if f in changes and n is not None}
    pod = role.template.spec
    first, *others = pod.containers
    first = replace(first, resources=_asking(first.resources, asked))
    pod = replace(pod, containers=(first, *others))
    whole = {name: amount for name, amount in asked.items() if is_pod_level(name)}
    if pod.resources is not None and whole:  # which counts, whatever its containers ask for
        pod = replace(pod, resources=_asking(pod.resources, whole))
    if Flag.NODES in changes:
        role = replace(role, count=request.members, min_count=request.members_min)
    return replace(role, template=replace(role.template, spec=pod))


def _asking(had: ResourceRequirements, asked: Mapping[str, int]) -> ResourceRequirements:
    """Return other amounts, given in base units; 0 asks for none."""
    written = {name: quantity.format_base(name, amount) for name, amount in asked.items() if amount}
    kept = {name: amount for name, amount in had.requests.items() if name not in asked}
    limits = {name: amount for name, amount in had.limits.items() if name not in asked}
    bounded = {name: amount for name, amount in written.items() if name != quantity.CPU}
    return replace(had, requests={**kept, **written}, limits={**limits, **bounded})
