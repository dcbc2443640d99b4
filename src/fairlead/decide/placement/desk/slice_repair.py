"""Place the lost members of a gang whose members are together in slices.

A slice that keeps members gets the others in the domain of those. A slice that keeps none goes
anywhere, together with the other such slices. Where a domain has no room, its slice may move as a
whole, members on healthy nodes included: that is less than the whole gang.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.search import plan_within
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.nodes import Bools, Ints, counted


def place_slices(
    capacity: PresentCapacity,
    gang: GangRequest,
    slots: tuple[Ints, ...],
    kept: tuple[Bools, ...],
    *,
    admitted: Bools,
    moves_slices: bool,
) -> tuple[Ints, ...] | None:
    """Return the slots of all members, those that are not kept on admitted nodes; None: no room.

    The places of lost members are free in `capacity`, which then holds the new places; with None it
    is as it was. `slots[r][i]` and `kept[r][i]` are about member i of role r. With `moves_slices`
    members that are kept may move.
    """
    table, size, mark = capacity.state.table, gang.topology.slice_size, capacity.mark()
    cells = table.labels.domains(gang.topology.slice_level.key)[0]
    found: list[Ints] = []
    for role, old, stays in zip(gang.roles, slots, kept, strict=True):
        new = old.copy()
        homeless: list[Ints] = []
        for start in range(0, role.count, size):
            members = np.arange(start, min(start + size, role.count))
            staying, lost = members[stays[members]], members[~stays[members]]
            if not len(lost):
                continue
            if len(staying):
                home = cells == cells[old[staying[0]]]
                part = replace(gang.unbound, roles=(replace(role, count=len(lost)),))
                plan = plan_within(capacity, table, part, admitted & home & (cells >= 0))
                if plan is not None:
                    new[lost] = plan.slots[0]
                    continue
                if not moves_slices:
                    capacity.rollback_to(mark)
                    return None
                distinct, counts = counted(old[staying])
                capacity.take(distinct, -counts, role.member)
            homeless.append(members)
        if homeless:
            members = np.concatenate(homeless)
            part = replace(gang, roles=(replace(role, count=len(members)),))
            plan = plan_within(capacity, table, part, admitted)
            if plan is None:
                capacity.rollback_to(mark)
                return None
            new[members] = plan.slots[0]
        found.append(new)
    return tuple(found)
