"""Hostile objects of other gang tools, and pods that claim to belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.simulation.hostile import Poison, nested, pod_body

from fairlead.api import names
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.resources import PODS, Resource


class Thing(Wire, frozen=True):
    """An object of a kind that Fairlead does not know."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


#: group, version, plural, kind, and labels of a pod that belongs to one.
TOOLS: tuple[tuple[Resource[Thing], dict[str, str]], ...] = (
    (
        Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", Thing),
        {"jobset.sigs.k8s.io/jobset-name": "NAME"},
    ),
    (
        Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", Thing),
        {
            "training.kubeflow.org/job-name": "NAME",
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
        },
    ),
    (
        Resource("ray.io", "v1", "rayclusters", "RayCluster", Thing),
        {"ray.io/cluster": "NAME", "ray.io/node-type": "head"},
    ),
    (
        Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", Thing),
        {"leaderworkerset.sigs.k8s.io/name": "NAME",
         "leaderworkerset.sigs.k8s.io/group-index": "9" * 20},
    ),
    (
        Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", Thing),
        {"scheduling.x-k8s.io/pod-group": "NAME"},
    ),
    (
        Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", Thing),
        {"scheduling.volcano.sh/group-name": "NAME"},
    ),
)  # fmt: skip
_COUNTS: tuple[Any, ...] = (-1, 10**18, "9" * 5_000, "x", None, [], {"a": {}})


def _specs() -> Iterator[dict[str, Any]]:
    """Specs that are wrong in a place that one tool or another keeps a count or a list in."""
    for count in _COUNTS:
        rounds = {"completions": count, "parallelism": count}
        job = {"name": "w", "replicas": count, "template": {"spec": rounds}}
        yield {
            "replicas": count, "minMember": count, "replicatedJobs": [job],
            "pytorchReplicaSpecs": {"Worker": {"replicas": count}},
            "workerGroupSpecs": [{"groupName": "g" * 300, "replicas": count, "numOfHosts": count}],
            "leaderWorkerTemplate": {"size": count},
        }  # fmt: skip
    for wrong in (7, "x", [7], {"x": 7}, nested(500)):
        yield {
            "replicatedJobs": wrong, "pytorchReplicaSpecs": wrong, "workerGroupSpecs": wrong,
            "leaderWorkerTemplate": wrong, "startupPolicy": wrong,
        }  # fmt: skip


def of_tools() -> Iterator[Poison]:
    """Yield each object, and a pod of it that waits for its gang."""
    for resource, labels in TOOLS:
        for i, spec in enumerate(_specs()):
            name = f"{resource.group}-{i}"
            label = f"{resource.name}/{i}"
            status = {"conditions": [{"type": "Complete", "status": "False"}, {}]}
            body = {"metadata": {"name": name}, "spec": spec, "status": status}
            yield Poison(label, resource, body)
            pod = pod_body(f"of-{name}", schedulingGates=[{"name": names.GANG_GATE}])
            pod["metadata"]["labels"] = {
                names.GANG_SCHEDULING: "enabled",
                **{key: value.replace("NAME", name) for key, value in labels.items()},
            }
            yield Poison(f"{label}/pod", PODS, pod)
