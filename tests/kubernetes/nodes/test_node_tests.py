"""The gate before work on real nodes: a taint, a pod that a kubelet runs, and the taint's end."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import MOST_OF_A_NODE, STAYS, places, submit, until
from tools.cluster.cluster import Cluster, FailedError
from tools.cluster.images import fairlead_name
from tools.cluster.install import CHART, NAMESPACE, RELEASE, helm
from tools.cluster.jobs import Client

from fairlead.api.names import NODE_TEST, TAINT_PREFLIGHT

pytestmark = pytest.mark.kubernetes
HEALTH = {
    "enabled": True, "actOn": ["*"], "validateSeconds": 2, "testSuite": "quick",
    "testImage": fairlead_name(),
    "testOptions": [
        "cpu.seconds=1", "disk.bytes=8388608", "clock.seconds=0.5", "names.names=localhost",
    ],
}  # fmt: skip
LIAR = ("--as=mallory", "-n", "default")


@contextmanager
def gated(cluster: Cluster, health: dict[str, Any] = HEALTH, *more: str) -> Generator[None]:
    """Have the controllers test what is tainted."""
    here = ("--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    chosen = ("--set-json", f"settings.health={json.dumps(health)}")
    role = ("mallory-edits", "--clusterrole=edit", "--user=mallory")
    cluster.kubectl("-n", "default", "create", "rolebinding", *role)
    try:
        helm(cluster, "upgrade", RELEASE, str(CHART), "--reuse-values", *chosen, *more, *here)
        yield
    finally:
        cluster.kubectl("-n", "default", "delete", "rolebinding", "mallory-edits")
        helm(cluster, "rollback", RELEASE, *here)
        cluster.kubectl("delete", "nodetests", "--all")


def taints(cluster: Cluster, node: str) -> str:
    return cluster.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints[*].key}")


def uid_of(cluster: Cluster, pod: str) -> str:
    """Return the uid of the pod of a test; "" while there is none."""
    with suppress(FailedError):
        where = ("-n", NAMESPACE, "get", "pod", pod)
        return cluster.kubectl(*where, "-o", "jsonpath={.metadata.uid}")
    return ""


def lie(cluster: Cluster, node: str, test: str) -> None:
    """Do what an editor of a namespace can to have the node pass."""
    body: dict[str, Any] = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeTest", "metadata": {"name": test},
        "spec": {"node": node, "nodeUID": "x", "suite": "quick"},
    }  # fmt: skip
    with pytest.raises(FailedError, match=r"nodetests\.fairlead\.dev is forbidden"):
        cluster.kubectl("--as=mallory", "create", "-f", "-", stdin=json.dumps(body))
    outcomes = [{"test": each, "outcome": "Passed"} for each in ("cpu", "memory", "disk")]
    said = f"printf %s '{json.dumps({'measured': outcomes})}' > /dev/termination-log"
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": test, "labels": {NODE_TEST: "quick"}},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "test", "image": fairlead_name(), "command": ["sh", "-c", said]}]},
    }  # fmt: skip
    cluster.kubectl(*LIAR, "create", "-f", "-", stdin=json.dumps(pod))


def test_a_node_takes_work_once_a_pod_of_its_kubelet_has_passed_whatever_others_claim(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    node, test = cluster.layout.nodes[1], f"{cluster.layout.nodes[1]}-1"
    with gated(cluster):
        lie(cluster, node, test)
        cluster.kubectl("taint", "node", node, f"{TAINT_PREFLIGHT}=:NoSchedule")
        until("the node is tested", lambda: bool(uid_of(cluster, test)))
        first = uid_of(cluster, test)
        cluster.kubectl("-n", NAMESPACE, "delete", "pod", test, "--force", "--grace-period=0")
        until("another pod tests it", lambda: uid_of(cluster, test) not in ("", first))
        assert TAINT_PREFLIGHT in taints(cluster, node), "a pod that has gone says nothing"

        until("the taint is lifted", lambda: TAINT_PREFLIGHT not in taints(cluster, node))
        [found] = json.loads(cluster.kubectl("get", "nodetests", "-o", "json"))["items"]
        status = found["status"]
        assert (found["spec"]["cause"], status["outcome"]) == ("Gate", "Passed"), status
        outcomes = {each["test"]: each["outcome"] for each in status["measured"]}
        for each in ("cpu", "memory", "disk", "clock", "names"):
            assert outcomes[each] == "Passed", status
        assert "copyBytesPerSecond" in json.dumps(status["measured"])
        submit(client, tmp_path, "echo began", "--name", "after", "--node-selector",
               f"kubernetes.io/hostname={node}")  # fmt: skip
        assert client.until_state("after", "Succeeded", "Failed")["status"]["state"] == "Succeeded"
        cluster.kubectl(*LIAR, "delete", "pod", test, "--wait=false")


def test_idle_nodes_meet_in_pairs_by_pods_of_their_kubelets(cluster: Cluster) -> None:
    pairs = {"pairTests": True, "idleTestAfterSeconds": 60, "testSuite": ""}
    alone = ("--set", "replicas=1")  # so that two nodes are idle
    with gated(cluster, {**HEALTH, **pairs}, *alone):

        def ended() -> list[dict[str, Any]]:
            found = json.loads(cluster.kubectl("get", "nodetests", "-o", "json"))["items"]
            is_over = [each for each in found if each.get("status", {}).get("phase") == "Ended"]
            return is_over if len(is_over) >= 2 else []

        until("two nodes have met", lambda: bool(ended()))
        one, two = ended()[:2]
        assert one["spec"]["peer"]["test"] == two["metadata"]["name"]
        for each in (one, two):
            assert each["status"]["outcome"] == "Passed", each["status"]
            [found] = each["status"]["measured"]
            figures = {figure["name"]: figure["value"] for figure in found["figures"]}
            assert figures["bytesPerSecond"] > 1e6
            assert 0 < figures["roundTripSeconds"] < 1
        until("no key is left", lambda: "node-test-" not in cluster.kubectl(
            "-n", NAMESPACE, "get", "secrets", "-o", "name"
        ))  # fmt: skip


def test_a_node_has_its_profile_then_passes_the_gate_and_takes_its_member_of_a_gang(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    node, test = cluster.layout.nodes[1], f"{cluster.layout.nodes[1]}-1"
    profile, somaxconn = tmp_path / "profile.yaml", "/proc/sys/net/core/somaxconn"
    profile.write_text(
        "name: walk\nlines:\n"
        "- {kind: Sysctl, name: net.core.somaxconn, value: 7531, reason: r, source: s}\n"
    )

    def tune(*flags: str) -> int:
        agent = (sys.executable, "-m", "fairlead", "agent", "tune", "--record")
        return cluster.run_in(node, *agent, str(tmp_path / "record"), *flags).returncode

    def value() -> str:
        return cluster.run_in(node, "cat", somaxconn).stdout.strip()

    before = value()
    with gated(cluster):
        cluster.kubectl("taint", "node", node, f"{TAINT_PREFLIGHT}=:NoSchedule")
        try:
            assert tune("--profile", str(profile)) == 1, "it differs"
            assert tune("--profile", str(profile), "--apply") == 0
            assert (value(), tune("--profile", str(profile))) == ("7531", 0)
            until("the node is tested", lambda: bool(uid_of(cluster, test)))
            until("the taint is lifted", lambda: TAINT_PREFLIGHT not in taints(cluster, node))
            submit(client, tmp_path, STAYS, "--name", "gang", "--nodes", "3", "--cpus",
                   MOST_OF_A_NODE)  # fmt: skip
            assert node in places(client.until_state("gang", "Running"))
            client.run("cancel", "gang")
        finally:
            assert tune("--restore") == 0
        assert value() == before
