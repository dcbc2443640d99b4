"""What an array needs next: `decide_array`, a function of the array and of its elements' jobs.

Three steps, in this order: record the ends, delete the jobs whose ends are recorded, create the
next ones. An element that is recorded, or whose job is there, is never created; a job is deleted
only once the record of its end was seen. So the controller may stop after any line, and begin
again with what the objects say: docs/design/arrays.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.early_stop import EarlyStopRung
from fairlead.api.jobs.job import Job, JobState, VerdictStatus
from fairlead.api.jobs.job_array import ELEMENTS_FAILED, ElementCounts, JobArray, JobArrayStatus
from fairlead.api.meta import Condition, find_condition, is_true, set_condition
from fairlead.api.values.times import format_micro_time, format_time, parse_time
from fairlead.decide.arrays.actions import (
    Action,
    CancelElement,
    CreateElement,
    DeleteArray,
    DeleteElement,
    PrioritizeElement,
    SuspendElement,
    WriteArrayStatus,
)
from fairlead.decide.arrays.early_stop import folded, stop_words, worse_than_others
from fairlead.decide.arrays.environment import element_environment
from fairlead.decide.arrays.view import ArrayView, ElementRefusal
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import NOTHING, Decision, Verdict, earliest
from fairlead.decide.words import plural
from fairlead.model.element_sets import Members, encode_set, lowest, set_of

#: Reasons of the conditions FailureTarget and Failed.
CANCELLED, TOO_MANY_FAILED = "Cancelled", "TooManyFailed"


@dataclass(frozen=True, slots=True)
class _Elements:
    """The elements as they are now, those included that the status does not record yet."""

    finished: int
    failed: int
    #: Those that the rule for early stops stops, and that have not ended otherwise.
    stopped: int
    #: Positions of jobs that have ended and that the status does not record.
    ended: set[int]
    #: Positions of jobs that have not ended: without nodes, in ascending order, and with nodes.
    waiting: list[int]
    running: set[int]
    #: Positions of jobs of elements that the status records, in ascending order.
    recorded: list[int]

    @property
    def unfinished(self) -> list[int]:
        """Positions of jobs that have not ended, in ascending order."""
        return sorted((*self.waiting, *self.running))


@dataclass(frozen=True, slots=True)
class _Sets:
    """The sets of a status. Their texts grow with the array, and are made only to be written."""

    finished: int
    failed: int
    stopped: int

    def put(self, view: ArrayView, status: JobArrayStatus) -> JobArrayStatus:
        """Return a status with the texts of these sets; those that have not changed are kept."""
        texts = {
            name: encode_set(now, view.indices)
            for name, now, before in (
                ("finished", self.finished, view.finished),
                ("failed", self.failed, view.failed),
                ("stopped", self.stopped, view.stopped),
            )
            if now != before
        }
        return replace(status, **texts)


def decide_array(view: ArrayView) -> Decision[Action]:
    """Return what is to be done about one array now; `NOTHING` when it is as it should be."""
    array = view.array
    if array.metadata.deletion_timestamp is not None:
        return NOTHING  # its jobs go with it
    if array.is_finished:
        return _finished(view)
    now = _observe(view)
    status = _status(view, now)
    is_over = _is_over(now, status)
    if is_over:
        status = _ended(view, now, status)
    actions: list[Action] = []
    wake_at: float | None = None
    sets = _Sets(now.finished, now.failed, now.stopped | _stopped_now(view, now))
    is_same = status == array.status and sets == _Sets(view.finished, view.failed, view.stopped)
    if not is_same or not array.status.number:
        due_at = view.written_at + view.policy.write_seconds
        is_first = not (array.status.state and array.status.number)
        if is_over or view.now >= due_at or is_first:
            actions.append(WriteArrayStatus(array, sets.put(view, status)))
        else:
            wake_at = due_at
    actions += _deletions(view, now.recorded)
    if is_true(status.conditions, names.FAILURE_TARGET):
        if is_true(array.status.conditions, names.FAILURE_TARGET):
            actions += _cancellations(view, now.unfinished)
        return Decision(tuple(actions), wake_at=wake_at)
    jobs = view.elements
    cancelled = (view.cancelled | view.stopped) & jobs.all & ~view.finished
    going = [p for p in lowest(cancelled, cancelled.bit_count()) if p not in jobs.ended]
    actions += _cancellations(view, going)
    actions += _suspensions(view, now)
    actions += _priorities(view, now)
    if array.status.number and not (array.spec.suspend or view.faults):
        creations, retry_at = _creations(view, now)
        actions += creations
        wake_at = earliest(wake_at, retry_at)
    return Decision(tuple(actions), wake_at=wake_at)


def _observe(view: ArrayView) -> _Elements:
    jobs, stopped = view.elements, view.stopped
    there = jobs.all & view.finished
    recorded = lowest(there, there.bit_count())
    ended = jobs.ended.difference(recorded)
    failed = jobs.unsuccessful.difference(recorded)
    if stopped:  # an end that came before the element was stopped counts as it is
        is_stopped = Members(stopped)
        failed -= {p for p in failed if p in is_stopped and _is_cancelled(jobs[p])}
        ran_on = failed | (ended - jobs.unsuccessful)
        stopped &= ~set_of([p for p in ran_on if p in is_stopped])
    # Those that are to be stopped and never became jobs have ended without one.
    gone = ~view.finished & ~jobs.all if view.cancelled or view.stopped else 0
    never = view.cancelled & gone & ~view.stopped
    return _Elements(
        view.finished | set_of(ended) | never | (view.stopped & gone),
        view.failed | set_of(failed) | never,
        stopped,
        ended,
        sorted(jobs.waiting.difference(recorded)),
        jobs.running.difference(recorded),
        recorded,
    )


def _is_cancelled(job: Job) -> bool:
    failed = find_condition(job.status.conditions, names.FAILED)
    return failed is not None and failed.reason == CANCELLED


# The status


def _status(view: ArrayView, now: _Elements) -> JobArrayStatus:
    """Return the status of an array that goes on, with the sets of before."""
    array, old = view.array, view.array.status
    total, ended, running = len(view.indices), now.finished.bit_count(), len(now.running)
    failed_count = now.failed.bit_count()
    stopped_count = (now.stopped & now.finished).bit_count()
    started_at = old.started_at
    if started_at is None and (running or ended):
        started_at = format_micro_time(view.now)
    status = replace(
        old,
        observed_generation=array.metadata.generation,
        elements=ElementCounts(
            total,
            total - ended - running,
            running,
            ended - failed_count - stopped_count,
            failed_count,
            stopped_count,
        ),
        rungs=_rungs(view, now),
        started_at=started_at,
        verdict=_verdict(view, now),
    )
    stop = _stop(array, failed_count)
    if stop is not None and not is_true(old.conditions, names.FAILURE_TARGET):
        status = _with(status, _condition(view, names.FAILURE_TARGET, *stop))
    return replace(status, state=_state(array, status, running).value)


def _stopped_now(view: ArrayView, now: _Elements) -> int:
    """Return the elements that do worse than the others; none once the array is held or stops."""
    rule, conditions = view.array.spec.early_stop, view.array.status.conditions
    if rule is None or view.array.spec.suspend or is_true(conditions, names.FAILURE_TARGET):
        return 0
    at, left = view.indices.at, Members(now.stopped | view.cancelled)
    running = {at(p): view.elements[p] for p in sorted(now.running) if p not in left}
    worse = worse_than_others(rule, _rungs(view, now), running)
    positions = (view.indices.position(index) for index in worse)
    return set_of([position for position in positions if position is not None])


def _rungs(view: ArrayView, now: _Elements) -> tuple[EarlyStopRung, ...]:
    """Return what elements that have ended are compared by, with those that end now."""
    rule, known = view.array.spec.early_stop, view.array.status.rungs
    if rule is None or not now.ended:
        return known
    return folded(rule, known, {view.indices.at(p): view.elements[p] for p in sorted(now.ended)})


def _stop(array: JobArray, failed_count: int) -> tuple[str, str] | None:
    """Return why the array is to be stopped, as reason and message."""
    if array.spec.cancel:
        return CANCELLED, "cancelled by its owner"
    limit = array.spec.max_failed
    if limit is not None and failed_count > limit:
        return TOO_MANY_FAILED, f"{plural(failed_count, 'element')} failed, of at most {limit}"
    return None


def _state(array: JobArray, status: JobArrayStatus, running: int) -> JobState:
    if is_true(status.conditions, names.FAILURE_TARGET):
        return JobState.STOPPING
    if array.spec.suspend:
        return JobState.STOPPING if running else JobState.HELD
    return JobState.RUNNING if running else JobState.WAITING


def _verdict(view: ArrayView, now: _Elements) -> VerdictStatus | None:
    """Return why the next element waits: that of the lowest job without a place speaks for all."""
    if view.faults:
        fault = view.faults[0]
        facts = {"field": f"{fault.field}: {fault.message}"}
        return _said(view, Verdict(Reason.INVALID_REQUEST, facts))
    if view.array.spec.suspend:
        return _said(view, Verdict(Reason.HELD))
    if now.waiting:
        return _verdict_of(view, view.elements[now.waiting[0]])
    refusal = _refusal_now(view)
    if refusal is not None:
        return _said(view, Verdict(Reason.ELEMENT_REFUSED, {"message": refusal.message}))
    return None


def _verdict_of(view: ArrayView, job: Job) -> VerdictStatus | None:
    """Return why an element waits: the planner's verdict, or that of the gate before the queue."""
    found = job.status.verdict
    if found is not None:
        return None if found.outcome == Outcome.PLACED.value else found
    refused = find_condition(job.status.conditions, names.ADMITTED)
    reason = None if refused is None or refused.status == "True" else Reason.of(refused.reason)
    if refused is None or reason is None:
        return None
    if reason is Reason.NOT_BEFORE:
        return _said(view, Verdict(reason, {"until": job.spec.not_before or ""}))
    for after in job.spec.after:
        if f"job {after.target} " in refused.message or f"job {after.target}," in refused.message:
            return _said(view, Verdict(reason, {"job": after.target, "state": after.wanted}))
    return None


def _refusal_now(view: ArrayView) -> ElementRefusal | None:
    return view.refusal or next((view.refused[p] for p in sorted(view.refused)), None)


def _said(view: ArrayView, verdict: Verdict) -> VerdictStatus:
    """Return a verdict as it is written; since when stays while its reason does."""
    old, reason = view.array.status.verdict, verdict.reason.value
    since = old.since if old is not None and old.reason == reason else format_time(view.now)
    return VerdictStatus(verdict.outcome.value, reason, dict(verdict.facts), since)


def _is_over(now: _Elements, status: JobArrayStatus) -> bool:
    if now.waiting or now.running:
        return False
    return status.elements.waiting == 0 or is_true(status.conditions, names.FAILURE_TARGET)


def _ended(view: ArrayView, now: _Elements, status: JobArrayStatus) -> JobArrayStatus:
    """Return the status of an array that has ended for good."""
    status = replace(status, finished_at=format_micro_time(view.now), verdict=None)
    target = find_condition(status.conditions, names.FAILURE_TARGET)
    if target is not None and target.status == "True":
        status = _with(status, _condition(view, names.FAILED, target.reason, target.message))
        is_cancelled = target.reason == CANCELLED
        state = JobState.CANCELLED if is_cancelled else JobState.FAILED
    elif now.failed:
        counts = status.elements
        text = f"{counts.failed} of {plural(counts.total, 'element')} failed"
        status = _with(status, _condition(view, names.FAILED, ELEMENTS_FAILED, text))
        state = JobState.FAILED
    else:
        text = f"{plural(status.elements.succeeded, 'element')} succeeded"
        if status.elements.stopped:
            text += f", {status.elements.stopped} stopped early"
        status = _with(status, _condition(view, names.SUCCEEDED, "AllElementsSucceeded", text))
        state = JobState.SUCCEEDED
    return replace(status, state=state.value)


def _condition(view: ArrayView, type_: str, reason: str, message: str) -> Condition:
    at, generation = format_time(view.now), view.array.metadata.generation or None
    return Condition(type_, "True", reason, message, generation, at)


def _with(status: JobArrayStatus, condition: Condition) -> JobArrayStatus:
    return replace(status, conditions=set_condition(status.conditions, condition))


# The jobs


def _deletions(view: ArrayView, recorded: Iterable[int]) -> Iterator[DeleteElement]:
    """Yield the jobs of elements whose ends are recorded in the status that was seen."""
    for position in recorded:
        if position not in view.elements.leaving:
            yield DeleteElement(view.array, view.elements[position])


def _cancellations(view: ArrayView, positions: Iterable[int]) -> Iterator[CancelElement]:
    rule, stopped = view.array.spec.early_stop, Members(view.stopped)
    for position in positions:
        job = view.elements[position]
        if not job.spec.cancel and job.metadata.deletion_timestamp is None:
            is_early = rule is not None and position in stopped
            words = stop_words(rule, job) if is_early and rule is not None else ""
            yield CancelElement(view.array, job, words)


def _suspensions(view: ArrayView, now: _Elements) -> Iterator[SuspendElement]:
    """Yield the jobs to hold with the array; and those that it held, and no person did."""
    jobs, wanted = view.elements, view.array.spec.suspend
    ours = sorted(jobs.held.difference(jobs.ended, now.recorded))
    for position in now.unfinished if wanted else ours:
        if not wanted or not jobs[position].spec.suspend:
            yield SuspendElement(view.array, jobs[position], suspend=wanted)


def _priorities(view: ArrayView, now: _Elements) -> Iterator[PrioritizeElement]:
    """Yield the jobs without a place whose class is not the template's any more."""
    wanted = view.array.spec.template.priority_class_name
    for position in now.waiting:
        job = view.elements[position]
        if job.spec.priority_class_name != wanted and job.metadata.deletion_timestamp is None:
            yield PrioritizeElement(view.array, job)


def _creations(view: ArrayView, now: _Elements) -> tuple[list[CreateElement], float | None]:
    """Return the jobs to create within the window, and when to look again at what was refused."""
    policy, limit = view.policy, view.array.spec.parallelism
    refusal = view.refusal
    if refusal is not None and view.now < refusal.retry_at:
        return [], refusal.retry_at
    count = policy.window_max - len(now.waiting)
    if limit is not None:
        count = min(count, limit - len(now.waiting) - len(now.running))
    count = min(count, policy.ended_max - len(view.elements.ended))
    if refusal is not None:
        count = min(count, 1)
    held_back = {p: each.retry_at for p, each in view.refused.items() if view.now < each.retry_at}
    if count <= 0:
        return [], min(held_back.values(), default=None)
    there = view.elements.all | set_of(held_back)
    positions = lowest(((1 << len(view.indices)) - 1) & ~(now.finished | there), count)
    made = [
        CreateElement(view.array, index, element_environment(view.array, view.indices, index))
        for index in map(view.indices.at, positions)
    ]
    return made, min(held_back.values(), default=None)


# The end


def _finished(view: ArrayView) -> Decision[Action]:
    """Delete the jobs that are left, and the array when its time has come."""
    array = view.array
    actions: list[Action] = list(_deletions(view, _observe(view).recorded))
    ttl: float | None = array.spec.ttl_seconds_after_finished
    if ttl is None:
        ttl = view.policy.keep_finished_seconds
    if ttl is None or array.status.finished_at is None:
        return Decision(tuple(actions))
    goes_at = parse_time(array.status.finished_at) + ttl
    if view.now < goes_at:
        return Decision(tuple(actions), wake_at=goes_at)
    return Decision((*actions, DeleteArray(array)))
