"""Checks promise 15: of an array no element is lost, and none runs to success twice.

    twice     two jobs of one element, by uid, never both succeed
    lost      an array that ends has ended every element; one that is stopped, all that succeeded
    false     what the status says of an element is what its job came to
    width     no more elements hold nodes than `parallelism` says
    bounded   jobs of an array stay within its window

The sets are decoded here once more, from the text of the status, without the code that wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer

#: Jobs that wait, jobs that have ended, and those that a leader before asked for and that arrive
#: late: each at most so many. They are the policy's window_max and ended_max, written down here.
_WAITING_MAX, _ENDED_MAX, _LATE_MAX = 100, 400, 100


@dataclass(slots=True)
class _ArrayModel:
    """What is known of one array, by index of its elements."""

    key: ObjectKey
    uid: str
    #: The position of each index.
    indices: dict[int, int]
    limit: int | None
    is_over: bool = False
    finished: frozenset[int] = frozenset()
    #: The uid of the job that succeeded.
    succeeded: dict[int, str] = field(default_factory=dict[int, str])
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])

    def widen(self, limit: int | None) -> None:
        """Take in a limit that has changed; what ran before may run on."""
        self.limit = None if limit is None or self.limit is None else max(limit, self.limit)


class ArrayChecker(Observer):
    """An `Observer`; `checked` counts the ends of elements that were compared."""

    __slots__ = ("_arrays", "checked", "jobs_max", "over")

    def __init__(self) -> None:
        self.checked = 0
        self.jobs_max = 0
        self.over = 0
        #: By uid.
        self._arrays: dict[str, _ArrayModel] = {}

    def unfinished(self) -> list[ObjectKey]:
        """Return the arrays that have not ended."""
        return [model.key for model in self._arrays.values() if not model.is_over]

    def has_open_jobs(self, key: ObjectKey) -> bool:
        """True while an element of an array has a job that has not ended."""
        models = [model for model in self._arrays.values() if model.key == key]
        return any(not job.is_finished for model in models for job in model.jobs.values())

    def array(self, new: JobArray | None, key: ObjectKey, now: float) -> None:
        """Judge what the status says of each element that it says has ended."""
        if new is None:
            for uid in [uid for uid, model in self._arrays.items() if model.key == key]:
                del self._arrays[uid]
            return
        model = self._arrays.get(new.metadata.uid)
        if model is None:
            listed = _indices(new.spec.indices)
            indices = {index: position for position, index in enumerate(listed)}
            model = _ArrayModel(key, new.metadata.uid, indices, new.spec.parallelism)
            self._arrays[new.metadata.uid] = model
        model.widen(new.spec.parallelism)
        finished = _set(new.status.finished, model.indices)
        failed = _set(new.status.failed, model.indices)
        stopped = _set(new.status.stopped, model.indices)
        if lost := model.finished - finished:
            raise PromiseBroken(f"15: array {key} forgot the end of element {min(lost)}")
        for index in finished - model.finished:
            self.checked += 1
            has_succeeded = index in model.succeeded
            if has_succeeded == (index in failed | stopped):
                said = "failed" if index in failed else "succeeded"
                raise PromiseBroken(f"15: array {key} says that element {index} {said}")
        model.finished = finished
        states = {condition.type for condition in new.status.conditions}
        if not model.is_over and states & {"Succeeded", "Failed"}:
            self._judge_end(model, "FailureTarget" in states)

    def _judge_end(self, model: _ArrayModel, is_stopped: bool) -> None:  # noqa: FBT001
        model.is_over = True
        self.over += 1
        due = set(model.succeeded) if is_stopped else set(model.indices)
        if lost := due - model.finished:
            raise PromiseBroken(f"15: array {model.key} ended without element {min(lost)}")

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Follow the job of an element."""
        for model in self._arrays.values():
            stem, _, digits = key[1].rpartition("-")
            if (key[0], stem) != model.key or not digits.isdecimal():
                continue
            index = int(digits)
            is_of_array = new is not None and model.uid in _controllers(new)
            if new is None or not is_of_array or index not in model.indices:
                model.jobs.pop(index, None)
            else:
                model.jobs[index] = new
                self._judge_job(model, index, new)

    def _judge_job(self, model: _ArrayModel, index: int, job: Job) -> None:
        uid = job.metadata.uid
        has_succeeded = any(each.type == "Succeeded" for each in job.status.conditions)
        if has_succeeded and model.succeeded.setdefault(index, uid) != uid:
            raise PromiseBroken(f"15: element {index} of array {model.key} succeeded twice")
        unfinished = [each for each in model.jobs.values() if not each.is_finished]
        placed = sum(each.status.placement is not None for each in unfinished)
        if model.limit is not None and placed > model.limit:
            text = f"{placed} elements of array {model.key} have nodes, of at most {model.limit}"
            raise PromiseBroken(f"15: {text}")
        self.jobs_max = max(self.jobs_max, len(model.jobs))
        if len(model.jobs) > placed + _WAITING_MAX + _ENDED_MAX + _LATE_MAX:
            raise PromiseBroken(f"15: array {model.key} has {len(model.jobs)} jobs")


def _controllers(job: Job) -> set[str]:
    """Return the uid of the controller of a job."""
    return {owner.uid for owner in job.metadata.owner_references if owner.controller}


def _indices(text: str) -> list[int]:
    """Return the indices of a single range, as workloads have them."""
    bounds, _, step = text.partition(":")
    first, _, last = bounds.partition("-")
    return list(range(int(first), int(last or first) + 1, int(step or 1)))


def _set(text: str, indices: dict[int, int]) -> frozenset[int]:
    """Return the elements of a set that is written as runs."""
    found: set[int] = set()
    ordered = list(indices)
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        begin, end = indices[int(first)], indices[int(last or first)]
        found.update(ordered[begin : end + 1])
    return frozenset(found)
