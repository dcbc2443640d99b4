"""Checks of the scheduler, controllers, the autoscaler, DNS under load, and Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.doctor.check import Check, Reading, Side
from fairlead.doctor.checks.levels import IS_CRITICAL, IS_INFO, critical, warning
from fairlead.doctor.expressions import CodeShare, Quantile, Rate, Value, over_the_others
from fairlead.doctor.facts import Facts, Source

S, C, D, P = Source.SCHEDULER, Source.CONTROLLER_MANAGER, Source.COREDNS, Source.PROMETHEUS
LOOK_UPS = "coredns_dns_requests_total"
#: Of fewer a second, the shares of replicas are chance.
LOOK_UPS_MIN = 100.0
QPS_DEFAULTS = {"kube-scheduler": 50.0, "kube-controller-manager": 20.0}


def client_qps(facts: Facts) -> Iterator[Reading]:
    """Read whether the scheduler and the controllers send at their default rates."""
    for component, default in QPS_DEFAULTS.items():
        text = facts.seen_flags(component).get("kube-api-qps", f"{default:g}")
        yield Reading(component, float(text == f"{default:g}"), f"--kube-api-qps={text}")


def _number(facts: Facts, name: str, default: float) -> Reading:
    text = facts.seen_flags("cluster-autoscaler").get(name, f"{default:g}")
    try:
        value = float(text)
    except ValueError as error:
        raise facts.missing(Source.FLAGS, f"--{name}={text} is not a number") from error
    return Reading("cluster-autoscaler", value, f"--{name}={text}")


def unready_stop(facts: Facts) -> Iterator[Reading]:
    """Read up to which share of unready nodes the autoscaler goes on."""
    yield _number(facts, "max-total-unready-percentage", 45)


def delete_rate(facts: Facts) -> Iterator[Reading]:
    """Read how many nodes the autoscaler removes at a time, over all nodes."""
    reading = _number(facts, "max-scale-down-parallelism", 10)
    nodes = max(facts.nodes_count(), 1)
    yield Reading(reading.subject, reading.value / nodes if nodes >= 100 else 0.0,
                  f"{reading.evidence} of {nodes:,} nodes")  # fmt: skip


def series_churn(facts: Facts) -> Iterator[Reading]:
    """Read the share of the series that are new in an hour."""
    heads = {r.subject: r.value for r in Value(P, "prometheus_tsdb_head_series")(facts)}
    for reading in Rate(P, "prometheus_tsdb_head_series_created_total")(facts):
        head = heads.get(reading.subject, 0.0)
        if head > 0:
            yield Reading(reading.subject, reading.value * 3600 / head,
                          f"{reading.evidence}; {head:,.0f} series in the head")  # fmt: skip


def hot_replica(facts: Facts) -> Iterator[Reading]:
    """Read the look-ups of each DNS replica over the mean of the others."""
    rates = {each.subject: each.value for each in Rate(D, LOOK_UPS)(facts)}
    yield from over_the_others(rates, "look-ups", least=LOOK_UPS_MIN)


def etcd_versions(facts: Facts) -> Iterator[Reading]:
    """Read members of a version with a known fault: 3.5 before 3.5.6."""
    for instance, family in facts.family(Source.ETCD, "etcd_server_version"):
        for labels, _ in family.values():
            version = labels.get("server_version", "")
            found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
            numbers = tuple(map(int, found.groups())) if found else ()
            is_bad = (3, 5, 0) <= numbers < (3, 5, 6)
            yield Reading(instance, float(is_bad), f"version {version}")


def audit_latency(facts: Facts) -> Iterator[Reading]:
    """Read whether the API server's audit log lacks latencies."""
    version = facts.seen_objects().version
    if not version:
        raise facts.missing(Source.API, "the version of the API server is not known")
    is_bad = re.match(r"v?1\.(34|35)\.0\b", version) is not None
    yield Reading("kube-apiserver", float(is_bad), f"version {version}")


CHECKS: tuple[Check, ...] = (
    Check(
        "ETCD-18", "etcd has a version with a known fault", (Source.ETCD,), etcd_versions,
        IS_CRITICAL,
        "3.5.0 to 3.5.2 may lose consistency in a crash, versions before 3.5.6 may crash while "
        "they are defragmented.",
        "upgrade to 3.5.20 or newer; that is also the way to 3.6", "etcd changelog", unit="bool",
    ),
    Check(
        "CA-01", "The autoscaler goes on while most nodes are unready", (Source.FLAGS,),
        unready_stop, (critical(50),),
        "In an outage of the control plane all nodes look unready, and it removes the fleet.",
        "--max-total-unready-percentage=45", "OpenAI 2018", unit="%",
    ),
    Check(
        "CA-02", "The autoscaler removes many nodes at a time", (Source.FLAGS,), delete_rate,
        (warning(0.05),), "The number bounds what a mistake costs.",
        "--max-scale-down-parallelism=10", "cluster-autoscaler FAQ", unit="share",
    ),
    Check(
        "DNS-08", "DNS answers very late", (D,),
        Quantile(D, "coredns_dns_request_duration_seconds"), (warning(1.0), critical(5.0)),
        "Clients repeat a look-up after 5 s; a full connection table looks the same.",
        "NodeLocal DNSCache; forward to more than one upstream", "kubernetes #56903", unit="s",
    ),
    Check(
        "DNS-05", "A DNS replica has very many look-ups", (D,),
        Rate(D, LOOK_UPS), (warning(10_000),),
        "33,000 a second fill two cores.",
        "more replicas (DNS-03), NodeLocal DNSCache (DNS-07)", "CoreDNS, scaling", unit="/s",
    ),
    Check(
        "DNS-14", "One DNS replica answers most of the look-ups", (D,), hot_replica,
        (warning(3.0),),
        "It meets its limits, and those of its node, while the others idle.",
        "spread the replicas (DNS-02); sessionAffinity: None for the Service kube-dns; NodeLocal "
        "DNSCache (DNS-07), as clients that keep a connection stay with one replica",
        "OpenAI 2018", unit="x mean of the others",
    ),
    Check(
        "DNS-06", "Most look-ups find nothing", (D,),
        CodeShare(D, "coredns_dns_responses_total", "rcode", "NXDOMAIN"), (warning(0.5),),
        "With ndots 5 each outside name is looked up five times.",
        "dnsConfig:\n  options:\n  - {name: ndots, value: \"2\"}", "EKS best practices",
        unit="share",
    ),
    Check(
        "MET-01", "Prometheus holds very many series", (P,),
        Value(P, "prometheus_tsdb_head_series"),
        (warning(10e6), critical(30e6)),
        "Each takes 4 to 8 KB of memory; a restart replays them all.",
        "curl -s PROMETHEUS/api/v1/status/tsdb   # the largest metrics; drop what nothing uses",
        "OpenAI 2021; Prometheus", unit="series",
    ),
    Check(
        "MET-05", "Prometheus takes long to replay its log", (P,),
        Value(P, "prometheus_tsdb_data_replay_duration_seconds"), (warning(600), critical(3600)),
        "Nothing is monitored meanwhile; hours were seen.",
        "fewer series (MET-01); GOMAXPROCS=24 on hosts of many cores", "OpenAI 2021", unit="s",
    ),
    Check(
        "MET-06", "Prometheus runs very many threads", (P,),
        Value(P, "go_sched_gomaxprocs_threads"), (warning(24),),
        "The replay of its log has a worker for each; they wait for one another.",
        "GOMAXPROCS=24 in its environment, or a CPU limit", "OpenAI 2021", unit="threads",
    ),
    Check(
        "MET-02", "Prometheus gets many new series", (P,), series_churn, (warning(0.1),),
        "Short jobs with a label per pod: memory follows the churn, not the pods.",
        "drop the labels pod and container_id where nothing uses them", "Prometheus", unit="share",
    ),
    Check(
        "MET-04", "Prometheus takes long to list series", (P,),
        Quantile(P, "prometheus_http_request_duration_seconds",
                 match=(("handler", ("/api/v1/series",)),), count_min=10), (warning(30),),
        "A query without a metric name made a server of 25 GB take 90 GB.",
        "limit= in dashboards; a proxy that refuses such queries", "prometheus #5547", unit="s",
    ),
    Check(
        "SCH-09", "A controller works off its queue late", (C,),
        Quantile(C, "workqueue_queue_duration_seconds", by=("name",)), (warning(10.0),),
        "Objects wait for so long before the controller sees them.",
        "--kube-api-qps and the controller's --concurrent-*-syncs", "EKS best practices", unit="s",
    ),
    Check(
        "SCH-05", "The scheduler places pods late", (S,),
        Quantile(S, "scheduler_pod_scheduling_sli_duration_seconds"), (warning(5.0),),
        "The time from queue to binding, without pods that cannot be placed.",
        "fewer affinity terms, percentageOfNodesToScore, --kube-api-qps", "scheduler metrics",
        unit="s",
    ),
    Check(
        "SCH-03", "Very many pods wait for a place", (S,),
        Value(S, "scheduler_pending_pods", by=("queue",)), (warning(10_000),),
        "Each is an object that all watchers of pods carry, and each event retries it.",
        "queue jobs instead of pods: fairlead submit, Kueue", "OpenAI 2021", unit="pods",
    ),
    Check(
        "SCH-06", "The scheduler and the controllers send at their default rate", (Source.FLAGS,),
        client_qps, (warning(0.5, nodes_from=1001),),
        "50 and 20 requests a second bound how fast 1,000 nodes are served.",
        "--kube-api-qps=500 --kube-api-burst=500", "kube-scheduler flags", unit="bool",
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
