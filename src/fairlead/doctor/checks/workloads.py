"""Checks of Deployments and DaemonSets: what they ask of nodes, registries and the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.api.quantity import QuantityError, parse
from fairlead.doctor.check import IS_WARNING, Check, Reading, Side, critical, info, warning
from fairlead.doctor.checks.objects import (
    daemonsets,
    deployments,
    dns_deployments,
    is_dns,
    is_spread,
)
from fairlead.doctor.facts import Facts, Source
from fairlead.doctor.objects import Container, Workload

K = (Source.API,)
#: CoreDNS keeps the pods and Services of the cluster: MB for all, and for each (its scaling guide).
DNS_MB, DNS_OBJECT_MB = 49.1, 0.000858
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
BANDWIDTH = ("kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth")


def _pods_of(facts: Facts) -> Iterator[tuple[Workload, int]]:
    """Yield workloads with the number of pods that they have, a pod per node for DaemonSets."""
    on_nodes = daemonsets(facts)
    for each in deployments(facts):
        yield each, 1 if each.spec.replicas is None else each.spec.replicas
    for each in on_nodes:
        yield each, facts.nodes_count()


def dns_memory(facts: Facts) -> Iterator[Reading]:
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
            yield Reading(each.metadata.key, megabytes / needed, text)


def _always_pulls(container: Container) -> bool:
    tag = container.image.rpartition("/")[2].partition(":")[2]
    is_latest = tag in ("", "latest") and "@" not in container.image
    policy = container.image_pull_policy or ("Always" if is_latest else "IfNotPresent")
    return policy == "Always"


def always_pulled(facts: Facts) -> Iterator[Reading]:
    """Read the pods of workloads that ask the registry each time that they start."""
    for each, count in _pods_of(facts):
        images = [c.image for c in each.spec.template.spec.containers if _always_pulls(c)]
        text = f"{count:,} pods with imagePullPolicy Always: {', '.join(images[:3])}"
        yield Reading(each.metadata.key, count if images else 0, text)


def bandwidth_annotations(facts: Facts) -> Iterator[Reading]:
    """Read workloads whose pods ask for a bandwidth."""
    for each, _ in _pods_of(facts):
        asked = [n for n in BANDWIDTH if n in each.spec.template.metadata.annotations]
        yield Reading(each.metadata.key, float(bool(asked)), ", ".join(asked) or "no annotation")


def anti_affine_pods(facts: Facts) -> Iterator[Reading]:
    """Read how many pods must not be beside others."""
    count = 0
    for each, pods in _pods_of(facts):
        affinity = each.spec.template.spec.affinity
        if affinity is not None and REQUIRED in (affinity.pod_anti_affinity or {}):
            count += pods
    yield Reading("pods", count, f"{count:,} pods of workloads with required podAntiAffinity")


def unspread(facts: Facts) -> Iterator[Reading]:
    """Read Deployments of kube-system whose replicas do not avoid each other; DNS is DNS-02."""
    for each in deployments(facts):
        is_other = each.metadata.namespace != "kube-system" or is_dns(each)
        if is_other or (each.spec.replicas or 1) < 2:
            continue
        text = f"{each.spec.replicas} replicas, no podAntiAffinity or topologySpreadConstraints"
        yield Reading(each.metadata.key, float(not is_spread(each)), text)


CHECKS: tuple[Check, ...] = (
    Check(
        "DNS-04", "DNS has too little memory for the cluster", K, dns_memory,
        (critical(1.0), warning(1.25)),
        "Each replica keeps all pods and Services; the kernel ends it as the cluster grows.",
        "kubectl -n kube-system set resources deployment coredns --limits=memory=MORE",
        "CoreDNS, scaling", Side.BELOW, unit="x",
    ),
    Check(
        "IMG-12", "Many pods ask the registry each time that they start", K, always_pulled,
        (warning(100),),
        "When they start together, the registry's limits fail all of them.",
        "a tag or digest that does not change, and imagePullPolicy: IfNotPresent",
        "Kubernetes documentation, images", unit="pods",
    ),
    Check(
        "NET-11", "A workload asks for a bandwidth that may not be enforced", K,
        bandwidth_annotations, IS_WARNING,
        "Without the bandwidth plug-in or Cilium's bandwidth manager the annotation does nothing.",
        "type bandwidth in /etc/cni/net.d, or cilium config set enable-bandwidth-manager true",
        "kubernetes #76064; calico #5007", unit="bool",
    ),
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
)  # fmt: skip
