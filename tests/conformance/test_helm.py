"""Helm's current version, which applies on the server's side, on the embedded cluster.

Three charts in the shapes of public ones: an operator (definition, account, Service, ConfigMap,
webhook configuration), objects of its kind with bounds of the namespace, and an application, whose
Deployment nothing here would run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.embedded import EmbeddedTarget, embedded_target
from tests.conformance.http_server import widget_crd
from tests.kubernetes.controlplane import ControlPlane

pytestmark = pytest.mark.kubernetes
NS = "/api/v1/namespaces/default"
SIZE = "{{ .Values.size }}"


def _object(kind: str, version: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}


OPERATOR = [
    _object("ServiceAccount", "v1", "op"),
    _object("Service", "v1", "op", spec={"selector": {"app": "op"}, "ports": [{"port": 443}]}),
    _object("ConfigMap", "v1", "op", data={"size": f"v{SIZE}"}),
    _object(
        "ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "op",
        webhooks=[{
            "name": "op.example.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/x"},
            "rules": [{"operations": ["CREATE"], "apiGroups": ["none.example.dev"],
                       "apiVersions": ["v1"], "resources": ["*"]}],
        }],
    ),
]  # fmt: skip
OBJECTS = [
    _object("Widget", "example.dev/v1", "w", spec={"size": 1, "replicas": 2}),
    _object("ResourceQuota", "v1", "q", spec={"hard": {"pods": f"{SIZE}0"}}),
    _object("LimitRange", "v1", "l", spec={"limits": [{"type": "Pod", "max": {"cpu": "8"}}]}),
    _object("PriorityClass", "scheduling.k8s.io/v1", "chart", value=5),
]
SERVED = {"containers": [{"name": "main", "image": "none"}]}
APPLICATION = [
    _object("Deployment", "apps/v1", "web", spec={
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": SERVED},
    }),
]  # fmt: skip


def chart(
    folder: Path, name: str, objects: Sequence[dict[str, Any]], crd: dict[str, Any] | None = None
) -> None:
    """Write a chart."""
    (folder / name / "templates").mkdir(parents=True)
    meta = {"apiVersion": "v2", "name": name, "version": "0.1.0"}
    (folder / name / "Chart.yaml").write_text(json.dumps(meta))
    (folder / name / "values.yaml").write_text('{"size": 1}')
    for number, each in enumerate(objects):
        (folder / name / "templates" / f"{number}.yaml").write_text(json.dumps(each))
    if crd is not None:
        (folder / name / "crds").mkdir()
        (folder / name / "crds" / "crd.yaml").write_text(json.dumps(crd))


class Helm:
    """Helm at a server; every command must succeed unless said otherwise."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary = binary
        self._folder = folder

    async def __call__(self, *words: str, code: int = 0) -> str:
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self._folder),
            "KUBECONFIG": str(self._folder / "kubeconfig"),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            self._binary, *words, cwd=self._folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        assert process.returncode == code, said.decode()
        return said.decode()


@asynccontextmanager
async def cluster(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[Helm, EmbeddedTarget]]:
    binary = plane.binaries / "helm"
    if not binary.exists():
        pytest.skip("no helm beside kube-apiserver: tools/helm builds it")
    chart(folder, "operator", OPERATOR, widget_crd())
    chart(folder, "objects", OBJECTS)
    chart(folder, "application", APPLICATION)
    async with embedded_target(with_tls=True) as target:
        target.server.write_kubeconfig(folder / "kubeconfig")
        yield Helm(binary, folder), target


async def test_helm_installs_upgrades_rolls_back_and_removes_charts(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with cluster(plane, tmp_path) as (helm, target):

        async def get(path: str) -> Any:
            return (await target.request("GET", path)).json

        await helm("install", "a", "operator")
        await helm("install", "b", "objects")
        made = await get(f"{NS}/configmaps/op")
        assert made["data"] == {"size": "v1"}
        (entry,) = made["metadata"]["managedFields"]
        assert entry["operation"] == "Apply"
        assert (await get(f"{NS}/resourcequotas/q"))["status"]["hard"] == {"pods": "10"}
        for release, folder in (("a", "operator"), ("b", "objects")):
            await helm("upgrade", release, folder, "--set", "size=2")
        assert (await get(f"{NS}/configmaps/op"))["data"] == {"size": "v2"}
        assert (await get(f"{NS}/resourcequotas/q"))["status"]["hard"] == {"pods": "20"}
        await helm("rollback", "a", "1")
        assert (await get(f"{NS}/configmaps/op"))["data"] == {"size": "v1"}
        for release in "ba":
            await helm("uninstall", release)
        assert (await get(f"{NS}/configmaps/op"))["code"] == 404
        widgets = "/apis/example.dev/v1/namespaces/default/widgets"
        assert (await get(widgets))["items"] == [], "the definition stays, as Helm leaves it"


async def test_a_chart_with_a_deployment_fails_with_what_to_do_instead(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with cluster(plane, tmp_path) as (helm, _):
        said = await helm("install", "c", "application", code=1)
        assert "deployments.apps is forbidden: nothing on this embedded cluster runs" in said
