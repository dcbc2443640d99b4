"""Which labels of nodes are meant by a type of GPU, a feature, a partition (pure).

Slurm's administrators name features and partitions; Kubernetes has labels of nodes, which
operators and clouds write. So a name is looked up in the labels that the nodes and the templates of
node pools have: a type of GPU in those about GPUs (NVIDIA-A100-SXM4-80GB of nvidia.com/gpu.product
is an a100), a feature as a value of any label or as the name of one that is true. What a partition
is, the settings say; else it is the node pool of that name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fairlead.api import names
from fairlead.api.kubernetes.core import NodeSelectorRequirement
from fairlead.api.values.quantity import gpu_resource
from fairlead.cli.job_request.flag_groups.flags import FlagValue
from fairlead.input.errors import Code, Problem
from fairlead.input.suggest import nearest

SHOWN_MAX = 12
_TRUE = ("true", "yes", "1", "")
_OF_GPUS = re.compile(r"gpu|accelerator", re.IGNORECASE)
_TOKEN = re.compile(r"[a-z0-9]+")

Labels = Mapping[str, str]


class What(Enum):
    """What a name is of; the value is the flag that takes it."""

    GPU_TYPE = "gpus"
    FEATURE = "constraint"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class NamedNodes:
    """A kind of nodes that was named: any of the names will do."""

    what: What
    names: tuple[str, ...]
    given: FlagValue


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """What names are looked up in; `labels` None: they may not be read."""

    labels: Sequence[Labels] | None
    #: Labels of the nodes of each partition that the settings name.
    partitions: Mapping[str, Labels]


@dataclass(frozen=True, slots=True)
class Found:
    """What a kind asks of the labels of nodes, or why it asks nothing."""

    requirements: tuple[NodeSelectorRequirement, ...] = ()
    #: Of several partitions the labels of each: any of them, the first ones rather.
    choices: tuple[tuple[NodeSelectorRequirement, ...], ...] = ()
    note: str = ""
    problem: Problem | None = None


class ConstraintError(ValueError):
    """The text is no constraint that has an equal here."""


def parse_constraint(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the features: one of each group. ConstraintError says what cannot be expressed.

    Groups are joined by `&` or `,`, the features of one by `|`, perhaps in parentheses.
    """
    if "[" in text:
        raise ConstraintError("[...], nodes that are all alike, is --topology LEVEL here")
    if "*" in text:
        raise ConstraintError("a number of nodes with a feature has no equal")
    if text.count("(") != text.count(")"):
        raise ConstraintError("its parentheses do not match")
    parts = re.split(r"[&,](?![^(]*\))", text)
    if any(re.search(r"\([^)]*[&,][^)]*\)|\(.*\(", part) for part in parts):
        raise ConstraintError("either of two groups has no equal; write (A|B)&C")
    groups = tuple(tuple(part.strip(" ()").split("|")) for part in parts)
    if any(not re.fullmatch(r"[\w.+=-]+", name) for group in groups for name in group):
        raise ConstraintError("is not a list of features such as a100, a100|h100 or a100&ib")
    return groups


def kinds_of(gpus: FlagValue | None, partition: FlagValue | None) -> Iterator[NamedNodes]:
    """Yield the kind of [TYPE:]N GPUs, where there is a type, and that of a list of partitions."""
    if gpus is not None and (name := gpu_resource(gpus.value.rpartition(":")[0])[1]):
        yield NamedNodes(What.GPU_TYPE, (name,), gpus)
    if partition is not None:
        listed = (part.strip() for part in partition.value.split(","))
        yield NamedNodes(What.PARTITION, tuple(filter(None, listed)), partition)


def features_of(given: FlagValue) -> Iterator[NamedNodes]:
    """Yield the kind of each group of features of a constraint; ConstraintError."""
    for group in parse_constraint(given.value):
        yield NamedNodes(What.FEATURE, group, given)


def resolve(kind: NamedNodes, known: KnownNodes) -> Found:
    """Return what the kind asks of labels. A partition that nobody knows asks nothing: a place."""
    if kind.what is What.PARTITION:
        return _partition(kind, known)
    if known.labels is None:
        message = f"'{kind.given.value}' cannot be looked up: you may not list nodes"
        return Found(problem=_problem(kind, message, "--node-selector KEY=VALUE"))
    by_key: Counter[str] = Counter()
    values: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for labels in known.labels:
        for key, value in labels.items():
            for name in kind.names:
                if _is_named(kind.what, name, key, value):
                    by_key[key] += 1
                    values.setdefault(key, set()).add(value)
                    named.setdefault(key, set()).add(name)
    whole = [key for key in by_key if len(named[key]) == len(kind.names)]
    if not whole:
        return Found(problem=_unknown(kind, known.labels, set().union(*named.values())))
    key = min(whole, key=lambda key: (-by_key[key], key))
    return Found((NodeSelectorRequirement(key, "In", tuple(sorted(values[key]))),))


def _is_named(what: What, name: str, key: str, value: str) -> bool:
    """True when a label is what a name means."""
    is_of_gpus = bool(_OF_GPUS.search(key))
    if is_of_gpus and _has_words(value, name):
        return True
    if what is What.GPU_TYPE:
        return False
    if value.lower() == name.lower():
        return True
    own = key.rpartition("/")[2]
    of_key, equals, wanted = name.lower().partition("=")
    if equals and of_key in (own.lower(), key.lower()) and value.lower() == wanted:
        return True
    name = name.replace("=", "-")  # as `slurm import` names the label of such a feature
    is_own = name.lower() in (own.lower(), own.lower().rpartition(".")[2], key.lower())
    return is_own and value.lower() in _TRUE


def _has_words(value: str, name: str) -> bool:
    """True when whole words of the value, joined, are the name: RTX-2080-Ti has rtx2080ti."""
    words, wanted = _TOKEN.findall(value.lower()), "".join(_TOKEN.findall(name.lower()))
    return any(
        "".join(words[i:j]) == wanted
        for i in range(len(words))
        for j in range(i + 1, len(words) + 1)
    )


def _unknown(kind: NamedNodes, nodes: Iterable[Labels], found: set[str]) -> Problem:
    missing = [name for name in kind.names if name not in found]
    if not missing:
        message = f"'{kind.given.value}' are of labels that differ; either of two has no equal"
        return _problem(kind, message, "--node-selector 'KEY in (A,B)'")
    if kind.what is What.GPU_TYPE:
        there = sorted(set(_types(nodes)))[:SHOWN_MAX]
        none = "no node has a label that names the type of its GPUs"
        shown = f"there are: {', '.join(there)}" if there else none
        return _problem(kind, f"no node has GPUs of the type '{missing[0]}'", shown)
    values = {v for labels in nodes for v in labels.values()}
    near = nearest(missing[0], values)
    help_ = f"did you mean {near}?" if near else "kubectl get nodes --show-labels"
    return _problem(kind, f"no node has a label with the feature '{missing[0]}'", help_)


def _types(nodes: Iterable[Labels]) -> Iterator[str]:
    """Yield the values that name types of GPUs."""
    for labels in nodes:
        for key, value in labels.items():
            is_word = re.search(r"[A-Za-z]", value) and value.lower() not in ("true", "false")
            if _OF_GPUS.search(key) and is_word:
                yield value


def _problem(kind: NamedNodes, message: str, help_: str) -> Problem:
    given = kind.given
    code = Code.SCRIPT_HEADER if given.is_in_file else Code.BAD_VALUE
    where = f"{given.origin}:1" if given.is_in_file else ""
    text = f"--{kind.what.value}: {message}" if given.is_in_file else f"{given.origin}: {message}"
    return Problem(code, text, where=where, help=(help_,))


def _partition(kind: NamedNodes, known: KnownNodes) -> Found:
    """Return the labels of each partition that is known, in their order."""
    pools = {labels[names.POOL] for labels in known.labels or () if names.POOL in labels}
    by_pool = {name: {names.POOL: name} for name in kind.names if name in pools}
    of_partitions = {**by_pool, **known.partitions}
    choices = tuple(
        tuple(
            NodeSelectorRequirement(key, "In", (value,))
            for key, value in sorted(of_partitions[name].items())
        )
        for name in dict.fromkeys(kind.names)
        if name in of_partitions
    )
    if len(choices) > 1:
        return Found(choices=choices)
    if choices:
        return Found(choices[0])
    shown = " and ".join(kind.names)
    note = (
        f"{kind.given.origin}: --partition={kind.given.value} has no effect: neither the settings "
        f"nor a node pool has the name {shown}, so any node may be used"
    )
    return Found(note=note)
