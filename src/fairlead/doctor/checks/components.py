"""Checks of controllers, DNS under load, versions of etcd and the API server, certificates."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.doctor.check import IS_CRITICAL, IS_INFO, Check, Reading, Side, critical, warning
from fairlead.doctor.expressions import CodeShare, Quantile, Rate, over_the_others, reads
from fairlead.doctor.facts import Facts, Source

C, D = Source.CONTROLLER_MANAGER, Source.COREDNS
LOOK_UPS = "coredns_dns_requests_total"
#: Of fewer a second, the shares of replicas are chance.
LOOK_UPS_MIN = 100.0
QPS_DEFAULTS = {"kube-scheduler": 50.0, "kube-controller-manager": 20.0}


def client_qps(facts: Facts) -> Iterator[Reading]:
    """Read whether the scheduler and the controllers send at their default rates."""
    for component, default in QPS_DEFAULTS.items():
        text = facts.seen_flags(component).get("kube-api-qps", f"{default:g}")
        yield Reading(component, float(text == f"{default:g}"), f"--kube-api-qps={text}")


@reads(D, counters=(LOOK_UPS,))
def hot_replica(facts: Facts) -> Iterator[Reading]:
    """Read the look-ups of each DNS replica over the mean of the others."""
    rates = {each.subject: each.value for each in Rate(D, LOOK_UPS)(facts)}
    yield from over_the_others(rates, "look-ups", least=LOOK_UPS_MIN)


@reads(Source.ETCD, gauges=("etcd_server_version",))
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
        "DNS-09", "A DNS replica asks upstream almost as often as clouds allow", (D,),
        Rate(D, "coredns_proxy_request_duration_seconds_count",
             match=(("proxy_name", ("forward",)),)), (warning(140), critical(700)),
        "Azure allowed a machine 200 look-ups a second in 2018, AWS allows an interface 1,024 "
        "packets a second; more are dropped.",
        "spread the replicas (DNS-01); NodeLocal DNSCache (DNS-07); cache 300 in the Corefile",
        "OpenAI 2018; Amazon VPC, DNS quotas", unit="/s",
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
        "SCH-09", "A controller works off its queue late", (C,),
        Quantile(C, "workqueue_queue_duration_seconds", by=("name",)), (warning(10.0),),
        "Objects wait for so long before the controller sees them.",
        "--kube-api-qps and the controller's --concurrent-*-syncs", "EKS best practices", unit="s",
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
