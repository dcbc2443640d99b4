"""Checks of the network of nodes, pods and services."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping

from fairlead.api.names import EGRESS_BANDWIDTH, INGRESS_BANDWIDTH
from fairlead.doctor.check import IS_INFO, IS_WARNING, Check, MeasuredValue, critical, warning
from fairlead.doctor.checks.of_nodes import node_number
from fairlead.doctor.checks.of_objects import pods_of
from fairlead.doctor.expressions import Quantile, Ratio, Recorded, reads
from fairlead.doctor.facts import ClusterFacts, Source

A = (Source.APISERVER,)
K = (Source.API,)
N = (Source.NODE,)
BANDWIDTH = (EGRESS_BANDWIDTH, INGRESS_BANDWIDTH)
#: Bytes that a tunnel adds to a packet.
TUNNEL_BYTES = 50
#: A pod's packets may be so much smaller than its node's without a finding.
SMALLER_BYTES_MAX = 100
FAST_MBPS = 100_000
SENT_MIN = 1_000_000
MASK_DEFAULTS = {4: 24, 6: 64}


@reads(Source.APISERVER, gauges=("apiserver_longrunning_requests",))
def endpoints_watchers(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the watches of Endpoints per node, over all API servers."""
    watches = 0.0
    for _, family in facts.family(Source.APISERVER, "apiserver_longrunning_requests"):
        for labels, value in family.values():
            if labels.get("resource") == "endpoints" and labels.get("verb") == "WATCH":
                watches += value
    nodes = max(facts.nodes_count(), 1)
    few = watches if watches > 5 else 0.0
    yield MeasuredValue(
        "endpoints", few / nodes, f"{watches:,.0f} watches of Endpoints, {nodes:,} nodes"
    )


def kube_proxy_mode(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the number of Services when kube-proxy uses iptables; 0 for other modes."""
    objects = facts.seen_objects()
    config = objects.config_maps.get("kube-proxy")
    if config is None or "services" not in objects.counts:
        raise facts.missing(Source.API, "ConfigMap kube-system/kube-proxy could not be read")
    text = "\n".join(config.data.values())
    found = re.search(r"^mode:\s*\"?(\w*)\"?\s*$", text, re.MULTILINE)
    mode = (found[1] if found else "") or "iptables"
    services = objects.counts["services"]
    yield MeasuredValue("kube-proxy", services if mode == "iptables" else 0,
                  f"mode {mode} with {services:,} Services")  # fmt: skip


def bandwidth_annotations(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read workloads whose pods ask for a bandwidth."""
    for each, _ in pods_of(facts):
        asked = [n for n in BANDWIDTH if n in each.spec.template.metadata.annotations]
        yield MeasuredValue(
            each.metadata.key, float(bool(asked)), ", ".join(asked) or "no annotation"
        )


def node_numbers(facts: ClusterFacts, *keys: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (node, values) of the nodes that have all keys; NotSeen when there is none."""
    columns = [dict(node_number(facts, key)) for key in keys]
    nodes = [node for node in columns[0] if all(node in column for column in columns)]
    if not nodes:
        raise facts.missing(Source.NODE, f"no node gives {' and '.join(keys)}")
    for node in nodes:
        yield node, tuple(column[node] for column in columns)


def node_ranges(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the nodes over the number of address ranges that the controller manager can give out."""
    flags = facts.seen_flags("kube-controller-manager")
    ranges = flags.get("cluster-cidr", "")
    if not ranges or flags.get("allocate-node-cidrs") != "true":
        raise facts.missing(Source.FLAGS, "the controller manager gives no ranges to nodes")
    nodes = facts.nodes_count()
    for text in ranges.split(","):
        try:
            network = ipaddress.ip_network(text.strip())
            mask = _mask(flags, network.version)
        except ValueError as error:
            raise facts.missing(Source.FLAGS, f"--cluster-cidr={ranges}: {error}") from error
        count = 2 ** max(mask - network.prefixlen, 0)
        yield MeasuredValue(
            text, nodes / count, f"{nodes:,} nodes, room for {count:,} ranges of /{mask}"
        )


def _mask(flags: Mapping[str, str], version: int) -> int:
    given = flags.get(f"node-cidr-mask-size-ipv{version}") or flags.get("node-cidr-mask-size")
    return int(given) if given else MASK_DEFAULTS[version]


def tunnels(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a node has tunnels for pods."""
    for node, count in node_number(facts, "fairlead.tunnels"):
        yield MeasuredValue(node, float(count > 0), f"{count} tunnel interfaces are up")


def packet_sizes(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether packets of pods are too large for the node's interface (2) or too small (1)."""
    keys = ("fairlead.nic_mtu", "fairlead.pod_mtu", "fairlead.tunnels")
    for node, (nic, pod, count) in node_numbers(facts, *keys):
        room = nic - (TUNNEL_BYTES if count else 0)
        value = 2.0 if pod > room else float(pod < room - SMALLER_BYTES_MAX)
        yield MeasuredValue(
            node, value, f"MTU {pod} of pods, {nic} of the interface, {count} tunnels"
        )


def rules(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the rules of iptables on a node."""
    for node, count in node_number(facts, "fairlead.iptables_rules"):
        yield MeasuredValue(node, count, f"{count:,} rules in iptables-save")


def one_queue(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether token buckets shape pods on a node whose interface is fast."""
    keys = ("fairlead.tbf_qdiscs", "fairlead.nic_speed_mbps", "fairlead.nic_tx_queues")
    for node, (shaped, speed, queues) in node_numbers(facts, *keys):
        is_bad = shaped > 0 and speed >= FAST_MBPS and queues > 1
        text = f"{shaped} tbf qdiscs, interface of {speed:,} Mbit/s with {queues} queues"
        yield MeasuredValue(node, float(is_bad), text)


def repeats(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of TCP segments that a node sent more than once."""
    keys = ("fairlead.tcp_sent", "fairlead.tcp_retransmitted")
    for node, (sent, repeated) in node_numbers(facts, *keys):
        text = f"{repeated:,} of {sent:,} segments since the node started"
        yield MeasuredValue(node, repeated / sent if sent >= SENT_MIN else 0.0, text)


CHECKS: tuple[Check, ...] = (
    Check(
        "NET-09", "Clients still watch Endpoints", A, endpoints_watchers,
        (warning(0.01), critical(0.5)),
        "Each change of a Service sends the whole Endpoints object to every watcher: with 20,000 "
        "endpoints and 5,000 nodes one change is 10 GB, and 50 MB with EndpointSlices.",
        "upgrade or configure the watcher to use discovery.k8s.io/v1 EndpointSlices;\n"
        "fairlead doctor audit FILE   # names it",
        "KEP-752; OpenAI 2021 (1 GB/s)", unit="per node", growth=1,
    ),
    Check(
        "NET-04", "kube-proxy uses iptables with many Services", K, kube_proxy_mode,
        (warning(1000),),
        "The first packet of a connection walks a rule per Service.",
        "mode: nftables (kernel 5.13 or newer) in ConfigMap kube-system/kube-proxy",
        "Kubernetes blog, nftables mode", unit="Services",
    ),
    Check(
        "NET-11", "A workload asks for a bandwidth that may not be enforced", K,
        bandwidth_annotations, IS_WARNING,
        "Without the bandwidth plug-in or Cilium's bandwidth manager the annotation does nothing.",
        "type bandwidth in /etc/cni/net.d, cilium config set enable-bandwidth-manager true, or "
        "shaping.bandwidthAnnotations: true in the settings of Fairlead's node agent",
        "kubernetes #76064; calico #5007", unit="bool",
    ),
    Check(
        "NET-02", "The packet size of pods does not fit the network", N, packet_sizes,
        (warning(0.5), critical(1.5)),
        "Packets that are too large are lost where fragments are dropped, and connections hang; "
        "small ones cost throughput.",
        "set the MTU of the CNI plug-in to that of the interface, less 50 bytes for a tunnel",
        "CNI plug-ins, MTU", unit="bool",
    ),
    Check(
        "NET-03", "The address ranges for nodes are nearly used up",
        (Source.FLAGS, Source.API), node_ranges, (warning(0.8), critical(0.95)),
        "A node without a range starts no pod.",
        "add a range: --cluster-cidr=OLD,NEW is for two families only; ClusterCIDR of the CNI's "
        "address management, or a smaller --node-cidr-mask-size for new clusters",
        "kube-controller-manager flags", unit="share", growth=1,
    ),
    Check(
        "NET-03B", "The addresses for Services are nearly used up", (Source.APISERVER,),
        Ratio(Source.APISERVER, "kube_apiserver_clusterip_allocator_allocated_ips",
              "kube_apiserver_clusterip_allocator_available_ips", ("cidr",)),
        (warning(4.0),),
        "The API server refuses new Services when there is none left.",
        "add a range: kubectl create -f a ServiceCIDR (Kubernetes 1.33)",
        "Kubernetes documentation, extend Service IP ranges", unit="used per free",
    ),
    Check(
        "NET-05", "kube-proxy is late with changes of Services", (Source.KUBE_PROXY,),
        Quantile(Source.KUBE_PROXY, "kubeproxy_network_programming_duration_seconds",
                 count_min=20),
        (warning(30),),
        "Connections go to pods that have ended, and none to new ones.",
        "mode nftables (NET-04); fewer endpoints per Service (NET-10)",
        "sig-scalability SLIs, network programming latency", unit="s",
    ),
    Check(
        "NET-06", "A node has very many rules of iptables", N, rules, (warning(20_000),),
        "Each change rewrites the table, and packets walk it rule by rule.",
        "mode: nftables in ConfigMap kube-system/kube-proxy; no rule per pod in other agents",
        "Kubernetes blog, nftables mode", unit="rules",
    ),
    Check(
        "NET-10", "A Service has very many endpoints", (Source.KUBE_STATE, Source.RECORDED),
        Recorded(Source.KUBE_STATE, "topk(100, count by (namespace, endpoint) "
                 "(kube_endpoint_address))", ("namespace", "endpoint")),
        (warning(1_000),),
        "kube-proxy on every node keeps all of them, and each change goes to every node.",
        "headless Services with a selector by node or shard; for metrics a PodMonitor; the label "
        "service.kubernetes.io/service-proxy-name takes a Service from kube-proxy",
        "OpenAI 2021", unit="endpoints", growth=1,
    ),
    Check(
        "NET-12", "Pods of a fast node are shaped in one queue", N, one_queue, IS_WARNING,
        "All cores wait for the lock of the token bucket.",
        "Cilium's bandwidth manager (earliest departure time) instead of the bandwidth plug-in",
        "Cilium, bandwidth manager", unit="bool",
    ),
    Check(
        "NET-13", "A node sends many TCP segments again", N, repeats, (warning(0.01),),
        "Packets are lost: a bad cable or port, a full queue, or a wrong packet size.",
        "ethtool -S INTERFACE | grep -iE 'err|drop'; then NET-02", "node exporter mixin",
        unit="share",
    ),
    Check(
        "NET-01", "Pods reach each other through a tunnel", N, tunnels, IS_INFO,
        "Encapsulation costs throughput: flannel gave 2 of 10 to 15 Gbit/s in 2018. Compare "
        "iperf3 between pods and between hosts.",
        "native routing of the CNI plug-in; hostNetwork for the pods of a job",
        "OpenAI 2018 and 2021", unit="bool",
    ),
)  # fmt: skip
