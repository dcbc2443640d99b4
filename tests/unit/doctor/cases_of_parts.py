"""Cases of checks that need nodes' facts, Prometheus' records, or several sources at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.doctor.facts_of import histogram, scraped, seen

from fairlead.doctor.check import Harm
from fairlead.doctor.facts import ClusterFacts, MeasuredValue, Source
from fairlead.doctor.prometheus.drops import TsdbSeries
from fairlead.doctor.prometheus.scrape_jobs import parse_scrape_jobs

A, P, S = Source.APISERVER, Source.PROMETHEUS, Source.SCHEDULER
C, W, I = Harm.CRITICAL, Harm.WARNING, Harm.INFO  # noqa: E741
FAST = {"0.5": 990, "1": 1000, "+Inf": 1000}
LATE = {"0.5": 0, "64": 1000, "+Inf": 1000}


def facts(**values: object) -> ClusterFacts:
    """A node with these facts of the script."""
    return ClusterFacts(nodes=300, node_facts={
        "n": {"fairlead." + key.replace("__", "."): str(value) for key, value in values.items()}
    })  # fmt: skip


def recorded(id_: str, value: float) -> ClusterFacts:
    """What Prometheus answers to one check."""
    return ClusterFacts(nodes=300, answers={id_: (MeasuredValue("x", value, "by Prometheus"),)})


def pulling(gigabytes: int, **values: object) -> ClusterFacts:
    """A node with an image of that size and these facts of the script."""
    image = {"names": ["r/i:1"], "sizeBytes": gigabytes * 10**9}
    return replace(facts(**values), objects=seen(nodes=[{"status": {"images": [image]}}]).objects)


def gpus(count: int) -> list[dict[str, Any]]:
    return [{"status": {"capacity": {"nvidia.com/gpu": "8"} if n < count else {"cpu": "8"}}}
            for n in range(3)]  # fmt: skip


def scheduler(count: int, read: dict[str, Any] | None, **flags: str) -> ClusterFacts:
    return ClusterFacts(nodes=3, objects=seen(nodes=gpus(count)).objects, scheduler_config=read,
                 flags={"kube-scheduler": flags})  # fmt: skip


def packing(strategy: str) -> dict[str, Any]:
    scoring = {"args": {"scoringStrategy": {"type": strategy}}, "name": "NodeResourcesFit"}
    return {"profiles": [{"schedulerName": "packs", "pluginConfig": [scoring]}]}


def burst(placed: int, waiting: int) -> ClusterFacts:
    page = ('scheduler_pending_pods{{queue="active"}} {}\n'
            'scheduler_schedule_attempts_total{{result="scheduled"}} {}\n')  # fmt: skip
    return scraped(S, page.format(waiting, placed * 10), before=page.format(waiting, 0))


def defined(*groups: str) -> ClusterFacts:
    return seen(api_services=[{"metadata": {"name": f"v1.{group}"}} for group in groups])


def failing(share: float, **flags: str) -> ClusterFacts:
    page = ('apiserver_request_total{{code="200"}} {}\n'
            'apiserver_request_total{{code="500"}} {}\n')  # fmt: skip
    found = scraped(A, page.format(1000, 1000 * share), before=page.format(0, 0))
    return replace(found, flags={"cluster-autoscaler": flags})


def scaled(image: str) -> ClusterFacts:
    """An autoscaler, GPU nodes, and a Deployment of an image."""

    def deployment(name: str, image: str) -> dict[str, Any]:
        containers = [{"name": "c", "image": image}]
        return {"metadata": {"name": name}, "spec": {"template": {"spec": {
            "containers": containers}}}}  # fmt: skip

    return seen(nodes=gpus(3), api_services=[], deployments=[
        deployment("cluster-autoscaler", "r/ca:1"), deployment("other", image)])  # fmt: skip


def ranges(nodes: int, cidr: str, **flags: str) -> ClusterFacts:
    flags = {"cluster-cidr": cidr, "allocate-node-cidrs": "true", **flags}
    return ClusterFacts(nodes=nodes, flags={"kube-controller-manager": flags})


def addresses(used: int) -> ClusterFacts:
    name = "kube_apiserver_clusterip_allocator"
    return scraped(A, f'{name}_allocated_ips{{cidr="c"}} {used}\n'
                      f'{name}_available_ips{{cidr="c"}} {65_534 - used}\n')  # fmt: skip


def plane(taint: str, *zones: str) -> ClusterFacts:
    nodes = [{"metadata": {"name": f"p{n}", "labels": {"topology.kubernetes.io/zone": zone}},
              "spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane",
                                   "effect": taint}]}} for n, zone in enumerate(zones)]  # fmt: skip
    return seen(900, control_plane_nodes=nodes)


def status(total: int, labels: dict[str, int] | None = None, **metrics: int) -> ClusterFacts:
    return ClusterFacts(nodes=300, series=TsdbSeries(total, metrics, labels or {}))


def configured(text: str, targets: int = 0) -> ClusterFacts:
    page = f'prometheus_target_scrape_pool_targets{{scrape_job="nodes"}} {targets}\n'
    return replace(scraped(P, page), scrape_jobs=parse_scrape_jobs(text))


def queries(code: int) -> ClusterFacts:
    page = 'prometheus_http_requests_total{{handler="/api/v1/query",code="{}"}} {}\n'
    return scraped(P, page.format(code, 9), before=page.format(code, 0))


def memory(peak: float) -> ClusterFacts:
    return scraped(P, f"go_memstats_sys_bytes {peak}\ngo_memstats_heap_inuse_bytes 1e9\n")


def upstream(rate: int) -> ClusterFacts:
    page = 'coredns_proxy_request_duration_seconds_count{{proxy_name="forward"}} {}\n'
    return scraped(Source.COREDNS, page.format(rate * 10), before=page.format(0))


PROGRAMMING = "kubeproxy_network_programming_duration_seconds"
BUCKET = "apiserver_request_duration_seconds_bucket"
LIMITED = "global: {sample_limit: 5000, scrape_interval: 1m}\nscrape_configs: [{job_name: nodes}]"
OPEN = "scrape_configs: [{job_name: nodes, scrape_interval: 15s}]"

#: Check -> (healthy, bad, severity of the bad one).
CASES: dict[str, tuple[ClusterFacts, ClusterFacts, Harm]] = {
    "ETCD-06": (recorded("ETCD-06", 900), recorded("ETCD-06", 2), C),
    "API-27": (plane("NoSchedule", "a", "b"), plane("PreferNoSchedule", "a", "b"), W),
    "API-27B": (plane("NoSchedule", "a", "b"), plane("NoSchedule", "a", "a"), W),
    "CA-03": (recorded("CA-03", 9), recorded("CA-03", 400), C),
    "CA-04": (failing(0), failing(0.05), C),
    "CA-05": (scaled("registry.k8s.io/pause:3.10"), scaled("r/i:1"), I),
    "DNS-09": (upstream(40), upstream(900), C),
    "SCH-01": (scheduler(3, packing("MostAllocated"), config="/etc/s.yaml"), scheduler(3, None), W),
    "SCH-04": (burst(400, 9_000), burst(20, 9_000), C),
    "SCH-08": (defined("kubeflow.org", "kueue.x-k8s.io"), defined("kubeflow.org"), W),
    "NET-01": (facts(tunnels=0), facts(tunnels=1), I),
    "NET-02": (facts(nic_mtu=9000, pod_mtu=8950, tunnels=1),
               facts(nic_mtu=1500, pod_mtu=1500, tunnels=1), C),
    "NET-03": (ranges(100, "10.0.0.0/16"), ranges(250, "10.0.0.0/16"), C),
    "NET-03B": (addresses(900), addresses(60_000), W),
    "NET-05": (scraped(Source.KUBE_PROXY, histogram(PROGRAMMING, FAST)),
               scraped(Source.KUBE_PROXY, histogram(PROGRAMMING, LATE)), W),
    "NET-06": (facts(iptables_rules=900), facts(iptables_rules=90_000), W),
    "NET-10": (recorded("NET-10", 40), recorded("NET-10", 7_500), W),
    "NET-12": (facts(tbf_qdiscs=9, nic_speed_mbps=10_000, nic_tx_queues=8),
               facts(tbf_qdiscs=9, nic_speed_mbps=200_000, nic_tx_queues=64), W),
    "NET-13": (facts(tcp_sent=10**7, tcp_retransmitted=10**3),
               facts(tcp_sent=10**7, tcp_retransmitted=10**6), W),
    "IMG-04": (facts(containerd__max_concurrent_downloads=10),
               facts(containerd__max_concurrent_downloads=3), W),
    "IMG-05": (pulling(17, containerd__image_pull_progress_timeout="30m0s"),
               pulling(17, containerd__image_pull_progress_timeout="5m0s"), W),
    "IMG-06": (pulling(2, containerd__concurrent_layer_fetch_buffer=0),
               pulling(17, containerd__concurrent_layer_fetch_buffer=0), I),
    "IMG-08": (facts(pinned_sandbox_images=1), facts(pinned_sandbox_images=0), C),
    "IMG-10": (recorded("IMG-10", 40), recorded("IMG-10", 1_900), W),
    "IMG-11": (facts(containerd_disk="/dev/nvme1n1 ext4",
                     containerd_disk_model="Amazon EC2 NVMe Instance Storage"),
               facts(containerd_disk="/dev/nvme0n1p1 ext4",
                     containerd_disk_model="Amazon Elastic Block Store"), W),
    "SYS-10": (facts(containerd_memlock="unlimited", rdma_devices=8),
               facts(containerd_memlock=8_388_608, rdma_devices=8), W),
    "KUB-04": (recorded("KUB-04", 1), recorded("KUB-04", 6), W),
    "KUB-05": (recorded("KUB-05", 0.4), recorded("KUB-05", 0.99), I),
    "MET-03": (status(10**6, a=9), status(10**6, a=10**6 // 4), W),
    "MET-07": (memory(1.6e9), memory(9e9), C),
    "MET-09": (status(10**6, a=9), status(10**6, **{BUCKET: 300_000}), W),
    "MET-10": (configured(LIMITED), configured(OPEN), W),
    "MET-11": (configured(LIMITED, 9_000), configured(OPEN, 9_000), I),
    "MET-13": (queries(200), queries(422), W),
    "MET-14": (recorded("MET-14", 2), recorded("MET-14", 25), W),
    "MET-16": (status(10**6, {"UUID": 800}, DCGM_A=8_000),
               status(10**6, {"UUID": 800}, DCGM_A=800_000), W),
}  # fmt: skip
