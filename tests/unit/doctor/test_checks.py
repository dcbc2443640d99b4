"""Every check has a healthy, a bad and an unknown case, and gives the right result for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor import cases_of_parts
from tests.unit.doctor.facts_of import histogram, scraped, seen

from fairlead.doctor.check import Finding, Harm, Passed, Unknown, evaluate
from fairlead.doctor.etcd_state import Alarm, EtcdMember, EtcdState, EtcdStatus
from fairlead.doctor.facts import ClusterFacts, NotSeen, Source
from fairlead.doctor.objects import SeenImage, SeenNode, SeenNodeStatus, SeenObjects
from fairlead.doctor.registry import BY_ID, CHECKS

E, A = Source.ETCD, Source.APISERVER
C, W, I = Harm.CRITICAL, Harm.WARNING, Harm.INFO  # noqa: E741
FAST = {"0.001": 990, "0.008": 1000, "+Inf": 1000}


def flags(component: str = "kube-apiserver", nodes: int = 3000, **values: str) -> ClusterFacts:
    return ClusterFacts(
        nodes=nodes, flags={component: {k.replace("_", "-"): v for k, v in values.items()}}
    )


def slow(bound: str) -> dict[str, int]:
    return {"0.001": 0, bound: 0, "99": 1000, "+Inf": 1000}


def counter(source: Source, sample: str, rise: float, **more: Any) -> ClusterFacts:
    return scraped(source, f"{sample} {rise + 5}\n", before=f"{sample} 5\n", **more)


def hook(**spec: Any) -> dict[str, Any]:
    rules = [
        {"operations": ["*"], "apiGroups": ["*"], "resources": spec.pop("resources", ["pods"])}
    ]
    return {"metadata": {"name": "conf"}, "webhooks": [{"name": "h", "rules": rules, **spec}]}


def dns(replicas: int = 4, **spec: Any) -> dict[str, Any]:
    meta = {"name": "coredns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    return {"metadata": meta, "spec": {"replicas": replicas, "template": {"spec": spec}}}


def dns_on(*nodes: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": f"d{i}"}, "spec": {"nodeName": n}} for i, n in enumerate(nodes)]


def agent(name: str = "agent", update: Any = None, **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"template": {"spec": spec}}
    if update is not None:
        body["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": update}}
    return {"metadata": {"name": name, "namespace": "m"}, "spec": body}


def corefile(text: str) -> dict[str, Any]:
    return {"coredns": {"data": {"Corefile": text}}}


def gauge(source: Source, page: str, nodes: int = 10) -> ClusterFacts:
    return scraped(source, page, nodes=nodes)


def _images(size: int) -> ClusterFacts:
    node = SeenNode(
        status=SeenNodeStatus(images=[SeenImage(names=["r/i@sha256:1", "r/i:1"], size_bytes=size)])
    )
    return ClusterFacts(nodes=3, objects=SeenObjects(nodes=(node,)))


def _servers(*rates: int) -> ClusterFacts:
    """API servers of so many requests a second."""
    found = [counter(A, 'apiserver_request_total{verb="GET"}', rate * 10) for rate in rates]
    named = [replace(each.scrapes[A][0], instance=f"s{n}") for n, each in enumerate(found)]
    return ClusterFacts(nodes=3, scrapes={A: tuple(named)})


def _leases(rate: int, nodes: int, *, others: int = 0) -> ClusterFacts:
    page = ('apiserver_request_total{{verb="PUT",resource="leases"}} {}\n'
            'apiserver_request_total{{verb="POST",resource="pods"}} {}\n')  # fmt: skip
    return scraped(A, page.format(rate * 10, others * 10), before=page.format(0, 0), nodes=nodes)


def _dns_limit(memory: str, *, of_pod: bool = False) -> ClusterFacts:
    limits = {"resources": {"limits": {"memory": memory}}}
    container, pod = {"name": "coredns"}, {}
    (pod if of_pod else container).update(limits)
    return seen(deployments=[dns(containers=[container], **pod)],
                counts={"pods": 100_000, "services": 5_000})  # fmt: skip


def _workload(replicas: int, namespace: str = "m", **spec: Any) -> ClusterFacts:
    meta = {"name": "w", "namespace": namespace}
    body = {"metadata": meta, "spec": {"replicas": replicas, "template": {"spec": spec}}}
    return seen(900, deployments=[body], daemonsets=[])


def _pulled(image: str) -> ClusterFacts:
    return _workload(200, containers=[{"name": "c", "image": image}])


def _annotated(annotations: dict[str, str]) -> ClusterFacts:
    template = {"metadata": {"annotations": annotations}}
    return seen(daemonsets=[{"metadata": {"name": "w"}, "spec": {"template": template}}],
                deployments=[])  # fmt: skip


def _apart(replicas: int) -> ClusterFacts:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}
    return _workload(replicas, affinity={"podAntiAffinity": terms})


def _system(spec: dict[str, Any]) -> ClusterFacts:
    return _workload(3, "kube-system", **spec)


def _replicas(*rates: int) -> ClusterFacts:
    """DNS replicas of so many look-ups a second."""
    found = [counter(Source.COREDNS, "coredns_dns_requests_total", rate * 10) for rate in rates]
    scrapes = [each.scrapes[Source.COREDNS][0] for each in found]
    named = [replace(each, instance=f"dns-{number}") for number, each in enumerate(scrapes)]
    return ClusterFacts(nodes=3, scrapes={Source.COREDNS: tuple(named)})


SIZE = "etcd_mvcc_db_total_size_in_bytes"
USED = "etcd_mvcc_db_total_size_in_use_in_bytes"
QUOTA = "etcd_server_quota_backend_bytes"
RTT = "etcd_network_peer_round_trip_time_seconds"
SLI = "apiserver_request_sli_duration_seconds"
REJECTED = "apiserver_flowcontrol_rejected_requests_total"
HOOK = "apiserver_admission_webhook_admission_duration_seconds"
LONG = "apiserver_longrunning_requests"
SPREAD = {"topologySpreadConstraints": [{"maxSkew": 1}]}
PROXY = {"kube-proxy": {"data": {"config.conf": 'kind: KubeProxyConfiguration\nmode: ""\n'}}}
NFT = {"kube-proxy": {"data": {"config.conf": "mode: nftables\n"}}}

#: Check -> (healthy, bad, severity of the bad one).
CASES: dict[str, tuple[ClusterFacts, ClusterFacts, Harm]] = {
    "ETCD-04": (gauge(E, f"{SIZE} 1e9\n{QUOTA} 8e9\n"), gauge(E, f"{SIZE} 7e9\n{QUOTA} 8e9\n"), C),
    "ETCD-08": (gauge(E, "fairlead_etcd_nospace 0\n"), gauge(E, "fairlead_etcd_nospace 1\n"), C),
    "ETCD-09B": (gauge(E, "etcd_server_has_leader 1\n"), gauge(E, "etcd_server_has_leader 0\n"), C),
    "ETCD-01": (
        gauge(E, histogram("etcd_disk_wal_fsync_duration_seconds", FAST)),
        gauge(E, histogram("etcd_disk_wal_fsync_duration_seconds", slow("0.128"))), C),
    "ETCD-02": (
        gauge(E, histogram("etcd_disk_backend_commit_duration_seconds", FAST)),
        gauge(E, histogram("etcd_disk_backend_commit_duration_seconds", slow("0.032"))), C),
    "ETCD-15": (counter(E, "etcd_network_client_grpc_sent_bytes_total", 1e6),
                counter(E, "etcd_network_client_grpc_sent_bytes_total", 6e9), C),
    "ETCD-16": (flags(etcd_servers_overrides="/events#https://e:2379"), flags(), C),
    "ETCD-05": (gauge(E, f"{QUOTA} 8589934592\n", 900), gauge(E, f"{QUOTA} 2147483648\n", 900), W),
    "ETCD-07": (gauge(E, f"{SIZE} 2e9\n{USED} 1.9e9\n"), gauge(E, f"{SIZE} 2e9\n{USED} 2e8\n"), W),
    "ETCD-09": (counter(E, "etcd_server_leader_changes_seen_total", 0),
                counter(E, "etcd_server_leader_changes_seen_total", 5), W),
    "ETCD-11": (counter(E, 'etcd_network_peer_sent_failures_total{To="b"}', 0),
                counter(E, 'etcd_network_peer_sent_failures_total{To="b"}', 9), W),
    "ETCD-12": (gauge(E, histogram(RTT, FAST, 'To="b"')),
                gauge(E, histogram(RTT, slow("0.2"), 'To="b"')), W),
    "ETCD-13": (counter(E, "etcd_server_slow_apply_total", 0),
                counter(E, "etcd_server_slow_apply_total", 90), W),
    "ETCD-14": (
        gauge(E, 'grpc_server_handled_total{grpc_code="OK"} 1000\n'),
        gauge(E, 'grpc_server_handled_total{grpc_code="OK"} 900\n'
                 'grpc_server_handled_total{grpc_code="Unavailable"} 100\n'), C),
    "ETCD-19": (gauge(E, "etcd_debugging_mvcc_slow_watcher_total 0\n"),
                gauge(E, "etcd_debugging_mvcc_slow_watcher_total 4\n"), W),
    "ETCD-10": (flags(etcd_servers="https://a,https://b,https://c"),
                flags(etcd_servers="https://a,https://b"), W),
    "ETCD-17": (flags(), flags(etcd_compaction_interval="1h"), W),
    "API-03": (counter(A, f'{REJECTED}{{priority_level="workload-low"}}', 50),
               counter(A, f'{REJECTED}{{priority_level="leader-election"}}', 50), C),
    "API-01": (counter(A, 'apiserver_request_total{code="200"}', 50),
               counter(A, 'apiserver_request_total{code="429",resource="pods"}', 50), W),
    "API-02": (
        counter(A, 'apiserver_request_total{code="200"}', 500),
        counter(A, 'apiserver_request_total{code="503",resource="pods"}', 500), C),
    "NET-09": (gauge(A, f'{LONG}{{resource="endpointslices",verb="WATCH"}} 900\n', 900),
               gauge(A, f'{LONG}{{resource="endpoints",verb="WATCH"}} 900\n', 900), C),
    "API-16": (counter(A, 'apiserver_watch_events_sizes_sum{kind="Pod"}', 1e6),
               counter(A, 'apiserver_watch_events_sizes_sum{kind="Pod"}', 2e10), C),
    "API-21": (gauge(A, histogram(HOOK, FAST, 'name="h"')),
               gauge(A, histogram(HOOK, slow("2"), 'name="h"')), C),
    "API-04": (
        gauge(A, 'apiserver_flowcontrol_current_executing_seats{priority_level="l"} 1\n'
                 'apiserver_flowcontrol_nominal_limit_seats{priority_level="l"} 10\n'),
        gauge(A, 'apiserver_flowcontrol_current_executing_seats{priority_level="l"} 9\n'
                 'apiserver_flowcontrol_nominal_limit_seats{priority_level="l"} 10\n'), W),
    "API-07": (gauge(A, histogram(SLI, FAST, 'verb="POST",resource="pods"')),
               gauge(A, histogram(SLI, slow("2"), 'verb="POST",resource="pods"')), C),
    "API-08": (gauge(A, histogram(SLI, FAST, 'verb="LIST",resource="pods"')),
               gauge(A, histogram(SLI, slow("40"), 'verb="LIST",resource="pods"')), W),
    "API-15": (gauge(A, f'{LONG}{{resource="pods",verb="WATCH"}} 200\n', 100),
               gauge(A, f'{LONG}{{resource="pods",verb="WATCH"}} 500\n', 100), W),
    "API-17": (counter(A, 'apiserver_terminated_watchers_total{resource="pods"}', 0),
               counter(A, 'apiserver_terminated_watchers_total{resource="pods"}', 90), W),
    "API-10": (counter(A, 'apiserver_request_terminations_total{resource="pods"}', 0),
               counter(A, 'apiserver_request_terminations_total{resource="pods"}', 90), W),
    "API-13": (
        gauge(A, histogram("apiserver_watch_cache_read_wait_seconds", FAST, 'resource="pods"')),
        gauge(A, histogram("apiserver_watch_cache_read_wait_seconds", slow("1"),
                           'resource="pods"')), W),
    "API-19": (gauge(A, 'apiserver_resource_objects{resource="pods"} 1000\n'),
               gauge(A, 'apiserver_storage_objects{resource="pods"} 400000\n'), W),
    "API-18": (gauge(A, "go_memstats_heap_inuse_bytes 1e9\n"),
               gauge(A, "go_memstats_heap_inuse_bytes 2e11\n"), W),
    "API-06": (flags(max_requests_inflight="1600"), flags(), I),
    "API-24": (flags(audit_policy_file="/etc/policy.yaml"), flags(), W),
    "API-22": (seen(webhooks=[hook(resources=["pods"])]),
               seen(webhooks=[hook(resources=["*"])]), C),
    "API-22B": (seen(webhooks=[hook(timeoutSeconds=3)]),
                seen(webhooks=[hook(timeoutSeconds=10, failurePolicy="Fail")]), W),
    "API-22C": (seen(webhooks=[hook(timeoutSeconds=10, failurePolicy="Ignore")]),
                seen(webhooks=[hook(timeoutSeconds=30), hook(timeoutSeconds=30)]), C),
    "API-22D": (seen(webhooks=[hook(timeoutSeconds=10)]),
                seen(webhooks=[hook(timeoutSeconds=30)]), W),
    "DNS-01": (seen(dns_pods=dns_on("a", "b")), seen(dns_pods=dns_on("a", "a", "a", "b")), C),
    "DNS-02": (seen(deployments=[dns(**SPREAD)]), seen(deployments=[dns()]), W),
    "DNS-03": (seen(deployments=[dns(4)]), seen(900, deployments=[dns(4)]), W),
    "DNS-07": (seen(900, daemonsets=[agent("node-local-dns")]), seen(900, daemonsets=[agent()]), W),
    "DNS-10": (seen(config_maps=corefile("health {\n lameduck 30s\n}")),
               seen(config_maps=corefile("health")), W),
    "DNS-11": (seen(config_maps=corefile("cache 30 {\n serve_stale\n}")),
               seen(config_maps=corefile("cache 30")), I),
    "DNS-12": (
        seen(deployments=[], daemonsets=[agent(hostNetwork=True,
                                               dnsPolicy="ClusterFirstWithHostNet")]),
        seen(deployments=[], daemonsets=[agent(hostNetwork=True)]), W),
    "API-23": (
        seen(api_services=[{"metadata": {"name": "v1."}}]),
        seen(api_services=[{"metadata": {"name": "v1beta1.metrics.k8s.io"}, "status": {
            "conditions": [{"type": "Available", "status": "False", "reason": "Gone"}]}}]), W),
    "API-12": (seen(version="v1.34.1"), seen(version="v1.29.9-eks"), W),
    "API-14": (seen(5000, version="v1.34.1"), seen(5000, version="v1.32.0"), W),
    "CA-06": (seen(900, daemonsets=[agent(update=1)]), seen(900, daemonsets=[agent(update="25%")]),
              W),
    "API-05": (
        seen(900, flow_schemas=[{"metadata": {"name": "mine"}}]),
        seen(900, flow_schemas=[{"metadata": {"name": "exempt", "annotations": {
            "apf.kubernetes.io/autoupdate-spec": "true"}}}]), W),
    "IMG-07": (_images(2_000_000_000), _images(17_000_000_000), W),
    "NET-04": (seen(counts={"services": 4000}, config_maps=NFT),
               seen(counts={"services": 4000}, config_maps=PROXY), W),
    "API-20": (seen(counts={"nodes": 100}), seen(counts={"nodes": 7500}), I),
}  # fmt: skip


def node(**values: str) -> ClusterFacts:
    facts = {key.replace("__", "."): value for key, value in values.items()}
    return ClusterFacts(nodes=3000, node_facts={"n": facts})


def kubelet(nodes: int = 6000, **config: Any) -> ClusterFacts:
    return ClusterFacts(nodes=nodes, kubelet_configs={"n": config})


def named(component: str, **values: str) -> ClusterFacts:
    return flags(component, **values)


QPS = {"kube-scheduler": {"kube-api-qps": "500"}, "kube-controller-manager": {"kube-api-qps": "9"}}
HEAD = "prometheus_tsdb_head_series"
SERIES = 'handler="/api/v1/series"'
CASES |= {
    "SYS-02": (node(fairlead__arp_table_fulls="0"), node(fairlead__arp_table_fulls="3"), C),
    "SYS-01": (node(net__ipv4__neigh__default__gc_thresh3="100000"),
               node(net__ipv4__neigh__default__gc_thresh3="1024"), C),
    "SYS-03": (
        node(net__netfilter__nf_conntrack_max="1000", net__netfilter__nf_conntrack_count="10"),
        node(net__netfilter__nf_conntrack_max="1000", net__netfilter__nf_conntrack_count="990"), C),
    "SYS-05": (node(kernel__pid_max="4194304"), node(kernel__pid_max="32768"), W),
    "SYS-04": (node(net__netfilter__nf_conntrack_max="1000000"),
               node(net__netfilter__nf_conntrack_max="16777216"), W),
    "SYS-06": (node(fs__inotify__max_user_instances="8192"),
               node(fs__inotify__max_user_instances="128"), W),
    "SYS-07": (node(net__core__somaxconn="4096"), node(net__core__somaxconn="128"), W),
    "SYS-08": (node(net__ipv4__ip_local_port_range="10000\t65535"),
               node(net__ipv4__ip_local_port_range="50000 65535"), W),
    "SYS-09": (node(net__ipv4__conf__all__rp_filter="2"),
               node(net__ipv4__conf__all__rp_filter="1"), I),
    "IMG-01": (kubelet(serializeImagePulls=False), kubelet(), W),
    "IMG-02": (kubelet(serializeImagePulls=False, maxParallelImagePulls=5),
               kubelet(serializeImagePulls=False), W),
    "IMG-03": (kubelet(registryPullQPS=20), kubelet(), I),
    "IMG-09": (
        gauge(Source.KUBELET, histogram("kubelet_image_pull_duration_seconds", FAST)),
        gauge(Source.KUBELET, histogram("kubelet_image_pull_duration_seconds",
                                         {"60": 0, "600": 0, "900": 1000, "+Inf": 1000})), W),
    "KUB-03": (
        gauge(Source.KUBELET, histogram("kubelet_pleg_relist_duration_seconds", FAST)),
        gauge(Source.KUBELET, histogram("kubelet_pleg_relist_duration_seconds", slow("20"))), W),
    "KUB-01": (kubelet(nodeStatusReportFrequency="5m0s"),
               kubelet(nodeStatusReportFrequency="10s"), W),
    "KUB-02": (kubelet(kubeAPIQPS=50), kubelet(kubeAPIQPS=500), I),
    "ETCD-18": (gauge(E, 'etcd_server_version{server_version="3.5.21"} 1\n'),
                gauge(E, 'etcd_server_version{server_version="3.5.1"} 1\n'), C),
    "CA-01": (named("cluster-autoscaler"),
              named("cluster-autoscaler", max_total_unready_percentage="100"), C),
    "CA-02": (named("cluster-autoscaler"),
              named("cluster-autoscaler", max_scale_down_parallelism="1000"), W),
    "DNS-08": (
        gauge(Source.COREDNS, histogram("coredns_dns_request_duration_seconds", FAST)),
        gauge(Source.COREDNS, histogram("coredns_dns_request_duration_seconds", slow("8"))), C),
    "API-26": (_servers(900, 700, 800), _servers(900, 90, 10), W),
    "API-28": (_leases(750, 7_500), _leases(1_200, 7_500), I),
    "ETCD-20": (_leases(750, 7_500, others=900), _leases(750, 7_500, others=90), I),
    "API-09": (
        gauge(Source.KUBELET, histogram("kubelet_pod_start_sli_duration_seconds", FAST)),
        gauge(Source.KUBELET, histogram("kubelet_pod_start_sli_duration_seconds", slow("8"))), W),
    "MET-06": (gauge(Source.PROMETHEUS, "go_sched_gomaxprocs_threads 8\n"),
               gauge(Source.PROMETHEUS, "go_sched_gomaxprocs_threads 128\n"), W),
    "DNS-04": (_dns_limit("1Gi"), _dns_limit("100Mi"), C),
    "IMG-12": (_pulled("r/i:1.2"), _pulled("r/i"), W),
    "NET-11": (_annotated({}), _annotated({"kubernetes.io/egress-bandwidth": "1G"}), W),
    "SCH-07": (_apart(10), _apart(3_000), W),
    "SCH-02": (_system(SPREAD), _system({}), I),
    "DNS-14": (_replicas(900, 700, 800), _replicas(900, 90, 10), W),
    "DNS-05": (counter(Source.COREDNS, "coredns_dns_requests_total", 900),
               counter(Source.COREDNS, "coredns_dns_requests_total", 300_000), W),
    "DNS-06": (
        gauge(Source.COREDNS, 'coredns_dns_responses_total{rcode="NOERROR"} 100\n'),
        gauge(Source.COREDNS, 'coredns_dns_responses_total{rcode="NXDOMAIN"} 100\n'), W),
    "MET-01": (gauge(Source.PROMETHEUS, f"{HEAD} 1e6\n"), gauge(Source.PROMETHEUS, f"{HEAD} 4e7\n"),
               C),
    "MET-05": (gauge(Source.PROMETHEUS, "prometheus_tsdb_data_replay_duration_seconds 9\n"),
               gauge(Source.PROMETHEUS, "prometheus_tsdb_data_replay_duration_seconds 7200\n"), C),
    "MET-02": (
        scraped(Source.PROMETHEUS, f"{HEAD} 1e6\n{HEAD}_created_total 11\n",
                before=f"{HEAD} 1e6\n{HEAD}_created_total 10\n"),
        scraped(Source.PROMETHEUS, f"{HEAD} 1e6\n{HEAD}_created_total 9000\n",
                before=f"{HEAD} 1e6\n{HEAD}_created_total 10\n"), W),
    "MET-04": (
        gauge(Source.PROMETHEUS, histogram("prometheus_http_request_duration_seconds", FAST,
                                           SERIES)),
        gauge(Source.PROMETHEUS, histogram("prometheus_http_request_duration_seconds", slow("60"),
                                           SERIES)), W),
    "SCH-09": (
        gauge(Source.CONTROLLER_MANAGER, histogram("workqueue_queue_duration_seconds", FAST)),
        gauge(Source.CONTROLLER_MANAGER, histogram("workqueue_queue_duration_seconds", slow("50"))),
        W),
    "SCH-05": (
        gauge(Source.SCHEDULER, histogram("scheduler_pod_scheduling_sli_duration_seconds", FAST)),
        gauge(Source.SCHEDULER,
              histogram("scheduler_pod_scheduling_sli_duration_seconds", slow("9"))), W),
    "SCH-03": (gauge(Source.SCHEDULER, 'scheduler_pending_pods{queue="active"} 5\n'),
               gauge(Source.SCHEDULER, 'scheduler_pending_pods{queue="unschedulable"} 50000\n'), W),
    "SCH-06": (ClusterFacts(nodes=3000, flags=QPS),
               ClusterFacts(
                   nodes=3000, flags={"kube-scheduler": {}, "kube-controller-manager": {}}
               ), W),
    "API-29": (
        gauge(A, histogram("apiserver_client_certificate_expiration_seconds",
                           {"3600": 0, "86400": 0, "604800": 0, "31536000": 100, "+Inf": 100})),
        gauge(A, histogram("apiserver_client_certificate_expiration_seconds",
                           {"3600": 50, "86400": 50, "604800": 50, "31536000": 100,
                            "+Inf": 100})), C),
    "API-25": (seen(version="v1.36.3"), seen(version="v1.34.0"), I),
}  # fmt: skip
CASES |= cases_of_parts.CASES


def etcd(**parts: Any) -> ClusterFacts:
    """Facts of an etcd of three members whose log was at 10,000, with other `parts`."""
    three = (EtcdMember(1, "a"), EtcdMember(2, "b"), EtcdMember(3, "c"))
    ready = EtcdStatus(raft_index=10_020, raft_applied_index=10_015)
    usual: dict[str, Any] = {"statuses": (("a:2379", ready),), "index_before": 10_000,
                             "members": three, "alarms": ()}  # fmt: skip
    return ClusterFacts(nodes=10, etcd=EtcdState(**usual | parts))


CASES |= {
    "ETCD-08B": (etcd(alarms=(Alarm(1, "NOSPACE"),)), etcd(alarms=(Alarm(1, "CORRUPT"),)), C),
    "ETCD-11B": (etcd(), etcd(statuses=(("a:2379", EtcdStatus(raft_index=4_000)),)), C),
    "ETCD-10B": (etcd(), etcd(members=(EtcdMember(1, "a"), EtcdMember(2))), W),
    "ETCD-09C": (etcd(statuses=(("a:2379", EtcdStatus(errors=("memberID:1 alarm:NOSPACE ",))),)),
                 etcd(statuses=(("a:2379", EtcdStatus(errors=("etcdserver: no leader",))),)), W),
    "ETCD-10C": (etcd(),
                 etcd(members=(EtcdMember(1, "a"), EtcdMember(2, "b", is_learner=True))), I),
}  # fmt: skip


def test_etcd_itself_knows_its_members_better_than_the_flags() -> None:
    known = replace(
        etcd(members=(EtcdMember(1, "a"), EtcdMember(2, "b"), EtcdMember(3, "c", is_learner=True))),
        flags={"kube-apiserver": {"etcd-servers": "https://a,https://b,https://c"}},
    )
    (finding,) = evaluate(BY_ID["ETCD-10"], known)
    assert isinstance(finding, Finding)
    assert finding.evidence == "2 members, 1 of them asked"


def test_every_check_has_a_case() -> None:
    assert set(CASES) == {check.id for check in CHECKS if Source.AUDIT not in check.needs}


@pytest.mark.parametrize("id_", CASES)
def test_a_healthy_cluster_passes(id_: str) -> None:
    results = evaluate(BY_ID[id_], CASES[id_][0])
    assert [type(each) for each in results] == [Passed], results


@pytest.mark.parametrize("id_", CASES)
def test_a_bad_cluster_is_found_with_its_severity_and_evidence(id_: str) -> None:
    _, facts, severity = CASES[id_]
    results = evaluate(BY_ID[id_], facts)
    assert all(isinstance(each, Finding) for each in results), results
    first = results[0]
    assert isinstance(first, Finding)
    assert first.severity is severity
    assert first.evidence
    assert first.subject


@pytest.mark.parametrize("id_", CASES)
def test_a_cluster_that_was_not_seen_is_unknown_with_a_way_to_show_it(id_: str) -> None:
    results = evaluate(BY_ID[id_], ClusterFacts(nodes=3000))
    assert [type(each) for each in results] == [Unknown], results
    (result,) = results
    assert isinstance(result, Unknown)
    assert result.reason
    assert result.show


def test_a_scheduler_whose_configuration_was_not_read_is_unknown() -> None:
    facts = cases_of_parts.scheduler(3, None, config="/etc/scheduler.yaml")
    (result,) = evaluate(BY_ID["SCH-01"], facts)
    assert isinstance(result, Unknown)
    assert "/etc/scheduler.yaml was not read" in result.reason
    for config in ({"profiles": [None]}, {"profiles": [{"pluginConfig": ["x"]}]}):
        facts = cases_of_parts.scheduler(3, config, config="/etc/scheduler.yaml")
        assert isinstance(evaluate(BY_ID["SCH-01"], facts)[0], Unknown)
    assert isinstance(evaluate(BY_ID["SCH-01"], cases_of_parts.scheduler(0, None))[0], Passed)


def test_an_embedded_cluster_is_advised_no_upgrade_of_an_api_server_that_it_has_not() -> None:
    (result,) = evaluate(BY_ID["API-25"], seen(version="v1.34.0+fairlead"))
    assert isinstance(result, Unknown)
    assert "no audit log of Kubernetes" in result.reason


def test_a_scheduler_with_an_empty_queue_is_not_slow() -> None:
    (result,) = evaluate(BY_ID["SCH-04"], cases_of_parts.burst(2, 150))
    assert result == Passed(BY_ID["SCH-04"], 0)


def test_packets_of_pods_may_be_too_small_but_not_a_little() -> None:
    small = cases_of_parts.facts(nic_mtu=9000, pod_mtu=1450, tunnels=0)
    (result,) = evaluate(BY_ID["NET-02"], small)
    assert isinstance(result, Finding)
    assert result.severity is W
    close = cases_of_parts.facts(nic_mtu=1500, pod_mtu=1410, tunnels=1)
    assert isinstance(evaluate(BY_ID["NET-02"], close)[0], Passed)


def test_dns_has_the_memory_that_its_pod_has_as_a_whole() -> None:
    for memory, kind in (("1Gi", Passed), ("100Mi", Finding)):
        found = evaluate(BY_ID["DNS-04"], _dns_limit(memory, of_pod=True))
        assert [type(each) for each in found] == [kind], memory
        assert found == evaluate(BY_ID["DNS-04"], _dns_limit(memory))


def test_an_autoscaler_that_removes_nothing_may_run_in_an_outage() -> None:
    facts = cases_of_parts.failing(0.05, **{"scale-down-enabled": "false"})
    assert isinstance(evaluate(BY_ID["CA-04"], facts)[0], Passed)


def test_ranges_of_both_families_are_read_and_wrong_ones_are_unknown() -> None:
    found = evaluate(BY_ID["NET-03"], cases_of_parts.ranges(250, "10.0.0.0/16,fd00::/48"))
    assert [each.subject for each in found if isinstance(each, Finding)] == ["10.0.0.0/16"]
    wrong = cases_of_parts.ranges(250, "10.0.0.0/16", **{"node-cidr-mask-size": "x"})
    assert isinstance(evaluate(BY_ID["NET-03"], wrong)[0], Unknown)


def test_what_another_place_answered_goes_before_the_measure() -> None:
    facts = replace(flags(), answers={"ETCD-16": NotSeen(E, "because")})
    (result,) = evaluate(BY_ID["ETCD-16"], facts)
    assert isinstance(result, Unknown)
    assert result.reason == "because"


def test_ids_are_unique_and_in_capitals() -> None:
    assert len(BY_ID) == len(CHECKS)
    assert all(check.id == check.id.upper() for check in CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_check_says_what_and_why_and_how(check: Any) -> None:
    assert check.title
    assert not check.title.endswith(".")
    assert check.why.endswith(".")
    assert check.fix
    assert check.reference
    assert check.needs
    assert check.levels


def test_a_slow_disk_that_syncs_seldom_is_found_and_one_slow_sync_is_not() -> None:
    name = "etcd_disk_wal_fsync_duration_seconds"

    def syncs(fast: int, slow: int) -> ClusterFacts:
        return gauge(E, histogram(name, {"0.008": fast, "0.256": fast + slow, "+Inf": fast + slow}))

    (seldom,) = evaluate(BY_ID["ETCD-01"], syncs(0, 40))
    assert isinstance(seldom, Finding)
    assert seldom.severity is C
    assert "p50 of" in seldom.evidence, "what few observations show is said"
    for facts in (syncs(0, 19), syncs(39, 1), syncs(1000, 1)):
        assert isinstance(evaluate(BY_ID["ETCD-01"], facts)[0], Passed)
