"""Bare versions of what the benchmarks measure: the part of the work that no design avoids.

A cost divided by its bare version, timed beside it in the same run, carries from one machine to
another; a time does not, not even one that is divided by a calibration loop, since machines differ
in more than the speed of their interpreter (memory, caches, the kernel).
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np

from fairlead.api.jobs.job import Job

_KEY_MAX = np.iinfo(np.int64).max


class BareStore:
    """Objects by name, each as the JSON that a reader gets; no schema, no watch, no history."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self._version = 0

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Copy the body, set the server's metadata, encode and keep it. Return the copy."""
        made = copy.deepcopy(body)
        self._version += 1
        made["metadata"]["uid"] = f"{self._version:032x}"
        made["metadata"]["creationTimestamp"] = "2026-11-21T00:00:00Z"
        self._keep(made)
        return made

    def patch(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Decode the object, merge the patch into it, encode and keep it. Return it."""
        made = msgspec.json.decode(self.stored[name])
        self._version += 1
        _merge(made, patch)
        self._keep(made)
        return made

    def _keep(self, made: dict[str, Any]) -> None:
        metadata = made["metadata"]
        metadata["resourceVersion"] = str(self._version)
        self.stored[metadata["name"]] = msgspec.json.encode(made)


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Merge as RFC 7386 says."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def place_gang(free: np.ndarray, request: np.ndarray, key: np.ndarray, *, members: int) -> None:
    """Find places for a gang, take and give them back: fits per node, packing order, fill.

    `free` int64[R, N], `request` int64[R], `key` int64[N]. `free` is as before afterwards.
    """
    wanted = [row for row in range(len(request)) if request[row]]
    fits = np.minimum.reduce([free[row] // request[row] for row in wanted])
    candidates = np.flatnonzero(fits)
    order = candidates[np.argsort(key[candidates])]
    filled = np.cumsum(fits[order])
    used = int(np.searchsorted(filled, members)) + 1
    counts = fits[order[:used]].copy()
    counts[-1] -= filled[used - 1] - members
    free[:, order[:used]] -= request[:, None] * counts
    free[:, order[:used]] += request[:, None] * counts


def place_one(free: np.ndarray, fits: np.ndarray, key: np.ndarray, request: np.ndarray) -> None:
    """Put one member on the first node in packing order that takes it, and update that node.

    `free` int64[R, N], `fits` int64[N], `key` int64[N], `request` int64[R]; both are changed.
    """
    slot = int(np.where(fits > 0, key, _KEY_MAX).argmin())
    free[:, slot] -= request
    wanted = request > 0
    fits[slot] = int((free[wanted, slot] // request[wanted]).min())


def preempt(
    gangs: list[tuple[int, float, list[int]]], free: list[int], *, members: int
) -> list[int]:
    """Return which gangs to stop for whole-node members: a plain loop over gangs and their nodes.

    A gang is its priority, what it loses and its nodes; `free[n]` is 1 where node n is idle. The
    gangs go in order until there is room; then each that is not needed stays.
    """
    room, chosen = sum(free), list[int]()
    for index in sorted(range(len(gangs)), key=lambda i: gangs[i][:2]):
        if room >= members:
            break
        chosen.append(index)
        for _node in gangs[index][2]:
            room += 1
    for index in reversed(chosen.copy()):
        if room - len(gangs[index][2]) >= members:
            room -= len(gangs[index][2])
            chosen.remove(index)
    return chosen


def first_start(ends: list[tuple[float, int]], idle: int, *, members: int) -> float:
    """Return when so many nodes are idle: a plain loop over jobs, each its end and its nodes."""
    for end, nodes in sorted(ends):
        idle += nodes
        if idle >= members:
            return end
    raise ValueError(f"{members} members on {idle} nodes")


def read_job(data: bytes) -> Job:
    """Decode a job as a watch delivers it: what taking in any event begins with."""
    return msgspec.json.decode(data, type=Job)


def place_members(free: list[int], gpus: int, *, members: int) -> list[int]:
    """Return a node for each member, those with the fewest free GPUs first: a plain loop."""
    order = sorted((left, node) for node, left in enumerate(free) if left >= gpus)
    chosen = list[int]()
    for left, node in order:
        for _ in range(min(left // gpus, members - len(chosen))):
            chosen.append(node)
            free[node] -= gpus
        if len(chosen) == members:
            break
    return chosen
