"""What an audit log says about the callers: one record per caller and kind of request (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Resources whose number of objects grows with the number of nodes.
GROWS_WITH_NODES = frozenset((
    "nodes", "pods", "events", "leases", "endpoints", "endpointslices", "csinodes",
    "volumeattachments", "ciliumnodes", "ciliumendpoints", "certificatesigningrequests",
))  # fmt: skip
#: A caller that is seen from at least this share of the nodes runs on every node.
FAN_SHARE = 0.5
FAN_NODES_MIN = 3


class Key(NamedTuple):
    """What costs are added up by."""

    principal: str
    program: str
    workload: str
    verb: str
    resource: str
    scope: str
    shape: str


@dataclass(frozen=True, slots=True)
class CallerCost:
    """One caller and kind of request, with its cost.

    `seat_seconds` is what API priority and fairness rations: seats times execution time. `bytes` is
    modelled, None when the number or size of the objects is not known, and scaled to what the
    API server measured where that was given. `nodes` is the number of
    distinct nodes (or client addresses) it came from, `exponent` the power of the number of nodes
    that its cost grows with. `codes` are responses by status code. `period_seconds` is the mean
    time between two such requests of one node.
    """

    principal: str
    program: str
    workload: str
    verb: str
    resource: str
    scope: str
    shape: str
    requests: int
    seat_seconds: float
    bytes: float | None
    nodes: int
    exponent: int
    is_fan: bool
    codes: Mapping[int, int]
    latency_mean_seconds: float
    latency_max_seconds: float
    queue_seconds: float
    requests_per_second: float
    period_seconds: float | None
    full_share_nodes: int | None = None

    @property
    def key(self) -> Key:
        """What its cost was added up by."""
        return Key(self.principal, self.program, self.workload, self.verb, self.resource,
                   self.scope, self.shape)  # fmt: skip

    @property
    def name(self) -> str:
        """The workload when it is known, else program and principal."""
        return self.workload or f"{self.program or 'unknown program'} as {self.principal}"

    @property
    def does(self) -> str:
        """What it asks for, such as `list events (cluster)`."""
        return f"{self.verb} {self.resource} ({self.scope})"

    @property
    def rejected(self) -> int:
        """Requests that were answered with 429."""
        return self.codes.get(429, 0)

    @property
    def answered(self) -> int:
        """Requests that were not rejected with 429."""
        return self.requests - self.rejected

    def code_share(self, *codes: int) -> float:
        """The share of requests that were answered with one of the codes."""
        return sum(self.codes.get(code, 0) for code in codes) / max(self.requests, 1)


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """All callers, the dearest first.

    `nodes` is the number of nodes, from the log when it was not given. `burst` is the largest
    number of LISTs in one second over the mean. `skipped` counts what could not be used, by reason.
    """

    callers: tuple[CallerCost, ...]
    events: int
    span_seconds: float
    nodes: int
    capacity_seats: int
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    list_burst: float = 0.0
    lists: int = 0
    panics: int = 0

    @property
    def seat_seconds(self) -> float:
        """What all callers cost together."""
        return sum(caller.seat_seconds for caller in self.callers)
