"""The pods of one group as decisions see them, and the roles that follow from them.

Identical members collapse to a count, as in any job: members are identical when the planner does
not distinguish them (requests, selectors, affinity to nodes, tolerations), whatever their images
and commands. Where a tool's role holds several shapes it becomes several roles.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import Container, Pod, PodSpec, PodTemplate, Volume
from fairlead.api.meta import ObjectMeta, label_number
from fairlead.decide.adoption.sources import SourceFacts
from fairlead.decide.pinning import node_of, refusal_of
from fairlead.model.asks.priorities import SYSTEM_PREFIX
from fairlead.model.pools.grouping import Membership, Tool, is_gated, role_name

#: Members of a role, by their numbers, whose claims of their own count.
OWN_CLAIMS_MAX = 64

#: (role, index)
Seat: TypeAlias = tuple[str, int]


class GateState(Enum):
    """Whether our scheduling gate holds a pod."""

    GATED = "Gated"
    RELEASED = "Released"
    #: Created without a gate, so the scheduler may bind it at once.
    UNGATED = "Ungated"


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One pod of a group. Role, index and uid are of its labels once it is released."""

    pod: Pod
    membership: Membership
    gate: GateState
    job_uid: str
    role: str
    index: int
    node: str
    #: Since when its scheduler finds no way to bind it.
    refused_at: float | None
    shape: str

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.pod.metadata.name

    @property
    def is_bare(self) -> bool:
        """True for a pod without a controller: nothing creates it again."""
        return not any(owner.controller for owner in self.pod.metadata.owner_references)

    @property
    def seat(self) -> Seat:
        """Role and index of a released member."""
        return (self.role, self.index)

    @property
    def is_live(self) -> bool:
        """True for a pod that has not ended and is not about to."""
        return not self.pod.is_terminal and self.pod.metadata.deletion_timestamp is None

    @property
    def is_gated_by_others(self) -> bool:
        """True while the gate of another controller holds it, whether ours does or not."""
        return any(gate.name != names.GANG_GATE for gate in self.pod.spec.scheduling_gates)

    @property
    def order(self) -> tuple[int, tuple[int | str, ...]]:
        """Sorts members as people count them: by index, else by the numbers in their names."""
        index = self.membership.index
        parts: list[int | str] = []
        for text, digits in re.findall(r"(\D*)(\d*)", self.name):
            parts += (text, int(digits) if digits else -1)
        return (index if index is not None else 1 << 30, tuple(parts))


def read_member(
    pod: Pod, membership: Membership, now: float, before: GroupMember | None = None
) -> GroupMember:
    """Read a pod; `before` is what was read of it last.

    Since when its scheduler refuses it is what we saw: the condition's own instant is that of the
    gate, for going from SchedulingGated to Unschedulable is no transition (its status stays False).
    """
    labels = pod.metadata.labels
    gate = GateState.UNGATED
    if is_gated(pod):
        gate = GateState.GATED
    elif names.JOB_UID in labels:
        gate = GateState.RELEASED
    refused_at: float | None = None
    if gate is GateState.RELEASED and refusal_of(pod) is not None:
        is_same = before is not None and before.pod.metadata.uid == pod.metadata.uid
        refused_at = before.refused_at if before is not None and is_same else None
        refused_at = now if refused_at is None else refused_at
    index = label_number(labels.get(names.INDEX))
    return GroupMember(
        pod=pod,
        membership=membership,
        gate=gate,
        job_uid=labels.get(names.JOB_UID, "") if gate is GateState.RELEASED else "",
        role=labels.get(names.ROLE, ""),
        index=-1 if index is None else index,
        node=node_of(pod.spec) if gate is not GateState.GATED else "",
        refused_at=refused_at,
        shape=shape_of(planned_pod(pod, membership)) if gate is GateState.GATED else "",
    )


def planned_pod(pod: Pod, membership: Membership) -> PodSpec:
    """Return what the planner looks at in a pod.

    Members with claims of other names are roles of their own, and a job has `ROLES_MAX`. So claims
    that a pod has alone, named after it as a StatefulSet names them, count for the first members
    of a role, and no claims count for pods that nothing has made alike: kube-scheduler alone looks
    at these.
    """
    planned, index = planned_spec(pod.spec), membership.index
    if not planned.volumes or (index is not None and index < OWN_CLAIMS_MAX):
        return planned
    shared = [v for v in planned.volumes if not _claim_name(v).endswith(f"-{pod.metadata.name}")]
    is_bare = not any(owner.controller for owner in pod.metadata.owner_references)
    if is_bare and membership.group.tool is not Tool.POD:
        shared = []
    return msgspec.structs.replace(planned, volumes=tuple(shared))


def _claim_name(volume: Volume) -> str:
    source = volume.persistent_volume_claim
    return "" if source is None else source.claim_name


def planned_spec(spec: PodSpec) -> PodSpec:
    """Return what of a pod the planner looks at, and the names and images that people know."""
    claims = (
        Volume(volume.name, persistent_volume_claim=volume.persistent_volume_claim)
        for volume in spec.volumes
        if volume.persistent_volume_claim is not None
    )
    return PodSpec(
        containers=tuple(map(_planned, spec.containers)),
        init_containers=tuple(map(_planned, spec.init_containers)),
        volumes=tuple(claims),
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        priority_class_name=_usable_class(spec),
        overhead=spec.overhead,
        topology_spread_constraints=spec.topology_spread_constraints,
        host_network=spec.host_network,
        resources=spec.resources,
        resource_claims=spec.resource_claims,
    )


def _usable_class(spec: PodSpec) -> str:
    """Return the pod's class; a class of the cluster's own components gives no place in a queue."""
    name = spec.priority_class_name
    return "" if name.startswith(SYSTEM_PREFIX) else name


def _planned(container: Container) -> Container:
    return Container(
        name=container.name,
        image=container.image,
        resources=container.resources,
        ports=tuple(port for port in container.ports if port.host_port),
        restart_policy=container.restart_policy,
    )


def shape_of(spec: PodSpec) -> str:
    """Return a digest of what distinguishes members for the planner."""
    planned = planned_spec(spec)
    bare = [
        msgspec.structs.replace(planned, containers=(), init_containers=()),
        [(c.resources, c.restart_policy) for c in planned.containers],
        [(c.resources, c.restart_policy) for c in planned.init_containers],
    ]
    ports = [c.ports for c in planned.containers if c.ports]
    bare += [ports] if ports else []
    data = msgspec.json.encode(bare, order="sorted")
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def asks_alike(one: PodSpec, other: PodSpec) -> bool:
    """True when both ask for the same resources, wherever they may run."""
    return _asked(one) == _asked(other)


def _asked(spec: PodSpec) -> list[object]:
    every = (*spec.init_containers, *spec.containers)
    whole = (len(spec.containers), spec.overhead, spec.resources, spec.resource_claims)
    return [*whole, [(c.resources, c.restart_policy) for c in every]]


@dataclass(slots=True)
class MemberCensus:
    """Members of a group, sorted out for one decision. Gated ones are in counting order."""

    gated: list[GroupMember] = field(default_factory=list[GroupMember])
    #: Released for the job itself, and alive.
    released: list[GroupMember] = field(default_factory=list[GroupMember])
    #: Released for the job itself, and over.
    ended: list[GroupMember] = field(default_factory=list[GroupMember])
    #: Alive, but not ours to place: released for another job object, or let in without a gate.
    strays: list[GroupMember] = field(default_factory=list[GroupMember])
    #: Being deleted.
    leaving: list[GroupMember] = field(default_factory=list[GroupMember])
    #: Seats of the job whose members ended well, in places that it had: they stay free.
    done: dict[Seat, None] = field(default_factory=dict[Seat, None])
    #: Members that ended well for a job object before this one.
    earlier: list[GroupMember] = field(default_factory=list[GroupMember])
    #: Their seats, if it is not known whether they come again: they are not waited for, and fill no
    #: seat of this job.
    former: dict[Seat, None] = field(default_factory=dict[Seat, None])
    #: How many of those, by role, are known not to come again: the job has no seats for them.
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_gated_by_others(self) -> bool:
        """True while another controller has not let all members in: it may yet change them."""
        return any(member.is_gated_by_others for member in self.gated)

    @property
    def is_empty(self) -> bool:
        """True when no member is alive, or about to start."""
        return not (self.gated or self.released or self.strays or self.leaving)


def take_census(
    members: Iterable[GroupMember], job_uid: str, facts: SourceFacts | None
) -> MemberCensus:
    """Sort the members out, but for `done`; `facts` is what was read of their owner."""
    census = MemberCensus()
    for member in members:
        is_own = member.gate is GateState.RELEASED and member.job_uid == job_uid
        if member.pod.is_terminal:
            is_good = member.gate is GateState.RELEASED and member.pod.status.phase == "Succeeded"
            if is_own:
                census.ended.append(member)
            elif is_good:
                census.earlier.append(member)
        elif not member.is_live:
            census.leaving.append(member)
        elif member.gate is GateState.GATED:
            census.gated.append(member)
        elif is_own:
            census.released.append(member)
        else:
            census.strays.append(member)
    census.gated.sort(key=lambda member: member.order)
    census.left_out = _left_out(census, facts)
    for member in census.earlier:
        if member.membership.role not in census.left_out:
            census.former[member.seat] = None
    return census


def _left_out(census: MemberCensus, facts: SourceFacts | None) -> dict[str, int]:
    """Return, by role, how many members of an earlier job are known not to come again.

    They are known where the owner gives the exact count of their role and numbers its members
    below that. Where numbers are missing, repeat or reach the count, the gated members may be
    another round, as large as the one before: none of that role is listed.
    """
    size = _whole_size(census.gated, facts)
    if facts is None or facts.has_more_rounds or size.total is not None:
        return {}
    out: dict[str, int] = {}
    for role, count in size.roles.items():
        over = {m.membership.index for m in census.earlier if m.membership.role == role}
        coming = {m.membership.index for m in census.gated if m.membership.role == role}
        if over and over | coming <= set(range(count)) and not over & coming:
            out[role] = len(over)
    return out


@dataclass(frozen=True, slots=True)
class Expected:
    """How large a group is: exact counts by role, or how many are enough, whatever their role."""

    roles: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None

    @property
    def is_known(self) -> bool:
        """True when the pods or their owner say it."""
        return bool(self.roles) or self.total is not None

    @property
    def count(self) -> int:
        """All members that are needed."""
        return self.total if self.total is not None else sum(self.roles.values())

    def without(self, roles: Mapping[str, int]) -> Expected:
        """Return the size of the group less so many members of each role."""
        left = {role: max(0, count - roles.get(role, 0)) for role, count in self.roles.items()}
        total = self.total
        return Expected(left, None if total is None else max(0, total - sum(roles.values())))


def expected_of(
    census: MemberCensus, facts: SourceFacts | None, elsewhere: Mapping[str, int]
) -> Expected:
    """Return the size of a group: what its pods say comes before what its owner says.

    `elsewhere` counts, by role, the members that have a job of their own: the group had no room for
    them when they came, and it does not wait for them.
    """
    return _whole_size(census.gated, facts).without(elsewhere).without(census.left_out)


def _whole_size(gated: Iterable[GroupMember], facts: SourceFacts | None) -> Expected:
    said = [m.membership.size for m in gated if m.membership.size is not None]
    if said:
        roles = facts.roles if facts is not None else {}
        is_agreed = sum(roles.values()) == max(said)
        return Expected(roles) if is_agreed else Expected(total=max(said))
    if facts is None or not facts.exists:
        return Expected()
    return Expected(facts.roles, facts.total)


def chosen(gated: list[GroupMember], expected: Expected) -> list[GroupMember]:
    """Return the members that make the gang: of each role as many as it has, the first ones first.

    Where only a number is known, all that exist: it is the least that must start together.
    """
    if not expected.roles or expected.total is not None:
        return gated
    out: list[GroupMember] = []
    counts: dict[str, int] = {}
    for member in gated:
        role = member.membership.role
        counts[role] = counts.get(role, 0) + 1
        if counts[role] <= expected.roles.get(role, 0):
            out.append(member)
    return out


def is_complete(members: list[GroupMember], expected: Expected, census: MemberCensus) -> bool:
    """True when all that must start together are there; `members` are the chosen ones.

    A member that has ended well is not waited for: the others were started together with it.
    """
    over = len(census.done | census.former)
    return bool(members) and len(members) + over >= expected.count


def roles_of(members: Sequence[GroupMember], expected: Expected) -> tuple[Role, ...]:
    """Return the roles of these members.

    Before all are there, a role of one shape gets the count that it will have.
    """
    by_role: dict[str, dict[str, list[GroupMember]]] = {}
    for member in members:
        shapes = by_role.setdefault(member.membership.role, {})
        shapes.setdefault(member.shape, []).append(member)
    is_alone = len(by_role) == 1
    out: list[Role] = []
    for role in sorted(by_role):
        shapes = by_role[role]
        whole = expected.roles.get(role, 0)
        if is_alone and expected.total is not None:
            whole = expected.total
        for shape, alike in shapes.items():
            count = max(whole, len(alike)) if len(shapes) == 1 else len(alike)
            name = role if len(shapes) == 1 else f"{role_name(role[:30])}-{shape}"
            spec = planned_pod(alike[0].pod, alike[0].membership)
            anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
            template = PodTemplate(spec=spec)
            if anti is not None or spec.topology_spread_constraints:
                template = PodTemplate(_shared_labels(alike), spec)
            out.append(Role(name=name, count=count, template=template))
    return tuple(out)


def _shared_labels(members: Sequence[GroupMember]) -> ObjectMeta:
    """Return the labels that all members have, which rules about pods may name."""
    first, *others = (member.pod.metadata.labels for member in members)
    return ObjectMeta(labels={k: v for k, v in first.items() if all(o.get(k) == v for o in others)})


def is_whole(job: Job, census: MemberCensus) -> bool:
    """True when the gated members can fill every role of the job that has not ended well."""
    counts: dict[str, int] = {}
    for role, _ in census.done:
        counts[role] = counts.get(role, 0) + 1
    if not census.gated:
        return False
    roles = roles_by_shape(job)
    for member in census.gated:
        role = roles.get((member.membership.role, member.shape))
        if role is not None:
            counts[role] = counts.get(role, 0) + 1
    return all(counts.get(role.name, 0) >= role.count for role in job.spec.roles)


def follows_from(job: Job, census: MemberCensus) -> bool:
    """True when the roles of a whole group's job say nothing that its pods do not.

    What a member asks for is compared by `is_whole`. Here: no role is there twice, none may begin
    with fewer members, and labels, which rules about pods select, are those of a member.
    """
    roles = roles_by_shape(job)
    if len({role.name for role in job.spec.roles}) < len(job.spec.roles):
        return False
    for role in job.spec.roles:
        labels = role.template.metadata.labels.items()
        alike = [m for m in census.gated if roles.get((m.membership.role, m.shape)) == role.name]
        if role.least != role.count:
            return False
        if labels and not any(labels <= m.pod.metadata.labels.items() for m in alike):
            return False
    return True


def fits_members(job: Job, census: MemberCensus) -> bool:
    """True when each role of a job that has its place has members, and asks for what they do."""
    roles = {role.name: role.template.spec for role in job.spec.roles}
    seen: dict[str, None] = {}
    for member in (*census.released, *census.leaving, *census.ended):
        asked, pod = roles.get(member.role), member.pod.spec
        if member.job_uid != job.metadata.uid:
            continue
        if asked is None or not asks_alike(asked, pod):
            return False
        if asked.priority_class_name != _usable_class(pod):
            return False
        seen[member.role] = None
    return len(seen) == len(job.spec.roles)


def has_other_roles(job: Job, roles: Sequence[Role]) -> bool:
    """True when these roles are not the job's: of another name, count or shape."""
    return _described(job.spec.roles) != _described(roles)


def _described(roles: Sequence[Role]) -> set[tuple[str, int, str]]:
    return {(role.name, role.count, shape_of(role.template.spec)) for role in roles}


def roles_by_shape(job: Job) -> dict[tuple[str, str], str]:
    """Return the job's role by a tool's role and shape; a role of several shapes is several."""
    out: dict[tuple[str, str], str] = {}
    for role in job.spec.roles:
        shape = shape_of(role.template.spec)
        out[(role.name, shape)] = role.name
        if role.name.endswith(f"-{shape}"):
            out[(role.name.removesuffix(f"-{shape}"), shape)] = role.name
    return out
