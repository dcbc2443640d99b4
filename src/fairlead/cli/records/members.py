"""The members of a job that run now, by what a person calls them: JOB, JOB/3, JOB/worker-3."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.cli.cluster.lookup import find_job
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.transport import Api
from fairlead.cli.views.jobs import state_of
from fairlead.input.errors import Code, fail
from fairlead.input.suggest import nearest

_KINDS = ("job", "jobs", "job.fairlead.dev", "jobs.fairlead.dev")
_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class MemberReference:
    """A job, and perhaps one of its members."""

    job: str
    member: str | None


def parse_reference(text: str) -> MemberReference:
    """Return what `train`, `job/train`, `train/3`, `sweep[7]/worker-0` name."""
    kind, slash, rest = text.partition("/")
    if slash and kind in _KINDS:
        text = rest
    job, slash, member = text.partition("/")
    return MemberReference(job, member if slash else None)


def running_members(api: Api, namespace: str, reference: MemberReference) -> tuple[Job, list[Pod]]:
    """Return the job and those of the named members that run, in order of rank; CliError."""
    job = find_job(api, namespace, name_of(api, namespace, reference.job))
    name = job.metadata.name
    selector = f"{names.JOB_NAME}={name},{names.ATTEMPT}={job.status.attempt}"
    found = api.list(PODS, namespace=namespace, label_selector=selector)
    pods = sorted(found, key=lambda pod: task_order(task_of(pod)))
    asked = [pod for pod in pods if is_asked(task_of(pod), reference.member)]
    if reference.member is not None and pods and not asked:
        tasks = [task_of(pod) for pod in pods]
        near = nearest(reference.member, tasks)
        there = f"there are: {', '.join(tasks[:_SHOWN_MAX])}"
        raise fail(
            Code.NO_SUCH_MEMBER, f"job {name} has no member {reference.member}",
            help=(f"did you mean {name}/{near}?" if near else there,),
        )  # fmt: skip
    if reference.member is not None and len(asked) > 1:
        raise fail(
            Code.BAD_VALUE, f"member {reference.member} of job {name} is ambiguous",
            help=(f"one of {', '.join(task_of(pod) for pod in asked)}",),
        )  # fmt: skip
    running = [pod for pod in asked if pod.status.phase == "Running"]
    if not running:
        what = "it" if reference.member is None else f"member {reference.member}"
        raise fail(
            Code.NOT_STARTED, f"job {name} is {state_of(job)}: {what} has no running process",
            help=(f"fairlead why {name}",),
        )  # fmt: skip
    return job, running


def task_of(pod: Pod) -> str:
    """Return what a member is called: `worker-3`."""
    labels = pod.metadata.labels
    return f"{labels.get(names.ROLE, '')}-{labels.get(names.INDEX, '')}"


def task_order(task: str) -> tuple[str, int]:
    """Return what sorts tasks by role and rank."""
    role, _, index = task.rpartition("-")
    return (role, int(index) if index.isdigit() else 0)


def is_asked(task: str, asked: str | None) -> bool:
    """Return True when `worker-3`, `3` or nothing was asked for, of task `worker-3`."""
    return asked is None or asked in (task, task.rpartition("-")[2])
