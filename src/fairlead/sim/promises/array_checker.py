"""Checks promise 15: of an array no element is lost, and none runs to success twice.

    twice     two jobs of one element, by uid, never both succeed
    lost      an array that ends has ended every element; one that is stopped, all that succeeded
    false     what the status says of an element is what its job came to
    width     no more elements hold nodes than `parallelism` says
    bounded   jobs of an array stay within its window: all that run may end in the same instant

The sets are decoded here once more, from the text of the status, without the code that wrote them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
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
    """What is known of one array.

    Of the elements that have ended there may be 100,000, and something is written on the array for
    every few of them: they are bitmaps over positions. Of jobs there are a few hundred, by index.
    """

    key: ObjectKey
    uid: str
    #: In the order of the positions.
    indices: range
    limit: int | None
    is_over: bool = False
    finished: int = 0
    #: Those that failed, with the text that says so: few writes change it.
    failed: tuple[str, int] = ("", 0)
    #: The uid of the job that succeeded.
    succeeded: dict[int, str] = field(default_factory=dict[int, str])
    jobs: set[int] = field(default_factory=set[int])
    #: Those of the jobs that have not ended, and those of these that have a place.
    unfinished: set[int] = field(default_factory=set[int])
    placed: set[int] = field(default_factory=set[int])

    def widen(self, limit: int | None) -> None:
        """Take in a limit that has changed; what ran before may run on."""
        self.limit = None if limit is None or self.limit is None else max(limit, self.limit)

    def put(self, index: int, job: Job | None) -> None:
        """Take in the job of an element, or that it has none."""
        left = job if job is not None and not job.is_finished else None
        _put(self.jobs, index, is_in=job is not None)
        _put(self.unfinished, index, is_in=left is not None)
        _put(self.placed, index, is_in=left is not None and left.status.placement is not None)


def _put(members: set[int], index: int, *, is_in: bool) -> None:
    (members.add if is_in else members.discard)(index)


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
        return any(model.unfinished for model in models)

    def array(self, new: JobArray | None, key: ObjectKey, now: float) -> None:
        """Judge what the status says of each element that it says has ended."""
        if new is None:
            for uid in [uid for uid, model in self._arrays.items() if model.key == key]:
                del self._arrays[uid]
            return
        model = self._arrays.get(new.metadata.uid)
        if model is None:
            indices = _indices(new.spec.indices)
            model = _ArrayModel(key, new.metadata.uid, indices, new.spec.parallelism)
            self._arrays[new.metadata.uid] = model
        model.widen(new.spec.parallelism)
        finished = _set(new.status.finished, model.indices)
        if new.status.failed != model.failed[0]:
            model.failed = (new.status.failed, _set(new.status.failed, model.indices))
        failed = model.failed[1]
        stopped = _set(new.status.stopped, model.indices)
        if lost := model.finished & ~finished:
            index = model.indices[next(_positions(lost))]
            raise PromiseBroken(f"15: array {key} forgot the end of element {index}")
        for position in _positions(finished & ~model.finished):
            self.checked += 1
            index = model.indices[position]
            if (index in model.succeeded) == bool((failed | stopped) >> position & 1):
                said = "failed" if failed >> position & 1 else "succeeded"
                raise PromiseBroken(f"15: array {key} says that element {index} {said}")
        model.finished = finished
        states = {condition.type for condition in new.status.conditions}
        if not model.is_over and states & {"Succeeded", "Failed"}:
            self._judge_end(model, "FailureTarget" in states)

    def _judge_end(self, model: _ArrayModel, is_stopped: bool) -> None:  # noqa: FBT001
        model.is_over = True
        self.over += 1
        due = model.succeeded if is_stopped else model.indices
        lost = [i for i in due if not model.finished >> model.indices.index(i) & 1]
        if lost:
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
                model.put(index, None)
            else:
                model.put(index, new)
                self._judge_job(model, index, new)

    def _judge_job(self, model: _ArrayModel, index: int, job: Job) -> None:
        uid = job.metadata.uid
        has_succeeded = any(each.type == "Succeeded" for each in job.status.conditions)
        if has_succeeded and model.succeeded.setdefault(index, uid) != uid:
            raise PromiseBroken(f"15: element {index} of array {model.key} succeeded twice")
        placed = len(model.placed)
        if model.limit is not None and placed > model.limit:
            text = f"{placed} elements of array {model.key} have nodes, of at most {model.limit}"
            raise PromiseBroken(f"15: {text}")
        self.jobs_max = max(self.jobs_max, len(model.jobs))
        window = max(placed + _WAITING_MAX, model.limit or 0)
        if len(model.jobs) > window + _ENDED_MAX + _LATE_MAX:
            raise PromiseBroken(f"15: array {model.key} has {len(model.jobs)} jobs")


def _controllers(job: Job) -> set[str]:
    """Return the uid of the controller of a job."""
    return {owner.uid for owner in job.metadata.owner_references if owner.controller}


def _indices(text: str) -> range:
    """Return the indices of a single range, as workloads have them."""
    bounds, _, step = text.partition(":")
    first, _, last = bounds.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _set(text: str, indices: range) -> int:
    """Return the elements of a set, written as runs or as a bitmap, as bits by position."""
    if text.startswith("z:"):
        return int.from_bytes(zlib.decompress(base64.b64decode(text[2:])), "little")
    found = 0
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        begin, end = indices.index(int(first)), indices.index(int(last or first))
        found |= ((1 << (end - begin + 1)) - 1) << begin
    return found


def _positions(elements: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, in ascending order."""
    offset = 0
    while elements:
        position = (elements & -elements).bit_length() - 1
        yield offset + position
        elements >>= position + 1
        offset += position + 1
