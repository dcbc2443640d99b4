"""`top`: running jobs by what they use of what they hold."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from fairlead import terminal
from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.use import decode_use
from fairlead.api.kubernetes.metrics import PodMetrics
from fairlead.api.resources import JOBS, POD_METRICS, PODS
from fairlead.api.status import Forbidden, NotFound, Unavailable
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
from fairlead.decide.present_use import IDLE_SECONDS, MemberNow, present_use
from fairlead.input.errors import Code, fail

_FORMATS = ("table", "json", "yaml", "csv")


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

    CPU is what is used now of what was asked for, MEMORY what all members hold now, PEAK the sum of
    their highest, ASKED what was asked for. MEASURED counts the members that say it. IDLE says for
    how long a job has used almost nothing: at most 5% of its CPUs, and at most a tenth of a CPU for
    each GPU. Use of GPUs is not measured. What is not known is called unknown.
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
    while True:
        jobs = api.list(JOBS, namespace=space)
        lines, why = use_lines(api, jobs, namespace=space, user=user, idle_seconds=seconds)
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
    idle_seconds: float = IDLE_SECONDS,
) -> tuple[list[TopLine], str]:  # fmt: skip
    """Return the lines of those of these jobs that run, in order, and why their use is unknown, ""
    where it can be asked for. Pods are those of a namespace, or of all, and of a selector.
    """
    running = [
        job for job in jobs if state_of(job) == JobState.RUNNING.value
        and (not user or job.metadata.annotations.get(names.SUBMITTED_BY) == user)
    ]  # fmt: skip
    members, why = _members(api, namespace, running, selector) if running else ({}, "")
    at = now()
    return in_order(
        job_line(job, present_use(job, members.get(job.metadata.uid, {}), run_seconds(job, at),
                                  idle_seconds))
        for job in running
    ), why  # fmt: skip


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
