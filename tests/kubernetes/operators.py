"""Managers of other gang tools as processes beside a real control plane, as their users run them.

They come from their published modules (`tools/kubernetes/build.sh --operators`), with the kinds and
the webhooks that those modules carry. Webhooks are served on loopback with the certificate of the
API server.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane, free_ports

#: Pods that a tool's webhooks are asked about, as its installation says: those with this label.
_POD_LABELS = {
    "jobset": "jobset.sigs.k8s.io/jobset-name",
    "lws": "leaderworkerset.sigs.k8s.io/name",
}


@dataclass(frozen=True, slots=True)
class Operator:
    """How a manager is started. `arguments` may name {health}, its port for probes."""

    name: str
    arguments: tuple[str, ...] = ()
    #: Group and version of its configuration file, and what that says beside ports.
    configuration: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    #: False where a manager looks for its certificate below its directory for temporary files.
    names_certificate: bool = True


_OWN_CERTIFICATE = {"internalCertManagement": {"enable": False}}
OPERATORS = {
    each.name: each
    for each in (
        Operator("jobset", (), "config.jobset.x-k8s.io/v1alpha1", _OWN_CERTIFICATE),
        Operator("lws", (), "config.lws.x-k8s.io/v1alpha1", _OWN_CERTIFICATE),
        Operator(
            "trainer", (), "config.trainer.kubeflow.org/v1alpha1",
            {"certManagement": {"enable": False}}, names_certificate=False,
        ),
        Operator(
            "kuberay",
            (
                "-health-probe-bind-address=127.0.0.1:{health}", "-metrics-addr=0",
                "-enable-leader-election=false",
            ),
        ),
        Operator(
            "mpi-operator",
            ("-lock-namespace=default", "-kube-api-qps=100", "-kube-api-burst=200"),
        ),
        Operator(
            "kueue", (), "config.kueue.x-k8s.io/v1beta2",
            {
                **_OWN_CERTIFICATE,
                "featureGates": {"VisibilityOnDemand": False},
                "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "pod"]},
            },
        ),
    )
}  # fmt: skip


def find_operators(plane: ControlPlane) -> tuple[str, ...]:
    """Return the names of the managers that are built."""
    return tuple(name for name in OPERATORS if (_directory(plane) / name).exists())


def _directory(plane: ControlPlane) -> Path:
    return plane.binaries / "operators"


def start_operators(stack: ExitStack, plane: ControlPlane, *names: str, proxy: str = "") -> None:
    """Start managers and return once they are ready; they end with `stack`.

    What they ask of servers in the cluster over HTTP goes to `proxy`.
    """
    directory = _directory(plane)
    kinds = [f"--filename={directory / name}-kinds.yaml" for name in names]
    _kubectl(plane, "create", *kinds)
    _kubectl(plane, "wait", "--for=condition=Established", "--timeout=300s", *kinds)
    ports = iter(free_ports(2 * len(names)))
    started = [
        _start(stack, plane, OPERATORS[name], proxy, next(ports), next(ports)) for name in names
    ]
    for process in started:
        process.await_ready()
        process.configure_webhooks(plane, directory)


@dataclass(frozen=True, slots=True)
class _Process:
    operator: Operator
    process: subprocess.Popen[bytes]
    log: Path
    health_port: int
    webhook_port: int

    def await_ready(self) -> None:
        if not self.operator.configuration and not self.operator.arguments[0].count("{health}"):
            return  # it serves no probe on a port that is known
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.operator.name} ended:\n{self.log.read_text()[-3000:]}")
            try:
                url = f"http://127.0.0.1:{self.health_port}/readyz"
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(f"{self.operator.name} is not ready:\n{self.log.read_text()[-3000:]}")

    def configure_webhooks(self, plane: ControlPlane, directory: Path) -> None:
        """Store its webhook configurations, called on loopback."""
        path = directory / f"{self.operator.name}-webhooks.yaml"
        if not path.exists():
            return
        bundle = base64.b64encode(plane.ca_file.read_bytes()).decode()
        selector = {
            "matchExpressions": [
                {"key": _POD_LABELS.get(self.operator.name, ""), "operator": "Exists"}
            ]
        }
        for manifest in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            if not manifest:
                continue
            manifest["metadata"]["name"] = f"{self.operator.name}-{manifest['metadata']['name']}"
            for webhook in manifest["webhooks"]:
                route = webhook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{self.webhook_port}{route}"
                webhook["clientConfig"] = {"url": url, "caBundle": bundle}
                if route.endswith("--v1-pod") and self.operator.name in _POD_LABELS:
                    webhook["objectSelector"] = selector
            _kubectl(plane, "create", "--filename", "-", stdin=manifest)


def _start(
    stack: ExitStack, plane: ControlPlane, operator: Operator, proxy: str,
    health_port: int, webhook_port: int,
) -> _Process:  # fmt: skip
    home = plane.directory / operator.name
    certificates = home / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    for ours, theirs in (("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")):
        shutil.copy(plane.directory / ours, certificates / theirs)
    arguments = [each.format(health=health_port) for each in operator.arguments]
    if operator.configuration:
        webhook = {"host": "127.0.0.1", "port": webhook_port}
        if operator.names_certificate:
            webhook["certDir"] = str(certificates)
        configuration = {
            "apiVersion": operator.configuration,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": webhook,
            "leaderElection": {"leaderElect": False},
            **operator.options,
        }
        path = home / "configuration.json"
        path.write_text(json.dumps(configuration))
        arguments.append(f"--config={path}")
    log = plane.directory / f"{operator.name}.log"
    environment = {"KUBECONFIG": str(plane.kubeconfig()), "TMPDIR": str(home), "HTTP_PROXY": proxy}
    process = subprocess.Popen(
        [str(_directory(plane) / operator.name), *arguments],
        stdout=stack.enter_context(log.open("wb")), stderr=subprocess.STDOUT, cwd=home,
        env={**os.environ, **environment},
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.kill)
    return _Process(operator, process, log, health_port, webhook_port)


def _kubectl(plane: ControlPlane, *arguments: str, stdin: object = None) -> None:
    command = [plane.binaries / "kubectl", "--kubeconfig", plane.kubeconfig(), *arguments]
    data = None if stdin is None else json.dumps(stdin).encode()
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.decode()[-2000:]}")
