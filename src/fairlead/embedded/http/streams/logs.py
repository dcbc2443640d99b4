"""Where container logs come from: the protocol between the API server and the nodes.

`kubectl logs` reaches the API server, which asks the node of the pod through a `LogSource`. The
options are parsed here once, so that every kind of node gets the same clean values.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

LINES_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What part of a log is wanted; the defaults give all of the current container's.

    `since` is an instant in seconds since the epoch: only lines written at or after it.
    `tail_lines` counts from the end, after `since`; `limit_bytes` cuts what remains. With
    `timestamps` every line starts with its RFC 3339 instant. `follow` ends when the container has
    ended and all is read.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: float | None = None
    limit_bytes: int | None = None


class LogSource(Protocol):
    """Gives the logs of the pods on one or many nodes."""

    async def read(
        self, namespace: str, pod_name: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """Return the pieces of the log, cut anywhere, in order; the caller closes the iterator.

        The pod exists and has that container. `BadRequest` (the API's wording) when the container
        has not started or has no previous run; NotFound when the log is gone.
        """
        ...
