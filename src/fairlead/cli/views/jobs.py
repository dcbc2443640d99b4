"""The job table of `ps`, and the words for where a job runs or why it does not (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from typing import TYPE_CHECKING

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job, JobState, VerdictStatus
from fairlead.api.jobs.job_array import JobArray, array_number_of, element_index_of
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.meta import ObjectMeta, find_condition, is_true
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.formats.text import natural
from fairlead.cli.views.words import message_of, reason_words
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.jobs.restart import cancel_message, is_cancelled
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.decide.words import duration, fold_names, plural
from fairlead.model.gang.phase import PLACEABLE, Phase, phase_of
from fairlead.terminal import joined

if TYPE_CHECKING:
    from fairlead.cli.views.teams import Owners

NONE = "-"
FINISHED_SHOWN_MAX = 5
FOLDED_LENGTH_MAX = 40
SIMULATED = " (simulated)"
_REASONS = {reason.value: reason for reason in Reason}

COLUMNS: tuple[Column, ...] = (
    Column("NAME"),
    Column("GPUS", Align.RIGHT),
    Column("STATE"),
    Column("TIME"),
    Column("LEFT"),
    Column("TASKS"),
    Column("NUMBER", Align.RIGHT, wide_only=True),
    Column("PRIORITY", Align.RIGHT, wide_only=True),
    Column("ATTEMPT", Align.RIGHT, wide_only=True),
    Column("STEP", Align.RIGHT, wide_only=True),
    Column("USER", wide_only=True),
    Column("TEAM", wide_only=True),
    Column("BORROWED", Align.RIGHT, wide_only=True),
    Column("AGE", wide_only=True),
    Column("WHERE / WHY", may_cut=True),
)
NAMESPACE_COLUMN = Column("NAMESPACE")
_NOT_WIDE = ("",) * sum(column.wide_only for column in COLUMNS)


@dataclass(frozen=True, slots=True)
class JobChoice:
    """Which jobs to show: with `shows_all` every finished one, else the last few.

    Only those of a user where one is named, and only those in one of the `states` where there are
    some; then all of them. `name` is a pattern with * and ?; `node` one that they have, or had
    last; `since` and `until` are instants between which they were submitted.
    """

    shows_all: bool = False
    states: frozenset[str] = frozenset()
    user: str = ""
    name: str = ""
    node: str = ""
    since: float | None = None
    until: float | None = None

    @property
    def is_of_all(self) -> bool:
        """True where nothing is asked of a job."""
        return self == JobChoice(self.shows_all)

    @property
    def shows_few(self) -> bool:
        """True where only the last ones that ended are wanted."""
        return self == JobChoice(user=self.user)

    def includes(self, job: Job) -> bool:
        """True for a job of the user, in one of the states, and so on."""
        placement = job.status.placement
        is_there = not self.node or (placement is not None and self.node in nodes_of(placement))
        return is_there and self.includes_state(state_of(job)) and self.includes_meta(job.metadata)

    def includes_state(self, state: str) -> bool:
        """True for one of the states."""
        return state in self.states or not self.states

    def includes_meta(self, metadata: ObjectMeta) -> bool:
        """True for a job or an array of the user, of such a name, submitted in this time."""
        if self.user and metadata.annotations.get(names.SUBMITTED_BY) != self.user:
            return False
        if self.name and not fnmatchcase(metadata.name, self.name):
            return False
        at = _instant(metadata.creation_timestamp) or 0.0
        is_late = self.since is None or at >= self.since
        return is_late and (self.until is None or at <= self.until)


def choose_jobs(jobs: Iterable[Job], choice: JobChoice) -> list[Job]:
    """Return the jobs to show: finished ones in the order of their ends, then live ones by age."""
    live: list[Job] = []
    finished: list[Job] = []
    for job in jobs if choice.is_of_all else filter(choice.includes, jobs):
        (finished if job.is_finished else live).append(job)
    finished = _in_order(finished, lambda job: job.status.finished_at or "")
    if choice.shows_few:
        finished = finished[-FINISHED_SHOWN_MAX:]
    return [*finished, *_in_order(live, lambda job: job.metadata.creation_timestamp or "")]


def _in_order(jobs: Sequence[Job], instant: Callable[[Job], str]) -> list[Job]:
    """Return the jobs by an instant; those of one instant by namespace and name."""
    by_instant = defaultdict[str, list[Job]](list)
    for job in jobs:
        by_instant[instant(job)].append(job)
    out: list[Job] = []
    for _, group in sorted(by_instant.items()):
        if len(group) > 1:
            group.sort(key=lambda job: natural(job.metadata.name))
            if len({job.metadata.namespace for job in group}) > 1:
                group.sort(key=lambda job: natural(job.metadata.namespace))
        out += group
    return out


def job_rows(
    jobs: Iterable[Job],
    now: float,
    *,
    with_namespace: bool = False,
    is_up: bool = False,
    owners: Owners | None = None,
    is_wide: bool = True,
) -> list[Row]:
    """Return a row per job for COLUMNS, preceded by the namespace when asked.

    `is_up` says that the cluster is one of `fairlead up`, where some jobs are simulated; `owners`
    whose the nodes are, where that is known. Cells that only wide tables show are empty without
    `is_wide`.
    """
    rows: list[Row] = []
    for job in jobs:
        status = job.status
        is_over = job.is_finished
        time, left, tasks, words = _ended(job) if is_over else _live(job, now)
        if is_up and (is_over or status.placement is not None) and is_simulated(job):
            words += SIMULATED
        name, gpus = job.metadata.name, str(gpu_count(job))
        more = _wide_cells(job, now, owners) if is_wide else _NOT_WIDE
        row = (name, gpus, state_of(job), time, left, tasks, *more, words)
        rows.append((job.metadata.namespace, *row) if with_namespace else row)
    return rows


def _ended(job: Job) -> tuple[str, str, str, str]:
    """Return the cells TIME, LEFT, TASKS and WHY of a job that has ended."""
    status = job.status
    started, ended = _instant(status.started_at), _instant(status.finished_at)
    time = duration(ended - started) if started is not None and ended is not None else NONE
    return time, NONE, f"{status.members.succeeded}/{job.member_count}", ending(job)


def _live(job: Job, now: float) -> tuple[str, str, str, str]:
    """Return the cells TIME, LEFT, TASKS and WHERE / WHY of a job that has not ended."""
    return time_of(job, now), left_of(job, now), tasks_of(job), where_or_why(job, now)


def _wide_cells(job: Job, now: float, owners: Owners | None) -> Row:
    """Return the cells of the columns that are only shown by -o wide, which stand in a row."""
    status = job.status
    team = (status.placement.team if status.placement else "") or job.spec.team
    progress = status.progress
    return (
        job_id(job) or NONE,
        str(job.spec.priority or 0),
        str(status.attempt or NONE),
        str(progress.step) if progress else NONE,
        job.metadata.annotations.get(names.SUBMITTED_BY, NONE),
        team or NONE,
        NONE if owners is None else _borrowed(job, owners),
        _since(job.metadata.creation_timestamp, now),
    )


def job_id(job: Job) -> str:
    """Return the number of a job, that of an element as ARRAY_INDEX; "" before it has one."""
    array, index = array_number_of(job), element_index_of(job.metadata)
    if array is not None and index is not None:
        return f"{array}_{index}"
    return str(job.status.number or "")


def _borrowed(job: Job, owners: Owners) -> str:
    from fairlead.cli.views.teams import borrowed_nodes

    return str(sum(len(nodes) for nodes in borrowed_nodes(job, owners).values()))


def state_of(job: Job) -> str:
    """Return the STATE column; a job that no controller has seen yet is Waiting."""
    return job.status.state or JobState.WAITING.value


def time_of(job: Job, now: float) -> str:
    """Return how long it has run or did run; for a waiting job, how long it has been waiting."""
    if job.is_finished:
        return _ended(job)[0]
    status = job.status
    if _started_at(job) is None:
        return _since(status.submitted_at or job.metadata.creation_timestamp, now)
    return duration(run_seconds(job, now))


def run_seconds(job: Job, now: float) -> float:
    """Return for how long a job that has not ended has run, its attempt where one runs; 0 of one
    that never ran.
    """
    started = _started_at(job)
    return max(now - started, 0.0) if started is not None else 0.0


def _started_at(job: Job) -> float | None:
    attempt = latest_attempt(job)
    if is_true(job.status.conditions, names.RUNNING) and attempt and attempt.started_at:
        return _instant(attempt.started_at)
    return _instant(job.status.started_at)


def left_of(job: Job, now: float) -> str:
    """Return what is left of the time limit of the current attempt; "-" without one."""
    limit = job.spec.time_limit_seconds
    if limit is None or job.is_finished:
        return NONE
    attempt = latest_attempt(job)
    started = _instant(attempt.started_at) if attempt and attempt.finished_at is None else None
    return duration(limit - (now - started)) if started is not None else NONE


def tasks_of(job: Job) -> str:
    """Return members that run (for a finished job: that succeeded) of all members."""
    if job.is_finished:
        return _ended(job)[2]
    members = job.status.members
    done = members.running + members.succeeded
    if job.is_elastic and job.status.placement is None:
        return f"{done}/{job.least_count}-{job.member_count}"
    return f"{done}/{job.member_count}"


def where_or_why(job: Job, now: float | None = None) -> str:
    """Return the nodes of a placed job, the reason of a waiting one, the end of a finished one.

    With `now`, also how long a back-off still lasts: a text that changes as time passes.
    """
    if job.is_finished:
        return ending(job)
    status = job.status
    attempt = latest_attempt(job)
    if status.state == JobState.RESTARTING.value and attempt is not None and attempt.reason:
        return _restarting(job, attempt, now)
    if status.placement is not None and status.placement.attempt == status.attempt:
        return places(job) + _slow(attempt)
    return waiting(job)


def _slow(attempt: Attempt | None) -> str:
    """Return the slowest member of an attempt, and by how much it slows the others; "" for none."""
    if attempt is None or not attempt.stragglers:
        return ""
    worst = max(attempt.stragglers, key=lambda each: each.percent)
    return f"; {worst.member} slows it by up to {worst.percent}%"


def _restarting(job: Job, ended: Attempt, now: float | None) -> str:
    """Return why the attempt ended and what the next one waits for: members that are to end, the
    back-off, or its place; of the last the scheduler's verdict, once there is one.
    """
    status, queues, verdict = job.status, phase_of(job) in PLACEABLE, verdict_of(job)
    if queues and verdict is not None and verdict.reason is not Reason.PLACED:
        return waiting(job)
    words, left = reason_words(ended.reason, ended.message), status.members.running
    if left:
        return f"{words}; {plural(left, 'member')} to end first"
    if queues:
        return f"{words}; waits for its place"
    begins = _instant(status.restart_at)
    if begins is None or (now is not None and now >= begins):
        return f"{words}; attempt {ended.number + 1} is next"
    when = "after a back-off" if now is None else f"in {duration(ceil(begins - now))}"
    return f"{words}; attempt {ended.number + 1} begins {when}"


def places(job: Job) -> str:
    """Return the nodes of the placement, folded; their number when that is too long."""
    placement = job.status.placement
    if placement is None:
        return NONE
    used = sorted(set(nodes_of(placement)))
    folded = fold_names(used)
    if len(folded) <= FOLDED_LENGTH_MAX:
        return folded
    return plural(len(used), "node")


def waiting(job: Job) -> str:
    """Return the reason of a job that waits, with its numbers."""
    if is_cancelled(job):
        return f"{Reason.STOPPING.value}: {cancel_message(job)}; its members are ending"
    phase, verdict = phase_of(job), verdict_of(job)
    target = find_condition(job.status.conditions, names.FAILURE_TARGET)
    if target is not None and target.status == "True":
        return f"{Reason.STOPPING.value}: {target.message}; its members are ending"
    if phase in (Phase.STOPPING, Phase.HELD):
        return f"{Reason.HELD.value}: {Reason.HELD.template}"
    is_out = phase is Phase.UNADMITTED and _is_refused(job)
    is_old = verdict is not None and verdict.reason is Reason.PLACED  # of its last place
    if verdict is not None and not is_out and not is_old:
        return f"{verdict.reason.value}: {message_of(verdict)}"
    for type_ in (names.ADMITTED,) if is_out else (names.PLACED, names.ADMITTED):
        condition = find_condition(job.status.conditions, type_)
        if condition is not None and condition.status != "True" and condition.reason:
            return reason_words(condition.reason, condition.message)
    return f"{Reason.PENDING_EVALUATION.value}: not evaluated yet"


def _is_refused(job: Job) -> bool:
    """True where a job may not queue, so that what the scheduler said of it is out of date."""
    admitted = find_condition(job.status.conditions, names.ADMITTED)
    return job.spec.adopts is not None or (admitted is not None and bool(admitted.reason))


def ending(job: Job) -> str:
    """Return how a finished job ended."""
    has_succeeded = False
    for condition in job.status.conditions:  # asked for each job of a table: read once
        if condition.status == "True" and condition.type == names.FAILED:
            return reason_words(condition.reason, condition.message) + _of_shell(job)
        has_succeeded |= condition.type == names.SUCCEEDED and condition.status == "True"
    return plural(max(1, job.status.attempt), "attempt") if has_succeeded else NONE


def _of_shell(job: Job) -> str:
    """Return what a shell means by the exit code of the last attempt; "" for a program's own."""
    attempt = latest_attempt(job)
    code = attempt.exit_code if attempt is not None else None
    return {126: " (126: a file that cannot be run)", 127: " (127: command not found)"}.get(
        code or 0, ""
    )


def exit_code(job: Job) -> int:
    """Return the exit code of a job that has ended: 0, its program's, or 1 where none says why."""
    if is_true(job.status.conditions, names.SUCCEEDED):
        return 0
    attempt = latest_attempt(job)
    return (attempt.exit_code if attempt is not None else None) or 1


def verdict_of(job: Job) -> Verdict | None:
    """Return the scheduler's last word as a typed verdict; None when it has not spoken."""
    return typed_verdict(job.status.verdict)


def typed_verdict(status: VerdictStatus | None) -> Verdict | None:
    """Return a verdict as a status has it as a typed one; None for none, or one of a reason that
    this version does not know.
    """
    if status is None or status.reason not in _REASONS:
        return None
    return Verdict(_REASONS[status.reason], dict(status.facts))


def latest_attempt(job: Job) -> Attempt | None:
    """Return the attempt with the highest number, or None."""
    return max(job.status.attempts, key=lambda attempt: attempt.number, default=None)


def name_lines(jobs: Sequence[Job | JobArray]) -> str:
    """Return the ids, one per line."""
    return joined(job.metadata.name for job in jobs)


def _instant(text: str | None) -> float | None:
    return parse_time(text) if text else None


def _since(text: str | None, now: float) -> str:
    instant = _instant(text)
    return NONE if instant is None else duration(now - instant)
