"""What the arrays say of jobs: which elements may run and be released, and who may start now."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fairlead.api.jobs.after import ALL_ELEMENTS, After
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import (
    JobArray,
    array_reference_of,
    element_index,
    element_name,
)
from fairlead.api.values.indices import IndicesError, parse_indices
from fairlead.controllers.elements.array_sets import ArraySets
from fairlead.decide.jobs.admitting.gate import begun_at, dependency_state
from fairlead.decide.jobs.view import DependencyState, ElementState
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow


class ElementStates:
    """Follows arrays, and marks the jobs that wait for what their array says."""

    def __init__(
        self,
        arrays: Mirror[JobArray],
        jobs: Mirror[Job],
        *,
        mark: Callable[[ObjectKey], None],
        reader: MirrorReader | None,
    ) -> None:
        self._arrays, self._jobs = arrays, jobs
        self._mark = mark
        self._sets = ArraySets()
        #: Jobs not yet admitted, or being deleted, by the array that they are of.
        self._waiting: dict[ObjectKey, dict[ObjectKey, None]] = {}
        #: Jobs not yet admitted, by the arrays that they start after.
        self._dependents: dict[ObjectKey, dict[ObjectKey, None]] = {}
        self.close = follow(arrays, self._on_array, reader)

    def put(self, key: ObjectKey, old: Job | None, new: Job | None) -> None:
        """Take in a change of a job."""
        _move(self._waiting, key, _awaited(old), _awaited(new))
        _move(self._dependents, key, _arrays_before(old), _arrays_before(new))
        owner = None if new is None else array_reference_of(new.metadata)
        if owner is not None and begun_at(old) is None and begun_at(new) is not None:
            for dependent in self._dependents.get((key[0], owner.name), ()):
                self._mark(dependent)

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
        index = element_index(job.metadata.name, owner.name)
        indices, finished, _ = self._sets.of(array)
        position = None if index is None else indices.position(index)
        if position is None or position in finished.members or array.is_finished:
            return ElementState.ENDED  # what is no element never runs
        return ElementState.OPEN

    def dependency(self, namespace: str, after: After) -> DependencyState:
        """Return the state of the elements that a job starts after."""
        array = self._arrays.get(namespace, after.job)
        if array is None or after.elements == ALL_ELEMENTS:
            return dependency_state(array)
        indices, finished, failed = self._sets.of(array)
        try:
            asked = list(parse_indices(after.elements))
        except IndicesError:  # Same, in a job that is no element
            return DependencyState.NO_ELEMENT
        listed = [indices.position(index) for index in asked]
        positions = [position for position in listed if position is not None]
        if len(positions) < len(listed):
            return DependencyState.NO_ELEMENT
        ended = [position in finished.members for position in positions]
        if not (all(ended) or array.is_finished):
            left = [index for index, has in zip(asked, ended, strict=True) if not has]
            elements = (element_name(after.job, index) for index in left)
            is_begun = all(begun_at(self._jobs.get(namespace, name)) for name in elements)
            return DependencyState.STARTED if is_begun else DependencyState.UNFINISHED
        is_fine = all(ended) and not any(position in failed.members for position in positions)
        return DependencyState.SUCCEEDED if is_fine else DependencyState.FAILED

    def _on_array(self, change: Change[JobArray]) -> None:
        if change.new is None:
            self._sets.forget(change.key)
        if _says_other(change.old, change.new):
            for jobs in (self._waiting, self._dependents):
                for key in jobs.get(change.key, ()):
                    self._mark(key)


def _says_other(old: JobArray | None, new: JobArray | None) -> bool:
    """True where two versions of an array may differ in what `ElementStates` says of any job.

    Most writes of an array that starts its elements are counts.
    """
    if old is None or new is None or old.metadata.uid != new.metadata.uid:
        return True
    was, now = old.status, new.status
    return (
        (old.metadata.deletion_timestamp is None) != (new.metadata.deletion_timestamp is None)
        or (was.finished, was.failed) != (now.finished, now.failed)
        or old.is_finished != new.is_finished
        or dependency_state(old) is not dependency_state(new)
        or old.spec.indices != new.spec.indices
    )


def _awaited(job: Job | None) -> tuple[ObjectKey, ...]:
    """Return the array whose word decides what is done next about a job, if one does."""
    if job is None or (job.status.attempt and job.metadata.deletion_timestamp is None):
        return ()
    owner = array_reference_of(job.metadata)
    return () if owner is None else ((job.metadata.namespace, owner.name),)


def _arrays_before(job: Job | None) -> tuple[ObjectKey, ...]:
    """Return the arrays that a job starts after, which matters until it is admitted."""
    if job is None or job.status.attempt > 0:
        return ()
    return tuple((job.metadata.namespace, each.job) for each in job.spec.after if each.elements)


def _move(
    jobs: dict[ObjectKey, dict[ObjectKey, None]],
    key: ObjectKey,
    before: Collection[ObjectKey],
    after: Collection[ObjectKey],
) -> None:
    """Take a job from the arrays that it waited for to those that it waits for."""
    if before == after:
        return
    for array in before:
        waiting = jobs[array]
        waiting.pop(key, None)
        if not waiting:
            del jobs[array]
    for array in after:
        jobs.setdefault(array, {})[key] = None
