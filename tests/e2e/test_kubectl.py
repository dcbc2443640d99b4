"""The real kubectl against the embedded API server: what a person types and sees.

Pods do not run here (no node does anything): the tests write the status that a node would write.
FAIRLEAD_KUBECTL names another binary than the one on the PATH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.http_server import Running, config, pod, running, widget, widget_crd
from tests.patience import PATIENCE_SECONDS

KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL"),
]
#: For what kubectl waits for, which is soon there unless the machine is busy.
PATIENCE = f"--timeout={PATIENCE_SECONDS:.0f}s"
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "podIP": "10.0.0.9",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{
        "name": "main", "ready": True, "restartCount": 0, "image": "none", "imageID": "",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }],
}  # fmt: skip


class Lines:
    """A log of three lines, with two more for those who follow."""

    async def read(self, _n: str, pod_name: str, _c: str, options: Any) -> AsyncIterator[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            yield f"{pod_name} 1\n{pod_name} 2\n".encode()
            if options.follow:
                yield b"later\n"

        return pieces()


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl as a person would, with a kubeconfig and home directory of the test's own."""

    home: Path
    api: Running

    def environment(self, **more: str) -> dict[str, str]:
        paths = {"HOME": str(self.home), "KUBECONFIG": str(self.home / "kubeconfig")}
        return {"PATH": os.environ.get("PATH", ""), **paths, **more}

    async def run(self, *args: str, stdin: Any = None, **environment: str) -> tuple[int, str, str]:
        """Return (exit code, stdout, stderr)."""
        assert KUBECTL is not None
        text = b"" if stdin is None else msgspec.json.encode(stdin)
        process = await asyncio.create_subprocess_exec(
            KUBECTL, *args, env=self.environment(**environment), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, err = await process.communicate(text)
        return process.returncode or 0, out.decode(), err.decode()

    async def __call__(self, *args: str, stdin: Any = None, **environment: str) -> str:
        """Return what it prints; it must succeed."""
        code, out, err = await self.run(*args, stdin=stdin, **environment)
        assert code == 0, f"kubectl {' '.join(args)}: {out}{err}"
        return out.strip()

    async def fails(self, *args: str, stdin: Any = None) -> str:
        """Return the error that it prints; it must fail."""
        code, out, err = await self.run(*args, stdin=stdin)
        assert code != 0, f"kubectl {' '.join(args)} should have failed: {out}"
        return err

    async def has_status(self, name: str, status: dict[str, Any]) -> None:
        """Write a pod's status, as its node would."""
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        patch = {"status": status}
        code, value, _ = await self.api.call(
            "PATCH", path, patch, Content_Type="application/merge-patch+json"
        )
        assert code == 200, value


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.34.0+fairlead", "osImage": "Linux"},
        },
    }  # fmt: skip


@asynccontextmanager
async def cluster(home: Path) -> AsyncIterator[Kubectl]:
    async with running(logs=Lines(), with_tls=True) as api:
        api.write_kubeconfig(home / "kubeconfig")
        yield Kubectl(home, api)


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


async def test_get_shows_tables_and_every_output_form(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=node("n1"))
        await kubectl("create", "-f", "-", stdin=pod("p", nodeName="n1", labels={"app": "a"}))
        await kubectl.has_status("p", RUNNING)
        rows = cells(await kubectl("get", "pods", "-o", "wide"))
        assert rows[0][:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
        assert rows[1][:4] == ["p", "1/1", "Running", "0"]
        assert rows[1][5:7] == ["10.0.0.9", "n1"]
        nodes = cells(await kubectl("get", "nodes"))
        assert nodes[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
        assert nodes[1][:3] == ["n1", "Ready", "<none>"]
        assert cells(await kubectl("get", "pods", "-A"))[1][:2] == ["default", "p"]
        assert await kubectl("get", "po", "-l", "app=a", "-o", "name") == "pod/p"
        assert await kubectl("get", "po", "-l", "app!=a", "-o", "name") == ""
        fields = "spec.nodeName=n1,status.phase=Running"
        assert await kubectl("get", "po", "--field-selector", fields, "-o", "name") == "pod/p"
        assert await kubectl("get", "po", "p", "-o", "jsonpath={.spec.nodeName}") == "n1"
        assert msgspec.json.decode(await kubectl("get", "po", "p", "-o", "json"))["kind"] == "Pod"
        assert "kind: Pod" in await kubectl("get", "po", "p", "-o", "yaml")
        assert "default" in await kubectl("get", "ns")
        assert "pod/p" in await kubectl("get", "all")
        assert 'pods "q" not found' in await kubectl.fails("get", "pod", "q")
        assert "resource type" in await kubectl.fails("get", "nonsense")


async def test_get_watch_shows_each_change(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=pod("p"))
        assert KUBECTL is not None
        process = await asyncio.create_subprocess_exec(
            KUBECTL, "get", "pods", "-w", env=kubectl.environment(),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b"NAME" in await process.stdout.readline()
            assert b"Pending" in await process.stdout.readline()
            await kubectl.has_status("p", RUNNING)
            assert b"Running" in await process.stdout.readline()
        process.terminate()
        await process.wait()


async def test_describe_tells_the_story_of_pods_and_nodes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=node("n1"))
        await kubectl("create", "-f", "-", stdin=pod("p", nodeName="n1"))
        await kubectl.has_status("p", RUNNING)
        uid = await kubectl("get", "pod", "p", "-o", "jsonpath={.metadata.uid}")
        about = {"kind": "Pod", "name": "p", "namespace": "default", "uid": uid}
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": about, "type": "Warning", "reason": "Lost", "message": "member lost",
            "count": 2, "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:01:00Z",
        }  # fmt: skip
        await kubectl("create", "-f", "-", stdin=event)
        described = await kubectl("describe", "pod", "p")
        for text in ("Node:", "n1", "Running", "member lost", "Ready"):
            assert text in described
        described = await kubectl("describe", "node", "n1")
        for text in ("nvidia.com/gpu:", "Kubelet Version", "default"):
            assert text in described
        assert "member lost" in await kubectl("events")
        assert cells(await kubectl("get", "events"))[1][1:4] == ["Warning", "Lost", "pod/p"]


async def test_apply_creates_changes_and_then_leaves_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        first, second = config("c"), config("c", stage="two")
        assert await kubectl("apply", "-f", "-", stdin=first) == "configmap/c created"
        code, shown, _ = await kubectl.run("diff", "-f", "-", stdin=second)
        assert code == 1
        assert "+    stage: two" in shown
        assert await kubectl("apply", "-f", "-", stdin=second) == "configmap/c configured"
        assert await kubectl("apply", "-f", "-", stdin=second) == "configmap/c unchanged"
        assert await kubectl("apply", "-f", "-", stdin=first) == "configmap/c configured"
        assert await kubectl("get", "cm", "c", "-o", "jsonpath={.metadata.labels.stage}") == ""
        said = await kubectl("apply", "--server-side", "-f", "-", stdin=second)
        assert said == "configmap/c serverside-applied"
        shown = await kubectl("get", "cm", "c", "-o", "yaml", "--show-managed-fields")
        assert "operation: Apply" in shown
        other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
        said = await kubectl.fails(*other, stdin=config("c", stage="three"))
        assert 'conflict with "kubectl": .metadata.labels.stage' in said
        await kubectl(*other, "--force-conflicts", stdin=config("c", stage="three"))
        wrong = config("d") | {"dta": {}}
        assert 'unknown field "dta"' in await kubectl.fails("create", "-f", "-", stdin=wrong)


async def test_patch_label_annotate_edit_and_scale(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=pod("p"))
        await kubectl("patch", "pod", "p", "-p", '{"metadata":{"labels":{"a":"strategic"}}}')
        merge = '{"metadata":{"labels":{"b":"merge"}}}'
        await kubectl("patch", "pod", "p", "--type=merge", "-p", merge)
        add = '[{"op":"add","path":"/metadata/labels/c","value":"json"}]'
        await kubectl("patch", "pod", "p", "--type=json", "-p", add)
        await kubectl("label", "pod", "p", "d=label")
        await kubectl("label", "pod", "p", "a-")
        await kubectl("annotate", "pod", "p", "note=before")
        await kubectl("edit", "pod", "p", KUBE_EDITOR="sed -i s/before/after/")
        asked = '{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"%s"}}}]}}'
        sized = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        refused = ("patch", "pod", "p", "--subresource=resize", "-p", asked % "1")
        assert "Pod QOS Class may not change" in await kubectl.fails(*refused)
        await kubectl("create", "-f", "-", stdin=pod("r", containers=[sized]))
        await kubectl("patch", "pod", "r", "--subresource", "resize", "-p", asked % "2")
        path = "jsonpath={.spec.containers[0].resources.requests.cpu}"
        assert await kubectl("get", "pod", "r", "--subresource=resize", "-o", path) == "2"
        metadata = msgspec.json.decode(await kubectl("get", "pod", "p", "-o", "json"))["metadata"]
        assert metadata["labels"] == {"b": "merge", "c": "json", "d": "label"}
        assert metadata["annotations"]["note"] == "after"

        await kubectl("create", "-f", "-", stdin=widget_crd())
        await kubectl("wait", "--for=condition=Established", "crd/widgets.example.dev")
        await kubectl("create", "-f", "-", stdin=widget("w", size=3))
        await kubectl("scale", "widget", "w", "--replicas=4")
        assert await kubectl("get", "wg", "w", "-o", "jsonpath={.spec.replicas}") == "4"
        assert cells(await kubectl("get", "toys")) == [["NAME", "SIZE"], ["w", "3"]]
        assert cells(await kubectl("get", "wg", "-o", "wide"))[0] == ["NAME", "SIZE", "STATE"]
        assert "size" in await kubectl("explain", "widget.spec")


async def test_delete_keeps_to_finalizers_and_owner_references(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        for cascade, kept in (("background", False), ("orphan", True), ("foreground", False)):
            await kubectl("create", "-f", "-", stdin=config("owner"))
            uid = await kubectl("get", "cm", "owner", "-o", "jsonpath={.metadata.uid}")
            child = config(f"child-{cascade}")
            child["metadata"]["ownerReferences"] = [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid,
                "blockOwnerDeletion": True,
            }]  # fmt: skip
            await kubectl("create", "-f", "-", stdin=child)
            await kubectl("delete", "cm", "owner", f"--cascade={cascade}", PATIENCE)
            name = f"cm/child-{cascade}"
            if kept:
                assert await kubectl("get", name, "-o", "name") == f"configmap/child-{cascade}"
            else:
                await kubectl("wait", "--for=delete", name, PATIENCE)

        held = config("held")
        held["metadata"]["finalizers"] = ["example.dev/hold"]
        await kubectl("create", "-f", "-", stdin=held)
        await kubectl("delete", "cm", "held", "--wait=false")
        path = "jsonpath={.metadata.deletionTimestamp}"
        assert await kubectl("get", "cm", "held", "-o", path) != ""
        free = '[{"op":"remove","path":"/metadata/finalizers"}]'
        await kubectl("patch", "cm", "held", "--type=json", "-p", free)
        await kubectl("wait", "--for=delete", "cm/held", PATIENCE)


async def test_imperative_creates_work_although_kubectl_sends_them_as_protobuf(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "namespace", "team")
        await kubectl("create", "cm", "c", "--from-literal=a=b", "-n", "team")
        await kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "team")
        assert await kubectl("get", "cm", "c", "-n", "team", "-o", "jsonpath={.data.a}") == "b"
        assert (
            await kubectl("get", "secret", "s", "-n", "team", "-o", "jsonpath={.data.a}") == "Yg=="
        )
        await kubectl("create", "priorityclass", "high", "--value=7")
        assert await kubectl("get", "pc", "high", "-o", "jsonpath={.value}") == "7"
        await kubectl("create", "pdb", "b", "--selector=app=a", "--min-available=1")
        assert cells(await kubectl("get", "pdb", "b"))[1][:3] == ["b", "1", "N/A"]
        await kubectl("delete", "namespace", "team", PATIENCE)
        assert "not found" in await kubectl.fails("get", "namespace", "team")


async def test_wait_and_logs(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=pod("p"))
        await kubectl.has_status("p", RUNNING)
        await kubectl("wait", "--for=condition=Ready", "pod/p", PATIENCE)
        await kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/p", PATIENCE)
        assert await kubectl("logs", "p") == "p 1\np 2"
        assert await kubectl("logs", "-f", "p") == "p 1\np 2\nlater"
        assert "container nope is not valid" in await kubectl.fails("logs", "p", "-c", "nope")


async def test_cordon_taint_and_drain(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=node("n1"))
        await kubectl("cordon", "n1")
        assert cells(await kubectl("get", "nodes"))[1][1] == "Ready,SchedulingDisabled"
        await kubectl("uncordon", "n1")
        taints = "jsonpath={.spec.taints}"
        await kubectl("taint", "nodes", "n1", "team=a:NoSchedule")
        assert '"value":"a"' in await kubectl("get", "node", "n1", "-o", taints)
        await kubectl("taint", "nodes", "n1", "team=b:NoSchedule", "--overwrite")
        assert '"value":"b"' in await kubectl("get", "node", "n1", "-o", taints)
        await kubectl("taint", "nodes", "n1", "team=b:NoExecute")  # one key, two effects
        await kubectl("taint", "nodes", "n1", "other=c:NoSchedule")
        await kubectl("taint", "nodes", "n1", "team-")
        assert '"key":"other"' in await kubectl("get", "node", "n1", "-o", taints)
        await kubectl("taint", "nodes", "n1", "other-")
        assert await kubectl("get", "node", "n1", "-o", taints) == ""
        await kubectl("create", "-f", "-", stdin=pod("p", nodeName="n1"))
        await kubectl("drain", "n1", "--force", "--grace-period=0", PATIENCE)
        assert await kubectl("get", "pods", "-o", "name") == ""


async def test_questions_about_the_api(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        assert "Server Version: v1." in await kubectl("version")
        resources = {row[0] for row in cells(await kubectl("api-resources"))}
        assert {"pods", "nodes", "leases", "customresourcedefinitions"} <= resources
        assert "coordination.k8s.io/v1" in await kubectl("api-versions")
        assert "containers" in await kubectl("explain", "pod.spec")
        assert "taints" in await kubectl("explain", "nodes.spec")
        assert await kubectl("get", "--raw", "/readyz") == "ok"
        assert await kubectl("auth", "can-i", "delete", "nodes") == "yes"
        assert "fairlead" in await kubectl("auth", "whoami")


def workload(kind: str, api_version: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    return {
        "apiVersion": api_version, "kind": kind, "metadata": {"name": "w"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }  # fmt: skip


async def test_kinds_that_nothing_acts_on_are_refused_by_name(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        for kind, api_version in (("Deployment", "apps/v1"), ("Job", "batch/v1")):
            body = workload(kind, api_version)
            for verb in ("create", "apply"):
                error = await kubectl.fails(verb, "-f", "-", stdin=body)
                assert f"nothing on this embedded cluster runs a {kind}" in error
        assert "fairlead submit" in error
        assert "runs a Deployment" in await kubectl.fails(
            "create", "deployment", "w", "--image", "none"
        )
        assert "runs a Deployment" in await kubectl.fails("get", "deployments")
        assert await kubectl("get", "all") == ""
        unknown = workload("Thing", "example.dev/v1")
        error = await kubectl.fails("apply", "-f", "-", stdin=unknown)
        assert 'no matches for kind "Thing" in version "example.dev/v1"' in error


async def test_a_server_without_a_node_refuses_streams_with_a_reason(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubectl:
        await kubectl("create", "-f", "-", stdin=pod("p", nodeName="n"))
        await kubectl.has_status("p", RUNNING)
        refused = "this server has no node that serves pods"
        assert f"{refused}/exec" in await kubectl.fails("exec", "p", "--", "ls")
        assert f"{refused}/attach" in await kubectl.fails("attach", "p")
        assert f"{refused}/portforward" in await kubectl.fails("port-forward", "p", "8080")
