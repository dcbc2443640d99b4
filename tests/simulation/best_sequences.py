"""The sequences of the simulated tenant that met the most different answers, for a real API server.

They follow from the draws, so a new move or a new rule of admission is among them by itself.
"""

from __future__ import annotations

import re
from functools import cache

from fairlead.sim.tenants.calls import Call, Verb
from fairlead.sim.tenants.runs import ROUND_SEQUENCES, play, sequences_of

_SEEDS = tuple(f"best/{number}" for number in range(3))
_NUMBER = re.compile(r"[a-z]?\d[-\w]*")


@cache
def best_sequences(count: int) -> tuple[tuple[Call, ...], ...]:
    """Return sequences that a webhook which is up answers, the one with most that is new first."""
    drawn: list[tuple[Call, ...]] = []
    met: dict[int, set[str]] = {}
    for seed in _SEEDS:
        sequences = sequences_of(seed)
        for start in range(0, len(sequences), ROUND_SEQUENCES):
            part = sequences[start : start + ROUND_SEQUENCES]
            for calls, outcomes in zip(part, play(seed, part).played.outcomes, strict=False):
                if all(call.verb not in (Verb.DOWN, Verb.UP) for call in calls):
                    met[len(drawn)] = {
                        f"{call.verb} {call.kind} {_NUMBER.sub('', outcome)}"
                        for call, outcome in zip(calls, outcomes, strict=False)
                    }
                    drawn.append(calls)
    chosen: list[tuple[Call, ...]] = []
    known: set[str] = set()
    while met and len(chosen) < count:
        best = max(met, key=lambda number: (len(met[number] - known), -number))
        known |= met.pop(best)
        chosen.append(drawn[best])
    return tuple(chosen)
