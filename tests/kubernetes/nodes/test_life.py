"""How members start, save, fail and leave on real nodes: images, volumes, signals, eviction."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import (
    IMAGE,
    MOST_OF_A_NODE,
    STAYS,
    apply,
    container_ids,
    places,
    pods,
    submit,
    until,
)
from tools.cluster.cluster import Cluster, ready_nodes
from tools.cluster.images import version
from tools.cluster.install import NAMESPACE, shared_directory
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes
RESTRICTED = {
    "securityContext": {
        "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "automountServiceAccountToken": False,
}  # fmt: skip
RESTRICTED_CONTAINER = {
    "securityContext": {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
}  # fmt: skip
NEVER_GIVEN = "nowhere.example/none:1"


def container(script: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "main", "image": IMAGE, "command": ["sh", "-ec", script],
        "resources": {"requests": {"cpu": "100m"}}, **more,
    }  # fmt: skip


def runs_again(status: dict[str, Any]) -> bool:
    return status["attempt"] == 2 and status["state"] == "Running"


def test_what_keeps_a_container_from_starting_ends_the_job_with_the_kubelets_words(
    cluster: Cluster, client: Client
) -> None:
    missing = {"configMapRef": {"name": "nowhere"}}
    apply(cluster, "no-image", {"containers": [container("true", image=NEVER_GIVEN)]})
    apply(cluster, "no-settings", {"containers": [container("true", envFrom=[missing])]})
    apply(cluster, "no-init", {
        "initContainers": [{**container("exit 3"), "name": "fetch"}],
        "containers": [container("true")],
    })  # fmt: skip
    expected = {
        "no-image": ("StartFailed", NEVER_GIVEN),
        "no-settings": ("StartFailed", 'configmap "nowhere" not found'),
        "no-init": ("ExitCode", "fetch"),
    }
    for name, (reason, words) in expected.items():
        job = client.until_state(name, "Failed", "Succeeded")
        (attempt,) = job["status"]["attempts"]
        assert (attempt["cause"], attempt["reason"]) == ("User", reason), attempt
        assert words in attempt["message"], attempt
    assert client.job("no-init")["status"]["attempts"][0]["exitCode"] == 3


def test_a_job_with_a_sidecar_ends_when_its_program_ends(cluster: Cluster, client: Client) -> None:
    sidecar = {**container(f"echo ready > /shared/ready; {STAYS}"), "name": "proxy",
               "restartPolicy": "Always"}  # fmt: skip
    mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    apply(cluster, "aside", {
        "volumes": [{"name": "shared", "emptyDir": {}}],
        "initContainers": [{**sidecar, **mounts}],
        "containers": [container(
            "until [ -e /shared/ready ]; do sleep 0.1; done; echo the program ends", **mounts)],
    })  # fmt: skip
    job = client.until_state("aside", "Succeeded", "Failed")
    assert (job["status"]["state"], job["status"]["attempt"]) == ("Succeeded", 1), job["status"]
    assert "the program ends\n" in client.run("logs", "aside")


def test_a_cancelled_program_has_its_grace_period_to_save(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    script = """trap 'sleep 2; echo saved > "$FAIRLEAD_CHECKPOINT_DIR/saved"; exit 0' TERM
sleep 600 & wait"""
    submit(client, tmp_path, script, "--name", "saving", "--cpus", "100m")
    job = client.until_state("saving", "Running")
    until("the shell waits", lambda: bool(container_ids(cluster, "saving")))
    client.run("cancel", "saving")
    client.until_state("saving", "Cancelled")
    own = f"saving-{job['metadata']['uid'][:8]}"
    saved = shared_directory(cluster) / "checkpoints" / "default" / own / "saved"
    until("it has saved", saved.exists)


def test_members_share_a_claimed_volume_and_are_reached_by_exec_and_port_forward(
    cluster: Cluster, client: Client
) -> None:
    with claimed(cluster):
        script = """cd /data; echo "rank $RANK" > "from-$RANK"
until [ -e from-0 ] && [ -e from-1 ]; do sleep 0.1; done
exec python -m http.server 8080"""
        apply(cluster, "shares", {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}],
            "containers": [container(
                script, volumeMounts=[{"name": "data", "mountPath": "/data"}],
                resources={"requests": {"cpu": MOST_OF_A_NODE}})],
        }, count=2)  # fmt: skip
        client.until_state("shares", "Running")
        first, second = (pod["metadata"]["name"] for pod in pods(cluster, "shares"))
        read = ("exec", first, "--", "cat", "/data/from-1")
        assert until_said(cluster, *read) == "rank 1\n"
        knock = "import socket; socket.create_connection(('127.0.0.1', 8080))"
        until_said(cluster, "exec", second, "--", "python", "-c", knock)
        with forwarded(cluster, second, 8080) as port:
            assert b"rank 0" in fetched(port, "/from-0")
        client.run("cancel", "shares")


@contextmanager
def claimed(cluster: Cluster) -> Generator[None]:
    """Have a claim `shared` in `default`, of a volume that all nodes see."""
    size = {"storage": "1Gi"}
    directory = shared_directory(cluster) / "volume"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o1777)
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared"},
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": "static",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": str(directory)},
            "claimRef": {"namespace": "default", "name": "shared"},
        },
    }  # fmt: skip
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "static",
                 "resources": {"requests": size}},
    }  # fmt: skip
    objects = {"apiVersion": "v1", "kind": "List", "items": [volume, claim]}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(objects))
    try:
        yield
    finally:
        cluster.kubectl("delete", "jobs.fairlead.dev", "--all", "--timeout=60s")
        until("no pod uses the claim", lambda: not cluster.kubectl("get", "pods", "-o", "name"))
        cluster.kubectl("delete", "pvc/shared", "pv/shared", "--timeout=60s")


def until_said(cluster: Cluster, *command: str) -> str:
    """Return what kubectl prints, once it succeeds."""
    said: list[str] = []

    def succeeds() -> bool:
        try:
            said.append(cluster.kubectl(*command))
        except Exception:  # noqa: BLE001 - the container may not have come so far
            return False
        return True

    until(f"kubectl {' '.join(command)} succeeds", succeeds)
    return said[0]


@contextmanager
def forwarded(cluster: Cluster, pod: str, port: int) -> Generator[int]:
    """Forward a free port of this machine to one of a pod."""
    command = [str(cluster.binaries / "kubectl"), f"--kubeconfig={cluster.layout.kubeconfig}",
               "port-forward", f"pod/{pod}", f":{port}"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield int(line.partition("127.0.0.1:")[2].split()[0])
    finally:
        process.terminate()
        process.communicate(timeout=30)


def fetched(port: int, path: str) -> bytes:
    """Return what a server on this machine's port answers to a GET."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        connection.settimeout(10)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_a_command_reads_standard_input(cluster: Cluster) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("fairlead"), "run", "--image", IMAGE, "--cpus", "100m",
         "--", "tr", "a-z", "A-Z"],
        env={**os.environ, "KUBECONFIG": str(cluster.layout.kubeconfig)},
        input="from a pipe\n", text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "FROM A PIPE\n"), done.stderr


def test_a_member_that_is_evicted_by_request_is_placed_again(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    submit(client, tmp_path, STAYS, "--name", "evicted", "--nodes", "2", "--cpus", "100m")
    client.until_state("evicted", "Running")
    name = pods(cluster, "evicted")[1]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    cluster.kubectl("create", "--raw", f"/api/v1/namespaces/default/pods/{name}/eviction",
                    "-f", "-", stdin=json.dumps(eviction))  # fmt: skip
    job = client.until("evicted", "the second attempt", runs_again)
    (first, *_) = job["status"]["attempts"]
    assert (first["cause"], first["reason"]) == ("Infrastructure", "Drained"), first
    client.run("cancel", "evicted")


def test_a_gang_leaves_a_node_under_disk_pressure(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    submit(client, tmp_path, STAYS, "--name", "pressed", "--nodes", "2", "--cpus", MOST_OF_A_NODE)
    node = places(client.until_state("pressed", "Running"))[0]
    with kubelet_setting(cluster, node, evictionHard={"nodefs.available": "99%"}):
        job = client.until("pressed", "the second attempt", runs_again)
        (first, *_) = job["status"]["attempts"]
        assert (first["cause"], first["reason"]) == ("Node", "Evicted"), first
        assert node not in places(job)
    until("the node takes pods again", lambda: not tainted(cluster, node))
    client.run("cancel", "pressed")
    cluster.kubectl(
        "-n", NAMESPACE, "rollout", "status", "deployment/fairlead-controller", "--timeout=120s"
    )


@contextmanager
def kubelet_setting(cluster: Cluster, node: str, **settings: Any) -> Generator[None]:
    """Run a node's kubelet with other settings for a while."""
    path = cluster.layout.home(node) / "kubelet.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps({**json.loads(before), **settings}))
        os.kill(cluster.daemon(node, "kubelet"), signal.SIGKILL)  # it is started again
        yield
    finally:
        path.write_text(before)
        os.kill(cluster.daemon(node, "kubelet"), signal.SIGKILL)
        until(f"{node} is ready", lambda: node in ready_nodes(cluster))


def tainted(cluster: Cluster, node: str) -> bool:
    return "disk-pressure" in cluster.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints}")


def test_a_restricted_namespace_takes_what_complies_and_says_why_it_refuses_the_rest(
    cluster: Cluster, client: Client
) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    dry = ("label", "--overwrite", "--dry-run=server", "namespace", NAMESPACE, level)
    warned = subprocess.run(
        [str(cluster.binaries / "kubectl"), f"--kubeconfig={cluster.layout.kubeconfig}", *dry],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Warning" not in warned.stderr, "Fairlead's own pods comply"
    with claimed(cluster), labelled(cluster, "default", level):
        complies = container("echo complies") | RESTRICTED_CONTAINER
        apply(cluster, "complies", {**RESTRICTED, "containers": [complies]},
              checkpoint={"claimName": "shared"})  # fmt: skip
        apply(cluster, "as-root", {"containers": [container("true")]})
        job = client.until_state("complies", "Succeeded", "Failed")
        assert (job["status"]["state"], job["status"]["attempt"]) == ("Succeeded", 1), job["status"]

        def was_refused(status: dict[str, Any]) -> bool:
            return any(a.get("reason") == "PolicyRefused" for a in status.get("attempts", []))

        job = client.until("as-root", "the refusal", was_refused)
        said = job["status"]["attempts"][0]["message"]
        assert "violates PodSecurity" in said
        assert "runAsNonRoot != true" in said


@contextmanager
def labelled(cluster: Cluster, namespace: str, label: str) -> Generator[None]:
    """Have a label on a namespace for a while."""
    cluster.kubectl("label", "--overwrite", "namespace", namespace, label)
    try:
        yield
    finally:
        cluster.kubectl("label", "namespace", namespace, label.partition("=")[0] + "-")


def test_a_pull_that_never_ends_is_given_up(cluster: Cluster, client: Client) -> None:
    registry = cluster.daemon("cp", "crane")
    image = f"docker.io/library/fairlead:{version()}"
    for node in cluster.layout.nodes:  # nodes keep the digest that Fairlead's own pods use
        cluster.run_in(node, "ctr", "--namespace=k8s.io", "images", "remove", image)
    os.kill(registry, signal.SIGSTOP)
    try:
        apply(cluster, "pulls", {"containers": [container("true", image=image)]})

        def says_so() -> bool:
            return any(
                status["state"].get("waiting", {}).get("reason") == "ContainerCreating"
                for pod in pods(cluster, "pulls")
                for status in pod["status"].get("containerStatuses", [])
            )

        until("the kubelet waits for the image", says_so)
        began = time.monotonic()
        assert "1 starting" in client.run("why", "pulls")
        job = client.until("pulls", "the end of the attempt", lambda s: "cause" in s["attempts"][0])
        assert time.monotonic() - began < 120
    finally:
        os.kill(registry, signal.SIGCONT)
    first = job["status"]["attempts"][0]
    assert (first["cause"], first["reason"]) == ("Infrastructure", "StartTimeout"), first
    job = client.until_state("pulls", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", "the registry answers again"


def test_gangs_of_other_tools_run_whole(cluster: Cluster, client: Client) -> None:
    gate = {"fairlead.dev/gang-scheduling": "enabled"}
    pod = {
        "containers": [container(
            "echo whole", resources={"requests": {"cpu": MOST_OF_A_NODE}})],
        "restartPolicy": "Never",
    }  # fmt: skip
    batch = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "batch"},
        "spec": {"parallelism": 3, "completions": 3, "completionMode": "Indexed",
                 "template": {"metadata": {"labels": gate}, "spec": pod}},
    }  # fmt: skip
    serving = {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "serving"},
        "spec": {
            "replicas": 2, "serviceName": "serving", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "serving"}},
            "template": {"metadata": {"labels": {"app": "serving", **gate}}, "spec": {
                "containers": [container(STAYS)], "terminationGracePeriodSeconds": 1}},
        },
    }  # fmt: skip
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": [batch, serving]}))  # fmt: skip
    try:
        cluster.kubectl("wait", "--for=condition=Complete", "job/batch", "--timeout=120s")
        nodes = cluster.kubectl("get", "pods", "-l", "job-name=batch",
                                "-o", "jsonpath={.items[*].spec.nodeName}").split()  # fmt: skip
        assert sorted(nodes) == list(cluster.layout.nodes), "one member on each node"
        cluster.kubectl("rollout", "status", "statefulset/serving", "--timeout=120s")
        lost = "serving-1"
        before = cluster.kubectl("get", "pod", lost, "-o", "jsonpath={.metadata.uid}")
        cluster.kubectl("delete", "pod", lost)

        def is_another() -> bool:
            state = "jsonpath={.metadata.uid} {.status.phase}"
            return until_said(cluster, "get", "pod", lost, "-o", state).split() not in (
                [before, "Running"], [before, "Pending"])  # fmt: skip

        until("the member is made again", is_another)
        cluster.kubectl("rollout", "status", "statefulset/serving", "--timeout=120s")
        said = client.run("ps")
        assert "serving" in said
    finally:
        cluster.kubectl("delete", "job/batch", "statefulset/serving", "--timeout=60s")
    until("their stand-ins are gone", lambda: not json.loads(
        cluster.kubectl("get", "jobs.fairlead.dev", "-o", "json"))["items"])  # fmt: skip
