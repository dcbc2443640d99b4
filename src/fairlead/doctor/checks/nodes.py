"""Checks of nodes and kubelets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fairlead.doctor.audit.event import seconds_of
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
from fairlead.doctor.checks.of_nodes import configs, node_number, node_texts, sysctl
from fairlead.doctor.expressions import Quantile, Recorded
from fairlead.doctor.facts import ClusterFacts, Source

N = (Source.NODE,)
M = (Source.KUBELET,)
C = (Source.KUBELET_CONFIG,)
NEIGHBOURS = ("net.ipv4.neigh.default.gc_thresh3", "net.ipv6.neigh.default.gc_thresh3")
REPORT_SECONDS_MIN = 60.0


def api_qps(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the requests per second that a kubelet may send."""
    for node, config in configs(facts):
        qps = config.get("kubeAPIQPS", 50)
        value = float(qps) if isinstance(qps, int | float) else 50.0
        yield MeasuredValue(node, value, f"kubeAPIQPS: {qps}")


def status_reports(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a kubelet reports its status more often than once a minute."""
    for node, config in configs(facts):
        text = str(config.get("nodeStatusReportFrequency", "5m0s"))
        seconds = seconds_of(text)
        yield MeasuredValue(node, float(0 < seconds < REPORT_SECONDS_MIN),
                      f"nodeStatusReportFrequency: {text}")  # fmt: skip


def neighbours(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the limits of the neighbour tables over the nodes of the cluster."""
    nodes = max(facts.nodes_count(), 1)
    for node, key, value in sysctl(facts, *NEIGHBOURS):
        yield MeasuredValue(
            f"{node} {key}", value / nodes, f"{key} = {value:,} for {nodes:,} nodes"
        )


def neighbour_overflow(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how often a neighbour table was full."""
    for node, key, value in sysctl(facts, "fairlead.arp_table_fulls", "fairlead.ndisc_table_fulls"):
        yield MeasuredValue(f"{node} {key}", value, f"{key} = {value:,}")


def conntrack(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the fill of the connection table."""
    limits = dict(node_number(facts, "net.netfilter.nf_conntrack_max"))
    for node, value in node_number(facts, "net.netfilter.nf_conntrack_count"):
        if limits.get(node):
            yield MeasuredValue(
                node, value / limits[node], f"{value:,} of {limits[node]:,} entries"
            )


def setting(facts: ClusterFacts, key: str) -> Iterator[MeasuredValue]:
    """Read the number that a setting of the kernel has."""
    for node, value in node_number(facts, key):
        yield MeasuredValue(node, value, f"{key} = {value:,}")


def ports(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many local ports there are for connections."""
    key = "net.ipv4.ip_local_port_range"
    seen = [(node, text.split()) for node, text in node_texts(facts, key)]
    pairs = [(node, words) for node, words in seen if len(words) == 2 and
             all(word.isdecimal() for word in words)]  # fmt: skip
    if not pairs:
        raise facts.missing(Source.NODE, f"no node gives {key}")
    for node, (low, high) in pairs:
        yield MeasuredValue(node, int(high) - int(low), f"{key} = {low} {high}")


def reverse_path(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the strict reverse path filter is on."""
    key = "net.ipv4.conf.all.rp_filter"
    for node, value in node_number(facts, key):
        yield MeasuredValue(node, float(value == 1), f"{key} = {value}")


def locked_memory(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a node with RDMA bounds the memory that containers may lock."""
    for node, text in node_texts(facts, "fairlead.containerd_memlock"):
        devices = facts.node_facts[node].get("fairlead.rdma_devices", "0")
        is_bad = text != "unlimited" and devices not in ("", "0")
        yield MeasuredValue(node, float(is_bad), f"locked memory {text}, {devices} RDMA devices")


CHECKS: tuple[Check, ...] = (
    Check(
        "SYS-02", "A neighbour (ARP) table overflowed", N, neighbour_overflow, (critical(0),),
        "Packets to peers without an entry are lost: stalls of seconds everywhere, which look like "
        "DNS.",
        "sysctl -w net.ipv4.neigh.default.gc_thresh1=80000 net.ipv4.neigh.default.gc_thresh2=90000 "
        "net.ipv4.neigh.default.gc_thresh3=100000   # and net.ipv6 likewise",
        "OpenAI 2018", unit="times",
    ),
    Check(
        "SYS-01", "The neighbour (ARP) table is small for the cluster", N, neighbours,
        (critical(2.0),),
        "One table holds all peers of a kernel, of all network namespaces; the default is 1,024.",
        "sysctl -w net.ipv4.neigh.default.gc_thresh1=80000 net.ipv4.neigh.default.gc_thresh2=90000 "
        "net.ipv4.neigh.default.gc_thresh3=100000   # and net.ipv6 likewise",
        "OpenAI 2018", Side.BELOW, unit="per node",
    ),
    Check(
        "SYS-03", "The connection table of a node is nearly full", N, conntrack,
        (warning(0.75), critical(0.95)),
        "New connections are dropped when it is full.",
        "sysctl -w net.netfilter.nf_conntrack_max=1048576; NodeLocal DNSCache takes most entries",
        "kubernetes #71261", unit="share",
    ),
    Check(
        "SYS-05", "A node may have few processes", N,
        partial(setting, key="kernel.pid_max"), (warning(32_769),),
        "Data loaders and MPI ranks fork; 32,768 are used up by a few jobs of a large host.",
        "sysctl -w kernel.pid_max=4194304", "Linux kernel documentation", Side.BELOW,
        unit="processes",
    ),
    Check(
        "SYS-04", "The connection table of a node is far too large", N,
        partial(setting, key="net.netfilter.nf_conntrack_max"), (warning(4_000_000),),
        "kube-proxy sizes it by cores; on hosts of many cores it no longer fits any cache.",
        "conntrack:\n  maxPerCore: 0   # in the configuration of kube-proxy",
        "kubernetes #136228", unit="entries",
    ),
    Check(
        "SYS-06", "A node gives users few inotify instances", N,
        partial(setting, key="fs.inotify.max_user_instances"), (warning(129),),
        "Log readers and tail -f fail with `too many open files`.",
        "sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=1048576",
        "Linux inotify(7)", Side.BELOW, unit="instances",
    ),
    Check(
        "SYS-07", "A node lets few connections wait", N,
        partial(setting, key="net.core.somaxconn"), (warning(1024),),
        "When thousands of ranks meet, connections are refused.",
        "sysctl -w net.core.somaxconn=16384", "Linux listen(2)", Side.BELOW, unit="connections",
    ),
    Check(
        "SYS-08", "A node has few local ports", N, ports, (warning(20_000),),
        "Connections through NAT and MPI run out of ports.",
        "sysctl -w net.ipv4.ip_local_port_range='10000 65535'", "Linux ip-sysctl", Side.BELOW,
        unit="ports",
    ),
    Check(
        "SYS-09", "The strict reverse path filter is on", N, reverse_path, IS_INFO,
        "On hosts with several networks it drops packets that come by another way.",
        "sysctl -w net.ipv4.conf.all.rp_filter=2", "Linux ip-sysctl", unit="bool",
    ),
    Check(
        "KUB-03", "A kubelet sees its containers late", M,
        Quantile(Source.KUBELET, "kubelet_pleg_relist_duration_seconds"), (warning(10),),
        "The container runtime is overloaded; the node becomes NotReady next.",
        "look at the runtime's log and at the disk of the node", "kubernetes-mixin", unit="s",
    ),
    Check(
        "KUB-04", "A node goes in and out of readiness", (Source.KUBE_STATE, Source.RECORDED),
        Recorded(Source.KUBE_STATE, 'max by (node) (changes(kube_node_status_condition{'
                 'condition="Ready", status="true"}[15m]))', ("node",)),
        (warning(2),),
        "Each time all of its pods leave and enter the endpoints of their Services.",
        "the kubelet's log on the node; its runtime (KUB-03) and its disk", "kubernetes-mixin",
        unit="changes in 15 minutes",
    ),
    Check(
        "KUB-05", "A node has almost as many pods as it may",
        (*M, Source.KUBE_STATE, Source.RECORDED),
        Recorded(Source.KUBELET, 'max by (node) (kubelet_running_pods{job=~"$job"}) / on (node) '
                 'max by (node) (kube_node_status_capacity{resource="pods"})', ("node",)),
        (info(0.95),),
        "Pods wait although the node has CPUs and memory.",
        "maxPods in the kubelet's configuration, with addresses to match; or larger pods",
        "kubernetes-mixin", unit="share",
    ),
    Check(
        "KUB-01", "A kubelet reports its status often", C, status_reports, IS_WARNING,
        "A status is large; the lease is the heartbeat.",
        "nodeStatusReportFrequency: 5m", "kubelet configuration", unit="bool",
    ),
    Check(
        "KUB-02", "Kubelets may together send very many requests", C, api_qps,
        (info(50, nodes_from=5001),),
        "Nodes times kubeAPIQPS is the worst case after an outage.",
        "kubeAPIQPS: 50", "kubelet configuration", unit="/s",
    ),
    Check(
        "SYS-10", "Containers of a node with RDMA may lock little memory", N, locked_memory,
        IS_WARNING,
        "Memory for RDMA is locked: NCCL and MPI fail or fall back to TCP.",
        "LimitMEMLOCK=infinity in containerd's unit", "libibverbs", unit="bool",
    ),
)  # fmt: skip
