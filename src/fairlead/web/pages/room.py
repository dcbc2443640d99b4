"""What is free, and what could start on it now: by kind of GPU, on one node, and as a gang (pure).

It counts nodes that are ready and GPUs that nothing holds. What a certain job finds, with its
other requests, its team and those ahead of it, `fairlead submit --dry-run` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fairlead.api.values import quantity
from fairlead.cli.views.nodes import NodeUsability, NodeUse

#: What nodes say of their GPUs, by the labels of the vendors' own discovery.
_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "amd.com/gpu.product")
_KINDS_MAX = 6


class KindRoom(NamedTuple):
    """GPUs of one kind, on nodes in any state."""

    kind: str
    free: int
    total: int


class FreeGang(NamedTuple):
    """Ready nodes whose GPUs are all free, and those GPUs; in one domain, or "" in any."""

    domain: str
    nodes: int
    gpus: int


class Room(NamedTuple):
    """What is free: by kind, how many nodes have how many GPUs free (the most first), and the
    largest gangs of whole nodes, in one domain and over all of them.
    """

    kinds: tuple[KindRoom, ...]
    kinds_total: int
    shapes: tuple[tuple[int, int], ...]
    in_domain: FreeGang
    anywhere: FreeGang


def gpus_on(use: NodeUse) -> tuple[int, int]:
    """Return how many GPUs a node has, and how many are held; never more than it has."""
    total = used = 0
    for name, amount in use.total.items():
        if quantity.is_gpu(name):
            total += amount
            used += use.used.get(name, 0)
    return total, min(used, total)


def room_of(uses: Iterable[NodeUse], domain_of: Callable[[NodeUse], str]) -> Room:
    """Return what is free of these nodes; `domain_of` names where a gang has its members close."""
    totals, free, shapes = Counter[str](), Counter[str](), Counter[int]()
    nodes, gpus = Counter[str](), Counter[str]()
    for use in uses:
        total, used = gpus_on(use)
        kind = _kind_of(use)
        totals[kind] += total
        if use.state is not NodeUsability.READY or total == used:
            continue
        free[kind] += total - used
        shapes[total - used] += 1
        if not used:
            nodes[domain_of(use)] += 1
            gpus[domain_of(use)] += total
    kinds = [KindRoom(kind, free[kind], count) for kind, count in totals.items() if count]
    kinds.sort(key=lambda each: (-each.total, each.kind))
    best = max(sorted(nodes), key=lambda name: (gpus[name], nodes[name]), default="")
    return Room(
        tuple(kinds[:_KINDS_MAX]), len(kinds), tuple(sorted(shapes.items(), reverse=True)),
        FreeGang(best, nodes[best], gpus[best]),
        FreeGang("", nodes.total(), gpus.total()),
    )  # fmt: skip


def _kind_of(use: NodeUse) -> str:
    """Return what the GPUs of a node are called: their product, else their resource."""
    labels: Mapping[str, str] = use.labels
    product = next((labels[key] for key in _PRODUCTS if labels.get(key)), "")
    return product or next((name for name in use.total if quantity.is_gpu(name)), "")
