"""What an agent will cost at another size, from what it does on few nodes (pure).

Each kind of request of the agent is scaled by the number of instances, and LISTs of what grows with
the nodes once more by the size of the collection: seats, execution time and bytes alike. Watches
cost what they are sent: the writes of their resource that the trace shows, scaled likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.doctor.audit.cost import SHARE_MAX, CostModel, bytes_per_request, seats
from fairlead.doctor.audit.summary import GROWS_WITH_NODES, AuditSummary, CallerCost

WRITES = frozenset(("create", "update", "patch", "delete"))
SHARE_WARNING = 0.1
KINDS = ("DaemonSet", "Deployment", "StatefulSet", "ReplicaSet")


@dataclass(frozen=True, slots=True)
class PlannedAgent:
    """A workload of a manifest; `replicas` is None for one on every node."""

    namespace: str
    name: str
    service_account: str
    replicas: int | None

    @property
    def principal(self) -> str:
        """The user that its requests come from."""
        return f"system:serviceaccount:{self.namespace}:{self.service_account}"

    def sends(self, caller: CallerCost) -> bool:
        """True when the caller is this agent."""
        return caller.workload == f"{self.namespace}/{self.name}" or (
            caller.principal == self.principal
        )


@dataclass(frozen=True, slots=True)
class RequestForecast:
    """One kind of request at the planned size. `seats` are those held on average."""

    does: str
    shape: str
    requests_per_second: float
    seats: float
    bytes_per_second: float | None
    exponent: int
    seats_now: float


@dataclass(frozen=True, slots=True)
class Preflight:
    """What the agent will cost at `nodes` nodes, the dearest kind of request first.

    `burst` is the number of requests when it starts on all nodes at once.
    """

    agent: PlannedAgent
    nodes: int
    instances: int
    seen_instances: int
    forecasts: tuple[RequestForecast, ...]
    capacity_seats: int
    burst: int

    @property
    def share(self) -> float:
        """The share of the capacity that it will hold."""
        return sum(each.seats for each in self.forecasts) / self.capacity_seats

    def exit_code(self) -> int:
        """Return 2 over 30 % of the capacity, 1 over 10 %, 3 when the trace lacks the agent."""
        if not self.forecasts:
            return 3
        return 2 if self.share > SHARE_MAX else 1 if self.share > SHARE_WARNING else 0


def agents_of(objects: Sequence[Mapping[str, Any]], namespace: str) -> tuple[PlannedAgent, ...]:
    """Return the workloads of a manifest; `namespace` is for those that name none."""
    found: list[PlannedAgent] = []
    for each in objects:
        kind = each.get("kind")
        metadata, spec = _mapping(each, "metadata"), _mapping(each, "spec")
        if kind not in KINDS:
            continue
        pod = _mapping(_mapping(spec, "template"), "spec")
        account = pod.get("serviceAccountName") or pod.get("serviceAccount") or "default"
        replicas = spec.get("replicas", 1)
        found.append(
            PlannedAgent(str(metadata.get("namespace") or namespace),
                  str(metadata.get("name") or ""), str(account), None if kind == "DaemonSet" else
                  replicas if isinstance(replicas, int) else 1)
        )  # fmt: skip
    return tuple(found)


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def forecast(agent: PlannedAgent, trace: AuditSummary, model: CostModel, nodes: int) -> Preflight:
    """Return what the agent will cost at `nodes` nodes.

    `model` has the objects and the nodes of the traced cluster; nodes that it lacks come from the
    trace.
    """
    now_nodes = max(model.nodes or trace.nodes, 1)
    callers = [caller for caller in trace.callers if agent.sends(caller)]
    seen = max((caller.nodes for caller in callers), default=0)
    instances = nodes if agent.replicas is None else agent.replicas
    growth = nodes / now_nodes
    forecasts = [
        _forecast(caller, trace, model, growth=growth, copies=instances / max(seen, 1),
                  is_everywhere=agent.replicas is None)
        for caller in callers
    ]  # fmt: skip
    forecasts.sort(key=lambda each: (-each.seats, -(each.bytes_per_second or 0.0), each.does))
    kinds = sum(1 for caller in callers if caller.verb in ("list", "watch", "get"))
    return Preflight(agent, nodes, instances, seen, tuple(forecasts), trace.capacity_seats,
                     kinds * instances)  # fmt: skip


def _forecast(
    caller: CallerCost, trace: AuditSummary, model: CostModel, *, growth: float, copies: float,
    is_everywhere: bool,
) -> RequestForecast:  # fmt: skip
    plain = caller.resource.partition("/")[0]
    is_larger = plain in GROWS_WITH_NODES and caller.scope == "cluster"
    reads_all = caller.verb in ("list", "watch") and "spec.nodeName" not in caller.shape
    grows = is_larger and reads_all
    pages = "limit=" in caller.shape and "rv=0" not in caller.shape
    larger = CostModel(
        int((model.nodes or trace.nodes) * growth),
        {**model.objects, plain: int(model.count(plain) * growth)} if is_larger else model.objects,
        model.object_bytes, model.capacity_seats,
    )  # fmt: skip
    rate = caller.requests_per_second * copies
    if grows and pages:
        rate *= growth  # more pages of the same size
    length = growth if grows and not pages and caller.verb == "list" else 1.0
    held = rate * caller.latency_mean_seconds * length * seats(caller.key, larger)
    if caller.verb == "watch":
        held = 0.0
        sent: float | None = _watched(caller, trace, model, growth if grows else 1.0) * (
            caller.nodes * copies
        )
    else:
        each = bytes_per_request(caller.key, larger)
        sent = None if each is None else each * rate
    return RequestForecast(
        caller.does, caller.shape, rate, held, sent, int(is_everywhere) + int(grows),
        caller.seat_seconds / max(trace.span_seconds, 1.0),
    )  # fmt: skip


def _watched(caller: CallerCost, trace: AuditSummary, model: CostModel, growth: float) -> float:
    """Return the bytes per second that one watch is sent."""
    plain = caller.resource.partition("/")[0]
    writes = sum(each.requests_per_second for each in trace.callers
                 if each.verb in WRITES and each.resource.partition("/")[0] == plain)  # fmt: skip
    if "spec.nodeName" in caller.shape:
        writes /= max(model.nodes or trace.nodes, 1)
    return writes * growth * model.size(plain)


def preflight_values(result: Preflight) -> dict[str, Any]:
    """Return the forecast as plain values."""
    agent = result.agent
    return {
        "workload": f"{agent.namespace}/{agent.name}", "principal": agent.principal,
        "nodes": result.nodes, "instances": result.instances,
        "seen_instances": result.seen_instances, "capacity_seats": result.capacity_seats,
        "share": result.share, "burst": result.burst,
        "requests": [
            {"does": each.does, "shape": each.shape, "exponent": each.exponent,
             "requests_per_second": each.requests_per_second, "seats": each.seats,
             "seats_now": each.seats_now, "bytes_per_second": each.bytes_per_second}
            for each in result.forecasts
        ],
    }  # fmt: skip


def preflight_lines(result: Preflight) -> list[str]:
    """Return the lines for a terminal."""
    agent = result.agent
    name = f"{agent.namespace}/{agent.name}"
    if not result.forecasts:
        return [f"{name}: the trace has no request of {agent.principal}"]
    lines = [
        f"{name} at {result.nodes:,} nodes: {result.instances:,} instances, seen on "
        f"{result.seen_instances:,}",
        f"{'SEATS':>10}  {'REQ/S':>10}  {'MB/S':>10}  {'GROWS':>6}  REQUEST",
    ]
    for each in result.forecasts:
        sent = "?" if each.bytes_per_second is None else f"{each.bytes_per_second / 1e6:,.1f}"
        grows = ("-", "N", "N^2")[min(each.exponent, 2)]
        shape = f" [{each.shape}]" if each.shape else ""
        lines.append(f"{each.seats:10,.2f}  {each.requests_per_second:10,.2f}  {sent:>10}  "
                     f"{grows:>6}  {each.does}{shape}")  # fmt: skip
    lines.append(f"{result.share * 100:.3g} % of {result.capacity_seats:,} seats; about "
                 f"{result.burst:,} requests when it starts on all nodes at once")  # fmt: skip
    if result.exit_code():
        lines.append("fix: an informer, fieldSelector=spec.nodeName=$(NODE_NAME), or a few central "
                     "replicas; roll out by a node label in stages")  # fmt: skip
    return lines
