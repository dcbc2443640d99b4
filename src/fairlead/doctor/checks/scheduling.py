"""Checks of the scheduler: what it packs, how fast it is, and whether it places whole jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.doctor.check import IS_WARNING, Check, Reading, Side, critical, warning
from fairlead.doctor.checks.objects import api_services, gpu_nodes
from fairlead.doctor.expressions import Quantile, Rate, Value, reads
from fairlead.doctor.facts import Facts, Source
from fairlead.doctor.metrics import Family

S = Source.SCHEDULER
PENDING, ATTEMPTS = "scheduler_pending_pods", "scheduler_schedule_attempts_total"
#: So many pods are ready to be placed at both scrapes: the scheduler is busy all the time.
BURST_PODS_MIN = 200
#: API groups of jobs that need all of their pods, and of what places such jobs whole.
GANG_JOBS = ("kubeflow.org", "ray.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io")
GANG_SCHEDULERS = (
    "fairlead.dev", "kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io",
    "scheduling.run.ai", "kai.scheduler", "scheduler.koordinator.sh",
)  # fmt: skip
DEFAULT_STRATEGY = "LeastAllocated"


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


def spreads(facts: Facts) -> Iterator[Reading]:
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
        yield Reading(name, float(is_bad), f"scoringStrategy {strategy}, {gpus} GPU nodes sampled")


def _active(samples: Mapping[Any, float]) -> float:
    return sum(value for labels, value in samples.items() if ("queue", "active") in labels)


@reads(S, gauges=(PENDING,), counters=(ATTEMPTS,))
def burst_rate(facts: Facts) -> Iterator[Reading]:
    """Read the placements per second of a scheduler that had a full queue all the time."""
    rates = Rate(S, ATTEMPTS, match=(("result", ("scheduled",)),))
    placed = {each.subject: each.value for each in rates(facts)}
    family: Family
    for instance, family in facts.family(S, PENDING):
        waiting = min(_active(family.before), _active(family.now))
        if waiting >= BURST_PODS_MIN:
            rate = placed.get(instance, 0.0)
            text = f"{rate:,.0f} pods placed a second while {waiting:,.0f} were ready for it"
            yield Reading(instance, rate, text)


def no_gangs(facts: Facts) -> Iterator[Reading]:
    """Read whether there are kinds of jobs of many pods and nothing that places them whole."""
    groups = {each.metadata.name.partition(".")[2] for each in api_services(facts)}
    jobs = [name for name in GANG_JOBS if name in groups]
    placed_by = [name for name in GANG_SCHEDULERS if name in groups]
    text = (f"jobs: {', '.join(jobs) or 'none'}; scheduled by: "
            f"{', '.join(placed_by) or 'kube-scheduler, one pod at a time'}")  # fmt: skip
    yield Reading("jobs of many pods", float(bool(jobs) and not placed_by), text)


CHECKS: tuple[Check, ...] = (
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
        Value(S, PENDING, by=("queue",)), (warning(10_000),),
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
