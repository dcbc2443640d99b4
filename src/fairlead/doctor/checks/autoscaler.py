"""Checks of the cluster autoscaler and of what it could remove."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fairlead.doctor.check import IS_CRITICAL, IS_INFO, Check, MeasuredValue, critical, warning
from fairlead.doctor.checks.etcd import NOSPACE
from fairlead.doctor.checks.of_objects import daemonsets, gpu_nodes
from fairlead.doctor.expressions import CodeShare, Recorded, reads
from fairlead.doctor.facts import ClusterFacts, NotSeen, Source
from fairlead.doctor.objects import SeenWorkload

K = (Source.API,)
F = (Source.FLAGS,)
ERRORS_MAX = 0.01
_ERRORS = CodeShare(Source.APISERVER, "apiserver_request_total", "code", "5")


def daemonset_rollout(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read DaemonSets that replace many pods at once: the share of nodes in one step."""
    found = daemonsets(facts)
    nodes = max(facts.nodes_count(), 1)
    for each in found:
        rolling = each.spec.update_strategy.get("rollingUpdate")
        raw = str(rolling.get("maxUnavailable", 1)) if isinstance(rolling, dict) else "1"
        digits = raw.removesuffix("%")
        if not digits.isdecimal():
            continue
        share = int(digits) / 100 if raw.endswith("%") else int(digits) / nodes
        share = share if int(digits) > 1 else 0.0
        yield MeasuredValue(each.metadata.key, share, f"maxUnavailable {raw}")


def _number(facts: ClusterFacts, name: str, default: float) -> MeasuredValue:
    text = facts.seen_flags("cluster-autoscaler").get(name, f"{default:g}")
    try:
        value = float(text)
    except ValueError as error:
        raise facts.missing(Source.FLAGS, f"--{name}={text} is not a number") from error
    return MeasuredValue("cluster-autoscaler", value, f"--{name}={text}")


def unready_stop(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read up to which share of unready nodes the autoscaler goes on."""
    yield _number(facts, "max-total-unready-percentage", 45)


def delete_rate(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many nodes the autoscaler removes at a time, over all nodes."""
    reading = _number(facts, "max-scale-down-parallelism", 10)
    nodes = max(facts.nodes_count(), 1)
    yield MeasuredValue(reading.subject, reading.value / nodes if nodes >= 100 else 0.0,
                  f"{reading.evidence} of {nodes:,} nodes")  # fmt: skip


@reads(_ERRORS.source, counters=(_ERRORS.name,))
@reads(NOSPACE.source, gauges=(NOSPACE.name,))
def removes_in_outage(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the autoscaler may remove nodes while the API server or etcd fails."""
    flags = facts.seen_flags("cluster-autoscaler")
    removes = flags.get("scale-down-enabled", "true") != "false"
    failures = [each.evidence for each in _ERRORS(facts) if each.value > ERRORS_MAX]
    with suppress(NotSeen):  # managed control planes hide etcd; the errors show its alarm, too
        failures += ["etcd has an alarm" for each in NOSPACE(facts) if each.value]
    text = "; ".join(failures) or "the API server and etcd answer"
    yield MeasuredValue("cluster-autoscaler", float(removes and bool(failures)),
                  f"scale-down {'on' if removes else 'off'}; {text}")  # fmt: skip


def _holds_headroom(workload: SeenWorkload) -> bool:
    spec = workload.spec.template.spec
    return bool(spec.containers) and all("pause" in each.image for each in spec.containers)


def no_headroom(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether an autoscaler may remove GPU nodes that nothing holds."""
    objects = facts.seen_objects()
    if objects.deployments is None or objects.api_services is None:
        raise facts.missing(Source.API, "deployments and API services could not be listed")
    names = {each.metadata.name for each in objects.api_services}
    scales = [each.metadata.key for each in objects.deployments
              if "cluster-autoscaler" in each.metadata.name]  # fmt: skip
    scales += [name for name in sorted(names) if name.endswith("karpenter.sh")]
    balloons = [each.metadata.key for each in objects.deployments if _holds_headroom(each)]
    is_bad = bool(scales) and bool(gpu_nodes(facts)) and not balloons
    text = (f"autoscaler: {', '.join(scales) or 'none'}; pods that hold headroom: "
            f"{', '.join(balloons[:3]) or 'none'}")  # fmt: skip
    yield MeasuredValue("GPU nodes", float(is_bad), text)


CHECKS: tuple[Check, ...] = (
    Check(
        "CA-06", "A DaemonSet replaces many pods at once", K, daemonset_rollout,
        (warning(0.1, nodes_from=501),),
        "The new pods all start by listing: a thundering herd.",
        "updateStrategy:\n  rollingUpdate:\n    maxUnavailable: 1%", "OpenAI, December 2024",
        unit="share", growth=1,
    ),
    Check(
        "CA-01", "The autoscaler goes on while most nodes are unready", F, unready_stop,
        (critical(50),),
        "In an outage of the control plane all nodes look unready, and it removes the fleet.",
        "--max-total-unready-percentage=45", "OpenAI 2018", unit="%",
    ),
    Check(
        "CA-04", "The autoscaler may remove nodes while the control plane fails",
        (Source.FLAGS, Source.APISERVER), removes_in_outage, IS_CRITICAL,
        "Nodes that cannot report look unused or unready: an autoscaler removed every worker.",
        "kubectl -n kube-system scale deployment/cluster-autoscaler --replicas=0   # until the API "
        "server answers\nor fairlead fleet, which freezes by itself", "OpenAI 2018", unit="bool",
    ),
    Check(
        "CA-02", "The autoscaler removes many nodes at a time", F, delete_rate,
        (warning(0.05),), "The number bounds what a mistake costs.",
        "--max-scale-down-parallelism=10", "cluster-autoscaler FAQ", unit="share",
    ),
    Check(
        "CA-03", "Very many nodes joined at once", (Source.APISERVER, Source.RECORDED),
        Recorded(
            Source.APISERVER,
            'max_over_time(delta(max(apiserver_storage_objects{job=~"$job", resource="nodes"} or '
            'apiserver_resource_objects{job=~"$job", resource="nodes"})[2m:30s])[1d:1m]) / 12',
        ),
        (warning(100), critical(300)),
        "Each new kubelet and each DaemonSet's pod on it lists and watches: hundreds at once "
        "overloaded the API servers.",
        "add nodes in steps of seconds; --max-nodes-per-scaleup does not limit the rate",
        "OpenAI 2021", unit="nodes in 10 s",
    ),
    Check(
        "CA-05", "An autoscaler may remove GPU nodes that nothing holds", (Source.API,),
        no_headroom, IS_INFO,
        "Idle nodes go, and the next job waits until they come back, if the cloud has any left.",
        "a Deployment of pause pods with a negative priority and anti-affinity on the GPU nodes",
        "OpenAI 2021", unit="bool",
    ),
)  # fmt: skip
