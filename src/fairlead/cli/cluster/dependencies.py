"""What `--after` names: jobs, arrays, and elements of arrays; and how far those have come."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from fairlead.api.jobs.after import ALL_ELEMENTS, SAME_ELEMENT, After, AfterState
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOBS
from fairlead.api.values.indices import parse_indices
from fairlead.cli.cluster.lookup import find_array, is_array, require_array
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference, Elements, select
from fairlead.decide.words import plural
from fairlead.input.errors import CliError, Code, fail
from fairlead.model.element_sets import encode_set

#: Characters of a list of indices that are shown.
_SHOWN_MAX = 80


def after_jobs_of(api: Api, space: str, base: str) -> tuple[After, ...]:
    """Return that the jobs called `base` or `base-N`, which have not ended, have to end first."""
    numbered = re.compile(rf"{re.escape(base)}(-\d+)?")
    jobs = (job for job in api.list(JOBS, namespace=space) if not job.is_finished)
    found = [job.metadata.name for job in jobs if numbered.fullmatch(job.metadata.name)]
    return tuple(After(job=name, state=AfterState.FINISHED) for name in sorted(found))


def named_after(api: Api, namespace: str, given: Sequence[After]) -> tuple[After, ...]:
    """Return the dependencies with the names of jobs and arrays in place of their numbers."""
    return tuple(replace(after, job=name_of(api, namespace, after.job)) for after in given)


def resolved_after(
    api: Api, namespace: str, given: Sequence[After], *, indices: str = ""
) -> tuple[After, ...]:
    """Return the dependencies, those on arrays as such. `indices` are those of the new array.

    CliError for elements that an array does not have, which would be waited for without end.
    """
    return tuple(_resolved(api, namespace, after, indices) for after in given)


def _resolved(api: Api, namespace: str, after: After, indices: str) -> After:
    if not after.elements:
        whole = is_array(api, namespace, after.job)
        return replace(after, elements=ALL_ELEMENTS) if whole else after
    array = require_array(api, namespace, after.job)
    listed = indices if after.elements == SAME_ELEMENT else after.elements
    has = parse_indices(array.spec.indices)
    missing = [index for index in parse_indices(listed) if has.position(index) is None]
    if missing:
        raise fail(
            Code.NO_SUCH_DEPENDENCY, f"array '{after.job}' has no element {missing[0]}",
            help=(f"its indices are {array.spec.indices[:_SHOWN_MAX]}",),
        )  # fmt: skip
    return after


def left_texts(api: Api, job: Job) -> list[str]:
    """Return for each array that a job waits for which of its elements have not ended."""
    lines = list[str]()
    for after in job.spec.after:
        if not after.elements or job.status.attempt:
            continue
        array = find_array(api, job.metadata.namespace, after.job)
        try:
            waited = None if array is None or array.is_finished else _waited(array, after.elements)
        except CliError:  # none of its elements
            continue
        if waited is not None and array is not None:
            lines.append(_left(array, waited))
    return lines


def _waited(array: JobArray, elements: str) -> Elements:
    listed = None if elements == ALL_ELEMENTS else elements
    return select(array, ArrayReference(array.metadata.name, listed))


def _left(array: JobArray, waited: Elements) -> str:
    left, indices = waited.positions & ~waited.finished, parse_indices(array.spec.indices)
    listed = encode_set(left, indices)
    shown = listed if len(listed) <= _SHOWN_MAX else f"{listed[:_SHOWN_MAX].rpartition(',')[0]},..."
    count, failed = plural(waited.positions.bit_count(), "element"), waited.failed.bit_count()
    ended = f", {failed} failed" if failed else ""
    return f"{array.metadata.name}[{shown}] have not ended: {left.bit_count()} of {count}{ended}"
