"""An index of the groups of other tools' pods, updated per event.

`GroupIndex` follows the mirrors and marks the groups to look at again. All of it follows from the
mirrors, or can be read again, and is built again after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import ObjectMeta
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.adoption.group_job import group_of
from fairlead.decide.adoption.members import GroupMember, Seat, read_member
from fairlead.decide.adoption.view import GroupView, SourceReading
from fairlead.decide.verdict import ObjectKey
from fairlead.model.pools.grouping import (
    Group,
    Membership,
    alone,
    is_concerned,
    is_gated,
    membership_of,
)
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow

#: Groups up to this size are looked at with every event.
_EAGER_MEMBERS_MAX = 64
_DELAY_SECONDS_PER_MEMBER = 0.0002
_DELAY_SECONDS_MAX = 1.0


@dataclass(slots=True)
class GroupEntry:
    """What belongs to one group besides its job, kept from its first sign to its last."""

    group: Group | None = None
    #: By name of the pod.
    members: dict[str, GroupMember] = field(default_factory=dict[str, GroupMember])
    reading: SourceReading | None = None
    idle_since: float | None = None
    #: By seat of the placement that has no live member, since when.
    empty_since: dict[Seat, float] = field(default_factory=dict[Seat, float])
    #: By name, the role of each pod that would be a member and has a job of its own.
    elsewhere: dict[str, str] = field(default_factory=dict[str, str])

    def note_empty(self, job: Job | None, now: float) -> None:
        """Keep since when each place of the job has had no live member."""
        placement = job.status.placement if job is not None else None
        if job is None or placement is None:
            self.empty_since = {}
            return
        uid, before = job.metadata.uid, self.empty_since
        live = {m.seat for m in self.members.values() if m.job_uid == uid and not m.pod.is_terminal}
        places = ((role.role, i) for role in placement.roles for i in range(len(role.nodes)))
        self.empty_since = {seat: before.get(seat, now) for seat in places if seat not in live}

    def note_idle(self, now: float) -> None:
        """Keep since when no pod of the group has been alive."""
        if any(not member.pod.is_terminal for member in self.members.values()):
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now


class GroupIndex:
    """The members of every group."""

    def __init__(
        self,
        world: ClusterWorld,
        *,
        mark: Callable[[ObjectKey], None],
        mark_at: Callable[[ObjectKey, float], None],
        on_gone: Callable[[str], None],
        clock: Clock,
        reader: MirrorReader | None,
    ) -> None:
        """Register on the mirrors.

        `mark` and `mark_at` are called with groups to look at again, `on_gone` with the uid of a
        job that was deleted.
        """
        self._world = world
        self._mirrors = world.mirrors
        self._health = world.health
        self._mark = mark
        self._mark_at = mark_at
        self._on_gone = on_gone
        self._clock = clock
        self._entries: dict[ObjectKey, GroupEntry] = {}
        #: The group of each pod that takes part.
        self._groups: dict[ObjectKey, ObjectKey] = {}
        #: The group that each pod with a job of its own would belong to.
        self._left: dict[ObjectKey, ObjectKey] = {}
        self._unregister = (
            follow(world.mirrors.jobs, self._on_job, reader),
            follow(world.mirrors.pods, self._on_pod, reader),
        )

    def close(self) -> None:
        """Take the handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    def get(self, key: ObjectKey) -> GroupEntry | None:
        """Return what is known of a group, or None."""
        return self._entries.get(key)

    def view(
        self, key: ObjectKey, now: float, *, counts_written_at: Callable[[str], float]
    ) -> GroupView | None:
        """Return the input of a decision about a group; None when there is no such group.

        `counts_written_at` returns when the status of the job with a uid was last written.
        """
        job = self._mirrors.jobs.get(*key)
        if job is not None and job.spec.adopts is None:
            return None  # a user's own job that has the name of a group: it came first
        entry = self._entries.get(key)
        if entry is None:
            if job is None:
                return None
            entry = self._entries[key] = GroupEntry()
        if entry.group is None and job is not None:
            entry.group = group_of(job)
        entry.note_idle(now)
        entry.note_empty(job, now)
        return GroupView(
            key=key,
            group=entry.group,
            members=entry.members,
            job=job,
            reading=entry.reading,
            usable=self._health.usable,
            idle_since=entry.idle_since,
            empty_since=entry.empty_since,
            counts_written_at=counts_written_at(job.metadata.uid) if job is not None else 0.0,
            elsewhere=Counter(entry.elsewhere.values()),
            is_forfeited=self._world.state.is_forfeited(key),
        )

    def _on_job(self, change: Change[Job]) -> None:
        job = change.new if change.new is not None else change.old
        assert job is not None
        if job.spec.adopts is None:
            return
        self._mark(change.key)
        is_other = change.old is None or change.new is None
        if is_other and job.spec.adopts.kind == "Pod":
            # A member that its group had no room for moves to a job of its own, or back.
            pod = self._mirrors.pods.get(change.key[0], job.spec.adopts.name)
            if pod is not None:
                self._put(pod)
        if change.new is None:
            self._on_gone(job.metadata.uid)
            self._forget_if_over(change.key)

    def _on_pod(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._remove(change.key)
        elif is_concerned(change.new):
            self._put(change.new)
        else:
            self._remove(change.key)

    def _put(self, pod: Pod) -> None:
        """Put a pod, new or changed, into the entry of its group."""
        if not is_concerned(pod):
            return
        key, name = pod.metadata.key, pod.metadata.name
        usual = membership_of(pod)
        membership = _membership_now(pod, usual, self._mirrors.jobs)
        group_key = membership.group.key
        if self._groups.get(key, group_key) != group_key:
            self._remove(key)
        entry = self._entry(group_key)
        self._groups[key] = group_key
        entry.group = membership.group
        before = entry.members.get(name)
        entry.members[name] = read_member(pod, membership, self._clock.now(), before)
        self._mark_soon(group_key, entry)
        usual_key = usual.group.key
        if usual_key != group_key and key not in self._left:
            self._left[key] = usual_key
            left = self._entry(usual_key)
            left.elsewhere[name] = usual.role
            left.reading = None  # of a time at which the group had no such member
            self._mark(usual_key)

    def _entry(self, key: ObjectKey) -> GroupEntry:
        return self._entries.setdefault(key, GroupEntry())

    def _remove(self, key: ObjectKey) -> None:
        left = self._left.pop(key, None)
        if left is not None:
            self._entries[left].elsewhere.pop(key[1], None)
            self._mark(left)
            self._forget_if_over(left)
        group_key = self._groups.pop(key, None)
        entry = self._entries.get(group_key) if group_key is not None else None
        if group_key is None or entry is None:
            return
        entry.members.pop(key[1], None)
        self._mark_soon(group_key, entry)
        self._forget_if_over(group_key)

    def _mark_soon(self, key: ObjectKey, entry: GroupEntry) -> None:
        """Mark a group; the changes of a big one's pods are collected for a moment."""
        count = len(entry.members)
        if count <= _EAGER_MEMBERS_MAX:
            self._mark(key)
        else:
            delay = min(count * _DELAY_SECONDS_PER_MEMBER, _DELAY_SECONDS_MAX)
            self._mark_at(key, self._clock.now() + delay)

    def _forget_if_over(self, key: ObjectKey) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.members or entry.elsewhere:
            return
        if self._mirrors.jobs.get(*key) is None:
            del self._entries[key]


def metadata_of(key: ObjectKey) -> ObjectMeta:
    """Return the metadata of a group whose job does not exist."""
    return ObjectMeta(key[1], namespace=key[0])


def _membership_now(pod: Pod, membership: Membership, jobs: Mirror[Job]) -> Membership:
    """Return the group that a pod belongs to now; `membership` is that by its tool's convention.

    A released pod's labels name it. A gated pod may have a job of its own, because its group had
    no room for it.
    """
    single = alone(pod)
    if single.group.key == membership.group.key:
        return membership
    key: ObjectKey = single.group.key
    if is_gated(pod):
        return single if jobs.get(*key) is not None else membership
    is_single = pod.metadata.labels.get(names.JOB_NAME) == key[1]
    return single if is_single else membership
