"""Draws sequences of calls: moves of one who knows the code, between them values of any field."""

from __future__ import annotations

import random
from dataclasses import replace

from fairlead.sim.tenants.calls import Call, Verb
from fairlead.sim.tenants.moves import MOVES
from fairlead.sim.tenants.moves.mutations import (
    SPECS,
    change_field,
    change_key,
    change_metadata,
)

CALLS_MIN, CALLS_MAX = 5, 15
#: The part of the calls that are mutations.
_MUTATED = 0.5
#: Seconds before a call, and how often: at once, after the controllers have seen the one before,
#: after they have acted on it, and after what they wait for is over.
_WAITS = ((0.0, 50), (0.05, 30), (0.5, 18), (70.0, 2))
_CHANGES = (change_field, change_key, change_metadata)


def draw(rng: random.Random, number: int) -> tuple[Call, ...]:
    """Return sequence `number`, which is part of the names of its objects."""
    count = rng.randint(CALLS_MIN, CALLS_MAX)
    calls: list[Call] = []
    while len(calls) < count:
        objects = [(call.kind, call.name) for call in calls if call.verb is Verb.CREATE]
        targets = [each for each in objects if each[0] in SPECS]
        if targets and rng.random() < _MUTATED:
            kind, name = rng.choice(targets)
            calls.append(_change(rng, kind, name))
        else:
            calls += rng.choice(MOVES)(f"s{number}-{len(calls)}", rng)
    return tuple(_delayed(call, rng) for call in calls[: CALLS_MAX + 3])


def _change(rng: random.Random, kind: str, name: str) -> Call:
    if rng.random() < 0.15:
        return Call(Verb.DELETE, kind, name, {"gracePeriodSeconds": rng.choice((0, 30, None))})
    return rng.choice(_CHANGES)(rng, kind, name)


def _delayed(call: Call, rng: random.Random) -> Call:
    (wait,) = rng.choices([each for each, _ in _WAITS], [weight for _, weight in _WAITS])
    return replace(call, wait=call.wait + wait)
