"""The jobs of each array's elements, kept per event.

Of a job that goes before its end is in the status of its array (its finalizer, or the reference to
the array, was taken away) the end is kept here: the element would run again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of, element_index
from fairlead.api.meta import find_condition
from fairlead.api.values.indices import Indices
from fairlead.decide.arrays import ElementJobs
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow


@dataclass(frozen=True, slots=True)
class _Place:
    """Which element a job is of."""

    array: ObjectKey
    uid: str
    index: int

    @classmethod
    def of(cls, job: Job | None) -> _Place | None:
        """Return the place of a job; None where it is of no element."""
        owner = None if job is None else array_reference_of(job.metadata)
        if job is None or owner is None:
            return None
        index = element_index(job.metadata.name, owner.name)
        if index is None:
            return None
        return cls((job.metadata.namespace, owner.name), owner.uid, index)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The jobs of an array by index, as its decisions read them."""

    indices: Indices
    jobs: ElementJobs

    def put(self, index: int, job: Job) -> None:
        """Set the job of an element; an index that the array does not have is none."""
        if (position := self.indices.position(index)) is not None:
            self.jobs.put(position, job)

    def remove(self, index: int) -> None:
        """Take out the job of an element."""
        if (position := self.indices.position(index)) is not None:
            self.jobs.remove(position)


class ArrayIndex:
    """By key and uid of the array: the jobs that it controls, by index."""

    def __init__(
        self,
        arrays: Mirror[JobArray],
        jobs: Mirror[Job],
        *,
        mark: Callable[[ObjectKey], None],
        on_gone: Callable[[JobArray], None],
        reader: MirrorReader | None,
    ) -> None:
        """Register on the mirrors; `mark` is called with each array to look at again."""
        self._arrays = arrays
        self._mark = mark
        self._on_array_gone = on_gone
        self._elements: dict[tuple[ObjectKey, str], dict[int, Job]] = {}
        #: The same by position, sorted, once the indices of the array were known.
        self._sorted: dict[tuple[ObjectKey, str], _Sorted] = {}
        #: Jobs that had ended when they went.
        self._gone: dict[tuple[ObjectKey, str], dict[int, Job]] = {}
        self._unregister = (
            follow(arrays, self._on_array, reader),
            follow(jobs, self._on_job, reader),
        )

    def close(self) -> None:
        """Take the handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    def elements(self, array: JobArray, indices: Indices, recorded: Container[int]) -> ElementJobs:
        """Return the jobs of an array by position: those that it controls, and those that went
        before their ends were among the positions `recorded`, as they were at last.

        It changes with the jobs. An index that the array does not have is no element.
        """
        key = (array.metadata.key, array.metadata.uid)
        jobs = self._elements.get(key, {})
        known = self._sorted.get(key)
        if known is None or known.indices is not indices:
            known = _Sorted(indices, ElementJobs(dict(_by_position(jobs, indices))))
        if jobs:
            self._sorted[key] = known
        gone = {
            position: job
            for position, job in _by_position(self._gone.pop(key, {}), indices)
            if position not in recorded and not array.is_finished
        }
        if not gone:
            return known.jobs
        self._gone[key] = {indices.at(position): job for position, job in gone.items()}
        found = known.jobs.copy()
        for position, job in gone.items():
            found.put(position, job)
        return found

    def _on_array(self, change: Change[JobArray]) -> None:
        self._mark(change.key)
        is_other = change.new is None or change.old is None
        if change.old is not None and (is_other or change.old.metadata.uid != _uid(change.new)):
            self._gone.pop((change.key, change.old.metadata.uid), None)
            self._on_array_gone(change.old)

    def _on_job(self, change: Change[Job]) -> None:
        old, new = change.old, change.new
        before, after = _Place.of(old), _Place.of(new)
        if before is not None and before != after and old is not None:
            self._take_out(before, old)
        if after is not None and new is not None:
            key = (after.array, after.uid)
            self._elements.setdefault(key, {})[after.index] = new
            if (known := self._sorted.get(key)) is not None:
                known.put(after.index, new)
            if old is None or before != after or _is_seen(old, new):
                self._mark(after.array)

    def _take_out(self, place: _Place, job: Job) -> None:
        key = (place.array, place.uid)
        jobs = self._elements.get(key, {})
        jobs.pop(place.index, None)
        if (known := self._sorted.get(key)) is not None:
            known.remove(place.index)
        if not jobs:
            self._elements.pop(key, None)
            self._sorted.pop(key, None)
        if job.is_finished and _uid(self._arrays.get(*place.array)) == place.uid:
            self._gone.setdefault(key, {})[place.index] = job
        self._mark(place.array)


def _is_seen(old: Job, new: Job) -> bool:
    """True where two versions of a job differ in what may ask for an action on its array.

    A decision reads all jobs of the array, and those that run report how they get on.
    """
    was, now = old.status, new.status
    return (
        old.metadata.generation != new.metadata.generation
        or old.metadata.annotations != new.metadata.annotations
        or (was.placement is None) != (now.placement is None)
        or old.is_finished != new.is_finished
        or was.verdict != now.verdict
        or was.run != now.run
        or find_condition(was.conditions, names.ADMITTED)
        != find_condition(now.conditions, names.ADMITTED)
    )


def _by_position(jobs: Mapping[int, Job], indices: Indices) -> Iterator[tuple[int, Job]]:
    """Yield the jobs of elements."""
    for index, job in jobs.items():
        position = indices.position(index)
        if position is not None:
            yield position, job


def _uid(array: JobArray | None) -> str:
    return "" if array is None else array.metadata.uid
