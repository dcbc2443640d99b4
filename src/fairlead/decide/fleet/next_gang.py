"""Which idle nodes stay because the next gang needs them: the one that waits for full pools.

Nothing more can be bought for it, so it starts once nodes in use are free. What is idle until then
would go meanwhile, and be bought again for it.
"""

from __future__ import annotations

import numpy as np

from fairlead.decide.fleet.demand import Demand, Unbought
from fairlead.decide.fleet.view import FleetView
from fairlead.decide.placement.capacity import PresentCapacity
from fairlead.decide.placement.whatif import fits_empty
from fairlead.decide.reasons import Reason
from fairlead.model.gangs import GangRequest

#: Gangs that are asked about in one decision.
_ASKED_MAX = 3


def kept_for_next(view: FleetView, demand: Demand) -> set[str]:
    """Return the idle nodes for the first gang that waits for full pools and that fits them."""
    full = (
        gang for key, gang in view.waiting
        if demand.unbought.get(key, (None,))[0] is Unbought.POOLS_FULL
    )  # fmt: skip
    for gang, _ in zip(full, range(_ASKED_MAX), strict=False):
        if fits_empty(view.state, gang).reason is Reason.PLACED:
            return _nodes_for(view, gang)
    return set()


def _nodes_for(view: FleetView, gang: GangRequest) -> set[str]:
    """Return as many idle nodes as the members of each role could use, by name."""
    table, out = view.state.table, set[str]()
    with view.state.transaction() as transaction:
        capacity = PresentCapacity(view.state, transaction)
        for role in gang.roles:
            left, fits = role.count, capacity.fits(role.member)
            for name in sorted(table.names[slot] for slot in np.flatnonzero(fits).tolist()):
                slot = table.slot(name)
                if left > 0 and slot is not None and name in view.nodes.idle_since:
                    out.add(name)
                    left -= int(fits[slot])
    return out
