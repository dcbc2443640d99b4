"""Faults between a client and the store: refusals, lost answers, slow calls, cut and stale
watches.

`FaultyClient` wraps any client. A write may be refused before it is applied (conflict, 429, 500, a
broken connection), or be applied and its answer lost, which is the harder case: the caller must
find out. Or it gets no answer and is applied long after the caller has given up on it, and perhaps
died: a line that hangs and then delivers. A watch may be cut, start with 410, or deliver late, so
that controllers decide on stale caches as they do in a real cluster. All draws come from one
generator: same seed, same faults.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from fairlead.api.status import (
    ApiError,
    Conflict,
    Expired,
    InternalError,
    StatusDetails,
    Timeout,
    TooManyRequests,
    Unavailable,
)
from fairlead.runtime.client import (
    Client,
    ClientWrapper,
    Request,
    RequestVerb,
    WatchEvent,
    WatchRequest,
)
from fairlead.runtime.wake_up import WakeUp

T = TypeVar("T")
A = TypeVar("A")
_PATIENCE_SECONDS = 1.0  # of a caller whose write gets no answer


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probabilities per call (0 to 1) and delays in seconds. All zero: a perfect network."""

    conflict: float = 0.0  # only on patches, before they are applied
    refused: float = 0.0  # 429, 500, 503 or 504, before the call is applied
    answer_lost: float = 0.0  # the write is applied, the caller gets 503
    stall: float = 0.0  # a patch begins a stall: this and all others get no answer, and arrive late
    stall_seconds_max: float = 60.0  # uniform, from a stall's beginning until writes pass again
    stalls_creates: bool = False  # creates as well, which nothing outdates
    late_seconds_max: float = 30.0  # uniform, from a stall's end until one of its writes arrives
    latency_seconds_mean: float = 0.0  # exponential, per call, before it is applied
    answer_lag_seconds_mean: float = 0.0  # exponential, per write: answers come out of order
    watch_life_seconds_mean: float = 0.0  # exponential; 0: watches are not cut
    watch_expired: float = 0.0  # a watch starts with 410
    watch_lag_seconds_max: float = 0.0  # uniform, per event


PERFECT = FaultRates()
ROUGH = FaultRates(
    conflict=0.02, refused=0.02, answer_lost=0.01, stall=0.001, latency_seconds_mean=0.005,
    watch_life_seconds_mean=600.0, watch_expired=0.1, watch_lag_seconds_max=0.2,
)  # fmt: skip


class LateWrites:
    """Abandoned writes that are still in flight, ordered by delivery time."""

    def __init__(self) -> None:
        self.arrived = 0
        self._sequence = 0
        self._heap: list[tuple[float, int, Callable[[], Awaitable[object]]]] = []
        self._added = WakeUp()

    def add(self, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
        """Let a write arrive after so many seconds."""
        self._sequence += 1
        at = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._heap, (at, self._sequence, call))
        self._added.set()

    async def run(self) -> None:
        """Carry them out in their time, until cancelled; their answers are dropped."""
        while True:
            self._added.clear()
            now = asyncio.get_running_loop().time()
            delay = self._heap[0][0] - now if self._heap else None
            if delay is not None and delay <= 0:
                _, _, call = heapq.heappop(self._heap)
                with suppress(ApiError):
                    await call()
                    self.arrived += 1
                continue
            await self._added.wait(delay)


class FaultSwitch:
    """Turns the faults of many clients on and off together: safety phase, then liveness phase."""

    def __init__(self, rates: FaultRates) -> None:
        self.rates = rates
        #: How often each fault met each kind of call.
        self.met: Counter[str] = Counter()
        self.late = LateWrites()

    @property
    def injected(self) -> int:
        """How many faults there were."""
        return self.met.total()

    def stop(self) -> None:
        """End all faults; from now on everything possible must come true."""
        self.rates = PERFECT


class FaultyClient(ClientWrapper):
    """A `Client` whose calls fail as `switch.rates` says."""

    def __init__(
        self,
        inner: Client,
        switch: FaultSwitch,
        rng: random.Random,
        *,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`step` is called before and after each call is applied: where a controller may die.

        It is given the step in words, such as "after create pods".
        """
        super().__init__(inner)
        self._switch = switch
        self._rng = rng
        self._step = step
        self._stalled_until = 0.0

    def _refusal(self, what: str) -> ApiError:
        self._switch.met[f"refused {what}"] += 1
        kind = self._rng.randrange(4)
        if kind == 0:
            details = StatusDetails(retry_after_seconds=1)
            return TooManyRequests("injected: too many requests", details=details)
        if kind == 1:
            return InternalError("injected: internal error")
        return Unavailable("injected: connection refused") if kind == 2 else Timeout("injected")

    def _is_stalled(self, rates: FaultRates) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._stalled_until and self._rng.random() < rates.stall:
            self._stalled_until = now + self._rng.random() * rates.stall_seconds_max
        return now < self._stalled_until

    async def call(self, request: Request[A]) -> A:
        """Pass the request on, with the faults that the rates say."""
        verb, part = request.verb, request.subresource
        what = f"{verb} {request.resource.plural}" + (f"/{part}" if part else "")
        rates = self._switch.rates
        self._step(f"before {what}")
        if rates is PERFECT:
            answer = await self.inner.call(request)
            self._step(f"after {what}")
            return answer
        if rates.latency_seconds_mean:
            await asyncio.sleep(self._rng.expovariate(1 / rates.latency_seconds_mean))
        if self._rng.random() < rates.refused:
            raise self._refusal(what)
        if verb is RequestVerb.PATCH and self._rng.random() < rates.conflict:
            self._switch.met[f"conflict {what}"] += 1
            raise Conflict("injected: the object has been modified")
        may_stall = verb is RequestVerb.PATCH or (
            verb is RequestVerb.CREATE and rates.stalls_creates
        )
        if may_stall and self._is_stalled(rates):
            self._switch.met[f"late {what}"] += 1
            now = asyncio.get_running_loop().time()
            late = self._stalled_until - now + self._rng.random() * rates.late_seconds_max
            self._switch.late.add(late, lambda: self.inner.call(request))
            await asyncio.sleep(_PATIENCE_SECONDS)
            raise Timeout("injected: no answer in time")
        answer = await self.inner.call(request)
        self._step(f"after {what}")
        lag = rates.answer_lag_seconds_mean if request.is_write else 0.0
        await asyncio.sleep(self._rng.expovariate(1 / lag) if lag else 0)
        if request.is_write and self._rng.random() < rates.answer_lost:
            self._switch.met[f"answer lost {what}"] += 1
            raise Unavailable("injected: the answer was lost")
        return answer

    async def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """Watch; late events, cuts and 410 as the rates say."""
        plural = request.resource.plural
        rates = self._switch.rates
        if self._rng.random() < rates.watch_expired:
            self._switch.met[f"expired watch {plural}"] += 1
            raise Expired("injected: too old resource version")
        life = rates.watch_life_seconds_mean
        lifetime = self._rng.expovariate(1 / life) if life else None
        stream = self.inner.open_watch(request)
        try:
            async with asyncio.timeout(lifetime):
                async for event in stream:
                    lag = self._switch.rates.watch_lag_seconds_max
                    if lag:
                        await asyncio.sleep(self._rng.random() * lag)
                    yield event
        except TimeoutError:
            self._switch.met[f"cut watch {plural}"] += 1
            raise Unavailable("injected: the watch was cut") from None
        finally:  # now, and not when the collector comes by: that would be another order
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
