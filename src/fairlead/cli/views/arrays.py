"""One line for an array in the table of `ps`, and its words (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.job_array import ELEMENTS_FAILED, JobArray, array_reference_of
from fairlead.api.meta import ObjectMeta, find_condition
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.table import Row
from fairlead.cli.views.jobs import FINISHED_SHOWN_MAX, NONE, JobChoice, typed_verdict
from fairlead.cli.views.words import message_of
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.words import duration


def array_state(array: JobArray) -> str:
    """Return the STATE column; an array that no controller has seen yet is Waiting."""
    return array.status.state or JobState.WAITING.value


def array_words(array: JobArray) -> str:
    """Return the counts of an array, how it ended, and why the next element waits."""
    counts = array.status.elements
    parts = [
        f"{count} {what}"
        for count, what in (
            (counts.succeeded, "succeeded"), (counts.failed, "failed"),
            (counts.stopped, "stopped early"),
            (counts.running, "running"), (counts.waiting, "waiting"),
        )
        if count
    ]  # fmt: skip
    words = ", ".join(parts) or "not evaluated yet"
    said = stop_message(array) or verdict_words(array)
    return f"{words}; {said}" if said else words


def stop_message(array: JobArray) -> str:
    """Return why an array was stopped before all of its elements had run; "" where it was not."""
    failed = find_condition(array.status.conditions, names.FAILED)
    stopped = failed or find_condition(array.status.conditions, names.FAILURE_TARGET)
    is_stopped = stopped is not None and stopped.reason != ELEMENTS_FAILED
    return stopped.message if stopped is not None and is_stopped else ""


def verdict_words(array: JobArray) -> str:
    """Return why the next element waits; "" where nothing says so."""
    said = typed_verdict(array.status.verdict)
    return "" if said is None else f"{said.reason.value}: {message_of(said)}"


def array_row(array: JobArray, now: float, *, with_namespace: bool = False) -> Row:
    """Return the row of an array for the columns of jobs."""
    counts = array.status.elements
    job = Job(array.metadata, array.spec.template)
    done = counts.succeeded + counts.failed + counts.stopped
    row = (
        array.metadata.name,
        str(gpu_count(job)),
        array_state(array),
        array_time(array, now),
        NONE,
        f"{done}/{counts.total}",
        str(array.status.number or NONE),
        str(array.spec.template.priority or 0),
        NONE,
        NONE,
        array.metadata.annotations.get(names.SUBMITTED_BY, NONE),
        array.spec.template.team or NONE,
        NONE,
        _since(array.metadata.creation_timestamp, now),
        array_words(array),
    )
    return (array.metadata.namespace, *row) if with_namespace else row


def choose_arrays(arrays: Iterable[JobArray], choice: JobChoice) -> list[JobArray]:
    """Return the arrays to show, as `choose_jobs` does: ended ones first, then live ones by age."""
    live: list[JobArray] = []
    finished: list[JobArray] = []
    for array in arrays:
        is_in_state = choice.includes_state(array_state(array))
        if not (is_in_state and choice.includes_meta(array.metadata)) or choice.node:
            continue
        (finished if array.is_finished else live).append(array)
    finished.sort(key=lambda each: (each.status.finished_at or "", each.metadata.key))
    live.sort(key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.key))
    if choice.shows_few:
        finished = finished[-FINISHED_SHOWN_MAX:]
    return [*finished, *live]


def is_element_of_listed(metadata: ObjectMeta, listed: frozenset[str]) -> bool:
    """True for the job of an element whose array, by uid, has a line of its own."""
    owner = array_reference_of(metadata)
    return owner is not None and owner.uid in listed


def array_time(array: JobArray, now: float) -> str:
    """Return how long it has run or did run; how long it has waited where none began."""
    status = array.status
    if status.started_at is None:
        return _since(array.metadata.creation_timestamp, now)
    end = parse_time(status.finished_at) if status.finished_at else now
    return duration(end - parse_time(status.started_at))


def _since(text: str | None, now: float) -> str:
    return NONE if text is None else duration(now - parse_time(text))
