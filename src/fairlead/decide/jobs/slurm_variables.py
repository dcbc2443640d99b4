"""The variables that Slurm sets in a batch script, for jobs whose template says how many tasks.

The template has the annotation `fairlead.dev/slurm-tasks`: PER_NODE, or PER_NODE/TOTAL where the
total is not the same on all nodes. What was asked for (SLURM_CPUS_PER_TASK ...) is in the
template's own `env`. Those of a task (SLURM_PROCID ...) are set by srun alone: programs take them
for the sign that srun has started them. Source: the manual of sbatch, "OUTPUT ENVIRONMENT
VARIABLES".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from fairlead.api import names
from fairlead.api.jobs.job import Job

#: What each is; those of NODELIST have the addresses by which members reach each other.
SLURM_VARIABLES: dict[str, str] = {
    "SLURM_NNODES": "number of members of this attempt",
    "SLURM_JOB_NUM_NODES": "the same",
    "SLURM_NTASKS": "number of tasks of all members",
    "SLURM_NPROCS": "the same",
    "SLURM_TASKS_PER_NODE": "tasks of each member in rank order, such as `8(x2),4`",
    "SLURM_RESTART_COUNT": "attempts before this one",
    "SLURM_JOB_NODELIST": "addresses of the members in rank order, such as `n[01-03]`",
    "SLURM_NODELIST": "the same",
}
NODELIST = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASKS = re.compile(r"([1-9]\d{0,8})(?:/([1-9]\d{0,8}))?")


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Tasks of a job: the most of a node, and of all nodes; None: the same on each node."""

    per_node: int
    total: int | None = None

    def of_nodes(self, nodes: int) -> list[int]:
        """Return the tasks of each node: the same, or one more on the first ones."""
        if self.total is None:
            return [self.per_node] * nodes
        least, more = divmod(self.total, nodes)
        return [least + (node < more) for node in range(nodes)]


def tasks_of(job: Job) -> TaskCounts | None:
    """Return the tasks of a batch script's job; None for any other, or where none can be read."""
    for role in job.spec.roles:
        match = _TASKS.fullmatch(role.template.metadata.annotations.get(names.SLURM_TASKS, ""))
        if match is not None:
            return TaskCounts(int(match[1]), int(match[2]) if match[2] else None)
    return None


def slurm_variables(job: Job) -> dict[str, str]:
    """Return what all members of a batch script see alike, without NODELIST; {} for other jobs."""
    tasks = tasks_of(job)
    if tasks is None:
        return {}
    nodes = tasks.of_nodes(job.member_count)
    size, total = str(len(nodes)), str(sum(nodes))
    return {
        "SLURM_NNODES": size,
        "SLURM_JOB_NUM_NODES": size,
        "SLURM_NTASKS": total,
        "SLURM_NPROCS": total,
        "SLURM_TASKS_PER_NODE": repeated(nodes),
        "SLURM_RESTART_COUNT": str(max(0, job.status.attempt - 1)),
    }


def repeated(counts: Sequence[int]) -> str:
    """Return counts as Slurm writes them: 8(x2),4."""
    found: list[str] = []
    for count, group in groupby(counts):
        times = len(list(group))
        found.append(f"{count}(x{times})" if times > 1 else str(count))
    return ",".join(found)


def compressed(hosts: Iterable[str]) -> str:
    """Return hosts as Slurm writes them, in their order: n[01-03,07],login.

    The last number of a name that differs is the one in brackets.
    """
    parts: list[tuple[tuple[str, int, str], list[int]]] = []
    for host in hosts:
        match = _split(host)
        if match is None:
            parts.append(((host, 0, ""), []))
            continue
        prefix, digits, suffix = match
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        shape, number = (prefix, width, suffix), int(digits)
        fits = parts and parts[-1][1] and _joins(parts[-1][0], shape, number)
        if fits:
            parts[-1][1].append(number)
        else:
            parts.append((shape, [number]))
    return ",".join(_written(*part) for part in parts)


def _joins(before: tuple[str, int, str], shape: tuple[str, int, str], number: int) -> bool:
    """True when a number is written alike in both shapes: 09 and 10 are of one width."""
    if (before[0], before[2]) != (shape[0], shape[2]):
        return False
    return before[1] == shape[1] or (shape[1] == 0 and len(str(number)) == before[1])


def _split(host: str) -> tuple[str, str, str] | None:
    """Return what is in front of the number, the number, and the rest.

    It is the last one of an address, and the last one in front of the first dot of a name.
    """
    if re.fullmatch(r"[\d.]+", host):
        prefix, dot, digits = host.rpartition(".")
        return prefix + dot, digits, ""
    name, dot, domain = host.partition(".")
    match = re.fullmatch(r"(.*?)(\d{1,9})(\D*)", name)
    return (match[1], match[2], match[3] + dot + domain) if match else None


def _written(shape: tuple[str, int, str], numbers: list[int]) -> str:
    prefix, width, suffix = shape
    if not numbers:
        return prefix
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    if len(numbers) == 1:
        return f"{prefix}{texts[0]}{suffix}"
    return f"{prefix}[{','.join(texts)}]{suffix}"
