"""Checks of the audit log: callers that cost too much, and what they do wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairlead.doctor.audit.cost import is_unbounded
from fairlead.doctor.audit.summary import AuditSummary, CallerCost
from fairlead.doctor.check import (
    IS_CRITICAL,
    IS_INFO,
    IS_WARNING,
    Check,
    MeasuredValue,
    Side,
    critical,
    info,
    warning,
)
from fairlead.doctor.facts import ClusterFacts, Source

U = (Source.AUDIT,)
#: Parts of the control plane: they list when they start, and watch from then on.
SYSTEM = ("system:kube-scheduler", "system:kube-controller-manager", "system:apiserver",
          "system:node:*")  # fmt: skip
WRITES = ("create", "update", "patch", "delete", "deletecollection")
CONNECTIONS = ("pods/exec", "pods/attach", "pods/portforward")
DENIED = (401, 403, 404)
POLL_SECONDS = 60.0
POLLS_MIN = 3
CAPACITY_SHARE_MIN = 0.005
INFORMER_FIX = (
    "use an informer (one LIST, then WATCH); until then resourceVersion=0 and limit=500;\n"
    "on a node: fieldSelector=spec.nodeName=$(NODE_NAME), or the kubelet's /pods"
)


def _subject(caller: CallerCost) -> str:
    return f"{caller.name}: {caller.does}"


def _evidence(caller: CallerCost, audit: AuditSummary) -> str:
    shape = f" [{caller.shape}]" if caller.shape else ""
    period = f", every {caller.period_seconds:.3g} s per node" if caller.period_seconds else ""
    return (f"{caller.requests:,} requests{shape} from {caller.nodes:,} "
            f"{'node' if caller.nodes == 1 else 'nodes'} in {audit.span_seconds:,.0f} s{period}, "
            f"{caller.seat_seconds:,.1f} seat-seconds")  # fmt: skip


def _others(audit: AuditSummary) -> Iterator[CallerCost]:
    """Yield the callers that are no part of the control plane."""
    for each in audit.callers:
        name = each.principal
        if name not in SYSTEM and not name.startswith("system:serviceaccount:kube-system:"):
            yield each


def _reading(caller: CallerCost, value: float, audit: AuditSummary) -> MeasuredValue:
    return MeasuredValue(_subject(caller), value, _evidence(caller, audit))


def _repeats(caller: CallerCost) -> bool:
    return caller.requests >= POLLS_MIN * max(caller.nodes, 1)


def _lists_all(caller: CallerCost) -> bool:
    return caller.verb == "list" and caller.scope == "cluster"


def _is_script(caller: CallerCost) -> bool:
    program = caller.program.lower()
    return any(word in program for word in ("python", "curl", "openapi-generator"))


@dataclass(frozen=True, slots=True)
class Callers:
    """The value of each caller that `picks` is true of; `without_system`: of no part of the control
    plane.
    """

    picks: Callable[[CallerCost], bool]
    value: Callable[[CallerCost], float]
    without_system: bool = False

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per caller and kind of request; NotSeen."""
        audit = facts.seen_audit()
        for each in _others(audit) if self.without_system else audit.callers:
            if self.picks(each):
                yield _reading(each, self.value(each), audit)


#: LISTs of events per second.
EVENTS_LIST = Callers(
    lambda c: c.verb == "list" and c.resource == "events" and _repeats(c),
    lambda c: c.requests_per_second, without_system=True,
)  # fmt: skip


#: LISTs of the whole cluster that come from most of the nodes: 2 when they repeat.
FAN_LISTS = Callers(
    lambda c: c.is_fan and _lists_all(c) and "spec.nodeName" not in c.shape,
    lambda c: 2.0 if _repeats(c) else 1.0,
)


#: Unbounded LISTs per second.
UNBOUNDED = Callers(lambda c: is_unbounded(c.key) and _repeats(c), lambda c: c.requests_per_second)


#: Watches that one node opens again and again, per minute.
WATCH_STORM = Callers(
    lambda c: c.verb == "watch" and bool(c.period_seconds) and _repeats(c),
    lambda c: 60.0 / (c.period_seconds or 1.0),
)


#: Other requests per second of one node.
HOT_LOOP = Callers(
    lambda c: c.verb not in ("watch", "list") and c.requests >= 100,
    lambda c: c.requests_per_second / max(c.nodes, 1), without_system=True,
)  # fmt: skip


#: The share of writes that meet a conflict.
CONFLICTS = Callers(lambda c: c.verb in WRITES and c.requests >= 20, lambda c: c.code_share(409))


#: Requests per second that are refused or find nothing.
DENIED_LOOP = Callers(
    lambda c: c.code_share(*DENIED) * c.requests >= 20,
    lambda c: c.requests_per_second * c.code_share(*DENIED),
)


#: Who lists the secrets of the whole cluster, and scripts that list all of it.
SECRETS = Callers(
    lambda c: _lists_all(c) and c.resource == "secrets", lambda _: 1.0, without_system=True
)


SCRIPTS = Callers(lambda c: _lists_all(c) and _is_script(c), lambda _: 1.0, without_system=True)


#: Who runs commands in pods, reads their ports or attaches to them.
SESSIONS = Callers(lambda c: c.resource in CONNECTIONS, lambda c: c.requests)


def quadratic(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the number of nodes at which a caller whose cost grows as N^2 takes 30 %."""
    audit = facts.seen_audit()
    for each in audit.callers:
        if each.exponent >= 2 and each.full_share_nodes is not None:
            text = (f"{_evidence(each, audit)}; cost grows as nodes^{each.exponent}: 30 % of "
                    f"{audit.capacity_seats} seats at {each.full_share_nodes:,} nodes")  # fmt: skip
            yield MeasuredValue(_subject(each), each.full_share_nodes, text)


def top_share(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read each caller's share of all seat-seconds, of callers that use some of the capacity."""
    audit = facts.seen_audit()
    total = audit.seat_seconds
    capacity = audit.capacity_seats * audit.span_seconds
    for each in audit.callers:
        if total > 0 and each.seat_seconds > CAPACITY_SHARE_MIN * capacity:
            yield _reading(each, each.seat_seconds / total, audit)


def polling(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read LISTs that one node repeats within a minute and that no watch goes with."""
    audit = facts.seen_audit()
    watched = {(c.principal, c.program, c.resource) for c in audit.callers if c.verb == "watch"}
    for each in _others(audit):
        if (each.verb == "list" and each.period_seconds and "continue" not in each.shape
                and _repeats(each)
                and (each.principal, each.program, each.resource) not in watched):  # fmt: skip
            yield _reading(each, float(each.period_seconds < POLL_SECONDS), audit)


def victims(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read who was answered with 429, and who held the most seats meanwhile."""
    audit = facts.seen_audit()
    first = next(iter(audit.callers), None)
    for each in audit.callers:
        if each.rejected and first is not None:
            text = f"{each.rejected:,} of {each.requests:,} requests; most seats: {_subject(first)}"
            yield MeasuredValue(_subject(each), each.rejected / each.requests, text)


def relist_storm(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the largest number of LISTs in a second over the mean."""
    audit = facts.seen_audit()
    peak = audit.list_burst * audit.lists / max(audit.span_seconds, 1.0)
    text = f"up to {peak:,.0f} LISTs in one second, {audit.lists:,} in {audit.span_seconds:,.0f} s"
    yield MeasuredValue("all callers", audit.list_burst if peak >= 50 else 0.0, text)


def late(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of requests that ran out of time, or of their time spent in queues."""
    audit = facts.seen_audit()
    for each in audit.callers:
        whole = each.latency_mean_seconds * each.requests
        waits = each.queue_seconds / whole if whole > 1.0 else 0.0
        late_ = each.code_share(504) if each.requests >= 20 else 0.0
        text = f"{late_ * 100:.3g} % answered 504, {waits * 100:.3g} % of the time in queues"
        yield MeasuredValue(_subject(each), max(waits, late_), text)


def endpoints_watch(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read who watches Endpoints, as clients per node."""
    audit = facts.seen_audit()
    nodes = facts.nodes or audit.nodes or 1
    for each in _others(audit):
        if (each.verb, each.resource) == ("watch", "endpoints"):
            yield _reading(each, max(each.nodes, 1) / nodes, audit)


def panics(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how often a handler of the API server panicked."""
    audit = facts.seen_audit()
    yield MeasuredValue("API server", audit.panics, f"{audit.panics} events of stage Panic")


CHECKS: tuple[Check, ...] = (
    Check(
        "AUD-08", "A caller LISTs events again and again", U, EVENTS_LIST,
        (warning(0.02), critical(0.1)),
        "Events are many and change all the time; each LIST reads them all. This was the cause of "
        "500 MB/s out of etcd in 2018.",
        "watch events instead of listing them, or\n" + INFORMER_FIX, "OpenAI 2018", unit="/s",
        growth=2,
    ),
    Check(
        "AUD-02", "Every node LISTs the whole cluster", U, FAN_LISTS,
        (warning(0.5), critical(1.5)),
        "N nodes that each read N objects: the cost grows with the square of the cluster.",
        INFORMER_FIX, "OpenAI 2018 and December 2024", unit="bool",
    ),
    Check(
        "AUD-16", "A caller's cost grows with the square of the nodes", U, quadratic,
        (warning(15_000), critical(5_000)),
        "At the size given it takes 30 % of the API server's capacity.",
        INFORMER_FIX, "OpenAI, December 2024", Side.BELOW, unit="nodes",
    ),
    Check(
        "API-11", "A caller repeats an unbounded LIST", U, UNBOUNDED,
        (warning(1 / 60), critical(0.5)),
        "One such LIST a second of 300,000 objects costs 7 cores of the API server.",
        INFORMER_FIX, "KEP-2340; OpenAI 2018", unit="/s", growth=1,
    ),
    Check(
        "AUD-01", "One caller holds a large share of the capacity", U, top_share,
        (warning(0.1), critical(0.3)),
        "Whatever else is in its priority level waits for it.",
        "fairlead doctor audit FILE --flow-schema | kubectl apply -f -", "sig-scalability",
        unit="share",
    ),
    Check(
        "AUD-13", "Callers are answered with 429", U, victims, (warning(0.0), critical(0.05)),
        "Their priority level is full; the evidence names who holds the most seats.",
        "fairlead doctor audit FILE --flow-schema | kubectl apply -f -",
        "Kubernetes API priority and fairness", unit="share",
    ),
    Check(
        "AUD-03", "A caller polls instead of watching", U, polling, IS_WARNING,
        "A watch costs one LIST and then only what changes.", INFORMER_FIX,
        "Kubernetes API concepts, efficient detection of changes", unit="bool",
    ),
    Check(
        "AUD-14", "A caller opens the same watch again and again", U, WATCH_STORM,
        (warning(2.0), critical(20.0)),
        "Each watch that fails is followed by a LIST; normal watches last 5 to 10 minutes.",
        "find why its watches end: time-outs of a proxy, slow consumers, version errors (410)",
        "kubernetes #116903", unit="per minute and node",
    ),
    Check(
        "AUD-15", "A caller sends the same request in a hot loop", U, HOT_LOOP,
        (warning(5.0), critical(50.0)),
        "A loop without a pause or a backoff.",
        "add a rate limit and a backoff with jitter to the client (client-go: QPS, Burst)",
        "client-go", unit="/s and node",
    ),
    Check(
        "AUD-18", "A caller watches Endpoints", U, endpoints_watch,
        (warning(0.01), critical(0.5)),
        "Each change of a Service sends the whole Endpoints object to every watcher.",
        "upgrade or configure the watcher to use discovery.k8s.io/v1 EndpointSlices",
        "KEP-752; OpenAI 2021 (1 GB/s)", unit="per node", growth=1,
    ),
    Check(
        "AUD-12", "Requests run out of time or wait in queues", U, late,
        (warning(0.05), critical(0.25)),
        "The API server has no capacity left for this level.",
        "isolate the dearest caller (AUD-01), then raise the limits in flight (API-06)",
        "Kubernetes API priority and fairness", unit="share",
    ),
    Check(
        "AUD-04", "LISTs come in bursts", U, relist_storm, (warning(20.0),),
        "Many clients list at the same moment, as after a restart of an API server.",
        "backoff with jitter in clients; WatchList (Kubernetes 1.34)", "KEP-3157", unit="x mean",
    ),
    Check(
        "AUD-05", "A caller's writes conflict", U, CONFLICTS, (warning(0.05),),
        "Two controllers write the same objects.",
        "let one of them own the field (server-side apply), or patch without a version",
        "Kubernetes API concepts", unit="share",
    ),
    Check(
        "AUD-06", "A caller asks for what it may not or what does not exist", U, DENIED_LOOP,
        (warning(1.0),),
        "A wrong configuration or missing rights, without a backoff.",
        "kubectl auth can-i --as=USER VERB RESOURCE; then the client's configuration",
        "Kubernetes documentation, RBAC", unit="/s",
    ),
    Check(
        "AUD-11", "A caller lists all secrets", U, SECRETS, IS_WARNING,
        "It reads every credential of the cluster, and its cost grows with the namespaces.",
        "restrict it to namespaces and names", "Kubernetes documentation, RBAC good practices",
        unit="bool",
    ),
    Check(
        "AUD-09", "A script lists the whole cluster", U, SCRIPTS, IS_INFO,
        "JSON lists without pages are the dearest form.",
        "limit=500 with continue, or a watch", "EKS best practices", unit="bool",
    ),
    Check(
        "AUD-10", "A caller opens many sessions in pods", U, SESSIONS, (info(100),),
        "Each is a connection through the API server and a kubelet, which moves all of its bytes.",
        "ship logs and files by an agent or a sidecar instead of exec",
        "Kubernetes documentation, RBAC good practices", unit="sessions",
    ),
    Check(
        "AUD-17", "A handler of the API server panicked", U, panics, IS_CRITICAL,
        "A defect of the server or of an extension.",
        "look for `panic` in the API server's log at the time", "Kubernetes auditing", unit="x",
    ),
)  # fmt: skip
