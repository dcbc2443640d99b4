"""Leader election: of several replicas one acts, and one that lost the lease cannot.

`LeaderElector` campaigns for a Lease and runs `lead` while it holds it: renewed every few seconds,
given up `renew_seconds_max` after the last renewal that succeeded (counted from its start), handed
over at once on a stop. What to do with a lease is decided in `fairlead.decide.leader_election`.
A lease alone does not make a former leader harmless; `fencing.py` does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import (
    Callable,
    Coroutine,
    Mapping,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from fairlead.api.kubernetes.core import Lease
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import LEASES
from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
)
from fairlead.decide.leader_election import (
    CreateLease,
    LeaseTimes,
    LeaveLease,
    SeenLease,
    TakeLease,
    campaign,
    release,
    renewal,
    see,
)
from fairlead.runtime.backoff import BackoffOptions, delay_seconds
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.wake_up import WakeUp

T = TypeVar("T")


#: A stop waits for so long for the lease to be handed over; soon after that it ends by itself.
_RELEASE_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class LeaderOptions:
    """Which lease, how it lives, and limits."""

    name: str = "fairlead-controller"
    namespace: str = OWN_NAMESPACE
    times: LeaseTimes = field(default_factory=LeaseTimes)
    #: Part of each wait that is random, so that candidates do not act in step.
    jitter: float = 0.2
    #: Jobs that are fenced side by side.
    fence_parallel_max: int = 64
    fence_retries_max: int = 8
    #: A mirror that has not shown them by then is listed again.
    fence_seen_seconds: float = 5.0


class LeaderTerm:
    """One leadership: `token` is unique to it, `deadline` moves on with each renewal."""

    def __init__(self, lease: Lease, deadline: float) -> None:
        #: The version of the write that took the lease; versions only grow.
        self.token = lease.metadata.resource_version
        self.lease = lease
        #: By the running loop's time, which no one sets back.
        self.deadline = deadline

    @property
    def is_over(self) -> bool:
        """True once others may hold the lease, or soon may."""
        return loop_time() >= self.deadline

    def end(self) -> None:
        """Let nothing more out."""
        self.deadline = float("-inf")


Lead = Callable[[LeaderTerm], Coroutine[Any, Any, None]]


class LeaderElector:
    """One candidate. `identity` must be unique to the process (name plus something random)."""

    def __init__(
        self,
        client: Client,
        identity: str,
        *,
        clock: Clock,
        rng: random.Random,
        options: LeaderOptions | None = None,
        log: Logger = SILENT,
    ) -> None:
        self.identity = identity
        self.term: LeaderTerm | None = None
        self._client = client
        self._clock = clock
        self._rng = rng
        self._options = options or LeaderOptions()
        self._log = log
        self._seen: SeenLease | None = None
        self._looked_at: float | None = None

    @property
    def is_leading(self) -> bool:
        """True while writes are let out."""
        return self.term is not None and not self.term.is_over

    @property
    def holder(self) -> str:
        """Who held the lease when we last looked; empty: no replica, or not looked yet."""
        return "" if self._seen is None else self._seen.holder

    @property
    def is_in_touch(self) -> bool:
        """True when the lease was read or written within its duration: we know who leads."""
        if self._looked_at is None:
            return False
        times = self._options.times
        return loop_time() - self._looked_at < times.duration_seconds

    async def run(self, lead: Lead) -> None:
        """Campaign, lead, lose, campaign again, until cancelled.

        `lead` is cancelled when the term is over; when it returns or raises, the lease is given
        away and this returns or raises (in a group), too.
        """
        while True:
            term = await self._acquire()
            self.term = term
            self._log.info("Became leader", identity=self.identity, term=term.token)
            try:
                is_finished = await self._lead(term, lead)
            finally:
                self.term = None
            if is_finished:
                return

    # Campaigning

    async def _acquire(self) -> LeaderTerm:
        failures = 0
        while True:
            began_at = loop_time()
            wait = self._options.times.look_every_seconds
            try:
                async with asyncio.timeout(self._options.times.renew_seconds_max):
                    lease, wait = await self._try_to_acquire()
                failures = 0
                if lease is not None:
                    return LeaderTerm(lease, began_at + self._options.times.renew_seconds_max)
            except (ApiError, TimeoutError) as error:
                self._log.warning("Cannot reach the lease", error=str(error) or "no answer in time")
                wait = delay_seconds(self._rng, failures, BackoffOptions(wait, 4 * wait))
                failures += 1
            await asyncio.sleep(self._jittered(wait))

    async def _try_to_acquire(self) -> tuple[Lease | None, float]:
        """Look, and take the lease if it is free. Return it, or how long to wait."""
        await self._look()
        assert self._seen is not None
        options, now = self._options, loop_time()
        step = campaign(self._seen, self.identity, options.times, now=now, wall=self._clock.now())
        try:
            match step:
                case LeaveLease(until):
                    return None, max(until - now, 0.0)
                case CreateLease(body):
                    made = {"metadata": {"name": options.name}, **body}
                    lease = await self._client.create(LEASES, made, namespace=options.namespace)
                case TakeLease(patch):
                    lease = await self._patch(patch)
                case _:
                    assert_never(step)
        except (AlreadyExists, Conflict):
            return None, 0.0  # another replica was faster: read which
        self._note(lease)
        return lease, 0.0

    async def _look(self) -> None:
        try:
            lease = await self._client.get(
                LEASES, self._options.name, namespace=self._options.namespace
            )
        except NotFound:
            lease = None
        self._note(lease)

    def _note(self, lease: Lease | None) -> None:
        now = loop_time()
        before = self.holder
        self._looked_at = now
        self._seen = see(self._seen, lease, now)
        if self._seen.holder != before:
            self._log.info("Lease changed hands", holder=self._seen.holder, before=before)

    async def _patch(self, patch: Mapping[str, Any]) -> Lease:
        return await self._client.patch(
            LEASES, self._options.name, patch, namespace=self._options.namespace
        )

    # Leading

    async def _lead(self, term: LeaderTerm, lead: Lead) -> bool:
        """Run `lead` for this term; True when it ended by itself."""
        ended = WakeUp()

        async def work() -> None:
            try:
                await lead(term)
            finally:
                ended.set()

        is_finished = False
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(work(), name="lead")
                await self._renew_until_over(term, ended)
                is_finished = ended.is_set
                task.cancel()
        finally:
            # The group has ended, hence our writes have: who takes over finds us silent.
            await self._release(term)
        return is_finished

    async def _renew_until_over(self, term: LeaderTerm, ended: WakeUp) -> None:
        """Renew until the term's deadline has passed, the lease is another's, or work has ended."""
        wait = self._options.times.renew_every_seconds
        while not term.is_over:
            if await ended.wait(min(self._jittered(wait), term.deadline - loop_time())):
                return
            wait = await self._renew(term)
        self._log.error("Lost the lease", identity=self.identity, holder=self.holder)

    async def _renew(self, term: LeaderTerm) -> float:
        """Try once to renew; return how long to wait for the next time."""
        times = self._options.times
        began_at = loop_time()
        try:
            async with asyncio.timeout_at(term.deadline):
                lease = await self._patch(renewal(term.lease, self._clock.now()))
        except (Conflict, NotFound):
            return await self._judge_conflict(term)
        except (ApiError, TimeoutError) as error:
            self._log.warning("Renewal failed", error=str(error) or "no answer in time")
            return times.renew_every_seconds / 4
        self._note(lease)
        term.lease = lease
        term.deadline = began_at + times.renew_seconds_max
        return times.renew_every_seconds

    async def _judge_conflict(self, term: LeaderTerm) -> float:
        """The lease is not as we wrote it: ours all the same (a lost answer), or another's."""
        try:
            async with asyncio.timeout_at(term.deadline):
                await self._look()
        except (ApiError, TimeoutError):
            return self._options.times.renew_every_seconds / 4
        seen = self._seen
        if seen is None or seen.lease is None or seen.holder != self.identity:
            term.end()
            return 0.0
        term.lease = seen.lease
        return 0.0

    async def _release(self, term: LeaderTerm) -> None:
        """Give the lease away if it is still ours; never fails."""
        if term.is_over:
            return
        deadline = term.deadline
        term.end()
        try:
            async with asyncio.timeout_at(min(deadline, loop_time() + _RELEASE_SECONDS_MAX)):
                await self._give_away(term.lease)
        except (ApiError, TimeoutError) as error:
            self._log.warning("Lease not handed over", error=str(error) or "no answer in time")
        else:
            self._log.info("Handed the lease over", identity=self.identity)

    async def _give_away(self, lease: Lease) -> None:
        """Empty the lease. A renewal that was cut off may have reached the server all the same."""
        while True:
            try:
                return self._note(await self._patch(release(lease, self._clock.now())))
            except Conflict:
                await self._look()
                seen = self._seen
                if seen is None or seen.lease is None or seen.holder != self.identity:
                    raise
                lease = seen.lease

    def _jittered(self, seconds: float) -> float:
        return seconds * (1.0 - self._options.jitter * self._rng.random())
