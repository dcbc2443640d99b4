"""`why` of an array in words (pure): counts, what failed and how, and why the rest waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.job_array import element_index_of
from fairlead.api.meta import find_condition, is_true
from fairlead.api.values.indices import Indices, parse_indices
from fairlead.cli.job_request.arrays import Elements
from fairlead.cli.views.arrays import array_state, array_time, stop_message, verdict_words
from fairlead.cli.views.jobs import ending, exit_code, latest_attempt, state_of
from fairlead.cli.views.why import labelled, line
from fairlead.decide.words import plural
from fairlead.model.element_sets import encode_set, lowest, set_of
from fairlead.terminal import joined

#: Ways to end, and runs of elements, that are shown.
WAYS_SHOWN_MAX = 8
RUNS_SHOWN_MAX = 12
NO_RECORD = "no record: they were cancelled before they started, or the history has none"


@dataclass(frozen=True, slots=True)
class EndedAlike:
    """Failed elements, as a set of positions, that ended in the same way; `first` is the lowest of
    them. None: nothing says how they ended.
    """

    positions: int
    first: Job | None = None

    @property
    def words(self) -> str:
        """How they ended; what is particular about an element is that of the first one."""
        if self.first is None:
            return NO_RECORD
        attempt = latest_attempt(self.first)
        cause = attempt.cause if attempt is not None else None
        return ending(self.first) + (f" [{cause.value}]" if cause is not None else "")


@dataclass(frozen=True, slots=True)
class ArrayNow:
    """Elements of an array as they are now, as sets of positions."""

    elements: Elements
    finished: int
    failed: int
    running: int
    ways: tuple[EndedAlike, ...]

    @property
    def indices(self) -> Indices:
        """The indices of the array."""
        return parse_indices(self.elements.array.spec.indices)

    @property
    def counts(self) -> dict[str, int]:
        """The elements by state, in the order in which they are shown."""
        return {
            "succeeded": (self.finished & ~self.failed & ~self.elements.stopped).bit_count(),
            "failed": self.failed.bit_count(),
            "stopped": (self.finished & ~self.failed & self.elements.stopped).bit_count(),
            "running": self.running.bit_count(),
            "waiting": (self.elements.positions & ~self.finished & ~self.running).bit_count(),
        }


def array_now(elements: Elements, jobs: Iterable[Job], past: Iterable[Job]) -> ArrayNow:
    """Return the state of elements; `jobs` are those of the array, `past` those that were deleted.

    Ends that the array does not record yet count.
    """
    indices = parse_indices(elements.array.spec.indices)
    places = {job.metadata.uid: _position(indices, job) for job in (*jobs, *past)}
    ended = [job for job in jobs if job.is_finished]
    early = elements.stopped
    bad = [job for job in ended if not is_true(job.status.conditions, names.SUCCEEDED)
           and not early >> places[job.metadata.uid] & 1]  # fmt: skip
    holding = [job for job in jobs if not job.is_finished and job.status.placement is not None]

    def positions(found: Iterable[Job]) -> int:
        return set_of([places[job.metadata.uid] for job in found]) & elements.positions

    failed = elements.failed | positions(bad)
    finished = elements.finished | positions(ended)
    return ArrayNow(
        elements, finished, failed, positions(holding) & ~finished,
        _ways(failed, {places[job.metadata.uid]: job for job in (*past, *bad)}),
    )  # fmt: skip


def _position(indices: Indices, job: Job) -> int:
    index = element_index_of(job.metadata)
    position = None if index is None else indices.position(index)
    assert position is not None  # they were chosen by it
    return position


def _ways(failed: int, ends: dict[int, Job]) -> tuple[EndedAlike, ...]:
    """Return the failed elements by how they ended, the most frequent way first."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for position, job in sorted(ends.items()):
        if failed >> position & 1:
            alike.setdefault(_way(job), []).append(position)
    found = [EndedAlike(set_of(group), ends[group[0]]) for group in alike.values()]
    found.sort(key=lambda each: -each.positions.bit_count())  # stable: then the lowest first
    known = sum(each.positions for each in found)  # disjoint
    return (*found, EndedAlike(failed & ~known)) if failed & ~known else tuple(found)


def _way(job: Job) -> tuple[object, ...]:
    """Return what jobs that ended alike have in common; messages may name members."""
    condition = find_condition(job.status.conditions, names.FAILED)
    attempt = latest_attempt(job)
    end = None if attempt is None else (attempt.reason, attempt.cause)
    return state_of(job), condition.reason if condition else "", end, exit_code(job)


def listed(positions: int, indices: Indices) -> str:
    """Return elements as runs of indices, with how many they are where not all are shown."""
    runs = encode_set(set_of(lowest(positions, 1000)), indices).split(",")
    if positions.bit_count() <= 1000 and len(runs) <= RUNS_SHOWN_MAX:
        return ",".join(runs)
    return f"{','.join(runs[:RUNS_SHOWN_MAX])},... ({plural(positions.bit_count(), 'element')})"


def array_text(now_: ArrayNow, instant: float) -> str:
    """Return the answer about an array, or about some of its elements."""
    array, counts = now_.elements.array, now_.counts
    name, total = array.metadata.name, now_.elements.positions.bit_count()
    is_whole = total == len(now_.indices)
    what = f"Array {name}" if is_whole else f"{plural(total, 'element')} of array {name}"
    state = f"{array_state(array)}    (for {array_time(array, instant)})"
    shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    lines = [f"{what}: {state}", "", line("elements", shown)]
    lines += labelled("failed", _failures(now_))
    if message := stop_message(array):
        lines.append(line("stopped", message))
    elif counts["waiting"]:
        lines.append(line("waits", _waiting_words(now_)))
    return joined([*lines, *labelled("more", _commands(now_))])


def _failures(now_: ArrayNow) -> list[str]:
    texts = [f"{listed(way.positions, now_.indices)}  {way.words}"
             for way in now_.ways[:WAYS_SHOWN_MAX]]  # fmt: skip
    if len(now_.ways) > WAYS_SHOWN_MAX:
        texts.append(f"and in {len(now_.ways) - WAYS_SHOWN_MAX} other ways")
    return texts


def _waiting_words(now_: ArrayNow) -> str:
    """Return why the next element waits."""
    array, running = now_.elements.array, now_.counts["running"]
    if words := verdict_words(array):
        return words
    limit = array.spec.parallelism
    if limit is not None and array.status.elements.running >= limit:
        return f"as many run as its parallelism allows: {limit}"
    return "the next elements start as others end" if running else "not evaluated yet"


def _commands(now_: ArrayNow) -> list[str]:
    """Return the commands that lead on."""
    array, indices = now_.elements.array, now_.indices
    name, counts = array.metadata.name, now_.counts
    out = list[str]()
    if counts["failed"]:
        named = next((way for way in now_.ways if way.first is not None), now_.ways[0])
        first = indices.at(lowest(named.positions, 1)[0])
        out += [f"fairlead logs '{name}[{first}]'", f"fairlead why '{name}[{first}]'"]
        out.append(f"fairlead resubmit {name} --failed")
    if counts["running"]:
        out.append(f"fairlead ps {name}")
    if array.spec.suspend and not array.is_finished:
        out.append(f"fairlead release {name}")
    return out


def array_facts(now_: ArrayNow) -> dict[str, Any]:
    """Return the answer as plain data for -o json and yaml."""
    array, verdict = now_.elements.array, now_.elements.array.status.verdict
    facts: dict[str, Any] = {
        "array": array.metadata.name,
        "namespace": array.metadata.namespace,
        "state": array.status.state or JobState.WAITING.value,
        "elements": now_.counts,
        "failed": [
            {"indices": encode_set(way.positions, now_.indices), **_end_facts(way.first)}
            for way in now_.ways
        ],
    }
    if verdict is not None:
        facts["verdict"] = {"outcome": verdict.outcome, "reason": verdict.reason,
                            "message": verdict_words(array)}  # fmt: skip
    return facts


def _end_facts(job: Job | None) -> dict[str, Any]:
    if job is None:
        return {"state": None, "cause": None, "exitCode": None, "ending": None}
    attempt = latest_attempt(job)
    cause = attempt.cause if attempt is not None else None
    return {"state": state_of(job), "cause": cause.value if cause else None,
            "exitCode": attempt.exit_code if attempt is not None else None,
            "ending": ending(job)}  # fmt: skip
