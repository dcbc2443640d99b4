"""`doctor --node-pods` on real nodes: real kubelets run the pods and hand out their logs."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.kubernetes.nodes.running import IMAGE, until
from tools.cluster.cluster import Cluster, ready_nodes
from tools.cluster.jobs import Client

from fairlead.doctor.readers.node_pods import OWNER

pytestmark = pytest.mark.kubernetes
#: Checks of settings that a pod without rights sees. (Nodes that share a kernel have no limits of
#: the neighbour tables of their own.)
CHECKS = ("SYS-05", "SYS-06", "SYS-08")
PORTS = "/proc/sys/net/ipv4/ip_local_port_range"


@contextmanager
def namespace(cluster: Cluster, name: str, level: str) -> Generator[str]:
    """A namespace that enforces a level of Pod Security."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(made))
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=true", "--timeout=60s")


def examined(client: Client, space: str) -> dict[str, Any]:
    """Return the report of a run with a pod on each node."""
    only = (each for check in CHECKS for each in ("--only", check))
    return json.loads(client.run(
        "doctor", "--node-pods", "5", "--node-pods-image", IMAGE, "-n", space, "--interval", "0",
        "-o", "json", *only, code=None,
    ))  # fmt: skip


def pods_left(cluster: Cluster, space: str) -> list[str]:
    label = ",".join(f"{key}={value}" for key, value in OWNER.items())
    return cluster.kubectl("-n", space, "get", "pods", "-l", label, "-o", "name").split()


@contextmanager
def few_ports(cluster: Cluster, nodes: set[str]) -> Generator[dict[str, int]]:
    """Give each node a number of local ports of its own, and say which."""
    before = {node: cluster.run_in(node, "cat", PORTS).stdout for node in nodes}
    counts = {node: 5_000 + number for number, node in enumerate(sorted(nodes))}
    for node, count in counts.items():
        set_ports(cluster, node, f"40000 {40_000 + count}")
    try:
        yield counts
    finally:
        for node, ports in before.items():
            set_ports(cluster, node, ports)


def set_ports(cluster: Cluster, node: str, ports: str) -> None:
    done = cluster.run_in(node, "sh", "-c", f"echo {ports.strip()} > {PORTS}")
    assert done.returncode == 0, done.stderr


def test_real_kubelets_run_the_pods_and_the_checks_get_the_facts_of_each_node(
    cluster: Cluster, client: Client
) -> None:
    nodes = ready_nodes(cluster)
    with namespace(cluster, "facts", "privileged") as space, few_ports(cluster, nodes) as counts:
        report = examined(client, space)
        until("the pods are gone", lambda: not pods_left(cluster, space))
    assert report["unknown"] == []
    found = {each["subject"]: each["value"] for each in report["findings"]
             if each["id"] == "SYS-08"}  # fmt: skip
    assert len(counts) == 3
    assert found == counts


def test_a_namespace_that_enforces_pod_security_is_named_and_gets_no_pod(
    cluster: Cluster, client: Client
) -> None:
    with namespace(cluster, "restricted", "restricted") as space:
        report = examined(client, space)
        reasons = {each["reason"] for each in report["unknown"]}
        assert len(reasons) == 1
        assert "namespace restricted enforces Pod Security" in reasons.pop()
        assert pods_left(cluster, space) == []
