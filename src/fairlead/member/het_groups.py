"""The components of a heterogeneous job, as the variables of its script have them (pure).

SLURM_HET_SIZE is their number, and each has its own variables with the suffix `_HET_GROUP_n`. Their
nodes are those of the job in order, the first component's first. Any other job is one component.
Source: Slurm's page "Heterogeneous Job Support".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fairlead.member.step_layout import Allotted, StepError, counts

SIZE = "SLURM_HET_SIZE"
_SUFFIXED = re.compile(r"(\w+)_HET_GROUP_(\d{1,3})", re.ASCII)
_GROUPS = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?", re.ASCII)


def component_count(environment: Mapping[str, str]) -> int:
    """Return how many components the job has; StepError."""
    text = environment.get(SIZE, "1")
    if not re.fullmatch(r"[1-9]\d{0,2}", text, re.ASCII):
        raise StepError(f"{SIZE} is '{text}', which no job has")
    return int(text)


def environment_of(environment: Mapping[str, str], component: int) -> dict[str, str]:
    """Return the environment as a script on the component would have it.

    That of the first one is the script's own, with what the script changed.
    """
    if component == 0:
        return dict(environment)
    own: dict[str, str] = {}
    of_components: dict[str, None] = {}
    for name, value in environment.items():
        match = _SUFFIXED.fullmatch(name)
        if match is not None:
            of_components[match[1]] = None
            if int(match[2]) == component:
                own[match[1]] = value
    return {k: v for k, v in environment.items() if k not in of_components} | own


def components(environment: Mapping[str, str], hosts: Sequence[str]) -> tuple[Allotted, ...]:
    """Return the nodes and tasks of each component; `hosts` are all nodes of the job. StepError."""
    found: list[Allotted] = []
    first = 0
    for component in range(component_count(environment)):
        text = environment_of(environment, component).get("SLURM_TASKS_PER_NODE")
        if text is None and component_count(environment) == 1:
            text = f"1(x{len(hosts)})"  # as in Slurm, where a program has taken the variable away
        if text is None:
            raise StepError("run this in a batch script of Fairlead (fairlead submit)")
        tasks = counts(text)
        found.append(Allotted(tuple(hosts[first : first + len(tasks)]), tasks, first))
        first += len(tasks)
    if first != len(hosts):
        raise StepError(f"the job has {len(hosts)} nodes, SLURM_TASKS_PER_NODE {first}")
    return tuple(found)


def cpus_of_nodes(environment: Mapping[str, str], size: int) -> list[int]:
    """Return the CPUs of each of the job's nodes; StepError."""
    found: list[int] = []
    for component in range(component_count(environment)):
        own = environment_of(environment, component)
        tasks = own.get("SLURM_TASKS_PER_NODE", "")
        nodes = len(counts(tasks)) if SIZE in environment else size
        found += [int(own.get("SLURM_CPUS_ON_NODE", "1"))] * nodes
    return found


def groups(text: str) -> tuple[int, ...]:
    """Return the components of a list such as 0,2-3, sorted; StepError."""
    found: set[int] = set()
    for part in text.split(","):
        match = _GROUPS.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise StepError(f"--het-group: '{text}' is not a list of components such as 0,2-3")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))
