"""Which tasks of a step are on which node of its job (pure).

Source: the manual of srun. Tasks are in blocks: the first node has the first ones, and nodes differ
by one task at most.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RUN = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")


class StepError(Exception):
    """The step cannot be started; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Allotted:
    """A job, or one component of it: the address of each node, and its tasks."""

    hosts: tuple[str, ...]
    tasks: tuple[int, ...]
    #: The number of its first node in the job.
    first: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a step was asked for; None: not asked."""

    tasks: int | None = None
    nodes: int | None = None
    per_node: int | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    #: The first node, counted from 0.
    relative: int = 0


def counts(text: str) -> tuple[int, ...]:
    """Return the numbers of 8(x2),4: 8, 8, 4; StepError."""
    found: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            raise StepError(f"SLURM_TASKS_PER_NODE is '{text}', which no job has")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def layout(wanted: Wanted, job: Allotted) -> list[tuple[int, int]]:
    """Return the nodes of a step and the tasks of each, in the order of nodes; StepError."""
    nodes = _candidates(wanted, job)
    if wanted.nodes is not None and wanted.nodes > len(nodes):
        raise StepError(f"the step asks for {wanted.nodes} nodes, {len(nodes)} can be used")
    tasks = wanted.tasks
    most = wanted.nodes or len(wanted.only) or len(nodes)
    if tasks is not None:
        if wanted.nodes is None and wanted.per_node is not None:
            most = min(most, -(-tasks // wanted.per_node))
        most = min(most, tasks)
    chosen = nodes[:most]
    if tasks is None:
        return [(node, wanted.per_node or job.tasks[node]) for node in chosen]
    if wanted.per_node is not None and tasks > wanted.per_node * len(chosen):
        raise StepError(f"{tasks} tasks do not fit on {len(chosen)} nodes with {wanted.per_node}")
    least, more = divmod(tasks, len(chosen))
    return [(node, least + (i < more)) for i, node in enumerate(chosen)]


def _candidates(wanted: Wanted, job: Allotted) -> list[int]:
    """Return the nodes that a step may use."""
    if not 0 <= wanted.relative < len(job.hosts):
        raise StepError(f"node {wanted.relative} is none of the {len(job.hosts)} nodes of the job")
    only = [_node_of(name, job.hosts) for name in wanted.only]
    without = {_node_of(name, job.hosts) for name in wanted.without}
    nodes = sorted(set(only)) if only else range(wanted.relative, len(job.hosts))
    found = [node for node in nodes if node not in without]
    if not found:
        raise StepError("no node is left for the step")
    return found


def _node_of(name: str, hosts: Sequence[str]) -> int:
    """Return the number of a node by its address, or by the first part of its name."""
    for node, host in enumerate(hosts):
        is_address = host.replace(".", "").isdigit()
        if name == host or (not is_address and name == host.partition(".")[0]):
            return node
    raise StepError(f"'{name}' is no node of this job: {', '.join(hosts[:8])}")
