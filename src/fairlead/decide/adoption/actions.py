"""The closed set of the adoption controller's actions; safe to repeat, as all are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create the job of a group, under its derived name."""

    job: Job


@dataclass(frozen=True, slots=True)
class ReleaseMember:
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
class EvictMember:
    """Delete a pod, which its tool, if any, creates again; fails when the pod has changed."""

    job: Job
    pod: Pod


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Read the object that says how large a group is, and whether it has ended."""

    key: tuple[str, str]
    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class EmitPodWarning:
    """Emit a Warning on a pod whose group has no job yet."""

    key: tuple[str, str]
    pod: Pod
    reason: str
    message: str


Action: TypeAlias = (
    CreateJob
    | ReleaseMember
    | EvictMember
    | ReadSource
    | EmitPodWarning
    | WriteJobStatus
    | EmitEvent
    | RecordHistory
    | RemoveFinalizer
    | DeleteJob
)
