"""The closed set of the arrays controller's actions, each safe to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, JobArrayStatus


@dataclass(frozen=True, slots=True)
class WriteArrayStatus:
    """Write the status; compare-and-swap on the resourceVersion of `array`."""

    array: JobArray
    status: JobArrayStatus


@dataclass(frozen=True, slots=True)
class CreateElement:
    """Create the job of an element under its derived name, with the template as it is stored."""

    array: JobArray
    index: int
    #: What all elements have in common, and this one alone.
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeleteElement:
    """Delete the job of an element whose end is recorded."""

    array: JobArray
    job: Job


@dataclass(frozen=True, slots=True)
class CancelElement:
    """Stop the job of an element for good."""

    array: JobArray
    job: Job
    #: What the rule for early stops says of it; "": it stops for another reason.
    stopped_early: str = ""


@dataclass(frozen=True, slots=True)
class SuspendElement:
    """Hold or release the job of an element together with its array."""

    array: JobArray
    job: Job
    suspend: bool


@dataclass(frozen=True, slots=True)
class PrioritizeElement:
    """Give the job of an element without a place the class that the template has by now."""

    array: JobArray
    job: Job


@dataclass(frozen=True, slots=True)
class DeleteArray:
    """Delete an ended array whose time to live has passed."""

    array: JobArray


Action: TypeAlias = (
    WriteArrayStatus
    | CreateElement
    | DeleteElement
    | CancelElement
    | SuspendElement
    | PrioritizeElement
    | DeleteArray
)
