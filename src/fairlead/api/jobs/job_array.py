"""The JobArray kind (fairlead.dev/v1alpha1, short name fja): one template, many indices.

Each element is a Job of its own, `<array>-<index>`, which exists only while the element is next in
line or runs. The arrays controller alone writes the status.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.api import names
from fairlead.api.jobs.early_stop import EarlyStop, EarlyStopRung
from fairlead.api.jobs.job import Job, JobSpec, VerdictStatus
from fairlead.api.meta import (
    Condition,
    Instant,
    ObjectMeta,
    OwnerReference,
    Wire,
    is_true,
    label_number,
)
from fairlead.api.values.bounds import Count, Positive, doc
from fairlead.api.values.indices import INDICES_TEXT_MAX

#: The most bytes of a template as JSON: as many Jobs as the window holds carry it.
TEMPLATE_BYTES_MAX = 131_072
#: Of the parameters of a sweep, as JSON.
PARAMETERS_BYTES_MAX = 262_144
#: Reason of the condition Failed of an array that was not stopped: all of its elements have ended.
ELEMENTS_FAILED = "ElementsFailed"


class JobArraySpec(Wire, frozen=True):
    """What the user wants to run, once for each index."""

    indices: Annotated[
        str,
        doc(
            "Indices of the elements: a list of indices and ranges, such as 0-31, 1,3,5-7 or "
            "0-99:4; at most 1,000,000 elements. Cannot be changed.",
            minLength=1,
            maxLength=INDICES_TEXT_MAX,
        ),
    ]
    template: Annotated[
        JobSpec,
        doc(
            "The spec of each element's Job; suspend, cancel, ttlSecondsAfterFinished and adopts "
            "are left out. Cannot be changed, but for priorityClassName: elements without a place "
            "and later ones follow."
        ),
    ]
    parameters: Annotated[
        dict[str, tuple[str, ...]],
        doc(
            "Parameters of a sweep: of each the values for the indices from 0 on. Members find "
            "their own in FAIRLEAD_PARAM_<name>. Cannot be changed."
        ),
    ] = {}
    parallelism: Annotated[
        Positive | None,
        doc("Most elements at a time. Default: as many as the cluster has room for."),
    ] = None
    max_failed: Annotated[
        Count | None,
        doc("Stop the array when more elements have failed. Default: all elements run."),
    ] = None
    early_stop: Annotated[
        EarlyStop | None,
        doc(
            "Stop elements that do worse than the others, by a metric of their runs; these are no "
            "failures. Cannot be changed. Default: all run to their ends."
        ),
    ] = None
    suspend: Annotated[
        bool, doc("True: elements that run give their nodes back, none starts. Default false.")
    ] = False
    cancel: Annotated[bool, doc("True: stop for good. Default false.")] = False
    cancel_indices: Annotated[
        str,
        doc(
            "Elements to stop for good: a list as in indices, such as 3-9,12; what is no element "
            "is ignored. Default: none.",
            maxLength=INDICES_TEXT_MAX,
        ),
    ] = ""
    ttl_seconds_after_finished: Annotated[
        Count | None, doc("Delete the object this many seconds after its end. Default: a setting.")
    ] = None


class ElementCounts(Wire, frozen=True):
    """The elements, counted by state."""

    total: Annotated[int, doc("All elements.")] = 0
    waiting: Annotated[int, doc("Elements that have not ended and hold no nodes.")] = 0
    running: Annotated[int, doc("Elements that hold nodes.")] = 0
    succeeded: Annotated[int, doc("Elements that succeeded.")] = 0
    failed: Annotated[int, doc("Elements that failed or were cancelled.")] = 0
    stopped: Annotated[int, doc("Elements that earlyStop stopped, and that have ended.")] = 0


class JobArrayStatus(Wire, frozen=True):
    """What is so, written by the arrays controller."""

    observed_generation: Annotated[
        int, doc("The metadata.generation that this status is about.")
    ] = 0
    number: Annotated[
        int,
        doc(
            "Number of the array in the cluster, of one series with those of jobs, as the job id "
            "of Slurm. 0: none yet."
        ),
    ] = 0
    state: Annotated[
        str,
        doc(
            "Summary for people: Held, Waiting, Running, Stopping, Succeeded, Failed or Cancelled."
        ),
    ] = ""
    conditions: Annotated[
        tuple[Condition, ...],
        doc("The facts behind the state: FailureTarget (it is being stopped), Succeeded, Failed."),
    ] = ()
    elements: Annotated[ElementCounts, doc("The elements, counted by state.")] = ElementCounts()
    finished: Annotated[
        str,
        doc(
            "The elements that have ended, as runs of neighbouring elements such as 0-41,43; sets "
            "of more than 16 KiB as z: and the compressed bitmap of their positions in base64."
        ),
    ] = ""
    failed: Annotated[
        str, doc("The finished elements that failed or were cancelled, in the same form.")
    ] = ""
    stopped: Annotated[
        str,
        doc("Elements that earlyStop stops or has stopped, in the same form; none is in failed."),
    ] = ""
    rungs: Annotated[
        tuple[EarlyStopRung, ...], doc("What earlyStop compares with: of ended elements a sample.")
    ] = ()
    verdict: Annotated[
        VerdictStatus | None, doc("Why the next element waits. Absent: none waits.")
    ] = None
    started_at: Annotated[Instant | None, doc("When an element first held nodes.")] = None
    finished_at: Annotated[Instant | None, doc("When the array ended for good.")] = None


class JobArray(Wire, frozen=True):
    """A job for each of many indices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobArraySpec = msgspec.field(
        default_factory=lambda: JobArraySpec(indices="", template=JobSpec(roles=()))
    )
    status: JobArrayStatus = JobArrayStatus()

    @property
    def is_finished(self) -> bool:
        """True once the array has ended for good."""
        conditions = self.status.conditions
        return is_true(conditions, names.SUCCEEDED) or is_true(conditions, names.FAILED)


def element_name(array: str, index: int) -> str:
    """Return the name of the Job of an element."""
    return f"{array}-{index}"


def array_reference_of(metadata: ObjectMeta) -> OwnerReference | None:
    """Return the reference to the array that controls a job, or None."""
    for owner in metadata.owner_references:
        if owner.controller and owner.kind == "JobArray" and owner.api_version == names.API_VERSION:
            return owner
    return None


def array_number_of(job: Job) -> int | None:
    """Return the number of the array that controls a job; None where none does, or it has none."""
    if array_reference_of(job.metadata) is None:
        return None
    return label_number(job.metadata.labels.get(names.ARRAY_NUMBER)) or None


def element_index_of(metadata: ObjectMeta) -> int | None:
    """Return the index in the name of a job that an array controls; None where there is none."""
    owner = array_reference_of(metadata)
    return None if owner is None else element_index(metadata.name, owner.name)


def element_index(name: str, of_array: str) -> int | None:
    """Return the index in the name of a job that an array controls; None where there is none."""
    array, _, digits = name.rpartition("-")
    if array != of_array or not 0 < len(digits) <= 9 or not digits.isascii():
        return None
    is_plain = digits.isdecimal() and str(int(digits)) == digits
    return int(digits) if is_plain else None
