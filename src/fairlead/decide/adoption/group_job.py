"""The Job that represents a group of other tools' pods, and how to read the group back from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.api import names
from fairlead.api.job import Adopts, Job, JobSpec
from fairlead.api.meta import ObjectMeta, OwnerReference
from fairlead.decide.adoption.actions import CreateJob
from fairlead.decide.adoption.members import Expected, Member, roles_of
from fairlead.decide.adoption.source_kinds import source_kind_of
from fairlead.model.grouping import Group, Source, Tool, alone

MANAGER = "fairlead-adoption"
#: Kind of a group that only a label names; no such object exists.
NAMED_KIND = "Gang"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What a job is made of: a group, the members that make the gang, and its owner's uid."""

    group: Group
    members: tuple[Member, ...]
    expected: Expected
    uid: str


def job_for(request: GroupRequest) -> Job:
    """Return the job that represents a group, to be collected with the group's owner."""
    group, members, uid = request.group, request.members, request.uid
    source = group.source or Source(names.API_VERSION, NAMED_KIND, group.name)
    owners: tuple[OwnerReference, ...] = ()
    if uid:
        owners = (OwnerReference(source.api_version, source.kind, source.name, uid),)
    pod = members[0].pod
    return Job(
        metadata=ObjectMeta(
            namespace=group.key[0],
            name=group.key[1],
            labels={names.MANAGED_BY: MANAGER},
            owner_references=owners,
            finalizers=(names.JOB_FINALIZER,),
        ),
        spec=JobSpec(
            roles=roles_of(members, request.expected),
            team=pod.metadata.labels.get(names.TEAM, ""),
            adopts=Adopts(source.kind, source.name, source.api_version, uid),
        ),
    )


def single_member_job(member: Member) -> CreateJob:
    """Return the job of a member that its group has no room for: a gang by itself."""
    membership = alone(member.pod)
    single = replace(member, membership=membership)
    uid = member.pod.metadata.uid
    return CreateJob(job_for(GroupRequest(membership.group, (single,), Expected(total=1), uid)))


#: Groups without an object that is read.
_UNREAD = {("v1", "Pod"): Tool.POD, (names.API_VERSION, NAMED_KIND): Tool.NAMED}


def group_of(job: Job) -> Group | None:
    """Return the group that a job represents, read from the job alone."""
    adopts = job.spec.adopts
    if adopts is None:
        return None
    found = source_kind_of(adopts.api_version, adopts.kind)
    unread = _UNREAD.get((adopts.api_version, adopts.kind), Tool.OWNED)
    tool = found.tool if found is not None else unread
    source = Source(adopts.api_version, adopts.kind, adopts.name, adopts.uid)
    return Group(job.metadata.key, tool, adopts.name, None if tool is Tool.NAMED else source)
