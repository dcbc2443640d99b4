"""Fairlead is taken off a real cluster while a gang runs; this file comes last of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kubernetes.nodes.running import STAYS, container_ids, pods, submit, until
from tools.cluster.cluster import Cluster
from tools.cluster.install import NAMESPACE, RELEASE, helm
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes
KINDS = (
    "customresourcedefinitions", "clusterroles", "clusterrolebindings", "namespaces",
    "mutatingwebhookconfigurations", "validatingwebhookconfigurations", "priorityclasses",
    "persistentvolumes", "roles", "rolebindings", "leases", "secrets", "configmaps", "services",
    "serviceaccounts", "deployments", "pods", "poddisruptionbudgets", "networkpolicies",
)  # fmt: skip


def traces(cluster: Cluster) -> list[str]:
    """Return the objects that have Fairlead in their names, as kind/name.

    The namespace is not among them: `helm --create-namespace` made it, and Helm deletes none.
    """
    found = cluster.kubectl("get", ",".join(KINDS), "--all-namespaces", "-o", "name").split()
    return [name for name in found if "fairlead" in name and name != f"namespace/{NAMESPACE}"]


def test_it_is_removed_without_traces_and_a_gang_runs_until_its_job_is_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    client = Client(cluster)
    submit(client, tmp_path, STAYS, "--name", "last", "--nodes", "2", "--cpus", "100m")
    client.until_state("last", "Running")
    before = container_ids(cluster, "last")
    assert len(before) == 2
    assert len(traces(cluster)) > 5, "they are found while Fairlead is there"
    client.run("uninstall", "--delete-jobs", "--yes", code=5)  # Helm's release comes first
    helm(cluster, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    assert container_ids(cluster, "last") == before, "the gang needs no controller to run"
    client.run("uninstall", "--delete-jobs", "--yes", "--timeout", "1")
    assert traces(cluster) == []
    until("the pods of the deleted job are gone", lambda: not pods(cluster, "last"))
    assert client.run("uninstall", "--yes") == ""
