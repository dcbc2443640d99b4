"""What several checks ask of the objects of the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.objects import SeenApiService, SeenNode, SeenWorkload


def deployments(facts: ClusterFacts) -> tuple[SeenWorkload, ...]:
    """Return all Deployments; NotSeen."""
    found = facts.seen_objects().deployments
    return facts.seen(found, Source.API, "deployments could not be listed")


def daemonsets(facts: ClusterFacts) -> tuple[SeenWorkload, ...]:
    """Return all DaemonSets; NotSeen."""
    found = facts.seen_objects().daemonsets
    return facts.seen(found, Source.API, "daemonsets could not be listed")


def api_services(facts: ClusterFacts) -> tuple[SeenApiService, ...]:
    """Return the aggregated APIs, and those of the server itself; NotSeen."""
    found = facts.seen_objects().api_services
    return facts.seen(found, Source.API, "API services could not be listed")


def is_dns(workload: SeenWorkload) -> bool:
    """True for a Deployment of the cluster's DNS, by its label."""
    return workload.metadata.labels.get("k8s-app") in ("kube-dns", "coredns")


def is_spread(workload: SeenWorkload) -> bool:
    """True when the replicas avoid each other."""
    spec = workload.spec.template.spec
    affinity = spec.affinity
    return bool(spec.topology_spread_constraints or (affinity and affinity.pod_anti_affinity))


def listed_nodes(facts: ClusterFacts) -> tuple[SeenNode, ...]:
    """Return the nodes that were listed; NotSeen."""
    return facts.seen(facts.seen_objects().nodes or None, Source.API, "nodes could not be listed")


def gpu_nodes(facts: ClusterFacts) -> int:
    """Return how many of the sampled nodes have GPUs; NotSeen."""
    return sum(
        any("gpu" in name and str(count) != "0" for name, count in node.status.capacity.items())
        for node in listed_nodes(facts)
    )


def pods_of(facts: ClusterFacts) -> Iterator[tuple[SeenWorkload, int]]:
    """Yield workloads with the number of pods that they have, a pod per node for DaemonSets."""
    on_nodes = daemonsets(facts)
    for each in deployments(facts):
        yield each, 1 if each.spec.replicas is None else each.spec.replicas
    for each in on_nodes:
        yield each, facts.nodes_count()
