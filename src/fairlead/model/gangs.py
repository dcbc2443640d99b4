"""A gang as the planner sees it: roles of identical members, and how close they want to be.

Identical members collapse to a count, so a gang of a thousand costs what a gang of one does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.core import Toleration
from fairlead.api.job import MEMBERS_MAX, ROLES_MAX, JobSpec, Topology
from fairlead.model.nodes import is_device
from fairlead.model.requests import (
    MemberClass,
    RequestError,
    RequestReader,
    constraints_of,
)

#: (namespace, name)
JobKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """`count` identical members."""

    name: str
    count: int
    member: MemberClass


@dataclass(frozen=True, slots=True)
class GangRequest:
    """What must be placed together. Equal requests fit or do not fit together."""

    roles: tuple[RoleRequest, ...]
    topology_key: str = ""
    topology_required: bool = False

    @property
    def member_count(self) -> int:
        """All members of all roles."""
        return sum(role.count for role in self.roles)

    @property
    def is_simple(self) -> bool:
        """True when the sum of what nodes hold decides: one role and no single domain needed."""
        return len(self.roles) == 1 and not (self.topology_key and self.topology_required)

    def total(self, resource: str) -> int:
        """Return the amount that all members ask together, in base units."""
        return sum(role.count * role.member.amount(resource) for role in self.roles)

    def placing_order(self) -> list[int]:
        """Return the indices of the roles, largest members first: devices, then the rest."""
        return sorted(range(len(self.roles)), key=lambda i: (_size(self.roles[i].member), i))


def _size(member: MemberClass) -> tuple[int, ...]:
    devices = sum(amount for resource, amount in member.request if is_device(resource))
    return (-devices, -member.amount("cpu"), -member.amount("memory"))


@dataclass(frozen=True, slots=True)
class InvalidGang:
    """A job whose request cannot be read; `field` is the path in the job, with what is wrong."""

    field: str


def gang_of(
    spec: JobSpec,
    reader: RequestReader,
    tolerations_of: Callable[[tuple[Toleration, ...]], tuple[Toleration, ...]] | None = None,
) -> GangRequest | InvalidGang:
    """Return what a job asks for, or the first field that cannot be read.

    `tolerations_of` returns what a member tolerates, given what its template does.
    """
    if len(spec.roles) > ROLES_MAX:
        return InvalidGang(f"spec.roles: {len(spec.roles)} roles; accepted: {ROLES_MAX} at most")
    members = sum(role.count for role in spec.roles)
    if members > MEMBERS_MAX or any(role.count < 1 for role in spec.roles):
        return InvalidGang(f"spec.roles: {members} members; accepted: 1 to {MEMBERS_MAX}")
    roles: list[RoleRequest] = []
    for i, role in enumerate(spec.roles):
        pod = role.template.spec
        if tolerations_of is not None:
            tolerations = tolerations_of(pod.tolerations)
            if tolerations != pod.tolerations:
                pod = replace(pod, tolerations=tolerations)
        try:
            member = MemberClass(reader.request(pod), constraints_of(pod))
        except RequestError as error:
            return InvalidGang(f"spec.roles[{i}].template.spec.{error}")
        roles.append(RoleRequest(role.name, role.count, member))
    if not roles:
        return InvalidGang("spec.roles: a job needs at least one role")
    topology = spec.topology or Topology(key="")
    return GangRequest(tuple(roles), topology.key, topology.required and bool(topology.key))
