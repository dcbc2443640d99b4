"""A gang as the planner sees it: roles of identical members, and how close they want to be.

Identical members collapse to a count, so a gang of a thousand costs what a gang of one does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fairlead.api.jobs.job import MEMBERS_MAX, ROLES_MAX, JobSpec, Role
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Toleration
from fairlead.api.names import HOSTNAME
from fairlead.api.values.quantity import is_gpu
from fairlead.model.asks.requests import (
    NAME_COLUMN,
    MemberClass,
    Neighbours,
    Request,
    RequestError,
    RequestReader,
    constraints_of,
    is_device,
    request_of,
)
from fairlead.model.asks.teams import BORROWS
from fairlead.model.asks.topology import ANYWHERE, Level, TopologyRequest, topology_of
from fairlead.model.gang.role_reach import RoleReach, Tie, within
from fairlead.model.inventory.reserved_nodes import reservation_key

#: (namespace, name)
JobKey: TypeAlias = tuple[str, str]


class RoleRequest(Struct, frozen=True, cache_hash=True):
    """`count` identical members, and up to `more` beyond these where there is room for them."""

    name: str
    count: int
    member: MemberClass
    more: int = 0
    #: Full names of images that its nodes had better have (`GangRequest.preferring`).
    images: tuple[str, ...] = ()
    #: Members that have to be on nodes that reach their own volumes.
    ties: tuple[Tie, ...] = ()
    #: What the claims for devices of a member use of ResourceQuotas, by the names in these.
    claims: Request = ()

    def only(self, members: Sequence[int]) -> RoleRequest:
        """Return the role with these members and no others, in this order."""
        return replace(self, count=len(members), more=0, ties=within(self.ties, members))


class GangRequest(Struct, frozen=True, cache_hash=True):
    """What must be placed together. Equal requests fit or do not fit together.

    Of an elastic job these are the members without which no attempt begins.
    """

    roles: tuple[RoleRequest, ...]
    topology: TopologyRequest = TopologyRequest()
    #: The same gang once it may borrow nodes again; None where nothing keeps it from that for now.
    borrowing: GangRequest | None = None

    @property
    def member_count(self) -> int:
        """All members of all roles."""
        count = 0
        for role in self.roles:  # asked at each event of a job: no generator
            count += role.count
        return count

    @property
    def is_elastic(self) -> bool:
        """True when it takes more members where there is room for them."""
        for role in self.roles:  # noqa: SIM110 # asked at each event of a job: no generator
            if role.more:
                return True
        return False

    def sized(self, counts: Sequence[int]) -> GangRequest:
        """Return the same gang with exactly so many members of each role."""
        roles = list(zip(self.roles, counts, strict=True))
        if all(role.count == count and not role.more for role, count in roles):
            return self
        return replace(self, roles=tuple(
            r.only(range(n)) if r.ties else replace(r, count=n, more=0) for r, n in roles
        ))  # fmt: skip

    def keeping(self, counts: Sequence[int]) -> GangRequest:
        """Return the same gang with so many members of each role as its least at least."""
        roles = tuple(
            replace(r, count=max(r.count, n), more=r.count + r.more - max(r.count, n))
            for r, n in zip(self.roles, counts, strict=True)
        )
        return replace(self, roles=roles) if self.is_elastic else self

    def has_size(self, counts: Sequence[tuple[str, int]]) -> bool:
        """True when so many members of each role, in the order of the roles, may be an attempt."""
        if [name for name, _ in counts] != [role.name for role in self.roles]:
            return False
        return all(
            role.count <= count <= role.count + role.more
            for role, (_, count) in zip(self.roles, counts, strict=True)
        )

    @property
    def is_simple(self) -> bool:
        """True when the sum of what nodes hold decides: one role, no domain or slices needed, any
        pod may be near, and no member is tied to its volumes.
        """
        is_alike = len(self.roles) == 1 and not self.topology.is_bound and not self.has_neighbours
        return is_alike and not self.roles[0].ties

    @property
    def has_neighbours(self) -> bool:
        """True when it matters which pods are near."""
        return any(role.member.neighbours is not None for role in self.roles)

    @property
    def has_reach(self) -> bool:
        """True when its volumes can be reached from some nodes only."""
        return any(role.ties or role.member.constraints.reach for role in self.roles)

    @property
    def has_ties(self) -> bool:
        """True when members have to be where their own volumes are."""
        return any(role.ties for role in self.roles)

    @property
    def patient(self) -> GangRequest:
        """The same gang while it waits for the level that it prefers."""
        return replace(self, topology=self.topology.patient)

    @property
    def may_borrow(self) -> bool:
        """True for a gang that may use nodes of other teams than its own."""
        return any(BORROWS in role.member.constraints.tolerations for role in self.roles)

    @property
    def confined(self) -> GangRequest:
        """The same gang while it may not borrow."""
        if not self.may_borrow:
            return self
        roles = tuple(replace(r, member=_confined(r.member)) for r in self.roles)
        return replace(self, roles=roles, borrowing=self)

    @property
    def accepting(self) -> GangRequest:
        """The same gang once it has waited."""
        gang = self.borrowing or self
        return replace(gang, topology=gang.topology.accepting) if gang.topology.is_patient else gang

    def preferring(self, images: Sequence[tuple[str, ...]]) -> GangRequest:
        """Return the same gang, with the images of each role: where places are chosen that a job
        gets. No request that is compared or remembered has them, so jobs of other images share it.
        """
        roles = zip(self.roles, images, strict=True)
        return replace(self, roles=tuple(replace(r, images=each) for r, each in roles))

    def within_level(self, level: Level) -> GangRequest:
        """Return the same gang in one domain of this level and no other."""
        return replace(self, topology=replace(self.topology, ladder=(level,)))

    @property
    def hold_seconds(self) -> float | None:
        """How long an attempt may hold its nodes; None where that does not matter."""
        return self.roles[0].member.constraints.hold_seconds

    @property
    def reservation(self) -> str:
        """The reservation that it uses; "" for none."""
        return self.roles[0].member.constraints.reservation

    @property
    def instant(self) -> GangRequest:
        """The same gang, as if it ran into no window, and its reservation lasted."""
        roles = tuple(replace(r, member=_instant(r.member)) for r in self.roles)
        return replace(self, roles=roles)

    @property
    def anywhere(self) -> GangRequest:
        """The same gang, as if its volumes could be reached from all nodes."""
        roles = tuple(replace(r, member=_anywhere(r.member), ties=()) for r in self.roles)
        return replace(self, roles=roles)

    @property
    def taking_spares(self) -> GangRequest:
        """The same gang, as if all its members might run on spares."""
        roles = tuple(replace(r, member=_taking_spares(r.member)) for r in self.roles)
        return replace(self, roles=roles)

    @property
    def of_any_team(self) -> GangRequest:
        """The same gang, as if its members might run on the nodes of all teams."""
        roles = tuple(replace(r, member=_borrowing(r.member)) for r in self.roles)
        return replace(self, roles=roles)

    @property
    def unsliced(self) -> GangRequest:
        """The same gang, as if its members need not be together in slices."""
        return replace(self, topology=replace(self.topology, slice_level=ANYWHERE, slice_size=1))

    @property
    def unbound(self) -> GangRequest:
        """The same gang, as if any nodes would do."""
        return replace(self, topology=TopologyRequest(path=self.topology.path))

    def with_count(self, index: int, count: int) -> GangRequest:
        """Return the same gang with another number of members of one role."""
        role = self.roles[index]
        sized = role.only(range(count)) if role.ties else replace(role, count=count)
        return self._with_role(index, sized)

    def with_amount(self, index: int, resource: str, amount: int) -> GangRequest:
        """Return the same gang whose members of one role ask for another amount of a resource."""
        role = self.roles[index]
        request = request_of({**dict(role.member.request), resource: amount}.items())
        member = replace(role.member, request=request)
        return self._with_role(index, replace(role, member=member))

    def _with_role(self, index: int, role: RoleRequest) -> GangRequest:
        roles = tuple(role if i == index else other for i, other in enumerate(self.roles))
        return replace(self, roles=roles)

    def but_any_neighbours(self) -> GangRequest:
        """Return the same gang, as if any pod might be near."""
        roles = (replace(r, member=replace(r.member, neighbours=None)) for r in self.roles)
        return replace(self, roles=tuple(roles))

    def total(self, resource: str) -> int:
        """Return the amount that all members ask together, in base units."""
        return sum(role.count * role.member.amount(resource) for role in self.roles)

    def placing_order(self) -> list[int]:
        """Return the indices of the roles, largest members first: devices, then the rest."""
        return sorted(range(len(self.roles)), key=lambda i: (_size(self.roles[i].member), i))


def _confined(member: MemberClass) -> MemberClass:
    tolerations = tuple(t for t in member.constraints.tolerations if t != BORROWS)
    return replace(member, constraints=replace(member.constraints, tolerations=tolerations))


def _borrowing(member: MemberClass) -> MemberClass:
    tolerations = (*member.constraints.tolerations, BORROWS)
    return replace(member, constraints=replace(member.constraints, tolerations=tolerations))


def _instant(member: MemberClass) -> MemberClass:
    return replace(member, constraints=replace(member.constraints, hold_seconds=None))


def _anywhere(member: MemberClass) -> MemberClass:
    return replace(member, constraints=replace(member.constraints, reach=()))


def _taking_spares(member: MemberClass) -> MemberClass:
    return replace(member, constraints=replace(member.constraints, takes_spares=True))


def _size(member: MemberClass) -> tuple[int, ...]:
    devices = sum(amount for resource, amount in member.request if is_device(resource))
    return (-devices, -member.amount("cpu"), -member.amount("memory"))


class InvalidGang(Struct, frozen=True, cache_hash=True):
    """A job whose request cannot be read; `field` is the path in the job, with what is wrong."""

    field: str


def gpus_of(gang: GangRequest | InvalidGang) -> int:
    """Return the GPUs, of any vendor, that all members ask together."""
    if isinstance(gang, InvalidGang):
        return 0
    count = 0
    for role in gang.roles:
        count += role.count * _gpus_asked(role.member.request)
    return count


@lru_cache(maxsize=1024)  # thousands of members share a few requests
def _gpus_asked(request: Request) -> int:
    return sum(amount for name, amount in request if is_gpu(name))


def gang_of(
    spec: JobSpec,
    reader: RequestReader,
    tolerations_of: Callable[[tuple[Toleration, ...]], tuple[Toleration, ...]] | None = None,
    neighbours_of: Callable[[Role], Neighbours | None] | None = None,
    *,
    levels: Sequence[Level] = (),
    hold_seconds: float | None = None,
    team: str = "",
    reaches: Sequence[RoleReach] = (),
) -> GangRequest | InvalidGang:
    """Return what a job asks for, or the first field that cannot be read.

    `tolerations_of` returns what a member tolerates, given what its template does; `neighbours_of`
    which pods may be near the members of a role. `levels` are those of the topology, widest first;
    `hold_seconds` how long an attempt may hold its nodes, where windows are planned. `team` is that
    of the job, whose reservation it may name. `reaches` says for each role from where its volumes
    can be reached; () where none has any.
    """
    if len(spec.roles) > ROLES_MAX:
        return InvalidGang(f"spec.roles: {len(spec.roles)} roles; accepted: {ROLES_MAX} at most")
    if (wrong := _wrong_counts(spec.roles)) is not None:
        return wrong
    roles: list[RoleRequest] = []
    reservation = reservation_key(team, spec.reservation)
    for i, role in enumerate(spec.roles):
        pod = role.template.spec
        if tolerations_of is not None:
            tolerations = tolerations_of(pod.tolerations)
            if tolerations != pod.tolerations:
                pod = replace(pod, tolerations=tolerations)
        try:
            beside = neighbours_of(role) if neighbours_of is not None else None
            constraints = constraints_of(pod, hold_seconds=hold_seconds, reservation=reservation)
            member = MemberClass(reader.request(pod), constraints, beside)
        except RequestError as error:
            return InvalidGang(f"spec.roles[{i}].template.spec.{error}")
        roles.append(RoleRequest(role.name, role.least, member, role.count - role.least))
    if not roles:
        return InvalidGang("spec.roles: a job needs at least one role")
    if reaches:
        roles = [_reaching(role, near) for role, near in zip(roles, reaches, strict=True)]
    try:
        topology = _topology(spec, levels, reaches)
    except ValueError as error:
        return InvalidGang(f"spec.topology.{error}")
    is_sliced = topology.is_sliced
    if is_sliced and any(_has_domain_rules(role.member.neighbours) for role in roles):
        return InvalidGang(
            "spec.topology.sliceSize: does not go together with topologySpreadConstraints or "
            "with anti-affinity by another label than kubernetes.io/hostname"
        )
    gang = GangRequest(tuple(roles), topology)
    if (is_sliced or spec.adopts is not None) and gang.is_elastic:
        field = "adopts" if spec.adopts is not None else "topology.sliceSize"
        return InvalidGang(f"spec.{field}: does not go together with minCount")
    return gang


def _topology(
    spec: JobSpec, levels: Sequence[Level], reaches: Sequence[RoleReach]
) -> TopologyRequest:
    """Return what a job asks of the topology; ValueError. Where members share a volume that is yet
    to be made, or devices that are yet to be had, the gang is in one domain, unless the job
    requires one itself.
    """
    if not any(near.domains for near in reaches):
        return topology_of(spec.topology, levels)
    asked = spec.topology or Topology()
    members = Counter[tuple[str, str]]()
    for near, role in zip(reaches, spec.roles, strict=True):
        members.update(dict.fromkeys(near.domains, role.count))
    shared = [domain for (_, domain), count in members.items() if count > 1]
    if not shared or (asked.required and asked.key):
        return topology_of(spec.topology, levels)
    domain = HOSTNAME if HOSTNAME in shared else min(shared)  # which is in one of any other
    within = replace(asked, key=domain, required=True, preferred=asked.key)
    try:
        return topology_of(within, levels)
    except ValueError:  # what it prefers is no narrower
        return topology_of(replace(within, preferred="", preferred_seconds=0), levels)


def _reaching(role: RoleRequest, near: RoleReach) -> RoleRequest:
    """Return a role whose members reach their volumes and take the devices of their claims."""
    constraints = replace(role.member.constraints, reach=near.shared)
    request = tuple(sorted(role.member.request + near.devices))
    member = replace(role.member, constraints=constraints, request=request)
    return replace(role, member=member, ties=near.ties, claims=near.quota)


def _wrong_counts(roles: Sequence[Role]) -> InvalidGang | None:
    """Return what is wrong with the counts of the roles; asked at each event of a job."""
    members, has_none = 0, False
    for role in roles:
        members += role.count
        has_none = has_none or role.count < 1
    if members > MEMBERS_MAX or has_none:
        return InvalidGang(f"spec.roles: {members} members; accepted: 1 to {MEMBERS_MAX}")
    for i, role in enumerate(roles):
        if role.min_count is not None and not 1 <= role.min_count <= role.count:
            return InvalidGang(f"spec.roles[{i}].minCount: must be from 1 to {role.count}")
    return None


def _has_domain_rules(beside: Neighbours | None) -> bool:
    """True when members keep apart, or are spread, across domains of several nodes."""
    return beside is not None and (
        bool(beside.spreads) or any(mark.key != NAME_COLUMN for mark in beside.apart)
    )
