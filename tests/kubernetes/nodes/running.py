"""Jobs and controllers on real nodes, as tests submit and read them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.cluster.cluster import Cluster
from tools.cluster.images import fairlead_name, version
from tools.cluster.install import NAMESPACE
from tools.cluster.jobs import Client

IMAGE = f"fairlead-examples:{version()}"
#: More than half of a node, so that two members never share one.
MOST_OF_A_NODE = f"{550 * (os.cpu_count() or 1)}m"
#: As the first process of its container a shell ignores SIGTERM, unless it handles it.
STAYS = "trap 'exit 1' TERM; sleep 600 & wait"
CONTROLLER = "deployment/fairlead-controller"
SECONDS_MAX = 120.0
#: Controllers that give a start up after seconds instead of minutes.
SETTINGS: dict[str, float | str] = {
    "jobs.startErrorGraceSeconds": 10, "jobs.startSecondsMax": 60,
    "health.testImage": fairlead_name(),
}  # fmt: skip


def submit(client: Client, directory: Path, script: str, *options: str) -> None:
    """Submit a script under the name that --name gives."""
    file = directory / "job.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    client.run("submit", str(file), "--image", IMAGE, "--chdir", "/work", *options)


def apply(cluster: Cluster, name: str, pod: dict[str, Any], **spec: Any) -> None:
    """Create a job of one role from a pod's spec; `count` is of its members."""
    role = {"name": "worker", "count": spec.pop("count", 1), "template": {"spec": pod}}
    job = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"roles": [role], **spec},
    }  # fmt: skip
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(job))


def places(job: dict[str, Any]) -> list[str]:
    return [node for role in job["status"]["placement"]["roles"] for node in role["nodes"]]


def pods(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    selector = f"fairlead.dev/job-name={job}"
    return json.loads(cluster.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]


def leader(cluster: Cluster) -> str:
    lease = cluster.kubectl("-n", NAMESPACE, "get", "lease", "fairlead-controller", "-o", "json")
    return json.loads(lease)["spec"].get("holderIdentity") or ""


def until(what: str, holds: Callable[[], bool]) -> None:
    """Poll until `holds()`; an assertion fails when that takes longer than SECONDS_MAX."""
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {SECONDS_MAX:.0f} s"
        time.sleep(0.5)


def container_ids(cluster: Cluster, job: str) -> dict[str, str]:
    """Return the containers that run, by pod: the same ones have gone on without a restart."""
    return {
        pod["metadata"]["name"]: status["containerID"]
        for pod in pods(cluster, job)
        for status in pod["status"].get("containerStatuses", [])
        if "running" in status["state"]
    }
