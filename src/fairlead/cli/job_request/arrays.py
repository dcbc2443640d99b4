"""Arrays as people name them: `sweep`, `sweep[7]`, `sweep[3-9,12]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of, element_index_of
from fairlead.api.values.indices import IndicesError, parse_indices
from fairlead.cli.job_request.job_names import clean_reference
from fairlead.input.errors import Code, fail
from fairlead.model.element_sets import BITMAP, Members, decode_set, encode_set, set_of

_ELEMENTS = re.compile(r"(?P<name>[^\[\]]+)\[(?P<indices>[^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class ArrayReference:
    """What a person wrote: a name, and perhaps which elements of the array of that name."""

    name: str
    indices: str | None = None

    def __str__(self) -> str:
        """Return it as it was written."""
        return self.name if self.indices is None else f"{self.name}[{self.indices}]"


def parse_reference(text: str) -> ArrayReference:
    """Return what was written: NAME, or NAME[INDICES]."""
    match = _ELEMENTS.fullmatch(text)
    if match is None:
        return ArrayReference(clean_reference(text))
    return ArrayReference(clean_reference(match["name"]), match["indices"])


def is_one(reference: ArrayReference) -> bool:
    """True where one element is named, which is, or was, a job."""
    return reference.indices is not None and reference.indices.isdecimal()


@dataclass(frozen=True, slots=True)
class Elements:
    """Some elements of an array, by their positions in it; `positions` is a set of them."""

    array: JobArray
    positions: int

    @property
    def finished(self) -> int:
        """Those that have ended."""
        return self.positions & self._set(self.array.status.finished)

    @property
    def failed(self) -> int:
        """Those that failed or were cancelled."""
        return self.positions & self._set(self.array.status.failed)

    @property
    def stopped(self) -> int:
        """Those that the rule for early stops stops."""
        return self.positions & self._set(self.array.status.stopped)

    def jobs_among(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs of these elements: of those that are next in line, run, or have just
        ended.
        """
        indices, wanted = parse_indices(self.array.spec.indices), Members(self.positions)
        found: list[tuple[int, Job]] = []
        for job in jobs:
            owner, index = array_reference_of(job.metadata), element_index_of(job.metadata)
            if owner is None or index is None or owner.uid != self.array.metadata.uid:
                continue
            position = indices.position(index)
            if position is not None and position in wanted:
                found.append((position, job))
        return [job for _, job in sorted(found, key=lambda each: each[0])]

    def _set(self, text: str) -> int:
        return decode_set(text, parse_indices(self.array.spec.indices))


def select(array: JobArray, reference: ArrayReference) -> Elements:
    """Return the elements that a reference names, all without indices; CliError for none such."""
    indices = parse_indices(array.spec.indices)
    if reference.indices is None:
        return Elements(array, (1 << len(indices)) - 1)
    try:
        wanted = parse_indices(reference.indices)
    except IndicesError as error:
        raise fail(Code.BAD_VALUE, f"'{reference}' {error}") from error
    positions = [indices.position(index) for index in wanted]
    found = [position for position in positions if position is not None]
    if not found:
        raise fail(
            Code.NO_SUCH_JOB, f"array '{reference.name}' has no element {reference.indices}",
            help=(f"its indices are {array.spec.indices[:80]}",),
        )  # fmt: skip
    return Elements(array, set_of(found))


def cancelled_with(array: JobArray, elements: Elements) -> str:
    """Return `spec.cancelIndices` with these elements among them; CliError where it gets too long.

    What has ended, or is cancelled already, stays so.
    """
    indices = parse_indices(array.spec.indices)
    before = array.spec.cancel_indices
    listed = parse_indices(before) if before else ()
    positions = (indices.position(index) for index in listed)
    now = set_of([position for position in positions if position is not None])
    text = encode_set(now | elements.positions, indices)
    if text.startswith(BITMAP):
        help_ = (f"fairlead cancel {array.metadata.name} cancels the whole array",)
        message = "too many single elements are cancelled to list them all"
        raise fail(Code.BAD_VALUE, message, help=help_)
    return text
