"""Whom notices are sent to in a simulated world: slow, and in trouble while faults last.

They keep what they were sent, so that a test compares it with what the jobs owed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from fairlead.decide.notices import Delivery, Post, TryOutcome, TryReason
from fairlead.sim.setup.faults import PERFECT, FaultSwitch

_SECONDS_MEAN = 2.0
#: Of the tries, while faults last: as many are refused, and as many taken without an answer.
_TROUBLE_SHARE = 0.25


class Receivers:
    """The sender of all replicas of a world (`NoticeSender`)."""

    def __init__(self, rng: random.Random, switch: FaultSwitch) -> None:
        self._rng = rng
        self._switch = switch
        #: Tries that arrived, and notices that were taken, by the notice's id.
        self.tries: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    async def send(self, delivery: Delivery) -> TryOutcome:
        """Take a letter, or not. A process may be killed in it."""
        return await self._take(delivery.letter.id)

    async def post_ticket(self, post: Post) -> TryOutcome:
        """Take a ticket in the same way."""
        return await self._take(post.id)

    async def _take(self, id_: str) -> TryOutcome:
        self.tries[id_] += 1
        await asyncio.sleep(self._rng.expovariate(1.0 / _SECONDS_MEAN))
        fate = self._rng.random() if self._switch.rates != PERFECT else 1.0
        if fate < _TROUBLE_SHARE:
            return TryOutcome(TryReason.BUSY, 503)
        self.taken[id_] += 1
        await asyncio.sleep(self._rng.expovariate(1.0 / _SECONDS_MEAN))
        if fate < 2 * _TROUBLE_SHARE:
            return TryOutcome(TryReason.TIMEOUT)
        return TryOutcome(TryReason.DELIVERED, 200)
