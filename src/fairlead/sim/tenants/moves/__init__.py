"""What a tenant tries who has read the code: each move is a few calls that belong together.

A move gets a stem for the names of its objects and its own random numbers. It is chosen for what
the code reads, not for what it should accept: most are refused, and that is seen, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fairlead.sim.tenants.calls import Call, Verb
from fairlead.sim.tenants.moves import devices, gangs
from fairlead.sim.tenants.moves.move import Move

__all__ = ["MOVES", "Move"]


def webhook_down(stem: str, rng: random.Random) -> Sequence[Call]:
    """Another move, while the webhook is away."""
    move = rng.choice([each for each in MOVES if each is not webhook_down])
    return (Call(Verb.DOWN), *move(stem, rng), Call(Verb.UP))


MOVES: tuple[Move, ...] = (*gangs.MOVES, *devices.MOVES, webhook_down)
