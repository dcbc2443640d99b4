"""Objects of other gang tools: gangs of a first member and some workers, a whole node each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.hostile_tools import Thing

from fairlead.api.resources import Resource

LIMITS = {"cpu": "1", "nvidia.com/gpu": "8"}


def template(restart: str = "Never") -> dict[str, Any]:
    """The template of a pod that fills a node."""
    container = {
        "name": "main", "image": "train:1", "command": ["train"], "resources": {"limits": LIMITS},
    }  # fmt: skip
    return {"spec": {"containers": [container], "restartPolicy": restart}}


def _replicated(name: str, sets: int, size: int) -> dict[str, Any]:
    spec = {
        "parallelism": size, "completions": size, "backoffLimit": 0, "template": template(),
    }  # fmt: skip
    return {"name": name, "replicas": sets, "template": {"spec": spec}}


def job_set(name: str, workers: int) -> dict[str, Any]:
    """A driver, and two jobs of half of the workers each."""
    return {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": 2},
            "replicatedJobs": [
                _replicated("driver", 1, 1),
                _replicated("worker", 2, workers // 2),
            ],
        },
    }


def leader_worker_set(name: str, workers: int) -> dict[str, Any]:
    """One group; it serves until it is deleted."""
    member = template("Always")
    groups = {"size": workers + 1, "leaderTemplate": member, "workerTemplate": member}
    return {"metadata": {"name": name}, "spec": {"replicas": 1, "leaderWorkerTemplate": groups}}


def mpi_job(name: str, workers: int) -> dict[str, Any]:
    """It ends with its launcher, whatever its workers do."""
    return {
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": 8,
            "runPolicy": {"cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template()},
                "Worker": {"replicas": workers, "template": template()},
            },
        },
    }


RUNTIME = {
    "metadata": {"name": "gang", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "failurePolicy": {"maxRestarts": 2},
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {
                                "backoffLimit": 0,
                                "template": {
                                    "spec": {"containers": [{"name": "node", "image": "train:1"}]}
                                },
                            },
                        },
                    }
                ],
            }
        },
    },
}


def train_job(name: str, workers: int) -> dict[str, Any]:
    """As many nodes as members, of the runtime above."""
    return {
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": RUNTIME["metadata"]["name"]},
            "trainer": {"numNodes": workers + 1, "resourcesPerNode": {"limits": LIMITS}},
        },
    }


def ray_cluster_spec(workers: int) -> dict[str, Any]:
    group = {
        "groupName": "gpu", "replicas": workers, "minReplicas": workers, "maxReplicas": workers,
        "rayStartParams": {}, "template": template(),
    }  # fmt: skip
    head = {"rayStartParams": {}, "template": template()}
    return {"rayVersion": "2.46.0", "headGroupSpec": head, "workerGroupSpecs": [group]}


def ray_cluster(name: str, workers: int) -> dict[str, Any]:
    """Head and workers; it serves until it is deleted."""
    return {"metadata": {"name": name}, "spec": ray_cluster_spec(workers)}


@dataclass(frozen=True, slots=True)
class Kind:
    """A tool's kind of gang: `make(name, workers)` gives one of 1 + `workers` members."""

    operators: tuple[str, ...]
    resource: Resource[Thing]
    make: Callable[[str, int], dict[str, Any]]
    #: What its status says when its members run, or have ended well.
    is_done: Callable[[Mapping[str, Any]], bool]
    #: Kind and name of the object that Fairlead's job names as its owner.
    owner_kind: str
    #: False where its members run until it is deleted.
    ends: bool = True
    #: How its workers are called.
    worker: str = "worker"


def condition(type_: str) -> Callable[[Mapping[str, Any]], bool]:
    """True for a status with such a condition."""
    return lambda status: any(
        each["type"] == type_ and each["status"] == "True" for each in status.get("conditions", ())
    )


def _kind(
    group: str, version: str, plural: str, kind: str, *, namespaced: bool = True
) -> Resource[Thing]:
    return Resource(group, version, plural, kind, Thing, namespaced)


JOB_SET = Kind(
    ("jobset",), _kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"), job_set,
    condition("Completed"), "JobSet",
)  # fmt: skip
LEADER_WORKER_SET = Kind(
    ("lws",), _kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"),
    leader_worker_set, condition("Available"), "LeaderWorkerSet", ends=False,
    worker="train-0-",
)  # fmt: skip
MPI_JOB = Kind(
    ("mpi-operator",), _kind("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"), mpi_job,
    condition("Succeeded"), "MPIJob",
)  # fmt: skip
TRAIN_JOB = Kind(
    ("trainer", "jobset"), _kind("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    train_job, condition("Complete"), "JobSet", worker="node",
)  # fmt: skip
RAY_CLUSTER = Kind(
    ("kuberay",), _kind("ray.io", "v1", "rayclusters", "RayCluster"), ray_cluster,
    lambda status: status.get("state") == "ready", "RayCluster", ends=False, worker="gpu",
)  # fmt: skip
KINDS = (JOB_SET, LEADER_WORKER_SET, MPI_JOB, TRAIN_JOB, RAY_CLUSTER)


def ray_job(name: str, workers: int) -> dict[str, Any]:
    """A cluster of its own that goes when the job has ended; another pod submits to it."""
    submitter = template()
    submitter["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    return {
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "python train.py", "shutdownAfterJobFinishes": True,
            "rayClusterSpec": ray_cluster_spec(workers), "submitterPodTemplate": submitter,
        },
    }  # fmt: skip


RUNTIMES = _kind(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime",
    namespaced=False,
)  # fmt: skip
RAY_JOBS = _kind("ray.io", "v1", "rayjobs", "RayJob")

# Kueue: a quota of so many GPUs, and the queue that leads to it.

QUEUE = "gpus"
_KUEUE = ("kueue.x-k8s.io", "v1beta2")
_COVERED = {"cpu": "100", "nvidia.com/gpu": "56"}
KUEUE_OBJECTS = (
    (
        _kind(*_KUEUE, "resourceflavors", "ResourceFlavor", namespaced=False),
        {"metadata": {"name": "any"}, "spec": {}},
    ),
    (
        _kind(*_KUEUE, "clusterqueues", "ClusterQueue", namespaced=False),
        {
            "metadata": {"name": QUEUE},
            "spec": {
                "namespaceSelector": {},
                "resourceGroups": [
                    {
                        "coveredResources": list(_COVERED),
                        "flavors": [
                            {
                                "name": "any",
                                "resources": [
                                    {"name": name, "nominalQuota": amount}
                                    for name, amount in _COVERED.items()
                                ],
                            }
                        ],
                    }
                ],
            },
        },
    ),
    (
        _kind(*_KUEUE, "localqueues", "LocalQueue"),
        {"metadata": {"name": QUEUE}, "spec": {"clusterQueue": QUEUE}},
    ),
)


def queued(body: dict[str, Any]) -> dict[str, Any]:
    """The object, for Kueue's queue."""
    labels = {"kueue.x-k8s.io/queue-name": QUEUE}
    return {**body, "metadata": {**body["metadata"], "labels": labels}}


def pod_of_group(group: str, index: int, count: int) -> dict[str, Any]:
    """One of `count` bare pods that Kueue lets in together."""
    metadata = {
        "name": f"{group}-{index}",
        "labels": {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/pod-group-name": group},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(count)},
    }
    return {"metadata": metadata, **template()}
