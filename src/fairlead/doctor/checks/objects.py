"""Checks of objects in the Kubernetes API: webhooks, DNS, agents, fairness, size, versions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from fairlead.doctor.check import (
    IS_CRITICAL,
    IS_WARNING,
    Check,
    Reading,
    Side,
    critical,
    info,
    warning,
)
from fairlead.doctor.facts import Facts, Source
from fairlead.doctor.objects import ApiService, Node, Objects, Webhook, Workload

K = (Source.API,)
REQUEST_TIMEOUT_SECONDS = 60
#: Resources that a webhook must not hold up: node heartbeats and leader election.
VITAL = ("leases", "nodes", "*", "*/*")
ENVELOPE = {"nodes": 5_000, "pods": 150_000, "namespaces": 10_000, "services": 10_000}


def _webhooks(facts: Facts) -> Iterator[tuple[str, Webhook]]:
    """Yield each webhook with its name in findings."""
    found, what = facts.seen_objects().webhooks, "webhook configurations could not be listed"
    for configuration in facts.seen(found, Source.API, what):
        for webhook in configuration.webhooks:
            yield f"{configuration.metadata.name}/{webhook.name}", webhook


def webhook_timeouts(facts: Facts) -> Iterator[Reading]:
    """Read each webhook's time limit."""
    for subject, webhook in _webhooks(facts):
        text = f"timeoutSeconds {webhook.timeout_seconds}, failurePolicy {webhook.failure_policy}"
        yield Reading(subject, webhook.timeout_seconds, text)


def webhook_blocks(facts: Facts) -> Iterator[Reading]:
    """Read webhooks that fail closed for what the cluster itself needs."""
    for subject, webhook in _webhooks(facts):
        resources = {resource for rule in webhook.rules for resource in rule.resources}
        is_wide = bool(resources & set(VITAL)) and webhook.failure_policy == "Fail"
        excludes = bool(webhook.namespace_selector or webhook.object_selector)
        text = (f"failurePolicy {webhook.failure_policy} for {', '.join(sorted(resources))}, "
                f"{'with' if excludes else 'without'} a selector")  # fmt: skip
        yield Reading(subject, float(is_wide and not excludes), text)


def webhook_fail_and_long(facts: Facts) -> Iterator[Reading]:
    """Read webhooks that fail closed after a long wait."""
    for subject, webhook in _webhooks(facts):
        is_bad = webhook.failure_policy == "Fail" and webhook.timeout_seconds >= 10
        text = f"failurePolicy Fail with timeoutSeconds {webhook.timeout_seconds}"
        yield Reading(subject, float(is_bad), text)


def webhook_sum(facts: Facts) -> Iterator[Reading]:
    """Read the sum of the time limits of all webhooks on the creation of pods."""
    total = 0
    for _, webhook in _webhooks(facts):
        if any({"pods", "*", "*/*"} & set(rule.resources) for rule in webhook.rules):
            total += webhook.timeout_seconds
    yield Reading("pods", total, f"the webhooks of pods may take {total} s in all")


def dns_colocated(facts: Facts) -> Iterator[Reading]:
    """Read the DNS replicas per node; one replica in all is DNS-03's matter."""
    pods, what = facts.seen_objects().dns_pods, "the DNS pods could not be listed"
    placed = Counter(
        pod.spec.node_name for pod in facts.seen(pods, Source.API, what) if pod.spec.node_name
    )
    if not placed:
        raise facts.missing(Source.API, "there are no pods k8s-app=kube-dns in kube-system")
    for node, count in placed.items():
        yield Reading(node, count, f"{count} of {sum(placed.values())} DNS replicas are on it")


def deployments(facts: Facts) -> tuple[Workload, ...]:
    """Return all Deployments; NotSeen."""
    found = facts.seen_objects().deployments
    return facts.seen(found, Source.API, "deployments could not be listed")


def daemonsets(facts: Facts) -> tuple[Workload, ...]:
    """Return all DaemonSets; NotSeen."""
    found = facts.seen_objects().daemonsets
    return facts.seen(found, Source.API, "daemonsets could not be listed")


def api_services(facts: Facts) -> tuple[ApiService, ...]:
    """Return the aggregated APIs, and those of the server itself; NotSeen."""
    found = facts.seen_objects().api_services
    return facts.seen(found, Source.API, "API services could not be listed")


def is_dns(workload: Workload) -> bool:
    """True for a Deployment of the cluster's DNS, by its label."""
    return workload.metadata.labels.get("k8s-app") in ("kube-dns", "coredns")


def dns_deployments(facts: Facts) -> tuple[Workload, ...]:
    """Return the Deployments of DNS; NotSeen when there is none."""
    dns = tuple(each for each in deployments(facts) if each.metadata.namespace == "kube-system" and
                is_dns(each))  # fmt: skip
    if not dns:
        raise facts.missing(Source.API, "there is no deployment of DNS in kube-system")
    return dns


def is_spread(workload: Workload) -> bool:
    """True when the replicas avoid each other."""
    spec = workload.spec.template.spec
    affinity = spec.affinity
    return bool(spec.topology_spread_constraints or (affinity and affinity.pod_anti_affinity))


def dns_anti_affinity(facts: Facts) -> Iterator[Reading]:
    """Read whether DNS replicas avoid each other."""
    for each in dns_deployments(facts):
        text = "podAntiAffinity or topologySpreadConstraints: " + (
            "present" if is_spread(each) else "absent")  # fmt: skip
        yield Reading(each.metadata.key, float(not is_spread(each)), text)


def dns_replicas(facts: Facts) -> Iterator[Reading]:
    """Read DNS replicas over the number of the proportional autoscaler: a replica per 16 nodes."""
    wanted = max(2.0, min(facts.nodes_count() / 16, 200.0))
    for each in dns_deployments(facts):
        count = each.spec.replicas if each.spec.replicas is not None else 1
        text = f"{count} replicas for {facts.nodes_count():,} nodes; {wanted:.0f} are usual"
        yield Reading(each.metadata.key, count / wanted, text)


def dns_node_local(facts: Facts) -> Iterator[Reading]:
    """Read whether a DNS cache runs on the nodes."""
    names = [each.metadata.name for each in daemonsets(facts)]
    has = any("dns" in name and "local" in name for name in names)
    yield Reading("node-local-dns", float(not has), "present" if has else "no such DaemonSet")


def _corefile(facts: Facts) -> str:
    config = facts.seen_objects().config_maps.get("coredns")
    if config is None or "Corefile" not in config.data:
        raise facts.missing(Source.API, "ConfigMap kube-system/coredns could not be read")
    return config.data["Corefile"]


def dns_lameduck(facts: Facts) -> Iterator[Reading]:
    """Read for how long a DNS replica that ends still answers."""
    found = re.search(r"lameduck\s+(\d+)s", _corefile(facts))
    seconds = int(found[1]) if found else 0
    yield Reading("Corefile", seconds, f"lameduck {seconds} s" if found else "no lameduck")


def dns_stale(facts: Facts) -> Iterator[Reading]:
    """Read whether DNS answers from its cache when the API is away."""
    has = "serve_stale" in _corefile(facts)
    yield Reading("Corefile", float(not has), "serve_stale " + ("present" if has else "absent"))


def host_network_dns(facts: Facts) -> Iterator[Reading]:
    """Read workloads on the host network that use the node's resolver without saying so."""
    objects, what = facts.seen_objects(), "workloads could not be listed"
    parts = [
        facts.seen(part, Source.API, what) for part in (objects.daemonsets, objects.deployments)
    ]
    for each in (workload for part in parts for workload in part):
        spec = each.spec.template.spec
        if spec.host_network:
            is_bad = spec.dns_policy == "ClusterFirst"
            yield Reading(each.metadata.key, float(is_bad),
                          f"hostNetwork with dnsPolicy {spec.dns_policy}")  # fmt: skip


def daemonset_rollout(facts: Facts) -> Iterator[Reading]:
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
        yield Reading(each.metadata.key, share, f"maxUnavailable {raw}")


def agents_without_flow(facts: Facts) -> Iterator[Reading]:
    """Read whether any FlowSchema other than the built-in ones isolates a caller."""
    found, what = facts.seen_objects().flow_schemas, "flow schemas could not be listed"
    own = [
        each.metadata.name
        for each in facts.seen(found, Source.API, what)
        if "apf.kubernetes.io/autoupdate-spec" not in each.metadata.annotations
    ]
    text = f"{len(own)} FlowSchemas of your own" + (
        f": {', '.join(sorted(own)[:5])}" if own else ""
    )
    yield Reading("flow schemas", float(not own), text)


def aggregated(facts: Facts) -> Iterator[Reading]:
    """Read aggregated APIs that are not available."""
    for each in api_services(facts):
        condition = next((c for c in each.status.conditions if c.type == "Available"), None)
        is_down = condition is not None and condition.status == "False"
        text = f"Available: {condition.status} {condition.reason}" if condition else "no condition"
        yield Reading(each.metadata.name, float(is_down), text)


def envelope(facts: Facts) -> Iterator[Reading]:
    """Read counts of objects over the official envelope."""
    counts = facts.seen_objects().counts
    if not counts:
        raise facts.missing(Source.API, "no counts of objects")
    for resource, limit in ENVELOPE.items():
        if resource in counts:
            count = counts[resource]
            yield Reading(resource, count / limit, f"{count:,} of {limit:,}")


def server_version(objects: Objects) -> tuple[int, int] | None:
    """Return (major, minor) of the API server; None when it is not known."""
    found = re.match(r"v?(\d+)\.(\d+)", objects.version)
    return (int(found[1]), int(found[2])) if found else None


def _older(facts: Facts, *, minor: int) -> Iterator[Reading]:
    """Read whether the API server is of an earlier version than 1.`minor`."""
    objects, what = facts.seen_objects(), "the version of the API server is not known"
    version = facts.seen(server_version(objects), Source.API, what)
    yield Reading("kube-apiserver", float(version < (1, minor)), objects.version)


def _sample(facts: Facts) -> tuple[Node, ...]:
    return facts.seen(facts.seen_objects().nodes or None, Source.API, "nodes could not be listed")


def _control_plane(facts: Facts) -> tuple[Node, ...]:
    nodes = facts.seen_objects().control_plane_nodes or None
    return facts.seen(nodes, Source.API, "no node has the role control-plane")


def shared_control_plane(facts: Facts) -> Iterator[Reading]:
    """Read which nodes of the control plane take other pods."""
    for node in _control_plane(facts):
        keeps = [t.key for t in node.spec.taints if t.effect in ("NoSchedule", "NoExecute")]
        text = f"taints: {', '.join(keeps) or 'none'}"
        yield Reading(node.metadata.name, float(not keeps), text)


def control_plane_zones(facts: Facts) -> Iterator[Reading]:
    """Read the number of zones that the control plane is in."""
    nodes = _control_plane(facts)
    zones = {node.metadata.labels.get("topology.kubernetes.io/zone", "") for node in nodes} - {""}
    if not zones:
        raise facts.missing(Source.API, "no node of the control plane has a zone")
    text = f"{len(nodes)} nodes in {', '.join(sorted(zones))}"
    yield Reading("control plane", len(zones), text)


def gpu_nodes(facts: Facts) -> int:
    """Return how many of the sampled nodes have GPUs; NotSeen."""
    return sum(
        any("gpu" in name and str(count) != "0" for name, count in node.status.capacity.items())
        for node in _sample(facts)
    )


def image_sizes(facts: Facts) -> Iterator[Reading]:
    """Read the size of each image on the sampled nodes."""
    sizes: dict[str, int] = {}
    for node in _sample(facts):
        for image in node.status.images:
            names = image.names or ["<none>"]
            name = min(names, key=lambda each: ("@" in each, len(each)))
            sizes[name] = max(sizes.get(name, 0), image.size_bytes)
    if not sizes:
        raise facts.missing(Source.API, "no node reports its images")
    for name, size in sizes.items():
        yield Reading(name, size, f"{size / 1e9:.1f} GB on a node")


def kube_proxy_mode(facts: Facts) -> Iterator[Reading]:
    """Read the number of Services when kube-proxy uses iptables; 0 for other modes."""
    objects = facts.seen_objects()
    config = objects.config_maps.get("kube-proxy")
    if config is None or "services" not in objects.counts:
        raise facts.missing(Source.API, "ConfigMap kube-system/kube-proxy could not be read")
    text = "\n".join(config.data.values())
    found = re.search(r"^mode:\s*\"?(\w*)\"?\s*$", text, re.MULTILINE)
    mode = (found[1] if found else "") or "iptables"
    services = objects.counts["services"]
    yield Reading("kube-proxy", services if mode == "iptables" else 0,
                  f"mode {mode} with {services:,} Services")  # fmt: skip


CHECKS: tuple[Check, ...] = (
    Check(
        "API-22", "A webhook that fails closed covers what the cluster itself needs", K,
        webhook_blocks, IS_CRITICAL,
        "When the webhook is down, node heartbeats and leader election fail with it, and the pods "
        "of the webhook cannot be created again.",
        "narrow rules.resources; add to the webhook:\nnamespaceSelector:\n  matchExpressions:\n"
        "  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, "
        "kube-node-lease]}",
        "kubernetes #90217", unit="bool",
    ),
    Check(
        "API-22B", "A webhook fails closed and may take long", K, webhook_fail_and_long,
        IS_WARNING,
        "Each write waits for the whole time limit and then fails.",
        "timeoutSeconds: 3", "kubernetes #128162", unit="bool",
    ),
    Check(
        "API-22C", "The webhooks of pods may together take longer than a request may", K,
        webhook_sum, (warning(30), critical(REQUEST_TIMEOUT_SECONDS - 1)),
        "Pods fail to be created although each webhook ignores failures.",
        "timeoutSeconds: 3 for each webhook, narrow rules", "kubernetes #128162", unit="s",
    ),
    Check(
        "API-22D", "A webhook's time limit is long", K, webhook_timeouts, (warning(10),),
        "The creation of every object that it covers may wait for so long.",
        "timeoutSeconds: 3", "EKS best practices", unit="s",
    ),
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
        "API-23", "An aggregated API is not available", K, aggregated, IS_WARNING,
        "Discovery and the deletion of namespaces fail.",
        "kubectl describe apiservice NAME; remove it when its server is gone", "kubernetes-mixin",
        unit="bool",
    ),
    Check(
        "API-27", "Nodes of the control plane take other pods", K, shared_control_plane,
        (warning(0.5, nodes_from=101),),
        "A job on the same disk or out of memory takes an API server or an etcd member with it.",
        "kubectl taint node NODE node-role.kubernetes.io/control-plane=:NoSchedule",
        "OpenAI 2021; Kubernetes documentation, large clusters", unit="bool",
    ),
    Check(
        "API-27B", "The control plane is in one zone", K, control_plane_zones,
        (warning(2, nodes_from=501),),
        "The cluster is gone with the zone.",
        "an API server in each zone, and etcd members in three",
        "Kubernetes documentation, large clusters", Side.BELOW, unit="zones",
    ),
    Check(
        "API-12", "LISTs without a version are served by etcd", K,
        partial(_older, minor=31), IS_WARNING,
        "The watch cache needs 2 to 10 times less CPU and 20 to 50 times less time.",
        "upgrade to Kubernetes 1.31 or newer", "KEP-2340", unit="bool",
    ),
    Check(
        "API-14", "Lists are encoded whole in memory", K, partial(_older, minor=33),
        (warning(0.5, nodes_from=2501),),
        "Ten lists of 1 GB took 70 GB of memory before, 3 GB after.",
        "upgrade to Kubernetes 1.33 or newer", "Kubernetes blog, streaming list responses",
        unit="bool",
    ),
    Check(
        "CA-06", "A DaemonSet replaces many pods at once", K, daemonset_rollout,
        (warning(0.1, nodes_from=501),),
        "The new pods all start by listing: a thundering herd.",
        "updateStrategy:\n  rollingUpdate:\n    maxUnavailable: 1%", "OpenAI, December 2024",
        unit="share", growth=1,
    ),
    Check(
        "API-05", "No caller is isolated by a FlowSchema of its own", K, agents_without_flow,
        (info(0.5), warning(0.5, nodes_from=501)),
        "One agent on every node shares a priority level with all researchers.",
        "fairlead doctor audit FILE --flow-schema | kubectl apply -f -", "EKS best practices",
        unit="bool",
    ),
    Check(
        "IMG-07", "An image is very large", K, image_sizes, (warning(10e9),),
        "A pull of 17 GB took 30 minutes and blocked the node.",
        "split or trim the image; preload it on the machine image", "OpenAI 2018", unit="bytes",
    ),
    Check(
        "NET-04", "kube-proxy uses iptables with many Services", K, kube_proxy_mode,
        (warning(1000),),
        "The first packet of a connection walks a rule per Service.",
        "mode: nftables (kernel 5.13 or newer) in ConfigMap kube-system/kube-proxy",
        "Kubernetes blog, nftables mode", unit="Services",
    ),
    Check(
        "API-20", "The cluster is larger than the proven envelope", K, envelope, (info(1.0),),
        "The official objectives are not proven at this size.",
        "watch API-07, API-08 and API-19", "sig-scalability thresholds", unit="x envelope",
    ),
)  # fmt: skip
