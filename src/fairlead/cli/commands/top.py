"""`top`: running jobs by what they use of what they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import click

from fairlead import terminal
from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.use import MemberUse, decode_use
from fairlead.api.kubernetes.metrics import PodMetrics
from fairlead.api.resources import JOBS, POD_METRICS, PODS
from fairlead.api.status import ApiError, Forbidden, NotFound, Unavailable
from fairlead.api.values import quantity
from fairlead.api.values.quantity import QuantityError
from fairlead.cli.connection.common import (
    CLEAR,
    WATCH_SECONDS,
    Common,
    Format,
    check_choice,
    common,
    dump,
    now,
    seconds_of,
)
from fairlead.cli.connection.completers import words
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.cli.views.jobs import run_seconds, state_of
from fairlead.cli.views.top import KEYS, TopLine, columns, csv_text, facts, in_order, job_line, sums
from fairlead.cli.views.top import rows as top_rows
from fairlead.decide.attempts.logged_members import claimed_job, logged_member
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.use.present_use import IDLE_SECONDS, MemberNow, present_use
from fairlead.input.errors import CliError, Code, fail

_FORMATS = ("table", "json", "yaml", "csv")
#: Jobs of which is asked what was sampled, by GPUs, and how long an answer counts.
KEPT_MAX = 100
KEPT_LOOK_SECONDS = 60.0
#: What was sampled is written each 15 minutes; what is older is of a sampler that has stopped.
KEPT_SECONDS_MAX = 1_200.0
Kept: TypeAlias = Callable[[Job], Mapping[str, MemberUse]]


@click.command(
    epilog="""Examples:

    \b
      fairlead top                      your running jobs
      fairlead top -A --idle            held by anybody, and almost unused for 10 minutes
      fairlead top -A --idle 2h -o csv > idle.csv
      fairlead top -A --by team
    """
)
@click.option(
    "--idle",
    "idle",
    metavar="[DURATION]",
    is_flag=False,
    flag_value="10m",
    default="",
    help="Only jobs that used almost nothing for so long. [10m where none is given]",
)
@click.option("--by", metavar="KEY", default="", shell_complete=words(*KEYS),
              help=f"Sums by one of {', '.join(KEYS)}.")  # fmt: skip
@click.option("--user", metavar="NAME", default="", help="That user's jobs instead of yours.")
@click.option("-w", "--watch", is_flag=True, help="Show it again every 5s, until Ctrl-C.")
@click.option("-o", "--output", "form", metavar="FORMAT", default="table", show_default=True,
              shell_complete=words(*_FORMATS), help="table, json, yaml or csv.")  # fmt: skip
@common(output=False)
def top(common_: Common, *, idle: str, by: str, user: str, watch: bool, form: str) -> None:
    """Show what running jobs use of what they hold: yours, or with -A everybody's.

    GPU USE is the part of the latest 10 minutes, or of --idle, in which the GPUs computed, CPU what
    is used now of what was asked for, MEMORY what all members hold now, PEAK the sum of their
    highest, ASKED what was asked for. MEASURED counts the members that say it. IDLE says for how
    long a job has used almost nothing: its GPUs computed for at most 5% of the time, or, where they
    are not measured, at most 5% of its CPUs and a tenth of a CPU for each GPU. What is not known is
    called unknown. On a cluster whose nodes do not measure their GPUs they are sampled, and shown
    at most 20 minutes late.
    """
    check_choice(form, _FORMATS, "-o")
    if by:
        check_choice(by, KEYS, "--by")
    if watch and form != "table":
        raise fail(Code.BAD_COMBINATION, f"--watch and -o {form} do not go together",
                   help=("leave one of them out",))  # fmt: skip
    seconds = seconds_of(idle, "--idle") if idle else IDLE_SECONDS
    api = common_.connect()
    if not (user or common_.all_namespaces):
        user = submitter_name(api)
    space = "" if common_.all_namespaces else common_.space(api.connection.namespace)
    kept = KeptUse(common_)
    while True:
        jobs = api.list(JOBS, namespace=space)
        lines, why = use_lines(
            api, jobs, namespace=space, user=user, idle_seconds=seconds, kept=kept.of_members
        )
        if why:
            common_.note(f"note: what jobs use is unknown: {why}")
        if idle:
            lines = [line for line in lines if line.idle_jobs]
        shown = sums(lines, by) if by else lines
        if watch and terminal.is_terminal():
            terminal.say_as_is(CLEAR)
        _show(common_, shown, by, form)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def use_lines(
    api: Api, jobs: Sequence[Job], *, namespace: str, user: str = "", selector: str = "",
    idle_seconds: float = IDLE_SECONDS, kept: Kept | None = None,
) -> tuple[list[TopLine], str]:  # fmt: skip
    """Return the lines of those of these jobs that run, in order, and why their use is unknown, ""
    where it can be asked for. Pods are those of a namespace, or of all, and of a selector. `kept`
    reads what is known of a job beside what its nodes say.
    """
    running = [
        job for job in jobs if state_of(job) == JobState.RUNNING.value
        and (not user or job.metadata.annotations.get(names.SUBMITTED_BY) == user)
    ]  # fmt: skip
    members, why = _members(api, namespace, running, selector) if running else ({}, "")
    at = now()
    if kept is not None:
        _add_kept(running, members, kept)
    return in_order(
        job_line(job, present_use(job, members.get(job.metadata.uid, {}), run_seconds(job, at),
                                  idle_seconds))
        for job in running
    ), why  # fmt: skip


def _add_kept(
    jobs: Sequence[Job], members: dict[str, dict[str, MemberNow]], kept: Kept
) -> None:  # fmt: skip
    """Add what was sampled to members of jobs with GPUs whose nodes do not say it: of those that
    hold most, up to a number of requests.
    """
    lacking = [
        job for job in jobs if gpu_count(job)
        and any(each.so_far is None for each in members.get(job.metadata.uid, {}).values())
    ]  # fmt: skip
    for job in sorted(lacking, key=lambda each: (-gpu_count(each), each.metadata.key))[:KEPT_MAX]:
        found, uses = members[job.metadata.uid], kept(job)
        for task, each in found.items():
            if each.so_far is None and task in uses:
                found[task] = replace(each, so_far=uses[task])


class KeptUse:
    """What was sampled of running members, as the history has it; asked for now and then."""

    def __init__(self, common_: Common) -> None:
        self._common = common_
        self._known: dict[tuple[str, int], tuple[float, Mapping[str, MemberUse]]] = {}

    def of_members(self, job: Job) -> Mapping[str, MemberUse]:
        """Return the use of a job's members by task; of those of which it is known of late."""
        from fairlead.cli.records.ended_jobs import past_use

        key, at = (job.metadata.uid, job.status.attempt), now()
        asked_at, uses = self._known.get(key, (0.0, {}))
        if at - asked_at < KEPT_LOOK_SECONDS:
            return uses
        query = {"uid": key[0], "attempt": str(key[1])}
        common_ = replace(self._common, namespace=job.metadata.namespace, all_namespaces=False)
        try:
            lines = past_use(common_, "", query)
        except (ApiError, CliError):
            lines = []  # no archive, or not for this person: then it is unknown
        since = (at - KEPT_SECONDS_MAX) * 1_000
        uses = {line.task: line.use for line in lines if line.ended_at_ms >= since}
        self._known[key] = at, uses
        return uses


def _members(
    api: Api, space: str, jobs: Sequence[Job], selector: str
) -> tuple[dict[str, dict[str, MemberNow]], str]:
    """Return what the members of the jobs use, by the job's uid and by task; of what nothing is
    known, nothing, and why. That a pod is a member, its job says.
    """
    try:
        listed = api.list(POD_METRICS, namespace=space, label_selector=selector)
    except (NotFound, Unavailable, Forbidden) as error:
        why = {
            NotFound: "the cluster has no metrics-server",
            Unavailable: "its metrics-server does not answer",
            Forbidden: "you may not list pods.metrics.k8s.io",
        }  # fmt: skip
        return {}, why[type(error)]
    measured = {each.metadata.key: each for each in listed}
    if not measured:
        return {}, ""
    by_key, out = {job.metadata.key: job for job in jobs}, dict[str, dict[str, MemberNow]]()
    for pod in api.list(PODS, namespace=space, label_selector=selector or names.ATTEMPT):
        job = by_key.get(claimed_job(pod))
        member, metrics = logged_member(pod, job), measured.get(pod.metadata.key)
        if job is None or member is None or metrics is None or pod.is_terminal:
            continue
        found = _member_now(metrics)
        if found is not None and member.attempt == job.status.attempt:
            out.setdefault(job.metadata.uid, {})[member.task] = found
    return out, ""


def _member_now(metrics: PodMetrics) -> MemberNow | None:
    """Return what a pod uses; None when it does not say it in quantities."""
    try:
        cpu, memory = (
            sum(quantity.to_base(resource, each.usage[resource]) for each in metrics.containers)
            for resource in (quantity.CPU, quantity.MEMORY)
        )
    except (QuantityError, KeyError):
        return None
    if not metrics.containers or cpu < 0 or memory < 0:
        return None
    so_far = decode_use(metrics.metadata.annotations.get(names.USE))
    return MemberNow(cpu, memory, metrics.window_seconds, so_far)


def _show(common_: Common, lines: list[TopLine], by: str, form: str) -> None:
    if form == "csv":
        common_.emit(csv_text(lines, by))
    elif form != "table":
        common_.emit(dump([facts(line, by) for line in lines], Format(form)))
    else:
        spread = common_.all_namespaces
        shown = top_rows(lines, by, spread=spread)
        common_.table(columns(by, spread=spread), shown, empty="no such jobs run")
