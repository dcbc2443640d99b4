"""The jobs of each array's elements, kept per event."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlead.api.job import Job
from fairlead.api.job_array import JobArray, array_reference_of, element_index_of
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.mirror import Change, Mirror
from fairlead.runtime.reader import MirrorReader, follow


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
        self._mark = mark
        self._on_gone = on_gone
        self._elements: dict[tuple[ObjectKey, str], dict[int, Job]] = {}
        self._unregister = (
            follow(arrays, self._on_array, reader),
            follow(jobs, self._on_job, reader),
        )

    def close(self) -> None:
        """Take the handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    def elements(self, array: JobArray) -> Mapping[int, Job]:
        """Return the jobs that an array controls, by index."""
        return self._elements.get((array.metadata.key, array.metadata.uid), {})

    def _on_array(self, change: Change[JobArray]) -> None:
        self._mark(change.key)
        is_other = change.new is None or change.old is None
        if change.old is not None and (is_other or change.old.metadata.uid != _uid(change.new)):
            self._on_gone(change.old)

    def _on_job(self, change: Change[Job]) -> None:
        for job, is_there in ((change.old, False), (change.new, True)):
            if job is None:
                continue
            owner, index = array_reference_of(job.metadata), element_index_of(job.metadata)
            if owner is None or index is None:
                continue
            key = (job.metadata.namespace, owner.name)
            jobs = self._elements.setdefault((key, owner.uid), {})
            if is_there:
                jobs[index] = job
            else:
                jobs.pop(index, None)
                if not jobs:
                    del self._elements[key, owner.uid]
            self._mark(key)


def _uid(array: JobArray | None) -> str:
    return "" if array is None else array.metadata.uid
