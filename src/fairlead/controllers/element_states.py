"""What the arrays say of the jobs of their elements: whether one may run, and may be released."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.api.job import Job
from fairlead.api.job_array import JobArray, array_reference_of, element_index_of
from fairlead.controllers.array_sets import ArraySets
from fairlead.decide.jobs.view import ElementState
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.mirror import Change, Mirror
from fairlead.runtime.reader import MirrorReader, follow


class ElementStates:
    """Follows arrays, and marks the jobs that wait for what their array says."""

    def __init__(
        self,
        arrays: Mirror[JobArray],
        *,
        mark: Callable[[ObjectKey], None],
        reader: MirrorReader | None,
    ) -> None:
        self._arrays = arrays
        self._mark = mark
        self._sets = ArraySets()
        #: Jobs not yet admitted, or being deleted, by the array that they are of.
        self._waiting: dict[ObjectKey, dict[ObjectKey, None]] = {}
        self.close = follow(arrays, self._on_array, reader)

    def put(self, key: ObjectKey, old: Job | None, new: Job | None) -> None:
        """Take in a change of a job."""
        before, after = _awaited(old), _awaited(new)
        if before == after:
            return
        if before is not None:
            waiting = self._waiting[before]
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[before]
        if after is not None:
            self._waiting.setdefault(after, {})[key] = None

    def state(self, job: Job) -> ElementState:
        """Return what the array of a job says of it."""
        owner = array_reference_of(job.metadata)
        if owner is None:
            return ElementState.NONE
        array = self._arrays.get(job.metadata.namespace, owner.name)
        if array is None or array.metadata.uid != owner.uid:
            return ElementState.MISSING
        if array.metadata.deletion_timestamp is not None:
            return ElementState.MISSING
        index = element_index_of(job.metadata)
        indices, finished, _ = self._sets.of(array)
        position = None if index is None else indices.position(index)
        if position is None or position in finished.members or array.is_finished:
            return ElementState.ENDED  # what is no element never runs
        return ElementState.OPEN

    def _on_array(self, change: Change[JobArray]) -> None:
        if change.new is None:
            self._sets.forget(change.key)
        for key in self._waiting.get(change.key, ()):
            self._mark(key)


def _awaited(job: Job | None) -> ObjectKey | None:
    """Return the array whose word decides what is done next about a job."""
    if job is None or (job.status.attempt and job.metadata.deletion_timestamp is None):
        return None
    owner = array_reference_of(job.metadata)
    return None if owner is None else (job.metadata.namespace, owner.name)
