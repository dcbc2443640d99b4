"""The adoption controller: pods of other tools that opted in, placed as gangs.

`GroupIndex` keeps the pods of each group and marks what changed; `KeyedDecider` decides about what
is marked or due. All that is known of a group follows from its pods, its Job and one object of its
tool that is read when it is needed, so a new leader starts from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import ApiError, NotFound, StatusDetails, Timeout
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.group_index import GroupIndex, metadata_of
from fairlead.controllers.pods.job_writer import JobWriter, with_number
from fairlead.decide.adoption.actions import (
    Action,
    CreateJob,
    EmitPodWarning,
    EvictMember,
    ReadSource,
    ReleaseMember,
)
from fairlead.decide.adoption.lifecycle import decide_group
from fairlead.decide.adoption.source_kinds import resource_of
from fairlead.decide.adoption.sources import MISSING, SourceFacts, read_source
from fairlead.decide.adoption.view import AdoptionPolicy, SourceReading
from fairlead.decide.attempts.grace import bounded_grace
from fairlead.decide.job_actions import JobAction, WriteJobStatus
from fairlead.decide.pinning import pinned_affinity
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.asks.teams import with_team
from fairlead.model.inventory.spares import with_spares
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.kept.history import History
from fairlead.runtime.kept.numbers import Numbers
from fairlead.runtime.keyed_controller import KeyedController, KeyedDecider, part_key
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: How long a reading may take. It runs beside the cycles, in one of a few places.
_READ_SECONDS_MAX = 5.0
#: With a reading that had no answer, as if the server had asked for it: no retry within the
#: action, and none of the group before this, or longer after several in a row.
_LATER = StatusDetails(retry_after_seconds=5)


class AdoptionController(KeyedController[Action]):
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "adoption"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        *,
        history: History,
        events: EventSink,
        clock: Clock,
        policy: AdoptionPolicy | None = None,
        numbers: Numbers | None = None,
        reader: MirrorReader | None = None,
    ) -> None:
        """Attach to the world and register on its mirrors.

        `reader` is given where the mirrors are shared; it takes the faults of the handlers.
        """
        self._client = client
        self._world = world
        self._mirrors = world.mirrors
        self._events = events
        self._clock = clock
        self._policy = policy or AdoptionPolicy()
        self._set_aside = set_aside_of(reader)
        self._objects = ObjectWriter(client)
        self._jobs = JobWriter(
            self._objects, history=history, numbers=numbers or Numbers(client), events=events,
            set_aside=self._set_aside, clock=clock,
        )  # fmt: skip
        self._decider = KeyedDecider[Action](
            world.mirrors.jobs, self._decide_one, set_aside=self._set_aside
        )
        self._index = GroupIndex(
            world,
            mark=self._decider.mark,
            mark_at=self._decider.mark_at,
            on_gone=self._jobs.forget,
            clock=clock,
            reader=reader,
        )

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._mirrors.nodes, self._mirrors.jobs, self._mirrors.pods)

    def close(self) -> None:
        """Take the handlers off the mirrors, if those live longer than the controller."""
        self._index.close()

    def _decide_one(self, key: ObjectKey, now: float) -> Decision[Action] | None:
        view = self._index.view(key, now, counts_written_at=self._jobs.written_at)
        if view is None:
            return None
        decision, job = decide_group(view, self._policy, now), self._mirrors.jobs.get(*key)
        return decision if job is None else with_number(job, decision)

    def key_of(self, action: Action) -> ObjectKey:
        """Return the job of an action, or the key of the group's part that it is for."""
        match action:
            case ReleaseMember(job, pod) | EvictMember(job, pod):
                return part_key(job.metadata.key, pod.metadata.name)
            case EmitPodWarning(key, pod):
                return part_key(key, pod.metadata.name)
            case ReadSource(key):
                return part_key(key, "")
            case _:
                return action.job.metadata.key

    def is_beside(self, action: Action) -> bool:
        """True for readings: what answers them may be of others, and slow (`ActsBeside`)."""
        return isinstance(action, ReadSource)

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        if isinstance(action, JobAction):
            return await self._jobs.perform(action)
        match action:
            case CreateJob(job):
                return await self._objects.create(JOBS, job.metadata.key, to_wire(job))
            case ReleaseMember(_, pod):
                return await self._objects.patch(PODS, pod.metadata, release_patch(action))
            case EvictMember(_, pod):
                meta = pod.metadata
                grace = bounded_grace(pod, self._policy.grace_period_seconds_max)
                return await self._objects.delete(
                    PODS, meta.key, uid=meta.uid, resource_version=meta.resource_version,
                    grace_seconds=grace,
                )  # fmt: skip
            case ReadSource():
                return await self._read(action)
            case EmitPodWarning(_, pod, reason, message):
                return self._warn(pod, reason, message)
            case _:
                assert_never(action)

    def failed(self, action: Action, error: ApiError) -> None:
        """Report what the API refuses for good; the loop comes back to it ever more rarely.

        A group whose status cannot be written, and that has no pod, gives its nodes back.
        """
        if isinstance(action, ReleaseMember):
            text = f"Could not be released onto node {action.node}: {error.message}"
            self._warn(action.pod, "ReleaseRefused", text)
        elif isinstance(action, CreateJob):
            entry = self._index.get(action.job.metadata.key)
            for member in list(entry.members.values())[:1] if entry is not None else ():
                text = f"No job could be made for its group: {error.message}"
                self._warn(member.pod, "JobRefused", text)
        elif isinstance(action, EvictMember):
            text = f"Could not be evicted with the other members of its gang: {error.message}"
            self._warn(action.pod, "EvictionRefused", text)
        elif isinstance(action, WriteJobStatus) and self._jobs.is_status_denied(action.job):
            entry = self._index.get(action.job.metadata.key)
            members = entry.members.values() if entry is not None else ()
            if all(member.pod.is_terminal for member in members):
                self._world.forfeit(action.job, is_final=False)

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the job or the pod aside that an action was for."""
        match action:
            case ReleaseMember(_, pod) | EvictMember(_, pod) | EmitPodWarning(_, pod):
                self._set_aside.note(PODS, pod.metadata, AsideStage.ACT, error)
            case ReadSource(key):
                self._set_aside.note(JOBS, metadata_of(key), AsideStage.ACT, error)
            case _:
                self._set_aside.note(JOBS, action.job.metadata, AsideStage.ACT, error)

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        self._events.record(PODS, pod.metadata, EventKind.WARNING, reason=reason, message=message)

    async def _read(self, action: ReadSource) -> None:
        """Read the object behind a group; an object that cannot be read is a problem to report.

        Timeout where there is no answer: the group is left alone for a while, longer each time.
        """
        resource = resource_of(action.api_version, action.kind)
        assert resource is not None, "only kinds of the list are read"
        found: dict[str, Any] | None = None
        problem = ""
        try:
            async with asyncio.timeout(_READ_SECONDS_MAX):
                found = await self._client.get(resource, action.name, namespace=action.key[0])
        except TimeoutError:
            text = f"{action.kind} {action.name}: no answer within {_READ_SECONDS_MAX:g} s"
            raise Timeout(text, details=_LATER) from None
        except NotFound:
            pass
        except ApiError as error:
            if error.retryable:
                raise
            problem = f"{action.kind} {action.name} cannot be read: {error.message}"
        self._take_in(action, found, problem)

    def _take_in(self, action: ReadSource, found: Mapping[str, Any] | None, problem: str) -> None:
        """Keep what was read, if the group still has this object behind it."""
        self._decider.mark(action.key)
        entry = self._index.get(action.key)
        source = entry.group.source if entry is not None and entry.group is not None else None
        if entry is None or entry.group is None or source is None:
            return
        if (source.api_version, source.kind, source.name) != (
            action.api_version, action.kind, action.name
        ):  # fmt: skip
            return
        if problem:
            facts = SourceFacts(problem=problem)
        elif found is None:
            facts = MISSING
        else:
            facts = read_source(entry.group.tool, found)
            if source.uid and facts.uid != source.uid:
                facts = MISSING  # another object of the same name
        before = entry.reading
        count = before.count + 1 if before is not None and before.facts == facts else 1
        entry.reading = SourceReading(facts, self._clock.now(), count)


def release_patch(action: ReleaseMember) -> dict[str, Any]:
    """Return the one write that releases a pod: labels, pin and gate.

    Of the affinity only the terms that choose nodes are sent: all else in it stays. KEP-3838: the
    scheduling directives of a pod may be tightened while it is gated, also by the write that takes
    the last gate off. Ours is the last one: members that others gate are not released.
    """
    job, pod = action.job, action.pod
    labels = {
        names.JOB_NAME: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ROLE: action.role,
        names.INDEX: str(action.index),
        names.RANK: str(action.rank),
        names.ATTEMPT: str(job.status.attempt),
    }
    pinned = to_wire(pinned_affinity(pod.spec.affinity, action.node))
    required = pinned["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    # Tolerations can only be added to a pod that exists.
    given = with_spares(())
    placement = job.status.placement
    if placement is not None and placement.team:
        labels[names.TEAM] = placement.team
        given += with_team((), placement.team, may_borrow=placement.may_borrow)
    tolerations = (*pod.spec.tolerations, *(t for t in given if t not in pod.spec.tolerations))
    spec = {"schedulingGates": None, "affinity": affinity, "tolerations": to_wire(tolerations)}
    return {"metadata": {"labels": labels}, "spec": spec}
