"""A job as Slurm's commands see it: from the API, of an array's elements, from the history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.job_array import (
    JobArray,
    array_number_of,
    array_reference_of,
    element_index_of,
)
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.jobs.use import AttemptUse
from fairlead.api.meta import label_number
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.resources import JOBS
from fairlead.api.values.indices import format_indices, parse_indices
from fairlead.api.values.quantity import QuantityError
from fairlead.api.values.times import parse_time
from fairlead.cli.cluster.lookup import list_arrays
from fairlead.cli.cluster.numbers import find_numbered
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.slurm_tools.options import ToolError
from fairlead.cli.slurm_tools.states import SlurmState, slurm_state, waiting_reason
from fairlead.cli.views.jobs import latest_attempt
from fairlead.decide.jobs.rendering.slurm_variables import tasks_of
from fairlead.model.element_sets import Members, decode_set

if TYPE_CHECKING:
    from fairlead.app.queries.messages import HistoryLine

#: Records of one query of the history.
RECORDS_MAX = 100_000
_JOB_ID = re.compile(r"(\d{1,9})(?:_(\d{1,9}|\[[0-9,:-]+\])|\+(\d{1,3}))?(?:\.\w+)?", re.ASCII)


class NoHistory(Exception):
    """The history cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """A job, a component of one, or the elements of an array that wait: one line of squeue, and of
    sacct.

    Of waiting elements `job` is what each of them is, and `task` lists them in brackets. Of a
    component of a heterogeneous job `job` has that role alone, and no other one's place.
    """

    job: Job
    state: SlurmState
    now: float
    number: int
    array: int | None = None
    task: str = ""
    reason: str = ""
    #: Of a step: its name.
    step: str = ""
    #: What its attempts used, as far as it is known.
    uses: tuple[AttemptUse, ...] = ()
    #: Of the partitions that it asked for the one that it is in; "" where that is not looked up.
    placed_in: str = ""
    #: Which component of a heterogeneous job it is, counted from 0.
    offset: int | None = None

    @property
    def use(self) -> AttemptUse | None:
        """What the latest attempt used; None where it is not known."""
        latest = latest_attempt(self.job)
        number = latest.number if latest is not None else self.job.status.attempt
        return next((each for each in self.uses if each.attempt == number), None)

    @property
    def id(self) -> str:
        """The id as Slurm shows it: 36, 36_7, 36_[8-9] or 36+1, and of a step 36.batch."""
        whole = str(self.number) if self.array is None else f"{self.array}_{self.task}"
        whole += f"+{self.offset}" if self.offset is not None else ""
        return f"{whole}.{self.step}" if self.step else whole

    @property
    def name(self) -> str:
        """The name that sbatch was given, in any spelling and for any number of jobs; of other jobs
        their own, of an element that of its array.
        """
        if given := self.asked("SLURM_JOB_NAME"):
            return given
        owner = array_reference_of(self.job.metadata)
        return self.job.metadata.name if owner is None else owner.name

    @property
    def user(self) -> str:
        """Whose it is; "" where nobody said."""
        return self.job.metadata.annotations.get(names.SUBMITTED_BY, "")

    @property
    def nodes(self) -> list[str]:
        """The nodes that it holds, or held last, sorted."""
        placement = self.job.status.placement
        return [] if placement is None else sorted(set(nodes_of(placement)))

    @property
    def started_at(self) -> float | None:
        """When its latest attempt began to run."""
        attempt = latest_attempt(self.job)
        text = (attempt.started_at if attempt else None) or self.job.status.started_at
        return parse_time(text) if text else None

    @property
    def ended_at(self) -> float | None:
        """When it ended for good."""
        text = self.job.status.finished_at
        return parse_time(text) if text else None

    @property
    def submitted_at(self) -> float:
        """When it was submitted."""
        status, meta = self.job.status, self.job.metadata
        return parse_time(status.submitted_at or meta.creation_timestamp or "1970-01-01T00:00:00Z")

    def time_of(self, field: str) -> float | None:
        """Return an instant of the spec, `not_before` or `deadline`, where it can be read."""
        text: str | None = getattr(self.job.spec, field)
        with suppress(ValueError):
            return parse_time(text) if text else None
        return None

    @property
    def elapsed(self) -> int:
        """Seconds that it has run, or did."""
        started = self.started_at
        if started is None or self.state in (SlurmState.PENDING, SlurmState.CONFIGURING):
            return 0
        return max(0, round((self.ended_at or self.now) - started))

    def asked(self, variable: str) -> str:
        """Return what a variable of the job's template says was asked for; "" where none does."""
        for role in self.job.spec.roles:
            for container in role.template.spec.containers:
                for each in container.env:
                    if each.name == variable and each.value:
                        return each.value
        return ""

    def amount(self, resource: str) -> int:
        """Return how much all members ask for, in base units; GPUs of every kind as `gpu`."""
        total, sizes = 0, self.job.sizes
        for role in self.job.spec.roles:
            try:
                asked = member_amounts(role.template.spec)
            except QuantityError:
                continue
            total += sizes[role.name] * sum(
                amount for name, amount in asked.items()
                if name == resource or (resource == "gpu" and name.endswith("/gpu"))
            )  # fmt: skip
        return total

    def is_called(self, ids: Iterable[JobId]) -> bool:
        """True where one of the ids names it."""
        return any(each.names(self) for each in ids)


@dataclass(frozen=True, slots=True)
class JobId:
    """An id as people write it: of a job, a component of one, an array, or elements of one."""

    number: int
    tasks: frozenset[int] | None = None
    offset: int | None = None

    def names(self, record: QueueRecord) -> bool:
        """True for a job of this number, one or all of its components, and all or some elements of
        an array.
        """
        if self.offset is not None:
            return (self.number, self.offset) == (record.number, record.offset)
        if self.tasks is None:
            return self.number in (record.number, record.array)
        if self.number != record.array:
            return False
        if not record.task.startswith("["):
            return int(record.task) in self.tasks
        shown = parse_indices(record.task[1:-1].partition("%")[0])
        return any(index in self.tasks for index in shown)


def parse_ids(texts: Iterable[str]) -> list[JobId]:
    """Return the ids of a list; ToolError for what is none."""
    out: list[JobId] = []
    for text in texts:
        match = _JOB_ID.fullmatch(text)
        if match is None:
            raise ToolError(f"Invalid job id: {text}")
        tasks = None if match[2] is None else frozenset(parse_indices(match[2].strip("[]")))
        out.append(JobId(int(match[1]), tasks, int(match[3]) if match[3] else None))
    return out


def records_of_job(job: Job, now: float) -> Iterator[QueueRecord]:
    """Yield the record of a job; of a heterogeneous one that of each component."""
    whole = record_of_job(job, now)
    if not is_heterogeneous(job):
        yield whole
        return
    for offset, role in enumerate(job.spec.roles):
        yield replace(whole, job=_component(job, role), offset=offset)


def is_heterogeneous(job: Job) -> bool:
    """True for a job of Slurm's scripts whose roles are components."""
    return len(tasks_of(job)) > 1


def _component(job: Job, role: Role) -> Job:
    """Return a job with one of its roles alone, and the place of that."""
    placement = job.status.placement
    if placement is not None:
        places = tuple(each for each in placement.roles if each.role == role.name)
        placement = msgspec.structs.replace(placement, roles=places)
    return msgspec.structs.replace(
        job,
        spec=msgspec.structs.replace(job.spec, roles=(role,)),
        status=msgspec.structs.replace(job.status, placement=placement),
    )


def record_of_job(job: Job, now: float) -> QueueRecord:
    """Return the record of a job, of all its components together."""
    state = slurm_state(job)
    array, index = array_number_of(job), element_index_of(job.metadata)
    reason = waiting_reason(job) if state is SlurmState.PENDING else "None"
    number = job.status.number
    if array is None or index is None:
        return QueueRecord(job, state, now, number, reason=reason)
    return QueueRecord(job, state, now, number, array, str(index), reason)


def live_records(
    api: Api, space: str, now: float, *, expands: bool = False
) -> Iterator[QueueRecord]:
    """Yield what the API has: jobs, and of arrays the elements that wait in one record each.

    With `expands` each of those has a record of its own. What has no number yet is left out.
    """
    arrays = [msgspec.convert(each, JobArray) for each in list_arrays(api, space)]
    jobs: Sequence[Job] = api.list(JOBS, namespace=space)
    elements: dict[str, list[tuple[int, Job]]] = {each.metadata.uid: [] for each in arrays}
    for job in jobs:
        owner, index = array_reference_of(job.metadata), element_index_of(job.metadata)
        if owner is not None and index is not None and owner.uid in elements:
            elements[owner.uid].append((index, job))
        if job.status.number and not _is_folded(job):
            yield from records_of_job(job, now)
    for array in arrays:
        if array.status.number and not array.is_finished:
            yield from _waiting_elements(array, elements[array.metadata.uid], now, expands)


def _is_folded(job: Job) -> bool:
    """True for an element that waits for its first attempt with the others of its array."""
    is_element = array_number_of(job) is not None
    is_first = job.status.attempt <= 1 and not job.spec.suspend
    return is_element and is_first and slurm_state(job) is SlurmState.PENDING


def _waiting_elements(
    array: JobArray,
    elements: Iterable[tuple[int, Job]],
    now: float,
    expands: bool,  # noqa: FBT001
) -> Iterator[QueueRecord]:
    """Yield the record of the elements that wait; none where all have begun."""
    indices = parse_indices(array.spec.indices)
    jobs = {index: job for index, job in elements if not _is_folded(job)}
    finished = Members(decode_set(array.status.finished, indices))
    waiting = [
        index for position, index in enumerate(indices)
        if position not in finished and index not in jobs
    ]  # fmt: skip
    if not waiting:
        return
    job = replace_verdict(Job(array.metadata, array.spec.template), array)
    limit = array.spec.parallelism
    reason = waiting_reason(job)
    if array.spec.suspend:
        reason = "JobHeldUser"
    elif limit is not None and sum(not job.is_finished for job in jobs.values()) >= limit:
        reason = "JobArrayTaskLimit"
    number = array.status.number
    record = QueueRecord(job, SlurmState.PENDING, now, number, number, reason=reason)
    if expands:
        yield from (replace(record, task=str(index)) for index in waiting)
        return
    throttle = "" if limit is None else f"%{limit}"
    yield replace(record, task=f"[{format_indices(waiting)}{throttle}]")


def replace_verdict(job: Job, array: JobArray) -> Job:
    """Return the job of an array's template with the verdict of the array."""
    status = msgspec.structs.replace(job.status, verdict=array.status.verdict)
    return msgspec.structs.replace(job, status=status)


def ended_records(common_: Common, now: float, **query: Any) -> list[QueueRecord]:
    """Return the records of the history, the latest end first; those without a number left out.

    NoHistory where there is none to read.
    """
    from fairlead.cli.cluster.archive import NoArchive
    from fairlead.cli.records.ended_jobs import past_lines
    from fairlead.input.errors import CliError

    wanted = {"limit": str(RECORDS_MAX), **{key: str(value) for key, value in query.items()}}
    try:
        lines = past_lines(common_, "", wanted)
    except NoArchive as error:
        raise NoHistory(error.why) from error
    except CliError as error:
        raise NoHistory(error.problems[0].message) from error
    return [record for line in lines if line.number for record in records_of_line(line, now)]


def records_of_line(line: HistoryLine, now: float) -> Iterator[QueueRecord]:
    """Yield the records of a job in the history. What was used is known of a job as a whole, so a
    component's record does not say it.
    """
    job = msgspec.convert(line.document, Job)
    job = msgspec.structs.replace(
        job, status=msgspec.structs.replace(job.status, number=line.number or 0)
    )
    for record in records_of_job(job, now):
        yield replace(record, uses=line.use if record.offset is None else ())


def one_component_refused(api: Api, space: str, text: str) -> str:
    """Return why an id of a component, 36+1, cannot be changed alone; "" for any other id."""
    id_ = parse_ids([text])[0]
    if id_.offset is None:
        return ""
    found = find_numbered(api, space, id_.number)
    if not isinstance(found, Job) or not is_heterogeneous(found):
        return f"job {id_.number} has no components"
    if id_.offset >= len(found.spec.roles):
        return f"job {id_.number} has the components 0 to {len(found.spec.roles) - 1}"
    return f"its components start and end together; name the job: {id_.number}"


def in_order(records: Iterable[QueueRecord]) -> list[QueueRecord]:
    """Return records by number, elements of one array by index; of two of one job the later one, as
    that of the history, which says where it ran.
    """
    by_id = {record.id: record for record in records}
    return sorted(by_id.values(), key=_order)


def _order(record: QueueRecord) -> tuple[int, int, int, int]:
    group = record.number if record.array is None else record.array
    return group, label_number(record.task) or 0, record.number, record.offset or 0
