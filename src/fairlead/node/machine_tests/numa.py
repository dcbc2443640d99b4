"""The sides of a machine: CPUs with memory of their own (NUMA), and work on one of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator
from contextlib import contextmanager

from fairlead.node.running.host import Absent, Host

_NODES = "sys/devices/system/node"


def sides(host: Host, allowed: Collection[int]) -> list[frozenset[int]]:
    """Return the CPUs of each side that may be used; one side where the kernel names none."""
    try:
        names = host.names(_NODES)
    except (Absent, OSError):
        names = []
    found = list[frozenset[int]]()
    for name in names:
        if name.removeprefix("node").isdecimal():
            try:
                cpus = frozenset(_cpus(host.text(_NODES, name, "cpulist"))) & frozenset(allowed)
            except (OSError, ValueError):
                continue
            found += [cpus] if cpus else []
    return found or [frozenset(allowed)]


def _cpus(text: str) -> list[int]:
    """Return the numbers of a list such as 0-3,8; ValueError."""
    out = list[int]()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


@contextmanager
def on(cpus: Collection[int]) -> Generator[None]:
    """Run this thread on CPUs, so that memory which it touches first is on their side."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
