"""How many members an attempt begins with: as many as fit, from the least to all of each role.

What a gang waits for, reserves, preempts for and is bought for are its least members; only once
these have places does it take more. So an elastic gang waits like one of its least size, and the
stages that look at waiting gangs need not know that others exist.

    least      the members without which no attempt begins (`RoleRequest.count`)
    all        tried next, since that is the common case
    between    role by role in the order of the spec, each as large as it fits while the later ones
               have their least: the last role is the first to shrink

Of one role the size is the largest that fits, since what has room for n members has room for fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.decide.placement.places.capacity import Capacity
from fairlead.decide.placement.places.search import Plan
from fairlead.model.gang.gangs import GangRequest, InvalidGang


def largest_plan(
    capacity: Capacity,
    gang: GangRequest,
    plan_of: Callable[[GangRequest], Plan | None],
    admits: Callable[[GangRequest], bool],
) -> Plan | None:
    """Place a gang at the largest size; None where not even its least members find places.

    `plan_of` places the gang at one size in `capacity`, or returns None and leaves it as it was; it
    gives the same answer in the same state. `admits` says which sizes above the least may be tried.
    """
    if not gang.is_elastic:
        return plan_of(gang)
    mark = capacity.mark()
    least = [role.count for role in gang.roles]
    plan = plan_of(gang.sized(least))
    if plan is None:
        return None

    def tried(counts: list[int]) -> Plan | None:
        capacity.rollback_to(mark)
        sized = gang.sized(counts)
        return plan_of(sized) if admits(sized) else None

    most = [role.count + role.more for role in gang.roles]
    plan = tried(most)
    if plan is not None:
        return plan
    found = list(least)
    for i, (low, high) in enumerate(zip(least, most, strict=True)):
        while low < high:
            middle = (low + high + 1) // 2
            if tried([*found[:i], middle, *least[i + 1 :]]) is not None:
                low = middle
            else:
                high = middle - 1
        found[i] = low
    capacity.rollback_to(mark)
    return plan_of(gang.sized(found))


def planned(gang: GangRequest, plan: Plan) -> GangRequest:
    """Return the gang at the size of a plan."""
    return gang.sized([len(slots) for slots in plan.slots])


def of_size(
    gang: GangRequest | InvalidGang, counts: Sequence[tuple[str, int]]
) -> GangRequest | None:
    """Return the gang with so many members of each role; None where no attempt may be so."""
    if isinstance(gang, InvalidGang) or not gang.has_size(counts):
        return None
    return gang.sized([count for _, count in counts])
