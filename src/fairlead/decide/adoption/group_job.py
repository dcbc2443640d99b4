"""The Job that represents a group of other tools' pods, and how to read the group back from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.api import names
from fairlead.api.jobs.job import Adopts, Job, JobSpec
from fairlead.api.meta import ObjectMeta, OwnerReference
from fairlead.decide.adoption.actions import CreateJob
from fairlead.decide.adoption.members import Expected, GroupMember, MemberCensus, roles_of
from fairlead.decide.adoption.source_kinds import source_kind_of
from fairlead.model.adopted import as_stated
from fairlead.model.pools.grouping import Group, GroupSource, Tool, alone

MANAGER = "fairlead-adoption"
#: Kind of a group that only a label names; no such object exists.
NAMED_KIND = "Gang"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What a job is made of: a group, the members that make the gang, and its owner's uid."""

    group: Group
    members: tuple[GroupMember, ...]
    expected: Expected
    uid: str


def job_for(request: GroupRequest) -> Job:
    """Return the job that represents a group, to be collected with the group's owner."""
    group, members, uid = request.group, request.members, request.uid
    source = _source_of(group)
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


def single_member_job(member: GroupMember) -> CreateJob:
    """Return the job of a member that its group has no room for: a gang by itself."""
    membership = alone(member.pod)
    single = replace(member, membership=membership)
    uid = member.pod.metadata.uid
    return CreateJob(job_for(GroupRequest(membership.group, (single,), Expected(total=1), uid)))


#: Groups without an object that is read.
_UNREAD = {("v1", "Pod"): Tool.POD, (names.API_VERSION, NAMED_KIND): Tool.NAMED}


def deviations(job: Job, group: Group | None, census: MemberCensus) -> str:
    """Return what of a job is not as `job_for` writes it for these pods; "" for nothing.

    Whoever may write jobs may have made or changed it. Roles are judged once all members are there
    (`follows_from`).
    """
    spec, stated = job.spec, as_stated(job).spec
    if job.metadata.labels.get(names.MANAGED_BY) != MANAGER:
        return f"it lacks the label {names.MANAGED_BY}={MANAGER}"
    fields = zip(JobSpec.__struct_fields__, JobSpec.__struct_encode_fields__, strict=True)
    wrong = [
        wire for name, wire in fields
        if name != "team" and getattr(spec, name) != getattr(stated, name)
    ]  # fmt: skip
    if wrong:
        return f"no pod can state {', '.join(f'spec.{wire}' for wire in wrong)}"
    adopts, gated = spec.adopts, census.gated
    if group is None or adopts is None or not gated:
        return ""
    source = _source_of(group)
    said = (adopts.kind, adopts.name, adopts.api_version, adopts.uid if source.uid else "")
    if said != (source.kind, source.name, source.api_version, source.uid):
        return f"its pods are those of {source.kind} {source.name}, not of spec.adopts"
    claimed = gated[0].pod.metadata.labels.get(names.TEAM, "")
    if claimed and claimed != spec.team:
        return f"its pods name team {claimed}, not spec.team"
    return ""


def _source_of(group: Group) -> GroupSource:
    return group.source or GroupSource(names.API_VERSION, NAMED_KIND, group.name)


def group_of(job: Job) -> Group | None:
    """Return the group that a job represents, read from the job alone."""
    adopts = job.spec.adopts
    if adopts is None:
        return None
    found = source_kind_of(adopts.api_version, adopts.kind)
    unread = _UNREAD.get((adopts.api_version, adopts.kind), Tool.OWNED)
    tool = found.tool if found is not None else unread
    source = GroupSource(adopts.api_version, adopts.kind, adopts.name, adopts.uid)
    return Group(job.metadata.key, tool, adopts.name, None if tool is Tool.NAMED else source)
