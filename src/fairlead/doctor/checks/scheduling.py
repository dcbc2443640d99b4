"""Checks of scheduling: kube-scheduler's measurements and settings, and gangs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.doctor.check import IS_WARNING, Check, MeasuredValue, Side, critical, info, warning
from fairlead.doctor.checks.of_objects import (
    api_services,
    deployments,
    gpu_nodes,
    is_dns,
    is_spread,
    pods_of,
)
from fairlead.doctor.expressions import Gauge, PerSecond, Quantile, reads
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.metrics import Family

S = Source.SCHEDULER
K = (Source.API,)
C = Source.CONTROLLER_MANAGER
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
QPS_DEFAULTS = {"kube-scheduler": 50.0, "kube-controller-manager": 20.0}
PENDING = "scheduler_pending_pods"
ATTEMPTS = "scheduler_schedule_attempts_total"
#: So many pods are ready to be placed at both scrapes: the scheduler is busy all the time.
BURST_PODS_MIN = 200
#: API groups of jobs that need all of their pods, and of what places such jobs whole.
GANG_JOBS = ("kubeflow.org", "ray.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io")
GANG_SCHEDULERS = (
    "fairlead.dev", "kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io",
    "scheduling.run.ai", "kai.scheduler", "scheduler.koordinator.sh",
)  # fmt: skip
DEFAULT_STRATEGY = "LeastAllocated"


def anti_affine_pods(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many pods must not be beside others."""
    count = 0
    for each, pods in pods_of(facts):
        affinity = each.spec.template.spec.affinity
        if affinity is not None and REQUIRED in (affinity.pod_anti_affinity or {}):
            count += pods
    yield MeasuredValue("pods", count, f"{count:,} pods of workloads with required podAntiAffinity")


def unspread(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read Deployments of kube-system whose replicas do not avoid each other; DNS is DNS-02."""
    for each in deployments(facts):
        is_other = each.metadata.namespace != "kube-system" or is_dns(each)
        if is_other or (each.spec.replicas or 1) < 2:
            continue
        text = f"{each.spec.replicas} replicas, no podAntiAffinity or topologySpreadConstraints"
        yield MeasuredValue(each.metadata.key, float(not is_spread(each)), text)


def client_qps(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the scheduler and the controllers send at their default rates."""
    for component, default in QPS_DEFAULTS.items():
        text = facts.seen_flags(component).get("kube-api-qps", f"{default:g}")
        yield MeasuredValue(component, float(text == f"{default:g}"), f"--kube-api-qps={text}")


def _strategies(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each profile of a KubeSchedulerConfiguration with its scoring strategy."""
    profiles: Any = config.get("profiles")
    for profile in profiles if isinstance(profiles, list) and profiles else [{}]:
        strategy = DEFAULT_STRATEGY
        for plugin in profile.get("pluginConfig") or ():
            if plugin.get("name") == "NodeResourcesFit":
                scoring = (plugin.get("args") or {}).get("scoringStrategy") or {}
                strategy = str(scoring.get("type", strategy))
        yield str(profile.get("schedulerName", "default-scheduler")), strategy


def spreads(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the scheduler spreads pods over all nodes on a cluster with GPU nodes."""
    path = facts.seen_flags("kube-scheduler").get("config", "")
    config = facts.scheduler_config
    if path and config is None:
        text = f"--config={path} was not read; put the file beside the manifests"
        raise facts.missing(Source.FLAGS, text)
    gpus = gpu_nodes(facts)
    try:
        strategies = tuple(_strategies(config or {}))
    except (AttributeError, TypeError) as error:
        raise facts.missing(Source.FLAGS, "the configuration is not as documented") from error
    for name, strategy in strategies:
        is_bad = strategy == DEFAULT_STRATEGY and gpus > 0
        yield MeasuredValue(
            name, float(is_bad), f"scoringStrategy {strategy}, {gpus} GPU nodes sampled"
        )


def _active(samples: Mapping[Any, float]) -> float:
    return sum(value for labels, value in samples.items() if ("queue", "active") in labels)


@reads(S, gauges=(PENDING,), counters=(ATTEMPTS,))
def burst_rate(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the placements per second of a scheduler that had a full queue all the time."""
    rates = PerSecond(S, ATTEMPTS, match=(("result", ("scheduled",)),))
    placed = {each.subject: each.value for each in rates(facts)}
    family: Family
    for instance, family in facts.family(S, PENDING):
        waiting = min(_active(family.before), _active(family.now))
        if waiting >= BURST_PODS_MIN:
            rate = placed.get(instance, 0.0)
            text = f"{rate:,.0f} pods placed a second while {waiting:,.0f} were ready for it"
            yield MeasuredValue(instance, rate, text)


def no_gangs(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether there are kinds of jobs of many pods and nothing that places them whole."""
    groups = {each.metadata.name.partition(".")[2] for each in api_services(facts)}
    jobs = [name for name in GANG_JOBS if name in groups]
    placed_by = [name for name in GANG_SCHEDULERS if name in groups]
    text = (f"jobs: {', '.join(jobs) or 'none'}; scheduled by: "
            f"{', '.join(placed_by) or 'kube-scheduler, one pod at a time'}")  # fmt: skip
    yield MeasuredValue("jobs of many pods", float(bool(jobs) and not placed_by), text)


CHECKS: tuple[Check, ...] = (
    Check(
        "SCH-07", "Very many pods have required anti-affinity", K, anti_affine_pods,
        (warning(1_000),),
        "The scheduler compares each new pod with all of them.",
        "topologySpreadConstraints, or preferredDuringSchedulingIgnoredDuringExecution",
        "OpenAI 2021", unit="pods",
    ),
    Check(
        "SCH-02", "A workload of kube-system may put all replicas on one node", K,
        unspread, (info(0.5, nodes_from=100),),
        "A scheduler that packs nodes puts them together, and they fail together.",
        "topologySpreadConstraints by kubernetes.io/hostname", "OpenAI 2018", unit="bool",
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
        "SCH-04", "The scheduler is slow in a burst of pods", (S,), burst_rate,
        (critical(50), warning(100)),
        "A job of 1,000 pods waits for so long; 300 to 500 pods a second are usual.",
        "percentageOfNodesToScore: 10 and parallelism: 32 in the KubeSchedulerConfiguration; "
        "--kube-api-qps (SCH-06); fewer affinity terms (SCH-07)",
        "EKS; GKE, 130,000 nodes", Side.BELOW, unit="pods/s",
    ),
    Check(
        "SCH-08", "Jobs of many pods are scheduled pod by pod", (Source.API,), no_gangs,
        IS_WARNING,
        "Two jobs that each get half of their nodes wait for each other for ever.",
        "fairlead install, Kueue, or the co-scheduling plug-in", "OpenAI 2021", unit="bool",
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
        Gauge(S, PENDING, by=("queue",)), (warning(10_000),),
        "Each is an object that all watchers of pods carry, and each event retries it.",
        "queue jobs instead of pods: fairlead submit, Kueue", "OpenAI 2021", unit="pods",
    ),
    Check(
        "SCH-01", "The scheduler spreads pods over all GPU nodes", (Source.FLAGS, Source.API),
        spreads, IS_WARNING,
        "No node becomes empty, so large pods find no room and an autoscaler removes nothing.",
        "pluginConfig:\n- name: NodeResourcesFit\n  args:\n    scoringStrategy:\n"
        "      type: MostAllocated\n      resources: [{name: nvidia.com/gpu, weight: 10}]",
        "OpenAI 2018", unit="bool",
    ),
)  # fmt: skip
