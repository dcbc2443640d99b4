"""The closed set of the jobs controller's actions; safe to repeat, as all are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import ConfigMap, Pod, Service
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a member's pod under its derived name."""

    job: Job
    pod: Pod


@dataclass(frozen=True, slots=True)
class ProbePods:
    """Ask the API server, without creating anything, whether it would take these pods."""

    job: Job
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod; `grace_seconds` None keeps the pod's own, 0 forces."""

    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class CreateShared:
    """Create what all members of an attempt use: its peers, and before them the key of an MPI gang;
    or the headless service that gives members names.
    """

    job: Job
    shared: ConfigMap | Service


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create what makes kube-scheduler place the current attempt as a gang."""

    job: Job


class SharedPart(Enum):
    """What all members of a gang use, and is made for them."""

    CONFIG_MAP = "ConfigMap"
    SERVICE = "Service"
    POD_GROUP = "PodGroup"


@dataclass(frozen=True, slots=True)
class DeleteShared:
    """Delete what an attempt that is over shared, or an ended job; before it the Secret `key`, if
    any.
    """

    part: SharedPart
    namespace: str
    name: str
    uid: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Make sure that the job is not deleted before its pods are gone."""

    job: Job
    finalizer: str


Action: TypeAlias = (
    CreatePod
    | ProbePods
    | DeletePod
    | CreateShared
    | CreatePodGroup
    | DeleteShared
    | AddFinalizer
    | WriteJobStatus
    | EmitEvent
    | RecordHistory
    | RemoveFinalizer
    | DeleteJob
)
