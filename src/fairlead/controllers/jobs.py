"""The jobs controller: looks at the jobs that changed, and does what `decide_job` says.

Handlers of the mirrors keep a `JobBook` per job up to date and mark the job in a queue; a cycle
takes what is marked or due and nothing else, so ten thousand waiting jobs add nothing to a cycle
that concerns one. Writes of a job's status are compare-and-swaps of what changed; pods are made
side by side, after the write that says that their attempt has begun.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, assert_never

from fairlead.api import names
from fairlead.api.core import Node, Pod
from fairlead.api.job import Job, owner_reference_of
from fairlead.api.meta import Condition, ObjectMeta, is_true, to_wire
from fairlead.api.resources import CONFIG_MAPS, JOBS, PODS, SERVICES
from fairlead.api.status import ApiError, Invalid
from fairlead.controllers.jobs_mirrors import JobsMirrors
from fairlead.controllers.jobs_probes import PodProbes
from fairlead.controllers.jobs_state import (
    D,
    JobBook,
    NodeBook,
    PlacedNodes,
    inherited_until,
    job_key_of,
    owned_of,
    placed_nodes,
    refusal_of,
    subject,
    troubles_of,
    waits_for,
)
from fairlead.controllers.jobs_writes import JobWrites
from fairlead.decide.attempts.job_status import given_up, with_condition, write
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)
from fairlead.decide.jobs.actions import (
    Action,
    AddFinalizer,
    CreateConfigMap,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteConfigMap,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    ProbePods,
)
from fairlead.decide.jobs.admission import dependency_state
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.view import DependencyState, JobView, Owned, Refusal
from fairlead.decide.pinning import node_of
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision, ObjectKey, Verdict
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.history import History
from fairlead.runtime.mirror import Change, Mirror
from fairlead.runtime.queue import KeyQueue
from fairlead.runtime.reader import follow, set_aside_of
from fairlead.runtime.set_aside import Stage

#: Jobs that one cycle looks at; the rest waits for the next one, which starts at once.
JOBS_PER_CYCLE_MAX = 512
#: Actions of one cycle after which no further job is looked at.
ACTIONS_PER_CYCLE_MAX = 4096
#: A job that cannot be decided on is tried at least this often.
_SET_ASIDE_SECONDS_MAX = 600.0
#: A job whose status the API has refused so often, in a row, is ended.
_STATUS_REFUSALS_MAX = 3


class JobsController:
    """One per process and leader. After a crash make a new one: it finds all in the objects."""

    def __init__(
        self,
        client: Client,
        mirrors: JobsMirrors,
        *,
        history: History,
        events: EventSink,
        policy: JobsPolicy,
        clock: Clock,
    ) -> None:
        """Register on the mirrors. DNS naming needs a mirror of services."""
        if policy.peer_naming is PeerNaming.DNS and mirrors.services is None:
            raise ValueError("peer naming DNS needs a mirror of services")
        #: How many times a job was looked at.
        self.looked_count = 0
        self._mirrors = mirrors
        self._events = events
        self._policy = policy
        self._clock = clock
        self._began_at = clock.now()
        self._queue = KeyQueue[ObjectKey]()
        self._nodes = NodeBook()
        #: By key and uid of the job: what is in another namespace is none of its.
        self._books: dict[tuple[ObjectKey, str], JobBook] = {}
        #: By key of the job; exactly those with a placement.
        self._placed: dict[ObjectKey, PlacedNodes] = {}
        #: Jobs not yet admitted, by the job that they wait for.
        self._dependents: dict[ObjectKey, dict[ObjectKey, None]] = {}
        self._writes = JobWrites(
            client, policy=policy, history=history, clock=clock, on_refused=self._on_refused
        )
        self._probes = PodProbes(client, self._writes.bodies, clock)
        reader = mirrors.reader
        self._set_aside = set_aside_of(reader)
        self._unregister = [
            follow(mirrors.jobs, self._on_job, reader),
            follow(mirrors.pods, self._on_pod, reader),
            follow(mirrors.nodes, self._on_node, reader),
        ]
        in_maps = partial(self._on_owned, attrgetter("config_maps"))
        self._unregister.append(follow(mirrors.config_maps, in_maps, reader))
        if mirrors.services is not None:
            in_services = partial(self._on_owned, attrgetter("services"))
            self._unregister.append(follow(mirrors.services, in_services, reader))
        if mirrors.pod_groups is not None:
            in_groups = partial(self._on_owned, attrgetter("pod_groups"))
            self._unregister.append(follow(mirrors.pod_groups, in_groups, reader))

    @property
    def name(self) -> str:
        """Stable name, a metric label."""
        return "jobs"

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        mirrors = self._mirrors
        return [mirrors.jobs, mirrors.pods, mirrors.nodes, *mirrors.own]

    def close(self) -> None:
        """Take the handlers off the mirrors, if those live longer than the controller."""
        for unregister in self._unregister:
            unregister()

    # Observing

    def _on_job(self, change: Change[Job]) -> None:
        key, old, new = change.key, change.old, change.new
        self._queue.add(key)
        if dependency_state(old) is not dependency_state(new):
            for dependent in self._dependents.get(key, ()):
                self._queue.add(dependent)
        for other in waits_for(old):
            waiting = self._dependents[other]
            waiting.pop(key, None)
            if not waiting:
                del self._dependents[other]
        for other in waits_for(new):
            self._dependents.setdefault(other, {})[key] = None
        placement = new.status.placement if new is not None else None
        before = old.status.placement if old is not None else None
        if placement != before or (placement is not None and key not in self._placed):
            self._replace_placed(key, new)
        if new is not None and new.is_finished:
            self._writes.bodies.forget(new.metadata.uid)
        if new is None and old is not None:
            self._writes.forget(old.metadata.uid)
            self._probes.forget(old.metadata.uid)
            self._forget_if_over(key, old.metadata.uid)

    def _replace_placed(self, key: ObjectKey, job: Job | None) -> None:
        before = self._placed.pop(key, None)
        after = placed_nodes(job) if job is not None else {}
        for node in after:
            self._nodes.link(node, key)
        for node in before.nodes if before is not None else ():
            self._nodes.unlink(node, key)
        if after:
            self._placed[key] = PlacedNodes(after)

    def _on_pod(self, change: Change[Pod]) -> None:
        pod, is_there = subject(change)
        owner = owner_reference_of(pod.metadata)
        if owner is None:
            return
        key = (pod.metadata.namespace, owner.name)
        book = self._book(key, owner.uid)
        node = node_of(pod.spec)
        count = book.pods.nodes.get(node, 0)
        if is_there:
            book.pods.put(pod)
        else:
            book.pods.drop(pod)
        if book.pods.nodes.get(node, 0) > count:
            self._nodes.link(node, key)
        elif book.pods.nodes.get(node, 0) < count:
            self._nodes.unlink(node, key)
        self._forget_if_over(key, owner.uid)
        self._queue.add(key)

    def _on_node(self, change: Change[Node]) -> None:
        name = change.key[1]
        for key in self._nodes.changed(name, change.new, self._clock.now()):
            self._queue.add(key)

    def _on_owned(self, kept: Callable[[JobBook], dict[str, Owned]], change: Change[D]) -> None:
        """Keep what a job owns besides its pods in its book, where `kept` says."""
        obj, is_there = subject(change)
        key, owner = job_key_of(obj), owner_reference_of(obj.metadata)
        if key is None or owner is None:
            return
        table = kept(self._book(key, owner.uid))
        if is_there:
            table[obj.metadata.name] = owned_of(obj)
        else:
            table.pop(obj.metadata.name, None)
        self._forget_if_over(key, owner.uid)
        self._queue.add(key)

    def _book(self, key: ObjectKey, uid: str) -> JobBook:
        book = self._books.get((key, uid))
        if book is None:
            book = self._books[key, uid] = JobBook()
        return book

    def _forget_if_over(self, key: ObjectKey, uid: str) -> None:
        """Forget the book of a job that is gone once nothing of it is left.

        While the job is there its book stays: it holds what pods that are gone had reported.
        """
        job = self._mirrors.jobs.get(*key)
        if job is not None and job.metadata.uid == uid:
            return
        book = self._books.get((key, uid))
        if book is not None and book.is_empty:
            del self._books[key, uid]

    # Deciding

    def decide(self, now: float) -> Decision[Action]:
        """Look at the jobs that changed or are due, in key order; the rest costs nothing."""
        actions: list[Action] = []
        verdicts: dict[ObjectKey, Verdict] = {}
        for key in sorted(self._queue.pop(now, JOBS_PER_CYCLE_MAX)):
            if len(actions) >= ACTIONS_PER_CYCLE_MAX:
                self._queue.add(key)
                continue
            job = self._mirrors.jobs.get(*key)
            if job is None:
                continue
            self.looked_count += 1
            decision = self._decide_one(key, job, now)
            actions.extend(decision.actions)
            verdicts.update(decision.verdicts)
            if decision.wake_at is not None:
                self._queue.add_at(key, decision.wake_at)
        wake_at = now if len(self._queue) else self._queue.wake_at()
        return Decision(tuple(actions), verdicts, wake_at)

    def _decide_one(self, key: ObjectKey, job: Job, now: float) -> Decision[Action]:
        """Decide about one job; one that cannot be decided on is set aside, and tried more rarely.

        It is also looked at whenever it, or what belongs to it, changes.
        """
        refusals = self._writes.status_refusals.get(job.metadata.uid, 0)
        if refusals >= _STATUS_REFUSALS_MAX and not job.is_finished:
            return Decision(write(job, given_up(job, now), record=True))
        is_told = is_true(job.status.conditions, names.SET_ASIDE)
        try:
            decision = decide_job(self._view(key, job, now), self._policy, now)
        except Exception as error:  # noqa: BLE001 - over one job, so it is that job's
            entry = self._set_aside.note(JOBS, job.metadata, Stage.DECIDE, error)
            wake_at = now + min(2.0 ** min(entry.count, 20), _SET_ASIDE_SECONDS_MAX)
            told = () if is_told else (_with_set_aside(job, now, entry.fault),)
            return Decision(told, wake_at=wake_at)
        self._set_aside.clear(JOBS, key, Stage.DECIDE)
        if is_told and not any(isinstance(a, WriteJobStatus) for a in decision.actions):
            actions = (_with_set_aside(job, now), *decision.actions)
            return dataclasses.replace(decision, actions=actions)
        return decision

    def _view(self, key: ObjectKey, job: Job, now: float) -> JobView:
        uid = job.metadata.uid
        book = self._books.get((key, uid)) or JobBook()
        placed = self._placed.get(key) or PlacedNodes()
        if not placed.is_checked:
            for node in placed.nodes:
                if self._mirrors.nodes.get("", node) is None:
                    self._nodes.missing(node, now)
            placed.is_checked = True
        dependencies: dict[str, DependencyState] = {}
        for namespace, name in waits_for(job):
            dependencies[name] = dependency_state(self._mirrors.jobs.get(namespace, name))
        inherited = inherited_until(job, self._began_at, self._policy)
        return JobView(
            job=job,
            pods=book.pods,
            config_maps=book.config_maps,
            services=book.services,
            pod_groups=book.pod_groups,
            dependencies=dependencies,
            node_troubles=troubles_of(self._nodes.troubles, placed.nodes, book.pods.nodes),
            pod_refusal=self._writes.refusals.get(uid),
            probe=self._probes.get(uid),
            bindings=self._nodes.bindings,
            cordoned=self._nodes.cordoned,
            counts_written_at=self._writes.counts_written_at.get(uid, 0.0),
            late_until=self._writes.late_until.get(uid) or inherited,
        )

    # Acting

    def key_of(self, action: Action) -> ObjectKey:
        """Return a key per object: "job" itself, or "job/name" for what belongs to it."""
        match action:
            case CreatePod():
                return _part_key(action.job, action.pod.metadata.name)
            case CreateConfigMap():
                return _part_key(action.job, f"configmap:{action.config_map.metadata.name}")
            case CreateService():
                return _part_key(action.job, f"service:{action.service.metadata.name}")
            case CreatePodGroup():
                return _part_key(action.job, f"podgroup:{action.job.status.attempt}")
            case DeletePod():
                pod = self._mirrors.pods.get(action.namespace, action.name)
                job_key = job_key_of(pod) if pod is not None else None
                return (action.namespace, f"{job_key[1] if job_key else ''}/{action.name}")
            case DeleteConfigMap() | DeleteService() | DeletePodGroup():
                return (action.namespace, f"/{type(action).__name__}:{action.name}")
            case WriteJobStatus() | EmitEvent() | RecordHistory() | DeleteJob() | ProbePods():
                return action.job.metadata.key
            case AddFinalizer() | RemoveFinalizer():
                return action.job.metadata.key
            case _:
                assert_never(action)

    def changed(self, key: ObjectKey) -> None:
        """Look at the job again that a key of `key_of` belongs to."""
        namespace, name = key
        job_name = name.partition("/")[0]
        if job_name:
            self._queue.add((namespace, job_name))

    def failed(self, action: Action, error: ApiError) -> None:
        """Note that a job's pods are refused: its attempt cannot go on, or not now."""
        refusal = refusal_of(error)
        if refusal and isinstance(
            action, CreatePod | CreateConfigMap | CreateService | CreatePodGroup
        ):
            self._writes.refusals.note(action.job, refusal, error.message, self._clock.now())

    def _on_refused(self, job: Job, error: Invalid) -> None:
        """Tell that the API does not take a job's status: what it names is left out."""
        self._set_aside.note(JOBS, job.metadata, Stage.ACT, error)

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the object aside that an action was for; a gang whose pods cannot be made fails."""
        match action:
            case DeletePod():
                metadata = ObjectMeta(action.name, namespace=action.namespace, uid=action.uid)
                self._set_aside.note(PODS, metadata, Stage.ACT, error)
            case DeleteConfigMap() | DeleteService() | DeletePodGroup():
                metadata = ObjectMeta(action.name, namespace=action.namespace, uid=action.uid)
                self._set_aside.note(self._writes.kind_of(action), metadata, Stage.ACT, error)
            case CreatePod(job) | CreateConfigMap(job) | CreateService(job) | CreatePodGroup(job):
                entry = self._set_aside.note(JOBS, job.metadata, Stage.ACT, error)
                now = self._clock.now()
                self._writes.refusals.note(job, Refusal.POD_REJECTED, entry.fault, now)
            case WriteJobStatus(job) | EmitEvent(job) | RecordHistory(job) | DeleteJob(job):
                self._set_aside.note(JOBS, job.metadata, Stage.ACT, error)
            case AddFinalizer(job) | RemoveFinalizer(job) | ProbePods(job):
                self._set_aside.note(JOBS, job.metadata, Stage.ACT, error)
            case _:
                assert_never(action)

    def recorded(self, decision: Decision[Action]) -> None:
        """Nothing of its own to count: the loop's observer sees every action."""

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; to do it twice does no harm."""
        writes = self._writes
        match action:
            case WriteJobStatus(job, status):
                return await writes.write_status(job, status)
            case CreatePod():
                return await writes.create_pod(action)
            case ProbePods():
                return await self._probes.ask(action)
            case CreateConfigMap(job, config_map):
                name = config_map.metadata.name
                return await writes.create(CONFIG_MAPS, job, name, to_wire(config_map))
            case CreateService(job, service):
                return await writes.create(SERVICES, job, service.metadata.name, to_wire(service))
            case CreatePodGroup(job):
                return await writes.create_group(job)
            case DeletePod(namespace, name, uid, grace_seconds):
                return await writes.delete(PODS, namespace, name, uid=uid, grace=grace_seconds)
            case DeleteConfigMap() | DeleteService() | DeletePodGroup():
                kind = writes.kind_of(action)
                return await writes.delete(kind, action.namespace, action.name, uid=action.uid)
            case AddFinalizer(job, finalizer):
                return await writes.add_finalizer(job, finalizer)
            case RemoveFinalizer(job, finalizer):
                return await writes.remove_finalizer(job, finalizer)
            case DeleteJob(job):
                meta = job.metadata
                return await writes.delete(JOBS, meta.namespace, meta.name, uid=meta.uid)
            case RecordHistory(job):
                return await writes.record(job)
            case EmitEvent(job, type_, reason, message):
                kind = EventKind(type_)
                self._events.record(JOBS, job.metadata, kind, reason=reason, message=message)
                return None
            case _:
                assert_never(action)


def _with_set_aside(job: Job, now: float, fault: str = "") -> WriteJobStatus:
    """Return the write that tells that a job is set aside, with the fault; "": no longer."""
    message = f"cannot be decided on: {fault}" if fault else ""
    status = "True" if fault else "False"
    condition = Condition(names.SET_ASIDE, status, Reason.SET_ASIDE.value, message)
    return WriteJobStatus(job, with_condition(job, job.status, now, condition))


def _part_key(job: Job, name: str) -> ObjectKey:
    return (job.metadata.namespace, f"{job.metadata.name}/{name}")
