"""What requests cost: seats as API priority and fairness counts them, bytes, growth (pure).

Seats of a LIST follow kube-apiserver's estimator (`list_work_estimator.go`): one per 100 objects,
between 1 and 10. A request holds its seats from the moment it is executed; its wait does not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fairlead.doctor.audit.measured import Kind
from fairlead.doctor.audit.summary import (
    FAN_NODES_MIN,
    FAN_SHARE,
    GROWS_WITH_NODES,
    AuditSummary,
    CallerCost,
    Key,
)
from fairlead.doctor.audit.tally import LONG_RUNNING, Cost, Tally

SEATS_MAX = 10
OBJECTS_PER_SEAT = 100
#: 400 reads and 200 writes, the defaults of kube-apiserver.
CAPACITY_SEATS = 600
SHARE_MAX = 0.3
#: Bytes of one object in JSON where they were not given (estimates).
OBJECT_BYTES = {
    "pods": 6_000, "nodes": 12_000, "events": 900, "leases": 500, "configmaps": 3_000,
    "secrets": 4_000, "endpoints": 3_000, "endpointslices": 3_000, "namespaces": 800,
}  # fmt: skip
OBJECT_BYTES_DEFAULT = 2_000
_LIMIT = re.compile(r"limit=(\d+)")


@dataclass(frozen=True, slots=True)
class CostModel:
    """What is known of the cluster. `objects` and `object_bytes` are by resource.

    `answer_bytes` are the mean sizes of answers that the API server measured.
    """

    nodes: int = 0
    objects: Mapping[str, int] = field(default_factory=dict[str, int])
    object_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    capacity_seats: int = CAPACITY_SEATS
    answer_bytes: Mapping[Kind, float] = field(default_factory=dict[Kind, float])

    def count(self, resource: str) -> int:
        """Return the number of objects of a resource; 0 when it is not known."""
        return self.objects.get(_plain(resource), 0)

    def size(self, resource: str) -> int:
        """Return the bytes of one object."""
        name = _plain(resource)
        known = self.object_bytes.get(name) or self.answer_bytes.get(("get", name, "resource"))
        return int(known or OBJECT_BYTES.get(name, OBJECT_BYTES_DEFAULT))


def _plain(resource: str) -> str:
    return resource.partition("/")[0]


def _limit(shape: str) -> int:
    found = _LIMIT.search(shape)
    return int(found[1]) if found else 0


def is_cached(shape: str) -> bool:
    """True when a LIST is answered from the cache whatever the server's version."""
    return "rv=0" in shape


def is_unbounded(key: Key) -> bool:
    """True for a LIST of everything: no page, no cache, no selector on the node."""
    return key.verb == "list" and key.scope == "cluster" and not (
        _limit(key.shape) or is_cached(key.shape) or "continue" in key.shape
        or "spec.nodeName" in key.shape
    )  # fmt: skip


def seats(key: Key, model: CostModel) -> int:
    """Return the seats that one request holds."""
    count = model.count(key.resource)
    if key.verb != "list" or not count:
        return 1
    limit = _limit(key.shape)
    examined = count
    if not is_cached(key.shape) and limit:
        page = min(limit, count)
        has_selector = "field=" in key.shape or "label" in key.shape
        examined = count + page if has_selector else 2 * page
    return max(1, min(SEATS_MAX, math.ceil(examined / OBJECTS_PER_SEAT)))


def bytes_per_request(key: Key, model: CostModel) -> float | None:
    """Return the modelled bytes of an answer; None when the number of objects is not known."""
    if key.scope == "nonresource" or key.verb in LONG_RUNNING:
        return 0.0
    size = float(model.size(key.resource))
    if key.verb != "list" or key.scope == "resource":
        return size
    count = model.count(key.resource)
    if not count:
        return None
    if "spec.nodeName" in key.shape:
        return count / max(model.nodes, 1) * size
    limit = 0 if is_cached(key.shape) else _limit(key.shape)
    if key.scope == "namespace":
        count = max(1, count // max(model.objects.get("namespaces", 1), 1))
    return (min(limit, count) if limit else count) * size


def exponent(key: Key, *, is_fan: bool) -> int:
    """Return the power of the number of nodes with which the cost of such requests grows."""
    grows = _plain(key.resource) in GROWS_WITH_NODES and key.scope == "cluster"
    reads_all = key.verb in ("list", "watch") and "spec.nodeName" not in key.shape
    if key.verb == "list" and _limit(key.shape) and not is_cached(key.shape):
        reads_all = reads_all and not is_fan  # pages of all: the pages grow, a page does not
    return int(is_fan) + int(grows and reads_all)


def summarise(tally: Tally, model: CostModel) -> AuditSummary:
    """Return the callers, the dearest first; what the model lacks comes from the log."""
    nodes = model.nodes or len(tally.nodes) or len(tally.addresses)
    learnt = {resource: len(names) for resource, names in tally.objects.items()}
    model = replace(model, nodes=nodes, objects={**learnt, **model.objects})
    span = max((tally.last - tally.first) / 1e6, 1.0) if tally.last else 0.0
    modelled = [_caller(key, cost, model, span) for key, cost in tally.costs.items()]
    callers = list(_normalised(modelled, model.answer_bytes))
    callers.sort(key=lambda each: (-each.seat_seconds, -each.requests, each.name, each.does,
                                   each.shape))  # fmt: skip
    counts = tally.lists_by_second.values()
    lists = sum(counts)
    return AuditSummary(
        tuple(callers), tally.events, span, nodes, model.capacity_seats,
        dict(sorted(tally.skipped.items())),
        list_burst=max(counts, default=0) / max(lists / max(span, 1.0), 1e-9) if lists else 0.0,
        lists=lists, panics=tally.panics,
    )  # fmt: skip


def _normalised(
    callers: Iterable[CallerCost], answer_bytes: Mapping[Kind, float]
) -> Iterator[CallerCost]:
    """Scale the bytes of reads so that those of a kind add up to what was measured of the kind."""
    kinds: dict[Kind, list[CallerCost]] = {}
    for each in callers:
        kinds.setdefault((each.verb, each.resource, each.scope), []).append(each)
    for kind, alike in kinds.items():
        mean = answer_bytes.get(kind)
        if mean is None:
            yield from alike
            continue
        weights = [each.answered if each.bytes is None else each.bytes for each in alike]
        total = mean * sum(each.answered for each in alike)
        for each, weight in zip(alike, weights, strict=True):
            yield replace(each, bytes=total * weight / max(sum(weights), 1e-9))


def _caller(key: Key, cost: Cost, model: CostModel, span: float) -> CallerCost:
    seen = len(cost.nodes)
    is_fan = seen >= max(FAN_NODES_MIN, FAN_SHARE * model.nodes)
    seat_seconds = max(cost.seconds - cost.queue_seconds, 0.0) * seats(key, model)
    each = bytes_per_request(key, model)
    power = exponent(key, is_fan=is_fan)
    period = span * max(seen, 1) / cost.requests if cost.requests > seen else None
    used = seat_seconds / span if span else 0.0
    full = None
    if power and used > 0 and model.nodes:
        growth = (SHARE_MAX * model.capacity_seats / used) ** (1 / power)
        full = min(int(model.nodes * growth), 10**9)
    return CallerCost(
        *key, requests=cost.requests, seat_seconds=seat_seconds,
        bytes=None if each is None else each * (cost.requests - cost.codes[429]), nodes=seen,
        exponent=power,
        is_fan=is_fan, codes=dict(sorted(cost.codes.items())),
        latency_mean_seconds=cost.seconds / max(cost.requests, 1),
        latency_max_seconds=cost.seconds_max, queue_seconds=cost.queue_seconds,
        requests_per_second=cost.requests / span if span else 0.0, period_seconds=period,
        full_share_nodes=full,
    )  # fmt: skip
