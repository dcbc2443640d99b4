"""Names: whether this machine resolves those that are given, and how fast."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.program import REPEATS, Broken, lower
from fairlead.node.running.host import Absent


class NamesOptions(msgspec.Struct, frozen=True):
    """`names` that must have an address."""

    names: tuple[str, ...] = ()


def measure(
    options: NamesOptions, resolve: Callable[[str, None], Sequence[Any]] = socket.getaddrinfo
) -> Iterable[Figure]:
    """Return the time of the slowest name; Broken for one that has no address in three tries."""
    if not options.names:
        raise Absent("no names are given")
    slowest = 0.0
    for name in options.names:
        seconds, error = list[float](), OSError()
        for _ in range(REPEATS):
            started = perf_counter()
            try:
                resolve(name, None)
            except (OSError, UnicodeError) as failure:
                error = failure if isinstance(failure, OSError) else OSError(str(failure))
            else:
                seconds.append(perf_counter() - started)
        if not seconds:
            raise Broken(f"{name} cannot be resolved: {error}")
        slowest = max(slowest, min(seconds))
    return (lower("resolveSeconds", [slowest]),)
