"""The closed set of actions: data with preconditions, carried out by the shell.

Every action is idempotent: creates use derived names (a second create is a harmless conflict),
deletes name the uid, status writes carry the resourceVersion they were decided on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.core import ConfigMap, Pod, Service
from fairlead.api.job import Attempt, Job, JobStatus, Placement, VerdictStatus
from fairlead.api.meta import Condition


@dataclass(frozen=True, slots=True)
class PlaceJob:
    """Write the placement of a whole gang: one compare-and-swap on the job's status.

    With `begun`, the record of the attempt that it is for is opened by the same write.
    """

    job: Job
    placement: Placement
    placed: Condition
    verdict: VerdictStatus
    begun: Attempt | None = None


@dataclass(frozen=True, slots=True)
class FollowPods:
    """Write where another scheduler has put a placed gang; compare-and-swap."""

    job: Job
    placement: Placement


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Take the placement away (held, finished or not repairable); compare-and-swap."""

    job: Job
    placed: Condition
    verdict: VerdictStatus | None


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """Write a changed verdict of a job that is not placed."""

    job: Job
    placed: Condition
    verdict: VerdictStatus


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
class CreateConfigMap:
    """Create the peers of an attempt."""

    job: Job
    config_map: ConfigMap


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the headless service that gives members names."""

    job: Job
    service: Service


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create what makes kube-scheduler place the current attempt as a gang."""

    job: Job


@dataclass(frozen=True, slots=True)
class DeleteConfigMap:
    """Delete the peers of an attempt that is over."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Delete the headless service of a job that has ended."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete the group of an attempt that is over."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class WriteJobStatus:
    """Write the jobs controller's part of the status; compare-and-swap on the resourceVersion.

    The shell diffs `status` against `job.status` and never sends `placement` or `verdict`.
    """

    job: Job
    status: JobStatus


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the API delete the job: its pods are gone and its record is kept."""

    job: Job
    finalizer: str


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Make sure that the job is not deleted before its pods are gone."""

    job: Job
    finalizer: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a finished job whose time to live has passed."""

    job: Job


@dataclass(frozen=True, slots=True)
class RecordHistory:
    """Keep a job's record beyond the object."""

    job: Job


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell people; nothing automated may depend on it. `type` is Normal or Warning."""

    job: Job
    type: str
    reason: str
    message: str


class AdoptionAction:
    """What only the controller of other tools' pods performs."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CreateJob(AdoptionAction):
    """Create the job that stands for a group, under its derived name."""

    job: Job


@dataclass(frozen=True, slots=True)
class ReleaseMember(AdoptionAction):
    """Pin a gated pod to its place, label it as the job's member and take our gate off.

    One write, which fails when the pod has changed.
    """

    job: Job
    pod: Pod
    role: str
    index: int
    rank: int
    node: str


@dataclass(frozen=True, slots=True)
class EvictMember(AdoptionAction):
    """Delete a pod that its tool makes anew; fails when the pod has changed."""

    job: Job
    pod: Pod


@dataclass(frozen=True, slots=True)
class ReadSource(AdoptionAction):
    """Read the object that says how large a group is, and whether it has ended."""

    key: tuple[str, str]
    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TellPod(AdoptionAction):
    """Tell people something about a pod that no job stands for yet."""

    key: tuple[str, str]
    pod: Pod
    reason: str
    message: str


Action: TypeAlias = (
    PlaceJob
    | FollowPods
    | ReleaseJob
    | WriteVerdict
    | CreatePod
    | ProbePods
    | DeletePod
    | CreateConfigMap
    | CreateService
    | CreatePodGroup
    | DeleteConfigMap
    | DeleteService
    | DeletePodGroup
    | WriteJobStatus
    | RemoveFinalizer
    | AddFinalizer
    | DeleteJob
    | RecordHistory
    | EmitEvent
    | CreateJob
    | ReleaseMember
    | EvictMember
    | ReadSource
    | TellPod
)
