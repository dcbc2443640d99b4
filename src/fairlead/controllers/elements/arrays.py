"""The arrays controller: makes the jobs of arrays' elements, and records their ends.

It alone writes the status of arrays, and creates and deletes the jobs of elements; what it does is
`decide_array`'s. `ArrayIndex` keeps the jobs of each array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.meta import find_condition, is_true, merge_diff, to_wire
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import ApiError, StatusCause
from fairlead.api.validation.validate_array import validate_array
from fairlead.api.values.indices import Indices, IndicesError, parse_indices
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.elements.array_index import ArrayIndex
from fairlead.controllers.elements.array_sets import ArraySets
from fairlead.controllers.elements.element_renderer import ElementRenderer
from fairlead.controllers.pods.stored_templates import STORED_JOBS, StoredTemplates
from fairlead.decide.arrays import (
    Action,
    ArraysPolicy,
    ArrayView,
    CancelElement,
    CreateElement,
    DeleteArray,
    DeleteElement,
    ElementRefusal,
    PrioritizeElement,
    SuspendElement,
    WriteArrayStatus,
    decide_array,
)
from fairlead.decide.attempts.notes import EventReason
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.element_sets import set_of
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.kept.numbers import Numbers
from fairlead.runtime.keyed_controller import KeyedController, KeyedDecider, part_key
from fairlead.runtime.object_writer import NameTaken, ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: Characters of a server's message that are kept.
MESSAGE_MAX = 500


@dataclass(slots=True)
class _Memory:
    """What answers said of one array; lost with the process, and found out again by trying."""

    written_at: float = 0.0
    refusals: int = 0
    refusal: ElementRefusal | None = None
    #: By index: elements whose names are taken.
    taken: dict[int, ElementRefusal] = field(default_factory=dict)
    #: The rules that the spec breaks, and of which generation that is.
    faults: tuple[StatusCause, ...] = ()
    judged_generation: int = -1
    #: The text of `spec.cancelIndices`, and the elements that it lists: there may be a million.
    cancelled: tuple[str, int] = ("", 0)


def _cancelled(memory: _Memory, array: JobArray, indices: Indices) -> int:
    """Return the elements that `spec.cancelIndices` lists; what is no element is ignored."""
    text = array.spec.cancel_indices
    if memory.cancelled[0] != text:
        listed = parse_indices(text) if text else ()
        positions = (indices.position(index) for index in listed)
        found = set_of([position for position in positions if position is not None])
        memory.cancelled = (text, found)
    return memory.cancelled[1]


class ArraysController(KeyedController[Action]):
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "arrays"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        *,
        events: EventSink,
        policy: ArraysPolicy,
        clock: Clock,
        numbers: Numbers | None = None,
        templates: StoredTemplates | None = None,
        reader: MirrorReader | None = None,
    ) -> None:
        """`numbers` and `templates` are those of the process, where it has other controllers."""
        self._arrays = world.mirrors.arrays
        self._jobs = world.mirrors.jobs
        self._objects = ObjectWriter(client)
        self._numbers = numbers or Numbers(client)
        self._renderer = ElementRenderer(client)
        self._templates = templates or StoredTemplates(client)
        self._events = events
        self._policy = policy
        self._clock = clock
        self._set_aside = set_aside_of(reader)
        self._sets = ArraySets()
        self._memory: dict[str, _Memory] = {}
        self._decider = KeyedDecider[Action](
            self._arrays, self._decide_one, set_aside=self._set_aside
        )
        self._index = ArrayIndex(
            self._arrays, self._jobs, mark=self._decider.mark, on_gone=self._forget, reader=reader
        )

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._arrays, self._jobs)

    def close(self) -> None:
        """Take the handlers off the mirrors, which live longer than the controller."""
        self._index.close()

    def _forget(self, array: JobArray) -> None:
        self._sets.forget(array.metadata.key)
        self._renderer.forget(array.metadata.uid)
        self._memory.pop(array.metadata.uid, None)
        self._numbers.forget(array.metadata.uid)

    def _decide_one(self, key: ObjectKey, now: float) -> Decision[Action] | None:
        array = self._arrays.get(*key)
        if array is None:
            return None
        memory = self._remembered(array)
        if memory.judged_generation != array.metadata.generation:
            memory.faults = tuple(validate_array(array))
            memory.judged_generation = array.metadata.generation
        if any(fault.field == "spec.indices" for fault in memory.faults):
            raise IndicesError(memory.faults[0].message)  # there is nothing to decide about
        return decide_array(self._view(array, memory, now))

    def _view(self, array: JobArray, memory: _Memory, now: float) -> ArrayView:
        indices, finished, failed = self._sets.of(array)
        elements = self._index.elements(array, indices, finished.members)
        taken = {
            position: refusal
            for index, refusal in memory.taken.items()
            if (position := indices.position(index)) is not None
        }
        return ArrayView(
            array, indices, finished.elements, failed.elements, elements, self._policy, now,
            faults=memory.faults, cancelled=_cancelled(memory, array, indices),
            stopped=self._sets.stopped(array),
            written_at=memory.written_at, refusal=memory.refusal, refused=taken,
        )  # fmt: skip

    def key_of(self, action: Action) -> ObjectKey:
        """Return a key per object: that of the array, or of one of its elements."""
        key = action.array.metadata.key
        match action:
            case WriteArrayStatus() | DeleteArray():
                return key
            case CreateElement(index=index):
                return part_key(key, str(index))
            case (
                DeleteElement(job=job)
                | CancelElement(job=job)
                | SuspendElement(job=job)
                | PrioritizeElement(job=job)
            ):
                return part_key(key, job.metadata.name)
            case _:
                assert_never(action)

    def takings(self, action: Action) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        if isinstance(action, CancelElement) and action.stopped_early:
            return (takings.early_stop(action),)
        return ()

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case WriteArrayStatus(array, status):
                self._remembered(array).written_at = self._clock.now()
                if not status.number:
                    status = replace(status, number=await self._numbers.of(array.metadata.uid))
                diff = merge_diff(to_wire(array.status), to_wire(status))
                written = await self._objects.patch_status(JOB_ARRAYS, array.metadata, diff)
                self._report_end(action)
                return written
            case CreateElement():
                return await self._create(action)
            case DeleteElement(job=job):
                return await self._objects.delete(JOBS, job.metadata.key, uid=job.metadata.uid)
            case CancelElement(job=job, stopped_early=words):
                patch: dict[str, Any] = {"spec": {"cancel": True}}
                if words:
                    patch["metadata"] = {"annotations": {names.STOPPED_EARLY: words}}
                return await self._objects.patch(JOBS, job.metadata, patch)
            case SuspendElement(job=job, suspend=suspend):
                mark = {names.HELD_BY_ARRAY: "true" if suspend else None}
                patch = {"spec": {"suspend": suspend}, "metadata": {"annotations": mark}}
                return await self._objects.patch(JOBS, job.metadata, patch)
            case PrioritizeElement(array, job):
                template = array.spec.template
                fields = {
                    "priorityClassName": template.priority_class_name or None,
                    "priority": template.priority,
                }
                return await self._objects.patch(JOBS, job.metadata, {"spec": fields})
            case DeleteArray(array):
                uid = array.metadata.uid
                return await self._objects.delete(JOB_ARRAYS, array.metadata.key, uid=uid)
            case _:
                assert_never(action)

    async def _create(self, action: CreateElement) -> Written | None:
        """Create the job of an element; a name that is taken is tried again later."""
        array, memory = action.array, self._remembered(action.array)
        body = await self._renderer.body(action)
        key = (array.metadata.namespace, body["metadata"]["name"])
        try:
            made = await self._objects.make(
                STORED_JOBS, key, body, owner=array.metadata, awaits_collection=True
            )
        except NameTaken as error:
            retry_at = self._clock.now() + self._policy.refused_backoff_seconds_max
            memory.taken[action.index] = ElementRefusal(str(error)[:MESSAGE_MAX], retry_at)
            self._decider.mark(array.metadata.key)
            return None
        self._templates.keep(made)  # its pods need no read of it
        memory.taken.pop(action.index, None)
        if memory.refusal is not None:
            memory.refusal, memory.refusals = None, 0
            self._decider.mark(array.metadata.key)
        return Written.of(JOBS, made)

    def _report_end(self, action: WriteArrayStatus) -> None:
        """Emit the event of an array that ends with this write."""
        array, conditions = action.array, action.status.conditions
        if array.is_finished or action.status.finished_at is None:
            return
        ended = names.SUCCEEDED if is_true(conditions, names.SUCCEEDED) else names.FAILED
        condition = find_condition(conditions, ended)
        assert condition is not None
        reason = EventReason(action.status.state)
        kind = EventKind.WARNING if reason is EventReason.FAILED else EventKind.NORMAL
        self._events.record(
            JOB_ARRAYS, array.metadata, kind, reason=reason.value, message=condition.message
        )

    def failed(self, action: Action, error: ApiError) -> None:
        """Note that the API server takes no job of the array now: it is asked again later."""
        if not isinstance(action, CreateElement):
            self._set_aside.note(JOB_ARRAYS, action.array.metadata, AsideStage.ACT, error)
            return
        memory, now = self._remembered(action.array), self._clock.now()
        if memory.refusal is None or now >= memory.refusal.retry_at:
            seconds = self._policy.refused_backoff_seconds * 2.0 ** min(memory.refusals, 10)
            retry_at = now + min(seconds, self._policy.refused_backoff_seconds_max)
            memory.refusal = ElementRefusal(error.message[:MESSAGE_MAX], retry_at)
            memory.refusals += 1

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this array: set it aside, so that the others go on."""
        self._set_aside.note(JOB_ARRAYS, action.array.metadata, AsideStage.ACT, error)

    def _remembered(self, array: JobArray) -> _Memory:
        return self._memory.setdefault(array.metadata.uid, _Memory())
