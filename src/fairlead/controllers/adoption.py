"""The adoption controller: pods of other tools that opted in, placed as gangs.

Handlers of the mirrors keep the pods of each group (`GroupBook`) and mark the group in a queue; a
cycle decides on what is marked or due. All that is known of a group follows from its pods, its Job
and one object of its tool that is read when it is needed, so a new leader starts from there.

Pods of a big group change one by one; their group is then looked at some times per second instead
of once per event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api.core import Node, Pod
from fairlead.api.job import Job, JobStatus
from fairlead.api.meta import ObjectMeta, merge_diff, to_wire
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import AlreadyExists, ApiError, NotFound, Unavailable
from fairlead.controllers.adoption_state import (
    GroupBook,
    home_of,
    is_usable,
    look_delay_seconds,
    release_patch,
    resource_of,
)
from fairlead.controllers.cluster_mirrors import ClusterMirrors
from fairlead.decide.adoption.actions import (
    Action,
    CreateJob,
    EvictMember,
    ReadSource,
    ReleaseMember,
    TellPod,
)
from fairlead.decide.adoption.group_job import group_of
from fairlead.decide.adoption.grouping import is_concerned
from fairlead.decide.adoption.lifecycle import decide_group
from fairlead.decide.adoption.members import read_member
from fairlead.decide.adoption.sources import MISSING, Facts, read_source
from fairlead.decide.adoption.view import AdoptionPolicy, GroupView, Reading
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)
from fairlead.decide.verdict import Decision, ObjectKey, Verdict
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client, Propagation
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.history import History, HistoryError, record_of
from fairlead.runtime.mirror import Change, Mirror
from fairlead.runtime.queue import KeyQueue
from fairlead.runtime.reader import follow, set_aside_of
from fairlead.runtime.set_aside import Stage

#: Groups that one cycle looks at; the rest waits for the next one, which starts at once.
GROUPS_PER_CYCLE_MAX = 512
#: Actions of one cycle after which no further group is looked at.
ACTIONS_PER_CYCLE_MAX = 4096
#: A group that cannot be decided on is tried at least this often.
_SET_ASIDE_SECONDS_MAX = 600.0


class AdoptionController:
    """One per process and leader. After a crash make a new one: it finds all in the objects."""

    name = "adoption"

    def __init__(
        self,
        client: Client,
        mirrors: ClusterMirrors,
        *,
        history: History,
        events: EventSink,
        clock: Clock,
        policy: AdoptionPolicy | None = None,
    ) -> None:
        """Register on the mirrors."""
        self._client = client
        self._mirrors = mirrors
        self._history = history
        self._events = events
        self._clock = clock
        self._policy = policy or AdoptionPolicy()
        self._queue = KeyQueue[ObjectKey]()
        self._books: dict[ObjectKey, GroupBook] = {}
        #: The group of each pod that takes part.
        self._homes: dict[ObjectKey, ObjectKey] = {}
        #: Every node: True when a pod may be bound there now.
        self._usable: dict[str, bool] = {}
        reader = mirrors.reader
        self._set_aside = set_aside_of(reader)
        self._unregister = (
            follow(mirrors.nodes, self._on_node, reader),
            follow(mirrors.jobs, self._on_job, reader),
            follow(mirrors.pods, self._on_pod, reader),
        )

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._mirrors.nodes, self._mirrors.jobs, self._mirrors.pods)

    def close(self) -> None:
        """Take the handlers off the mirrors, if those live longer than the controller."""
        for unregister in self._unregister:
            unregister()

    # Observing

    def _on_node(self, change: Change[Node]) -> None:
        name = change.key[1]
        if change.new is None:
            self._usable.pop(name, None)
        else:
            self._usable[name] = is_usable(change.new)

    def _on_job(self, change: Change[Job]) -> None:
        job = change.new if change.new is not None else change.old
        assert job is not None
        if job.spec.adopts is None:
            return
        self._queue.add(change.key)
        is_other = change.old is None or change.new is None
        if is_other and job.spec.adopts.kind == "Pod":
            # A member that its group had no room for moves to a job of its own, or back.
            pod = self._mirrors.pods.get(change.key[0], job.spec.adopts.name)
            if pod is not None:
                self._settle(pod)
        if change.new is None:
            self._forget_if_over(change.key)

    def _on_pod(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._remove(change.key)
        elif is_concerned(change.new):
            self._settle(change.new)
        else:
            self._remove(change.key)

    def _settle(self, pod: Pod) -> None:
        """Put a pod, new or changed, into the book of its group."""
        if not is_concerned(pod):
            return
        key = pod.metadata.key
        membership = home_of(pod, self._mirrors.jobs)
        home = membership.group.key
        if self._homes.get(key, home) != home:
            self._remove(key)
        book = self._books.get(home)
        if book is None:
            book = self._books[home] = GroupBook()
        self._homes[key] = home
        book.group = membership.group
        name = pod.metadata.name
        before = book.members.get(name)
        book.members[name] = read_member(pod, membership, self._clock.now(), before)
        self._look_soon(home, book)

    def _remove(self, key: ObjectKey) -> None:
        home = self._homes.pop(key, None)
        book = self._books.get(home) if home is not None else None
        if home is None or book is None:
            return
        book.members.pop(key[1], None)
        self._look_soon(home, book)
        self._forget_if_over(home)

    def _look_soon(self, home: ObjectKey, book: GroupBook) -> None:
        delay = look_delay_seconds(len(book.members))
        if delay:
            self._queue.add_at(home, self._clock.now() + delay)
        else:
            self._queue.add(home)

    def _forget_if_over(self, home: ObjectKey) -> None:
        book = self._books.get(home)
        if book is not None and not book.members and self._mirrors.jobs.get(*home) is None:
            del self._books[home]

    # Deciding

    def decide(self, now: float) -> Decision[Action]:
        """Look at the groups that changed or are due, in key order; the rest costs nothing."""
        actions: list[Action] = []
        verdicts: dict[ObjectKey, Verdict] = {}
        for key in sorted(self._queue.pop(now, GROUPS_PER_CYCLE_MAX)):
            if len(actions) >= ACTIONS_PER_CYCLE_MAX:
                self._queue.add(key)
                continue
            view = self._view(key, now)
            if view is None:
                continue
            try:
                decision = decide_group(view, self._policy, now)
            except Exception as error:  # noqa: BLE001 - over one group, so it is that group's
                self._set_group_aside(view, now, error)
                continue
            self._set_aside.clear(JOBS, key, Stage.DECIDE)
            actions.extend(decision.actions)
            verdicts.update(decision.verdicts)
            if decision.wake_at is not None:
                self._queue.add_at(key, decision.wake_at)
        wake_at = now if len(self._queue) else self._queue.wake_at()
        return Decision(tuple(actions), verdicts, wake_at)

    def _set_group_aside(self, view: GroupView, now: float, error: Exception) -> None:
        """Leave a group alone until it changes, or for a growing time."""
        namespace, name = view.key
        metadata = view.job.metadata if view.job is not None else ObjectMeta(name)
        metadata = replace(metadata, namespace=namespace)
        entry = self._set_aside.note(JOBS, metadata, Stage.DECIDE, error)
        delay = min(2.0 ** min(entry.count, 20), _SET_ASIDE_SECONDS_MAX)
        self._queue.add_at(view.key, now + delay)

    def _view(self, key: ObjectKey, now: float) -> GroupView | None:
        job = self._mirrors.jobs.get(*key)
        if job is not None and job.spec.adopts is None:
            return None  # somebody's own job that has the name of a group: it came first
        book = self._books.get(key)
        if book is None:
            if job is None:
                return None
            book = self._books[key] = GroupBook()
        if book.group is None and job is not None:
            book.group = group_of(job)
        book.note_idle(now)
        return GroupView(
            key=key,
            group=book.group,
            members=book.members,
            job=job,
            reading=book.reading,
            usable=self._usable,
            idle_since=book.idle_since,
            counts_written_at=book.counts_written_at,
        )

    # Acting

    def key_of(self, action: Action) -> ObjectKey:
        """Return the job of an action; "job/name" for what happens to something else."""
        match action:
            case ReleaseMember(job, pod) | EvictMember(job, pod):
                namespace, name = job.metadata.key
                return (namespace, f"{name}/{pod.metadata.name}")
            case ReadSource(key):
                return (key[0], f"{key[1]}/")
            case TellPod(key, pod):
                return (key[0], f"{key[1]}/{pod.metadata.name}")
            case CreateJob() | WriteJobStatus() | RecordHistory() | DeleteJob() | RemoveFinalizer():
                return action.job.metadata.key
            case EmitEvent(job):
                return job.metadata.key
            case _:
                assert_never(action)

    def changed(self, key: ObjectKey) -> None:
        """Look at the group again that a key of `key_of` belongs to."""
        self._queue.add((key[0], key[1].partition("/")[0]))

    def failed(self, action: Action, error: ApiError) -> None:
        """Tell people what the API refuses for good; the loop comes back to it ever more rarely."""
        if isinstance(action, ReleaseMember):
            text = f"Could not be released onto node {action.node}: {error.message}"
            self._tell(action.pod, "ReleaseRefused", text)
        elif isinstance(action, CreateJob):
            book = self._books.get(action.job.metadata.key)
            for member in list(book.members.values())[:1] if book is not None else ():
                text = f"No job could be made for its group: {error.message}"
                self._tell(member.pod, "JobRefused", text)

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the job or the pod aside that an action was for."""
        match action:
            case ReleaseMember(_, pod) | EvictMember(_, pod) | TellPod(_, pod):
                self._set_aside.note(PODS, pod.metadata, Stage.ACT, error)
            case ReadSource(key):
                metadata = ObjectMeta(key[1], namespace=key[0])
                self._set_aside.note(JOBS, metadata, Stage.ACT, error)
            case CreateJob(job) | WriteJobStatus(job) | RecordHistory(job) | DeleteJob(job):
                self._set_aside.note(JOBS, job.metadata, Stage.ACT, error)
            case RemoveFinalizer(job) | EmitEvent(job):
                self._set_aside.note(JOBS, job.metadata, Stage.ACT, error)
            case _:
                assert_never(action)

    def recorded(self, decision: Decision[Action]) -> None:
        """Nothing of its own to count: the loop's observer sees every action."""

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; to do it twice does no harm."""
        match action:
            case CreateJob(job):
                return await self._create(job)
            case ReleaseMember():
                return await self._release(action)
            case EvictMember(_, pod):
                return await self._evict(pod)
            case ReadSource():
                await self._read(action)
                return None
            case TellPod(_, pod, reason, message):
                self._tell(pod, reason, message)
                return None
            case WriteJobStatus(job, status):
                return await self._write_status(job, status)
            case EmitEvent(job, type_, reason, message):
                kind = EventKind(type_)
                self._events.record(JOBS, job.metadata, kind, reason=reason, message=message)
                return None
            case RecordHistory(job):
                return await self._record(job)
            case DeleteJob(job):
                return await self._delete_job(job)
            case RemoveFinalizer(job, finalizer):
                return await self._remove_finalizer(job, finalizer)
            case _:
                assert_never(action)

    def _tell(self, pod: Pod, reason: str, message: str) -> None:
        self._events.record(PODS, pod.metadata, EventKind.WARNING, reason=reason, message=message)

    async def _create(self, job: Job) -> Written:
        namespace, name = job.metadata.key
        try:
            made = await self._client.create(JOBS.only_metadata, to_wire(job), namespace=namespace)
        except AlreadyExists:
            made = await self._client.get(JOBS.only_metadata, name, namespace=namespace)
        return Written.of(JOBS, made)

    async def _release(self, action: ReleaseMember) -> Written:
        meta = action.pod.metadata
        patch = release_patch(action)
        pod = await self._client.patch(
            PODS.only_metadata, meta.name, patch, namespace=meta.namespace
        )
        return Written.of(PODS, pod)

    async def _evict(self, pod: Pod) -> Written | None:
        meta = pod.metadata
        try:
            await self._client.delete(
                PODS, meta.name, namespace=meta.namespace, uid=meta.uid,
                resource_version=meta.resource_version, propagation=Propagation.BACKGROUND,
            )  # fmt: skip
        except NotFound:
            return None
        return Written.deletion(PODS, meta.key, meta.uid)

    async def _read(self, action: ReadSource) -> None:
        """Read the object behind a group; what cannot be read is noted as such."""
        book = self._books.get(action.key)
        if book is None or book.group is None:
            return
        resource = resource_of(action.api_version, action.kind)
        try:
            found = await self._client.get(resource, action.name, namespace=action.key[0])
        except NotFound:
            facts = MISSING
        except ApiError as error:
            if error.retryable:
                raise
            text = f"{action.kind} {action.name} cannot be read: {error.message}"
            facts = Facts(problem=text)
        else:
            facts = read_source(book.group, found)
            uid = book.group.source.uid if book.group.source else ""
            if uid and facts.uid != uid:
                facts = MISSING  # a namesake
        before = book.reading
        count = before.count + 1 if before is not None and before.facts == facts else 1
        book.reading = Reading(facts, self._clock.now(), count)
        self._queue.add(action.key)

    async def _write_status(self, job: Job, status: JobStatus) -> Written | None:
        """Send what changed, and never what the scheduler owns."""
        meta = job.metadata
        diff = merge_diff(to_wire(_without_place(job.status)), to_wire(_without_place(status)))
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": diff}
        written = await self._client.patch(
            JOBS.only_metadata, meta.name, patch, namespace=meta.namespace, subresource="status"
        )
        book = self._books.get(meta.key)
        if book is not None:
            book.counts_written_at = self._clock.now()
        return Written.of(JOBS, written)

    async def _record(self, job: Job) -> None:
        try:
            await self._history.record(record_of(job))
        except HistoryError as error:
            # Not ended, for the world, until it is recorded: try again as with any other store.
            raise Unavailable(str(error)) from error

    async def _delete_job(self, job: Job) -> Written | None:
        meta = job.metadata
        try:
            await self._client.delete(
                JOBS, meta.name, namespace=meta.namespace, uid=meta.uid,
                propagation=Propagation.BACKGROUND,
            )  # fmt: skip
        except NotFound:
            return None
        return Written.deletion(JOBS, meta.key, meta.uid)

    async def _remove_finalizer(self, job: Job, finalizer: str) -> Written:
        meta = job.metadata
        kept = [f for f in meta.finalizers if f != finalizer]
        patch = {"metadata": {"resourceVersion": meta.resource_version, "finalizers": kept or None}}
        await self._client.patch(JOBS.only_metadata, meta.name, patch, namespace=meta.namespace)
        return Written.deletion(JOBS, meta.key, meta.uid)


def _without_place(status: JobStatus) -> JobStatus:
    return replace(status, placement=None, verdict=None)
