"""What one decision about an array sees: the array, its elements' jobs, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fairlead.api.jobs.job_array import JobArray
from fairlead.api.status import StatusCause
from fairlead.api.values.indices import Indices
from fairlead.decide.arrays.element_jobs import ElementJobs


@dataclass(frozen=True, slots=True)
class ArraysPolicy:
    """Options of the arrays controller, the same for all arrays."""

    #: Jobs of an array that wait for a place.
    window_max: int = 100
    #: Jobs of an array that have ended and are there yet.
    ended_max: int = 400
    #: Seconds between two writes of one array's status.
    write_seconds: float = 0.5
    #: Seconds before the API server is asked again for what it refused: at first, and at most.
    refused_backoff_seconds: float = 5.0
    refused_backoff_seconds_max: float = 300.0
    #: Ended arrays without a time of their own are deleted after so many seconds. None: they stay.
    keep_finished_seconds: float | None = 86_400.0


@dataclass(frozen=True, slots=True)
class ElementRefusal:
    """The API server does not take the job of an element; it is asked again at `retry_at`."""

    message: str
    retry_at: float


class ArrayView(msgspec.Struct, frozen=True):
    """The input of `decide_array`. Nothing here is changed by a decision.

    `finished` and `failed` are the sets in the status. `elements` are the jobs that the array
    controls, by position, those that are being deleted included.
    """

    array: JobArray
    indices: Indices
    finished: int
    failed: int
    elements: ElementJobs
    policy: ArraysPolicy
    now: float
    #: The rules that the array breaks: none of its elements is created then.
    faults: tuple[StatusCause, ...] = ()
    #: Elements to stop for good, as `spec.cancelIndices` lists them.
    cancelled: int = 0
    #: Elements that `spec.earlyStop` stops, as the status says.
    stopped: int = 0
    #: When the status was last written.
    written_at: float = 0.0
    #: What the API server said of all elements; and of single ones, whose names are taken.
    refusal: ElementRefusal | None = None
    refused: Mapping[int, ElementRefusal] = msgspec.field(default_factory=dict)
