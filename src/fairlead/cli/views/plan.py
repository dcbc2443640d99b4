"""What `submit` says before and after it queues a job (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.resources import JOB_ARRAYS, JOBS, Resource
from fairlead.api.values import quantity
from fairlead.api.values.indices import parse_indices
from fairlead.cli.views.defaults import defaults_words
from fairlead.decide.use import overasked
from fairlead.decide.use.overasked import OverAsk
from fairlead.decide.words import duration, plural

LABEL_WIDTH = 9


def line(label: str, text: str) -> str:
    """Return one labelled line."""
    return f"{label:<{LABEL_WIDTH}}{text}"


def plan_lines(job: Job) -> list[str]:
    """Return what is asked for, a line per role, and what it waits for."""
    lines = [
        line("Plan" if i == 0 else "", role_text(role)) for i, role in enumerate(job.spec.roles)
    ]
    limits: list[str] = []
    if job.member_count > 1:
        limits.append(_together(job))
    if job.spec.time_limit_seconds:
        limits.append(f"at most {duration(job.spec.time_limit_seconds)}")
    if job.spec.priority:
        limits.append(f"priority {job.spec.priority}")
    if job.spec.priority_class_name:
        limits.append(f"priority class {job.spec.priority_class_name}")
    if limits:
        lines.append(line("", ", ".join(limits)))
    if defaults := defaults_words(job):
        lines.append(line("Defaults", defaults))
    if job.spec.after:
        words = [f"{after.target} has {after.state.value.lower()}" for after in job.spec.after]
        lines.append(line("After", ", ".join(words)))
    return lines


def past_lines(found: Sequence[OverAsk]) -> list[str]:
    """Return what past jobs of the name needed less of, a line each."""
    lines: list[str] = []
    for each in found:
        jobs = ", ".join(each.jobs)
        match each.resource:
            case overasked.GPU_TIME:
                text = f"{jobs}: the GPUs computed for at most {each.needed}% of the time"
            case overasked.TIME:
                text = (
                    f"{jobs}: took at most {duration(each.needed)}, this may take "
                    f"{duration(each.asked)}; a shorter --time starts in smaller gaps"
                )
            case resource:
                need, asked = (quantity.format_base(resource, n) for n in (each.needed, each.asked))
                flag = {quantity.CPU: "--cpus", quantity.MEMORY: "--memory"}[resource]
                text = f"{jobs}: {flag} {need} would do for a member, this asks for {asked}"
        lines.append(line("" if lines else "Past", text))
    return lines


def _together(job: Job) -> str:
    if not job.is_elastic:
        return "all start together"
    return f"as many start together as have room, {job.least_count} at least"


def role_text(role: Role) -> str:
    """Return e.g. `4 members x 8 GPUs, 64 CPUs, 900Gi`."""
    amounts = member_amounts(role.template.spec)
    parts: list[str] = []
    if amounts.get(quantity.GPU):
        parts.append(plural(amounts[quantity.GPU], "GPU"))
    if amounts.get(quantity.CPU):
        cpus = quantity.humanize(quantity.CPU, amounts[quantity.CPU])
        parts.append("1 CPU" if cpus == "1" else f"{cpus} CPUs")
    if amounts.get(quantity.MEMORY):
        parts.append(quantity.humanize(quantity.MEMORY, amounts[quantity.MEMORY]))
    known = (quantity.GPU, quantity.CPU, quantity.MEMORY)
    parts += [f"{n} {name}" for name, n in sorted(amounts.items()) if name not in known and n]
    least = f"{role.least} to " if role.least < role.count else ""
    members = least + plural(role.count, "member")
    return f"{members} x {', '.join(parts)}" if parts else members


def array_line(array: JobArray) -> str:
    """Return how many elements there are, and how many run at a time."""
    text = plural(len(parse_indices(array.spec.indices)), "element")
    if array.spec.parallelism is not None:
        text += f", at most {array.spec.parallelism} at a time"
    return line("Array", text)


def submitted_line(
    name: str, *, is_held: bool, where: str = "", resource: Resource[Any] = JOBS
) -> str:
    """Return the line that names the next commands; `where` are flags that they need."""
    at = f"{name}{where}"
    if resource == JOB_ARRAYS:
        what = f"Submitted array {name}{', held' if is_held else ''}."
        return f"{what}    fairlead ps {at}    fairlead wait {at}"
    if is_held:
        return f"Submitted job {name}, held.    fairlead release {at}"
    return f"Submitted job {name}.    fairlead logs -f {at}    fairlead why {at}"
