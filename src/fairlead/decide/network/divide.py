"""Divides a budget over nodes: water-filling with weights, a floor for each, and hysteresis.

What nodes may enforce at any instant of a round never exceeds the budget in sum, whichever of the
new rates has arrived: a node is counted with the larger of what it holds and what it gets. So what
is taken from one is given to another a round later, when the first has confirmed its rate. Three
rounds reach the division for any demand: what a node holds too much goes in the first, arrives with
others in the second, and what was rounded or scaled is given in the third.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Bits per second, one for each node; shape (nodes,).
Rates = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DividePolicy:
    """Parts of a budget in 1/1000.

    `reserve` is kept for nodes that begin to send: their floors come from it at once. `floors` is
    what all floors have together. `headroom` is what a node may have beyond its demand, so that it
    can grow without a round. A rate that would change by at most `band` of it stays.
    """

    reserve_permille: int = 10
    floors_permille: int = 10
    headroom_permille: int = 250
    band_permille: int = 20


_POLICY = DividePolicy()
#: What all nodes that do not send yet may begin with, together, in 1/1000 of a budget.
STARTS_PERMILLE = 20


def divide(
    budget: int, demand: Rates, held: Rates, weights: Rates, *, held_elsewhere: int = 0,
    policy: DividePolicy = _POLICY,
) -> Rates:  # fmt: skip
    """Return the rate of each node; empty for no nodes.

    `demand` is what each would send, `held` the most that it may enforce now: the rate that it was
    given or, until it has confirmed that, the larger one before; 0 for one that has none yet.
    `weights` are at least 1. `held_elsewhere` is what nodes that are not among these may enforce
    of the budget for now. The sum of max(held, new) is at most that of `held`, or the budget less
    `held_elsewhere` where that is more. 0 means that there is no room for a node in this round.
    """
    count = len(demand)
    if not count:
        return np.zeros(0, dtype=np.int64)
    wanted = _target(budget, demand, weights, policy)
    wanted = np.where(_is_near(wanted, held, policy), held, wanted)
    raised = np.maximum(wanted - held, 0)
    room = max(0, budget - held_elsewhere - int(held.sum()))
    return np.minimum(wanted, held) + _within(room, raised, held, _floor(budget, count, policy))


def safe_share(budget: int, senders: int) -> int:
    """Return what each of the nodes that sent lately may send while nothing divides the budget.

    Their number is rounded up to a power of two, so a share that was sent earlier is still right
    while their number grows by less than that.
    """
    return budget // rounded_up(senders)


def rounded_up(nodes: int) -> int:
    """Return the least power of two that is at least a number of nodes."""
    return 1 << max(0, nodes - 1).bit_length()


def starting_share(budget: int, nodes: int) -> int:
    """Return what a node that does not send may begin with; `nodes` may do so at once."""
    return max(1, budget * STARTS_PERMILLE // 1000 // nodes)


def _floor(budget: int, count: int, policy: DividePolicy) -> int:
    """Return the least rate of a node."""
    return max(1, budget * policy.floors_permille // 1000 // count)


def _target(budget: int, demand: Rates, weights: Rates, policy: DividePolicy) -> Rates:
    """Return the division of the budget without its reserve, whatever nodes hold now."""
    floor = _floor(budget, len(demand), policy)
    usable = budget - budget * policy.reserve_permille // 1000
    capped = np.clip(demand, 0, budget)
    bare = np.maximum(capped - floor, 0)
    ample = np.maximum(capped + capped * policy.headroom_permille // 1000 - floor, 0)
    room = max(0, usable - floor * len(demand))
    got = _fill(room, bare, weights)
    left = max(0, room - int(got.sum()))
    return floor + got + _fill(left, ample - bare, weights)


def _fill(room: int, wanted: Rates, weights: Rates) -> Rates:
    """Return min(wanted, level x weight) with the highest level whose sum is at most `room`."""
    if int(wanted.sum()) <= room:
        return wanted
    full_at = wanted / weights  # the level from which on a node wants no more
    order = np.argsort(full_at, kind="stable")
    filled = np.cumsum(wanted[order]) - wanted[order]  # of all that are full below each
    open_weight = np.cumsum(weights[order][::-1])[::-1]
    levels = (room - filled) / open_weight
    first = int(np.argmax(full_at[order] > levels))  # the first that is not full has the level
    level = max(0.0, float(levels[first]))
    # Rounding down keeps the sum; of 2**53 and more a float is not exact, so it is checked.
    got = np.minimum(wanted, np.floor(level * weights).astype(np.int64))
    over = int(got.sum()) - room
    return got if over <= 0 else np.maximum(0, got - (over // len(got) + 1))


def _is_near(wanted: Rates, held: Rates, policy: DividePolicy) -> NDArray[np.bool_]:
    return np.abs(wanted - held) * 1000 <= held * policy.band_permille


def _within(room: int, raised: Rates, held: Rates, floor: int) -> Rates:
    """Return the raises scaled into the room; those up to the floor come first."""
    first = np.minimum(raised, np.maximum(floor - held, 0))
    first = _scaled(room, first)
    return first + _scaled(room - int(first.sum()), raised - first)


def _scaled(room: int, wanted: Rates) -> Rates:
    total = int(wanted.sum())
    if total <= room:
        return wanted
    return np.floor(wanted * (room / total * (1 - 1e-12))).astype(np.int64)
