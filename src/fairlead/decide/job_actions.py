"""Actions on a job that several controllers perform: data with preconditions.

Every action is safe to repeat: creates use derived names (a second create is a harmless conflict),
deletes name the uid, status writes carry the resourceVersion they were decided on. What only one
controller performs is in `actions.py` of its package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.jobs.job import Job, JobStatus


@dataclass(frozen=True, slots=True)
class WriteJobStatus:
    """Write the jobs controller's part of the status; compare-and-swap on the resourceVersion.

    The shell diffs `status` against `job.status` and never sends `placement` or `verdict`.
    """

    job: Job
    status: JobStatus


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell people; nothing automated may depend on it. `type` is Normal or Warning."""

    job: Job
    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordHistory:
    """Keep a job's record beyond the object."""

    job: Job


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the API delete the job: its pods are gone and its record is kept."""

    job: Job
    finalizer: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a finished job whose time to live has passed."""

    job: Job


JobAction: TypeAlias = WriteJobStatus | EmitEvent | RecordHistory | RemoveFinalizer | DeleteJob
