"""The objects that benchmarks write: a pod as the jobs controller makes one, small ones, gangs."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.decide.attempts.seats import seats
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.rendering.members import PodFactory
from fairlead.testing.builders import make_placement

GPU = "nvidia.com/gpu"


@cache
def _member(members: int) -> bytes:
    """Return the pod that the jobs controller makes of the first member of a job, as JSON."""
    gang = gang_body("gang", members)
    gang["metadata"] |= {"namespace": "default", "uid": "0c1d7a4e-0000-4000-8000-000000000001"}
    job = msgspec.convert({**gang, "status": {"attempt": 1}}, Job)
    policy = JobsPolicy(peer_naming=PeerNaming.DNS, checkpoint_root="/checkpoints")
    factory = PodFactory(job, policy, resume_step=None)
    seat = next(seats(job, make_placement([f"node-{i:04d}" for i in range(members)])))
    return encoded(to_wire(factory.make(seat)))


def pod_body(
    name: str, *, members: int = 64, node: str = "", namespace: str = "default"
) -> dict[str, Any]:
    """Return the pod of a member of a job under another name, unbound or on a node."""
    body = msgspec.json.decode(_member(members))
    body["metadata"] |= {"name": name, "namespace": namespace}
    body["spec"]["nodeName"] = node
    return body


def small_pod_body(name: str) -> dict[str, Any]:
    """Return a plain pod of one container that nobody owns, as any API server takes it."""
    amounts = {"cpu": "4", "memory": "16Gi", GPU: "1"}
    container = {
        "name": "main", "image": "train:1", "command": ["python", "train.py"],
        "env": [{"name": "RANK", "value": "17"}, {"name": "WORLD_SIZE", "value": "64"}],
        "resources": {"requests": amounts, "limits": amounts},
    }  # fmt: skip
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "train"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def node_body(name: str) -> dict[str, Any]:
    """Return a node with eight GPUs as an agent would register it, about 1.5 kB of JSON."""
    at = "2026-11-21T00:00:00Z"
    conditions = [
        {
            "type": kind, "status": "True" if kind == "Ready" else "False", "reason": "AsExpected",
            "message": "as expected", "lastHeartbeatTime": at, "lastTransitionTime": at,
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]  # fmt: skip
    amounts = {"cpu": "96", "memory": "768Gi", "ephemeral-storage": "1Ti", "pods": "110", GPU: "8"}
    labels = {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "zone-1", "topology.kubernetes.io/region": "region-1",
        "node.kubernetes.io/instance-type": "gpu-8",
    }  # fmt: skip
    info = {
        "architecture": "amd64", "bootID": "boot", "containerRuntimeVersion": "containerd://2.1.0",
        "kernelVersion": "6.12.0", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3",
        "machineID": "machine", "operatingSystem": "linux", "osImage": "Linux", "systemUUID": "one",
    }  # fmt: skip
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": info,
        },
    }


def status_patch(serial: int) -> dict[str, Any]:
    """Return what a node reports of a pod that started."""
    address = f"10.{serial >> 16 & 255}.{serial >> 8 & 255}.{serial & 255}"
    at = "2026-11-21T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
    state = {"running": {"startedAt": at}}
    container = {
        "name": "main", "image": "train:1", "imageID": "", "ready": True, "restartCount": 0,
        "state": state,
    }  # fmt: skip
    return {
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": at,
            "conditions": [ready], "containerStatuses": [container],
        }
    }  # fmt: skip


def config_map_body(name: str, size_bytes: int = 100) -> dict[str, Any]:
    """Return a small object."""
    return {"metadata": {"name": name}, "data": {"value": "x" * size_bytes}}


def gang_body(
    name: str, members: int, *, gpus: int = 1, run_seconds: int = 86_400
) -> dict[str, Any]:
    """Return a Job of one role whose members run for so long on virtual nodes."""
    container = {
        "name": "main", "image": "train:1", "command": ["python", "train.py"],
        "resources": {"limits": {GPU: str(gpus)}},
    }  # fmt: skip
    spec = {"restartPolicy": "Never", "containers": [container]}
    template = {
        "metadata": {"annotations": {"fairlead.dev/simulate-seconds": str(run_seconds)}},
        "spec": spec,
    }
    role = {"name": "worker", "count": members, "template": template}
    return {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Job",
        "metadata": {"name": name}, "spec": {"roles": [role]},
    }  # fmt: skip


def encoded(body: dict[str, Any], *, kind: str = "", api_version: str = "v1") -> bytes:
    """Return a body as it goes over the wire."""
    whole = {"apiVersion": api_version, "kind": kind, **body} if kind else body
    return msgspec.json.encode(whole)
