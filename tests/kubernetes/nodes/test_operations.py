"""What operators and faults do to a real cluster while gangs run, and how little that disturbs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import (
    CONTROLLER,
    MOST_OF_A_NODE,
    STAYS,
    container_ids,
    leader,
    places,
    pods,
    submit,
    until,
)
from tools.cluster.cluster import Cluster, ready_nodes
from tools.cluster.install import NAMESPACE, RELEASE, helm
from tools.cluster.jobs import Client

from fairlead.api.names import UNREACHABLE

pytestmark = pytest.mark.kubernetes


def pod_of_leader(cluster: Cluster) -> str:
    return leader(cluster).split("_")[0]


def node_of_leader(cluster: Cluster) -> str:
    name = pod_of_leader(cluster)
    return cluster.kubectl("-n", NAMESPACE, "get", "pod", name, "-o", "jsonpath={.spec.nodeName}")


def test_a_gang_goes_on_while_kubelet_and_containerd_restart(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    submit(client, tmp_path, STAYS, "--name", "stays", "--nodes", "2", "--cpus", "100m")
    node = places(client.until_state("stays", "Running"))[0]
    before = container_ids(cluster, "stays")
    for daemon in ("kubelet", "containerd"):
        pid = cluster.daemon(node, daemon)
        os.kill(pid, signal.SIGKILL)
        until(
            f"{daemon} is started again", lambda d=daemon, p=pid: _is_another(cluster, node, d, p)
        )
    submit(client, tmp_path, "echo after", "--name", "after", "--nodes", "3", "--cpus", "100m")
    job = client.until_state("after", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", "the node starts containers again"
    job = client.job("stays")
    assert (job["status"]["state"], job["status"]["attempt"]) == ("Running", 1)
    assert container_ids(cluster, "stays") == before
    client.run("cancel", "stays")


def _is_another(cluster: Cluster, node: str, daemon: str, pid: int) -> bool:
    try:
        return cluster.daemon(node, daemon) != pid
    except Exception:  # noqa: BLE001 - it is down for a second
        return False


def test_a_gang_runs_through_an_upgrade_and_a_downgrade(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    submit(client, tmp_path, STAYS, "--name", "steady", "--nodes", "2", "--cpus", "100m")
    client.until_state("steady", "Running")
    before, first_leader = container_ids(cluster, "steady"), pod_of_leader(cluster)
    here = ("--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    chart = str(Path(__file__).parents[3] / "deploy" / "helm" / "fairlead")
    helm(cluster, "upgrade", RELEASE, chart, "--reuse-values", "--set", "logLevel=debug", *here)
    until("a new replica leads", lambda: pod_of_leader(cluster) not in ("", first_leader))
    submit(client, tmp_path, "echo upgraded", "--name", "upgraded", "--cpus", "100m")
    assert client.until_state("upgraded", "Succeeded", "Failed")["status"]["attempt"] == 1
    second_leader = pod_of_leader(cluster)
    helm(cluster, "rollback", RELEASE, *here)
    until("an old replica leads", lambda: pod_of_leader(cluster) not in ("", second_leader))
    submit(client, tmp_path, "echo downgraded", "--name", "downgraded", "--cpus", "100m")
    assert client.until_state("downgraded", "Succeeded", "Failed")["status"]["attempt"] == 1
    job = client.job("steady")
    assert (job["status"]["state"], job["status"]["attempt"]) == ("Running", 1)
    assert container_ids(cluster, "steady") == before
    client.run("cancel", "steady")


def test_a_node_is_lost_with_the_leader_and_a_member_and_comes_back(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    name, node = pod_of_leader(cluster), node_of_leader(cluster)
    others = set(cluster.layout.nodes) - {node}
    cluster.kubectl("cordon", min(others))  # so that a member is where the leader is
    try:
        submit(client, tmp_path, STAYS, "--name", "moves", "--nodes", "2", "--cpus", MOST_OF_A_NODE)
        assert node in places(client.until_state("moves", "Running"))
    finally:
        cluster.kubectl("uncordon", min(others))
    cluster.pull_plug(node)
    try:
        until("another replica leads", lambda: pod_of_leader(cluster) not in ("", name))
        until("the node counts as not ready", lambda: node not in ready_nodes(cluster))
        assert f"not ready  {node}" in client.run("why", "moves")

        def runs_again(status: dict[str, Any]) -> bool:
            return status["attempt"] == 2 and status["state"] == "Running"

        job = client.until("moves", "the second attempt", runs_again)
        first = job["status"]["attempts"][0]
        assert (first["cause"], first["reason"]) == ("Node", "NodeLost")
        assert set(places(job)) == others
    finally:
        cluster.start_node(node)
    until("the node is back", lambda: node in ready_nodes(cluster))
    until("no pod is left of the lost one", lambda: len(pods(cluster, "moves")) == 2)
    job = client.job("moves")
    assert (job["status"]["state"], job["status"]["attempt"]) == ("Running", 2)
    client.run("cancel", "moves")
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", CONTROLLER, "--timeout=120s")
    submit(
        client, tmp_path, "echo back", "--name", "back", "--nodes", "3", "--cpus", MOST_OF_A_NODE
    )
    assert client.until_state("back", "Succeeded", "Failed")["status"]["state"] == "Succeeded"


def test_a_gang_leaves_a_node_that_is_gone_for_good_and_resumes_from_its_checkpoint(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    script = f"""state="$FAIRLEAD_CHECKPOINT_DIR/step-$RANK"
from=$(cat "$state" 2>/dev/null || echo the start)
[ "$FAIRLEAD_ATTEMPT" -gt 1 ] || echo 7 > "$state"
echo "resumes from $from"
{STAYS}"""
    submit(client, tmp_path, script, "--name", "leaves", "--nodes", "2", "--cpus", MOST_OF_A_NODE)
    client.until_state("leaves", "Running")

    def said() -> list[str]:
        return [client.run("logs", "leaves", "--task", str(i)).rstrip() for i in range(2)]

    until("both have saved", lambda: said() == ["resumes from the start"] * 2)
    node = next(n for n in places(client.job("leaves")) if n != node_of_leader(cluster))
    cluster.pull_plug(node)
    try:
        cluster.kubectl("delete", "node", node)  # as a cloud does with a machine that is no more

        def runs_again(status: dict[str, Any]) -> bool:
            return status["attempt"] == 2 and status["state"] == "Running"

        job = client.until("leaves", "the second attempt", runs_again)
        first = job["status"]["attempts"][0]
        assert (first["cause"], first["reason"], first["nodesLost"]) == ("Node", "NodeLost", [node])
        assert set(places(job)) == set(cluster.layout.nodes) - {node}
        until("both resume", lambda: said() == ["resumes from 7"] * 2)
        until("no pod is left on it", lambda: node not in _nodes_of_pods(cluster, "leaves"))
    finally:
        # A kubelet that finds no Node may be ready two minutes after it has made one (CSINode).
        again = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(again))
        cluster.start_node(node)
    until("another node of its name is ready", lambda: node in ready_nodes(cluster))
    client.run("cancel", "leaves")
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", CONTROLLER, "--timeout=120s")
    submit(client, tmp_path, "true", "--name", "free", "--nodes", "3", "--cpus", MOST_OF_A_NODE)
    assert client.until_state("free", "Succeeded", "Failed")["status"]["state"] == "Succeeded"


def _nodes_of_pods(cluster: Cluster, job: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in pods(cluster, job)}


def test_a_gang_waits_for_names_that_come_late(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    script = "exec python -m fairlead.member.mpirun -- hostname"
    manager = cluster.daemon("cp", "kube-controller-manager")
    os.kill(manager, signal.SIGSTOP)
    try:
        submit(client, tmp_path, script, "--name", "late", "--nodes", "2", "--cpus", "100m")
        client.until_state("late", "Running", "Failed")
    finally:
        os.kill(manager, signal.SIGCONT)
    job = client.until_state("late", "Succeeded", "Failed")
    assert (job["status"]["state"], job["status"]["attempt"]) == ("Succeeded", 1), job["status"]
    assert len(client.run("logs", "late").splitlines()) == 2


def test_the_gang_of_a_node_that_is_unplugged_runs_elsewhere_long_before_the_grace_is_over(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    # So that the image is on each of them.
    submit(client, tmp_path, "true", "--name", "warm", "--nodes", "3", "--cpus", MOST_OF_A_NODE)
    assert client.until_state("warm", "Succeeded", "Failed")["status"]["state"] == "Succeeded"
    submit(client, tmp_path, STAYS, "--name", "dark", "--nodes", "2", "--cpus", MOST_OF_A_NODE)
    job = client.until_state("dark", "Running")
    node = next(each for each in places(job) if each != node_of_leader(cluster))
    time.sleep(21)  # each kubelet has renewed its lease in the sight of this leader
    cluster.set_link(node, "down")
    began = time.monotonic()
    try:
        job = client.until(
            "dark", "elsewhere",
            lambda status: status["attempt"] == 2 and status["state"] == "Running",
        )  # fmt: skip
        seconds = time.monotonic() - began
        assert "unreachable: its lease is not renewed" in client.run("nodes", "-R")
    finally:
        cluster.set_link(node, "up")
    first = job["status"]["attempts"][0]
    assert (first["cause"], first["reason"], first["nodesLost"]) == ("Node", "NodeLost", [node])
    assert "was unreachable for" in first["message"]
    assert node not in places(job)
    print(f"{seconds:.1f} s from the last packet of {node} to the gang elsewhere")
    # Before Kubernetes' own 20 s here and nodeLostGraceSeconds of 40 s could be over, even with a
    # last renewal of 10 s ago; 25 s on a machine that has nothing else to do.
    assert seconds < 50, "it waited for Kubernetes, and for the grace"
    until("the node takes work again", lambda: _mark_of(cluster, node).count("/") == 2)
    until("no pod is left of the lost one", lambda: len(pods(cluster, "dark")) == 2)


def _mark_of(cluster: Cluster, node: str) -> str:
    """Return the mark of a node: one slash in the key, and one more once it is over."""
    notes = json.loads(cluster.kubectl("get", "node", node, "-o", "json"))["metadata"]
    mark = notes.get("annotations", {}).get(UNREACHABLE, "")
    return f"{UNREACHABLE}={mark}" if mark else ""


SAVES = """from fairlead.member.progress import checkpoint_directory
import os, time
attempt, rank = os.environ["FAIRLEAD_ATTEMPT"], os.environ["RANK"]
log = checkpoint_directory() / "log"
while attempt == "1" or not log.with_name("stop").exists():
    with log.open("a") as file:
        file.write(f"{time.time():.3f} {attempt} {rank}\\n")
    time.sleep(0.1)
"""


def test_members_on_a_node_that_is_cut_off_do_not_run_beside_the_next_attempt(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    script = f"exec python -c '{SAVES}'"
    submit(client, tmp_path, script, "--name", "cut", "--nodes", "2", "--cpus", MOST_OF_A_NODE)
    job = client.until_state("cut", "Running")
    node = next(each for each in places(job) if each != node_of_leader(cluster))
    own = Path(cluster.layout.directory, "shared", "checkpoints", "default")
    log = own / f"cut-{job['metadata']['uid'][:8]}" / "log"
    cluster.set_link(node, "down")  # the node and its containers go on
    try:
        client.until("cut", "the second attempt", lambda status: status["attempt"] == 2)
        until("attempt 2 writes", lambda: " 2 " in log.read_text())
        log.with_name("stop").touch()
        job = client.until_state("cut", "Succeeded", "Failed")
    finally:
        cluster.set_link(node, "up")
    assert job["status"]["state"] == "Succeeded", job["status"]
    rows = [line.split() for line in log.read_text().splitlines()]
    ends = {rank: float(at) for at, attempt, rank in rows if attempt == "1"}
    begins = min(float(at) for at, attempt, _ in rows if attempt == "2")
    assert len(ends) == 2
    assert max(ends.values()) < begins, "members of both attempts wrote at the same time"
    until("the node is back", lambda: node in ready_nodes(cluster))
