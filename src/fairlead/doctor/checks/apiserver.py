"""Checks of the API server: load, latency, fairness, sizes, versions, and who calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from fairlead.api.cluster.cluster_report import ReportCondition
from fairlead.api.names import EMBEDDED_BUILD
from fairlead.doctor.check import (
    IS_INFO,
    IS_WARNING,
    Check,
    MeasuredValue,
    Side,
    critical,
    info,
    warning,
)
from fairlead.doctor.checks.of_objects import api_services
from fairlead.doctor.expressions import (
    CodeShare,
    Gauge,
    PerSecond,
    Quantile,
    Ratio,
    over_the_others,
    reads,
)
from fairlead.doctor.facts import ClusterFacts, NotSeen, Source
from fairlead.doctor.objects import SeenNode, SeenObjects

A = (Source.APISERVER,)
F = (Source.FLAGS,)
K = (Source.API,)
M = (Source.KUBELET,)
SYSTEM_LEVELS = ("leader-election", "system", "node-high")
WRITES = ("POST", "PUT", "PATCH", "DELETE")
INFLIGHT_DEFAULTS = (400, 200)
#: Of fewer requests a second, the shares of API servers are chance.
REQUESTS_MIN = 20.0
LEASE_SECONDS = 10
OBJECTS_PER_TYPE_MAX = 150_000
EVENTS_MAX = 1_000_000
ENVELOPE = {"nodes": 5_000, "pods": 150_000, "namespaces": 10_000, "services": 10_000}


@reads(Source.APISERVER, gauges=("apiserver_resource_objects", "apiserver_storage_objects"))
def object_counts(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the number of objects per resource over the official limit of its type."""
    try:
        families = facts.family(Source.APISERVER, "apiserver_resource_objects")
    except NotSeen:  # the name before Kubernetes 1.34
        families = facts.family(Source.APISERVER, "apiserver_storage_objects")
    counts: dict[str, float] = {}
    for _, family in families:
        for labels, value in family.values():
            resource = labels.get("resource", "")
            counts[resource] = max(counts.get(resource, 0.0), value)
    for resource, count in counts.items():
        limit = EVENTS_MAX if resource.startswith("events") else OBJECTS_PER_TYPE_MAX
        yield MeasuredValue(resource, count / limit, f"{count:,.0f} objects, envelope {limit:,}")


@reads(Source.APISERVER, gauges=("apiserver_longrunning_requests",))
def watches_per_node(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the watches of each resource per node, over all API servers."""
    counts: dict[str, float] = {}
    for _, family in facts.family(Source.APISERVER, "apiserver_longrunning_requests"):
        for labels, value in family.values():
            if labels.get("verb") == "WATCH":
                resource = labels.get("resource", "")
                counts[resource] = counts.get(resource, 0.0) + value
    nodes = facts.nodes_count()
    for resource, count in counts.items():
        share = count / nodes if nodes >= 10 else 0.0
        yield MeasuredValue(resource, share, f"{count:,.0f} watches on {nodes:,} nodes")


def writes_by_resource(facts: ClusterFacts) -> dict[str, float]:
    """Return the writes per second by resource, over all API servers."""
    found: dict[str, float] = {}
    for _, family in facts.family(Source.APISERVER, "apiserver_request_total"):
        if not family.seconds:
            raise facts.missing(Source.APISERVER, "one scrape gives no rate")
        for labels, rise in family.increases():
            if labels.get("verb") in WRITES:
                resource = labels.get("resource", "")
                found[resource] = found.get(resource, 0.0) + rise / family.seconds
    return found


@reads(Source.APISERVER, counters=("apiserver_request_total",))
def skew(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the requests of each API server over the mean of the others."""
    rates = {each.subject: each.value for each in PerSecond(A[0], "apiserver_request_total")(facts)}
    yield from over_the_others(rates, "requests", least=REQUESTS_MIN)


@reads(Source.APISERVER, counters=("apiserver_request_total",))
def lease_writes(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the writes of leases over one of each node in ten seconds, over all API servers."""
    usual = facts.nodes_count() / LEASE_SECONDS
    rate = writes_by_resource(facts).get("leases", 0.0)
    text = f"{rate:,.1f} writes of leases a second; {usual:,.1f} are heartbeats of nodes"
    yield MeasuredValue("leases", rate / usual if usual >= 10 else 0.0, text)


def _number(facts: ClusterFacts, name: str, default: int) -> int:
    text = facts.seen_flags("kube-apiserver").get(name, str(default))
    if not text.isdecimal():
        raise facts.missing(Source.FLAGS, f"--{name}={text} is not a number")
    return int(text)


def inflight(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether both limits of requests in flight are the defaults."""
    reads = _number(facts, "max-requests-inflight", INFLIGHT_DEFAULTS[0])
    writes = _number(facts, "max-mutating-requests-inflight", INFLIGHT_DEFAULTS[1])
    is_default = (reads, writes) == INFLIGHT_DEFAULTS
    text = f"--max-requests-inflight={reads} --max-mutating-requests-inflight={writes}"
    yield MeasuredValue("kube-apiserver", float(is_default), text)


def audit_policy(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether requests are recorded at all."""
    flags = facts.seen_flags("kube-apiserver")
    policy = flags.get("audit-policy-file", "")
    text = f"--audit-policy-file={policy}" if policy else "kube-apiserver has no audit policy"
    yield MeasuredValue("kube-apiserver", float(not policy), text)


def agents_without_flow(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether any FlowSchema other than the built-in ones isolates a caller."""
    found, what = facts.seen_objects().flow_schemas, "flow schemas could not be listed"
    own = [
        each.metadata.name
        for each in facts.seen(found, Source.API, what)
        if "apf.kubernetes.io/autoupdate-spec" not in each.metadata.annotations
    ]
    text = f"{len(own)} FlowSchemas of your own" + (
        f": {', '.join(sorted(own)[:5])}" if own else ""
    )
    yield MeasuredValue("flow schemas", float(not own), text)


def aggregated(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read aggregated APIs that are not available."""
    for each in api_services(facts):
        condition = next((c for c in each.status.conditions if c.type == "Available"), None)
        is_down = condition is not None and condition.status == "False"
        text = f"Available: {condition.status} {condition.reason}" if condition else "no condition"
        yield MeasuredValue(each.metadata.name, float(is_down), text)


def envelope(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read counts of objects over the official envelope."""
    counts = facts.seen_objects().counts
    if not counts:
        raise facts.missing(Source.API, "no counts of objects")
    for resource, limit in ENVELOPE.items():
        if resource in counts:
            count = counts[resource]
            yield MeasuredValue(resource, count / limit, f"{count:,} of {limit:,}")


def server_version(objects: SeenObjects) -> tuple[int, int] | None:
    """Return (major, minor) of the API server; None when it is not known."""
    found = re.match(r"v?(\d+)\.(\d+)", objects.version)
    return (int(found[1]), int(found[2])) if found else None


def _older(facts: ClusterFacts, *, minor: int) -> Iterator[MeasuredValue]:
    """Read whether the API server is of an earlier version than 1.`minor`."""
    objects, what = facts.seen_objects(), "the version of the API server is not known"
    version = facts.seen(server_version(objects), Source.API, what)
    yield MeasuredValue("kube-apiserver", float(version < (1, minor)), objects.version)


def _control_plane(facts: ClusterFacts) -> tuple[SeenNode, ...]:
    nodes = facts.seen_objects().control_plane_nodes or None
    return facts.seen(nodes, Source.API, "no node has the role control-plane")


def shared_control_plane(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read which nodes of the control plane take other pods."""
    for node in _control_plane(facts):
        keeps = [t.key for t in node.spec.taints if t.effect in ("NoSchedule", "NoExecute")]
        text = f"taints: {', '.join(keeps) or 'none'}"
        yield MeasuredValue(node.metadata.name, float(not keeps), text)


def control_plane_zones(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the number of zones that the control plane is in."""
    nodes = _control_plane(facts)
    zones = {node.metadata.labels.get("topology.kubernetes.io/zone", "") for node in nodes} - {""}
    if not zones:
        raise facts.missing(Source.API, "no node of the control plane has a zone")
    text = f"{len(nodes)} nodes in {', '.join(sorted(zones))}"
    yield MeasuredValue("control plane", len(zones), text)


def audit_latency(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the API server's audit log lacks latencies."""
    version = facts.seen_objects().version
    if not version:
        raise facts.missing(Source.API, "the version of the API server is not known")
    if version.endswith(EMBEDDED_BUILD):
        raise facts.missing(Source.API, "this API server has no audit log of Kubernetes")
    is_bad = re.match(r"v?1\.(34|35)\.0\b", version) is not None
    yield MeasuredValue("kube-apiserver", float(is_bad), f"version {version}")


CHECKS: tuple[Check, ...] = (
    Check(
        "API-03", "Requests that the cluster depends on are rejected", A,
        PerSecond(Source.APISERVER, "apiserver_flowcontrol_rejected_requests_total",
             ("priority_level", "flow_schema", "reason"),
             (("priority_level", SYSTEM_LEVELS),), is_lazy=True),
        (critical(0.0),),
        "Leader election, node heartbeats or system controllers are starved: leaders are lost and "
        "nodes look dead.",
        "kubectl get flowschemas,prioritylevelconfigurations\n"
        "fairlead doctor audit FILE --flow-schema   # isolates the caller that fills the level",
        "Kubernetes API priority and fairness", unit="/s",
        condition=ReportCondition.API_SERVER_DEGRADED,
    ),
    Check(
        "API-01", "The API server answers 429", A,
        PerSecond(Source.APISERVER, "apiserver_request_total", ("verb", "resource"),
             match=(("code", ("429",)),)),
        (warning(0.0), critical(10.0)),
        "Clients are turned away and come back later, often all at once.",
        "fairlead doctor audit FILE   # names the caller that fills the priority level",
        "OpenAI 2021", unit="/s", condition=ReportCondition.API_SERVER_DEGRADED,
    ),
    Check(
        "API-02", "The API server answers with server errors", A,
        CodeShare(Source.APISERVER, "apiserver_request_total", "code", "5", ("resource",)),
        (warning(0.001), critical(0.01)),
        "The error budget of 99.9 % is used up; look for webhooks, aggregated APIs and etcd.",
        "kubectl get --raw '/readyz?verbose'; then API-21, API-23 and ETCD-01",
        "kubernetes-mixin; OpenAI 2021", unit="share",
        condition=ReportCondition.API_SERVER_DEGRADED,
    ),
    Check(
        "API-16", "The API server sends a large volume of watch events", A,
        PerSecond(Source.APISERVER, "apiserver_watch_events_sizes_sum", ("kind",), is_lazy=True),
        (warning(100e6), critical(1e9)),
        "Every write is sent to every watcher of its kind.",
        "reduce the watchers of this kind: a few central replicas, or a field selector on nodeName",
        "OpenAI 2021", unit="bytes/s", growth=2,
    ),
    Check(
        "API-21", "An admission webhook is slow", A,
        Quantile(Source.APISERVER, "apiserver_admission_webhook_admission_duration_seconds",
                 by=("name",), is_lazy=True),
        (warning(0.2), critical(1.0)),
        "Every pod of a job waits for it; mutating webhooks run one after the other.",
        "run more replicas of the webhook, narrow its rules, add matchConditions",
        "Kubernetes metrics reference", unit="s",
    ),
    Check(
        "API-04", "A priority level is almost full", A,
        Ratio(Source.APISERVER, "apiserver_flowcontrol_current_executing_seats",
              "apiserver_flowcontrol_nominal_limit_seats", ("priority_level",)),
        (warning(0.8),),
        "The next step is 429 for everyone in this level.",
        "isolate the largest caller: fairlead doctor audit FILE --flow-schema",
        "EKS best practices", unit="share",
    ),
    Check(
        "API-07", "Writes take longer than the objective", A,
        Quantile(Source.APISERVER, "apiserver_request_sli_duration_seconds",
                 by=("verb", "resource"), match=(("verb", WRITES),)),
        (warning(1.0), critical(5.0)),
        "The official objective is 1 s at p99.",
        "etcd latency (ETCD-01), webhooks (API-21), then the priority level (API-04)",
        "sig-scalability SLOs", unit="s",
    ),
    Check(
        "API-08", "Lists take longer than the objective", A,
        Quantile(Source.APISERVER, "apiserver_request_sli_duration_seconds",
                 by=("resource", "scope"), match=(("verb", ("LIST",)),)),
        (warning(30.0),),
        "The official objective is 30 s at p99 for lists of a namespace or the cluster.",
        "fairlead doctor audit FILE   # unbounded LISTs", "sig-scalability SLOs", unit="s",
    ),
    Check(
        "API-15", "A resource has several watches per node", A, watches_per_node, (warning(3.0),),
        "Each watch from every node multiplies every write of that resource by the nodes.",
        "let a few central replicas hold the watch and answer the agents, or select by nodeName",
        "OpenAI 2021", unit="per node", growth=1,
    ),
    Check(
        "API-17", "The API server ends watches that do not keep up", A,
        PerSecond(
            Source.APISERVER, "apiserver_terminated_watchers_total", ("resource",), is_lazy=True
        ),
        (warning(1.0),),
        "Each of these clients lists everything again.",
        "narrow the watch, or make its consumer faster", "kubernetes #116903", unit="/s",
    ),
    Check(
        "API-10", "The API server gives requests up", A,
        PerSecond(
            Source.APISERVER, "apiserver_request_terminations_total", ("resource",), is_lazy=True
        ),
        (warning(1.0),),
        "The server ended requests to protect itself.",
        "fairlead doctor audit FILE", "kubernetes-mixin", unit="/s",
    ),
    Check(
        "API-13", "Consistent reads wait long for the watch cache", A,
        Quantile(Source.APISERVER, "apiserver_watch_cache_read_wait_seconds", by=("resource",)),
        (warning(0.2),),
        "Two progress requests to etcd were not enough.",
        "etcd latency (ETCD-01)", "KEP-2340", unit="s",
    ),
    Check(
        "API-19", "A resource has more objects than the scalability envelope", A, object_counts,
        (warning(1.0),),
        "LISTs and the memory of API servers and etcd are proven up to 150,000 objects per type "
        "and 1,000,000 events.",
        "ttlSecondsAfterFinished on jobs; remove custom resources that have ended",
        "sig-scalability thresholds", unit="x envelope", growth=1,
    ),
    Check(
        "API-18", "The API server's heap is large", A,
        Gauge(Source.APISERVER, "go_memstats_heap_inuse_bytes"),
        (info(40e9), warning(100e9)),
        "7,500 nodes took about 70 GB; out of memory moves the load to the next replica.",
        "unbounded LISTs first (AUD-02); Kubernetes 1.33 or newer streams lists",
        "OpenAI 2021", unit="bytes", growth=1,
    ),
    Check(
        "API-06", "The limits of requests in flight are the defaults", F, inflight,
        (info(0.5, nodes_from=1001),),
        "600 seats in all are few for a large cluster.",
        "--max-requests-inflight=1600 --max-mutating-requests-inflight=800, with memory to match",
        "EKS best practices", unit="bool",
    ),
    Check(
        "API-24", "The API server keeps no audit log", F, audit_policy, IS_WARNING,
        "Without an audit log no caller can be named when the API server is overloaded.",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
        "omitManagedFields: true\nrules:\n- level: None\n  nonResourceURLs: [/healthz*, /livez*, "
        "/readyz*]\n- level: Metadata",
        "Kubernetes documentation, auditing", unit="bool",
    ),
    Check(
        "API-26", "One API server answers most of the requests", A, skew, (warning(2.0),),
        "Clients keep their connections, so a server that came back stays idle while another is "
        "full.",
        "kube-apiserver --goaway-chance=0.001", "EKS best practices", unit="x mean of the others",
    ),
    Check(
        "API-28", "Leases are written more often than nodes need", A, lease_writes, (info(1.3),),
        "Each is a write of etcd; what is over the heartbeats is leader election.",
        "longer --leader-elect-retry-period in controllers; fairlead doctor audit FILE",
        "GKE, 130,000 nodes", unit="x",
    ),
    Check(
        "API-23", "An aggregated API is not available", K, aggregated, IS_WARNING,
        "Discovery and the deletion of namespaces fail.",
        "kubectl describe apiservice NAME; remove it when its server is gone", "kubernetes-mixin",
        unit="bool",
    ),
    Check(
        "API-27", "Nodes of the control plane take other pods", K, shared_control_plane,
        (warning(0.5, nodes_from=101),),
        "A job on the same disk or out of memory takes an API server or an etcd member with it.",
        "kubectl taint node NODE node-role.kubernetes.io/control-plane=:NoSchedule",
        "OpenAI 2021; Kubernetes documentation, large clusters", unit="bool",
    ),
    Check(
        "API-27B", "The control plane is in one zone", K, control_plane_zones,
        (warning(2, nodes_from=501),),
        "The cluster is gone with the zone.",
        "an API server in each zone, and etcd members in three",
        "Kubernetes documentation, large clusters", Side.BELOW, unit="zones",
    ),
    Check(
        "API-12", "LISTs without a version are served by etcd", K,
        partial(_older, minor=31), IS_WARNING,
        "The watch cache needs 2 to 10 times less CPU and 20 to 50 times less time.",
        "upgrade to Kubernetes 1.31 or newer", "KEP-2340", unit="bool",
    ),
    Check(
        "API-14", "Lists are encoded whole in memory", K, partial(_older, minor=33),
        (warning(0.5, nodes_from=2501),),
        "Ten lists of 1 GB took 70 GB of memory before, 3 GB after.",
        "upgrade to Kubernetes 1.33 or newer", "Kubernetes blog, streaming list responses",
        unit="bool",
    ),
    Check(
        "API-05", "No caller is isolated by a FlowSchema of its own", K, agents_without_flow,
        (info(0.5), warning(0.5, nodes_from=501)),
        "One agent on every node shares a priority level with all researchers.",
        "fairlead doctor audit FILE --flow-schema | kubectl apply -f -", "EKS best practices",
        unit="bool",
    ),
    Check(
        "API-20", "The cluster is larger than the proven envelope", K, envelope, (info(1.0),),
        "The official objectives are not proven at this size.",
        "watch API-07, API-08 and API-19", "sig-scalability thresholds", unit="x envelope",
    ),
    Check(
        "API-09", "Pods start late", M,
        Quantile(Source.KUBELET, "kubelet_pod_start_sli_duration_seconds"), (warning(5),),
        "The objective, from the creation of a pod until it runs, without pulls.",
        "look for late scheduling (SCH-05), slow webhooks (API-21) and runtimes (KUB-03)",
        "sig-scalability", unit="s",
    ),
    Check(
        "API-29", "Clients' certificates end soon", (Source.APISERVER,),
        Quantile(Source.APISERVER, "apiserver_client_certificate_expiration_seconds", q=0.01,
                 count_min=20),
        (warning(7 * 86_400), critical(86_400)),
        "A kubelet or controller whose certificate ended is out.",
        "kubeadm certs check-expiration; rotateCertificates: true in kubelets", "kubernetes-mixin",
        Side.BELOW, unit="s",
    ),
    Check(
        "API-25", "The audit log of this version lacks latencies", (Source.API,), audit_latency,
        IS_INFO, "Slow calls cannot be distinguished from waits in queues.",
        "upgrade to the next patch release", "kubernetes #135684", unit="bool",
    ),
)  # fmt: skip
