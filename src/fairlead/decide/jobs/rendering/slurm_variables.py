"""The variables that Slurm sets in a batch script, for jobs whose template says how many tasks.

The template has the annotation `fairlead.dev/slurm-tasks`: PER_NODE, or PER_NODE/TOTAL where the
total is not the same on all nodes. What was asked for (SLURM_CPUS_PER_TASK ...) is in the
template's own `env`. Those of a task (SLURM_PROCID ...) are set by srun alone: programs take them
for the sign that srun has started them. Lightning takes SLURM_NTASKS for it, too: it is there only
where tasks were asked for, as in Slurm. Source: the manual of sbatch, "OUTPUT ENVIRONMENT
VARIABLES".

Each role of a heterogeneous job is a component: the variables without a suffix are those of the
first one, on which the script runs, and each component has its own with the suffix `_HET_GROUP_n`.
Source: Slurm's page "Heterogeneous Job Support", "Environment Variables".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role

#: What each is; those of NODELIST have the addresses by which members reach each other.
SLURM_VARIABLES: dict[str, str] = {
    "SLURM_NNODES": "number of members of this attempt",
    "SLURM_JOB_NUM_NODES": "the same",
    "SLURM_JOB_CPUS_PER_NODE": "CPUs of each member in rank order, such as `8(x2)`",
    "SLURM_NTASKS": "number of tasks of all members, where tasks were asked for",
    "SLURM_NPROCS": "the same",
    "SLURM_TASKS_PER_NODE": "tasks of each member in rank order, such as `8(x2),4`",
    "SLURM_RESTART_COUNT": "attempts before this one",
    "SLURM_JOB_NODELIST": "addresses of the members in rank order, such as `n[01-03]`",
    "SLURM_NODELIST": "the same",
    "SLURMD_NODENAME": "address of the first member, which runs the script; a task has its own",
}
FIRST = "SLURMD_NODENAME"
NODELIST = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
NTASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
#: What a launcher sets for each process that it starts. The script is none of them: torchvision,
#: accelerate and Lightning would take it for one, and start or wait for the wrong ones.
OF_LAUNCHERS = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
)
#: Of a heterogeneous job alone: how many components it has.
HET_SIZE = "SLURM_HET_SIZE"
_TASKS = re.compile(r"([1-9]\d{0,8})(?:/([1-9]\d{0,8}))?")


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Tasks of a role: the most of a node, and of all nodes; None: the same on each node."""

    per_node: int
    total: int | None = None

    def are_asked(self, asked: Collection[str]) -> bool:
        """True where the script says how many tasks there are; `asked` are variables of its own."""
        is_said = self.total is not None or self.per_node > 1
        return is_said or "SLURM_NTASKS_PER_NODE" in asked

    def of_nodes(self, nodes: int) -> list[int]:
        """Return the tasks of each node: the same, or one more on the first ones."""
        if self.total is None:
            return [self.per_node] * nodes
        least, more = divmod(self.total, nodes)
        return [least + (node < more) for node in range(nodes)]


def tasks_of(job: Job) -> tuple[TaskCounts, ...]:
    """Return the tasks of each role of a batch script's job; () for any other, or where none can be
    read. A role beside one that says its tasks has one on each node.
    """
    found = [_counts(role) for role in job.spec.roles]
    return tuple(each or TaskCounts(1) for each in found) if any(found) else ()


def _counts(role: Role) -> TaskCounts | None:
    match = _TASKS.fullmatch(role.template.metadata.annotations.get(names.SLURM_TASKS, ""))
    return TaskCounts(int(match[1]), int(match[2]) if match[2] else None) if match else None


def het_name(variable: str, component: int) -> str:
    """Return what a variable of one component of a heterogeneous job is called."""
    return f"{variable}_HET_GROUP_{component}"


def slurm_variables(job: Job) -> dict[str, str]:
    """Return what all members of a batch script see alike, without addresses; {} for other jobs."""
    tasks, sizes = tasks_of(job), job.sizes
    if not tasks:
        return {}
    components = [_of_nodes(role, each, sizes[role.name]) for role, each in _paired(job, tasks)]
    found = {**components[0], "SLURM_RESTART_COUNT": str(max(0, job.status.attempt - 1))}
    if len(components) == 1:
        return found
    found[HET_SIZE] = str(len(components))
    number = {name: str(job.status.number) for name in names.ENV_NUMBER if job.status.number}
    for place, own in enumerate(components):
        found |= {het_name(name, place): value for name, value in (own | number).items()}
    return found


def launchers_unset(job: Job) -> frozenset[str]:
    """Return what a batch script that runs as it is, in a member that is alone, does not see.

    `fairlead.member` reads the same names: it takes them from a script that it starts.
    """
    is_plain = len(job.spec.roles) == job.member_count == 1 and bool(tasks_of(job))
    annotations = job.spec.roles[0].template.metadata.annotations
    return OF_LAUNCHERS if is_plain and names.MPI not in annotations else frozenset()


def node_list_names(job: Job) -> tuple[str, ...]:
    """Return the variables of a job that have addresses of its members."""
    count = len(tasks_of(job))
    suffixed = (het_name(name, i) for i in range(count if count > 1 else 0) for name in NODELIST)
    return (*NODELIST, FIRST, *suffixed) if count else ()


def node_lists(job: Job, addresses: Sequence[str]) -> dict[str, str]:
    """Return the variables with addresses of members, of which these are all in rank order."""
    tasks, sizes = tasks_of(job), job.sizes
    rest, found = iter(addresses), {FIRST: addresses[0]} if tasks else dict[str, str]()
    for component, (role, _) in enumerate(_paired(job, tasks)):
        text = compressed(islice(rest, sizes[role.name]))
        found |= dict.fromkeys(NODELIST, text) if component == 0 else {}
        if len(tasks) > 1:
            found |= {het_name(name, component): text for name in NODELIST}
    return found


def _paired(job: Job, tasks: Sequence[TaskCounts]) -> Iterator[tuple[Role, TaskCounts]]:
    return zip(job.spec.roles if tasks else (), tasks, strict=True)


def _of_nodes(role: Role, tasks: TaskCounts, size: int) -> dict[str, str]:
    """Return the variables of the nodes of one component."""
    asked = {each.name: each.value for each in role.template.spec.containers[0].env}
    counts, nodes = tasks.of_nodes(size), str(size)
    found = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_TASKS_PER_NODE": repeated(counts),
        "SLURM_JOB_CPUS_PER_NODE": repeated([asked.get("SLURM_CPUS_ON_NODE", "1")] * size),
    }
    if tasks.are_asked(asked):
        found |= dict.fromkeys(NTASKS, str(sum(counts)))
    return found


def repeated(counts: Sequence[int | str]) -> str:
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
