"""Checks of the cluster's DNS: replicas, their places and sizes, and what CoreDNS measures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from fairlead.api.values.quantity import QuantityError, parse
from fairlead.doctor.check import IS_WARNING, Check, MeasuredValue, Side, critical, info, warning
from fairlead.doctor.checks.of_objects import daemonsets, deployments, is_dns, is_spread
from fairlead.doctor.expressions import CodeShare, PerSecond, Quantile, over_the_others, reads
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.objects import SeenWorkload

D = Source.COREDNS
K = (Source.API,)
#: CoreDNS keeps the pods and Services of the cluster: MB for all, and for each (its scaling guide).
DNS_MB = 49.1
DNS_OBJECT_MB = 0.000858
LOOK_UPS = "coredns_dns_requests_total"
#: Of fewer a second, the shares of replicas are chance.
LOOK_UPS_MIN = 100.0


def dns_colocated(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the DNS replicas per node; one replica in all is DNS-03's matter."""
    pods, what = facts.seen_objects().dns_pods, "the DNS pods could not be listed"
    placed = Counter(
        pod.spec.node_name for pod in facts.seen(pods, Source.API, what) if pod.spec.node_name
    )
    if not placed:
        raise facts.missing(Source.API, "there are no pods k8s-app=kube-dns in kube-system")
    for node, count in placed.items():
        yield MeasuredValue(
            node, count, f"{count} of {sum(placed.values())} DNS replicas are on it"
        )


def dns_deployments(facts: ClusterFacts) -> tuple[SeenWorkload, ...]:
    """Return the Deployments of DNS; NotSeen when there is none."""
    dns = tuple(each for each in deployments(facts) if each.metadata.namespace == "kube-system" and
                is_dns(each))  # fmt: skip
    if not dns:
        raise facts.missing(Source.API, "there is no deployment of DNS in kube-system")
    return dns


def dns_anti_affinity(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether DNS replicas avoid each other."""
    for each in dns_deployments(facts):
        text = "podAntiAffinity or topologySpreadConstraints: " + (
            "present" if is_spread(each) else "absent")  # fmt: skip
        yield MeasuredValue(each.metadata.key, float(not is_spread(each)), text)


def dns_replicas(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read DNS replicas over the number of the proportional autoscaler: a replica per 16 nodes."""
    wanted = max(2.0, min(facts.nodes_count() / 16, 200.0))
    for each in dns_deployments(facts):
        count = each.spec.replicas if each.spec.replicas is not None else 1
        text = f"{count} replicas for {facts.nodes_count():,} nodes; {wanted:.0f} are usual"
        yield MeasuredValue(each.metadata.key, count / wanted, text)


def dns_node_local(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a DNS cache runs on the nodes."""
    names = [each.metadata.name for each in daemonsets(facts)]
    has = any("dns" in name and "local" in name for name in names)
    yield MeasuredValue("node-local-dns", float(not has), "present" if has else "no such DaemonSet")


def _corefile(facts: ClusterFacts) -> str:
    config = facts.seen_objects().config_maps.get("coredns")
    if config is None or "Corefile" not in config.data:
        raise facts.missing(Source.API, "ConfigMap kube-system/coredns could not be read")
    return config.data["Corefile"]


def dns_lameduck(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read for how long a DNS replica that ends still answers."""
    found = re.search(r"lameduck\s+(\d+)s", _corefile(facts))
    seconds = int(found[1]) if found else 0
    yield MeasuredValue("Corefile", seconds, f"lameduck {seconds} s" if found else "no lameduck")


def dns_stale(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether DNS answers from its cache when the API is away."""
    has = "serve_stale" in _corefile(facts)
    yield MeasuredValue(
        "Corefile", float(not has), "serve_stale " + ("present" if has else "absent")
    )


def host_network_dns(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read workloads on the host network that use the node's resolver without saying so."""
    objects, what = facts.seen_objects(), "workloads could not be listed"
    parts = [
        facts.seen(part, Source.API, what) for part in (objects.daemonsets, objects.deployments)
    ]
    for each in (workload for part in parts for workload in part):
        spec = each.spec.template.spec
        if spec.host_network:
            is_bad = spec.dns_policy == "ClusterFirst"
            yield MeasuredValue(each.metadata.key, float(is_bad),
                          f"hostNetwork with dnsPolicy {spec.dns_policy}")  # fmt: skip


def dns_memory(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the memory limit of DNS over what the cluster's pods and Services take."""
    counts = facts.seen_objects().counts
    if not {"pods", "services"} <= counts.keys():
        raise facts.missing(Source.API, "pods and Services could not be counted")
    needed = DNS_MB + DNS_OBJECT_MB * (counts["pods"] + counts["services"])
    for each in dns_deployments(facts):
        whole = each.spec.template.spec.resources.limits.get("memory")
        for container in each.spec.template.spec.containers:
            limit = container.resources.limits.get("memory", whole)
            if limit is None or container.name not in ("coredns", "kubedns"):
                continue
            try:
                megabytes = float(parse(limit)) / 1e6
            except QuantityError as error:
                raise facts.missing(Source.API, f"{each.metadata.key}: {error}") from error
            text = f"limit {limit}, {needed:,.0f} MB are needed"
            yield MeasuredValue(each.metadata.key, megabytes / needed, text)


@reads(D, counters=(LOOK_UPS,))
def hot_replica(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the look-ups of each DNS replica over the mean of the others."""
    rates = {each.subject: each.value for each in PerSecond(D, LOOK_UPS)(facts)}
    yield from over_the_others(rates, "look-ups", least=LOOK_UPS_MIN)


CHECKS: tuple[Check, ...] = (
    Check(
        "DNS-01", "Several DNS replicas are on one node", K, dns_colocated,
        (warning(1), critical(2)),
        "The node is a hot spot for all name look-ups, and limits of its network apply to all.",
        "kubectl -n kube-system rollout restart deployment/coredns, with anti-affinity (DNS-02)",
        "OpenAI 2018 (ten replicas on one node)", unit="replicas",
    ),
    Check(
        "DNS-02", "DNS replicas do not avoid each other", K, dns_anti_affinity, IS_WARNING,
        "Bin-packing puts them on one node.",
        "spec:\n  template:\n    spec:\n      affinity:\n        podAntiAffinity:\n"
        "          preferredDuringSchedulingIgnoredDuringExecution:\n          - weight: 100\n"
        "            podAffinityTerm:\n              topologyKey: kubernetes.io/hostname\n"
        "              labelSelector: {matchLabels: {k8s-app: kube-dns}}",
        "OpenAI 2018", unit="bool",
    ),
    Check(
        "DNS-03", "There are few DNS replicas", K, dns_replicas, (warning(0.5),),
        "Look-ups queue, and applications wait 5 s for a repeat.",
        "install the cluster-proportional-autoscaler, or kubectl -n kube-system scale "
        "deployment/coredns",
        "EKS best practices", Side.BELOW, unit="x",
    ),
    Check(
        "DNS-07", "No DNS cache runs on the nodes", K, dns_node_local,
        (warning(0.5, nodes_from=501),),
        "Each look-up goes through connection tracking and to few replicas.",
        "install NodeLocal DNSCache", "Kubernetes documentation, NodeLocal DNSCache", unit="bool",
    ),
    Check(
        "DNS-10", "DNS replicas end before clients have left them", K, dns_lameduck,
        (warning(5),),
        "Endpoints are removed 1 to 10 s after a replica ends; look-ups are lost until then.",
        "health {\n  lameduck 30s\n}", "EKS best practices", Side.BELOW, unit="s",
    ),
    Check(
        "DNS-11", "DNS does not answer from its cache when the API server is away", K, dns_stale,
        (info(0.5),),
        "Stale answers bought 20 minutes in an outage of December 2024.",
        "cache 30 {\n  serve_stale 3600s immediate\n}", "CoreDNS cache plugin", unit="bool",
    ),
    Check(
        "DNS-12", "A workload on the host network uses the node's resolver", K, host_network_dns,
        IS_WARNING,
        "With hostNetwork the policy ClusterFirst means Default: no cluster names.",
        "dnsPolicy: ClusterFirstWithHostNet", "Kubernetes documentation, DNS", unit="bool",
    ),
    Check(
        "DNS-04", "DNS has too little memory for the cluster", K, dns_memory,
        (critical(1.0), warning(1.25)),
        "Each replica keeps all pods and Services; the kernel ends it as the cluster grows.",
        "kubectl -n kube-system set resources deployment coredns --limits=memory=MORE",
        "CoreDNS, scaling", Side.BELOW, unit="x",
    ),
    Check(
        "DNS-08", "DNS answers very late", (D,),
        Quantile(D, "coredns_dns_request_duration_seconds"), (warning(1.0), critical(5.0)),
        "Clients repeat a look-up after 5 s; a full connection table looks the same.",
        "NodeLocal DNSCache; forward to more than one upstream", "kubernetes #56903", unit="s",
    ),
    Check(
        "DNS-05", "A DNS replica has very many look-ups", (D,),
        PerSecond(D, LOOK_UPS), (warning(10_000),),
        "33,000 a second fill two cores.",
        "more replicas (DNS-03), NodeLocal DNSCache (DNS-07)", "CoreDNS, scaling", unit="/s",
    ),
    Check(
        "DNS-09", "A DNS replica asks upstream almost as often as clouds allow", (D,),
        PerSecond(D, "coredns_proxy_request_duration_seconds_count",
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
)  # fmt: skip
