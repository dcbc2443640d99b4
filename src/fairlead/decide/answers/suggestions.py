"""What would let a waiting job start: each change was tried before it is suggested.

A smaller gang is tried on the nodes as they are. A time limit, and a reservation, are tried by the
stages of a decision, on the queue with the changed job in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.values.times import parse_time
from fairlead.decide.answers.explanation import Suggestion
from fairlead.decide.answers.forecast import starts_now
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.unplaceable import resource_order
from fairlead.decide.placement.places.whatif import fits_now, would_fit
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason, Trait
from fairlead.decide.verdict import Verdict
from fairlead.model.asks.requests import is_device
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.health.windows import grace_seconds, hold_seconds

#: What it takes to read a suggestion and submit the job again; from where on whole minutes do.
_SUBMIT_SECONDS, _MINUTES_FROM = 15.0, 300.0
#: Smallest step worth suggesting, in base units.
_STEPS = {"cpu": 1000, "memory": 1 << 30, "ephemeral-storage": 1 << 30}
#: Time limits, and reservations, that are tried.
_TRIED_MAX = 5


def suggestions(
    state: PlacementState, entry: QueueEntry, verdict: Verdict, policy: PlacementPolicy, *,
    now: float, may_try: Callable[[], bool],
) -> Iterator[Suggestion]:  # fmt: skip
    """Yield what would let a job start that waits for this verdict, tried while `may_try`."""
    tries = _Tries(state, entry, policy, now, may_try)
    if verdict.reason is Reason.RESERVED_FOR_OTHERS:
        yield from tries.reservations()
    if verdict.reason.has(Trait.ROOM_KEPT):
        yield from tries.limits([parse_time(str(verdict.facts["starts_by"]))])
    elif verdict.reason in (Reason.RESERVED_FOR_OTHERS, Reason.MAINTENANCE):
        yield from tries.limits(state.cluster.table.windows.starts(now)[::-1])
    if not isinstance(entry.gang, InvalidGang):
        yield from _smaller(state.cluster, entry.gang, may_try)


@dataclass(frozen=True, slots=True)
class _Tries:
    """The stages of a decision with the job as it would be; the state is as it was after each."""

    state: PlacementState
    entry: QueueEntry
    policy: PlacementPolicy
    now: float
    may_try: Callable[[], bool]

    @property
    def job(self) -> Job:
        return self.entry.job

    def limits(self, ends: list[float]) -> Iterator[Suggestion]:
        """Yield the longest time limit with which the job starts now and is over by one of some
        instants, which are in the order in which they are tried.
        """
        before = self.job.spec.time_limit_seconds
        grace = grace_seconds(self.job)
        for end in ends[:_TRIED_MAX]:
            left = end - self.now - grace - _SUBMIT_SECONDS
            after = int(left // 60 * 60 if left > _MINUTES_FROM else left // 10 * 10)
            if after < 1 or (before is not None and after >= before):
                continue
            if self._outcome(_with(self.job, time_limit_seconds=after)) is Reason.PLACED:
                yield Suggestion("", "time", before, after)
                return

    def reservations(self) -> Iterator[Suggestion]:
        """Yield the first reservation of the job's own team on which it starts, now or later."""
        team = self.state.cluster.jobs[self.job.metadata.key].team_name
        table = self.state.cluster.table
        for each in table.windows.reservations_of(team, self.now)[:_TRIED_MAX]:
            name = each.key.removeprefix(f"{team}/")
            reason = self._outcome(_with(self.job, reservation=name))
            if reason in (Reason.PLACED, Reason.AWAITING_RESERVATION):
                at = None if reason is Reason.PLACED else each.window.start
                yield Suggestion("", "reservation", None, name, at)
                return

    def _outcome(self, job: Job) -> Reason | None:
        """Return why the job would wait, were it first in the queue; PLACED if it starts, and None
        if it does not since it is not the first.
        """
        state, cluster = self.state, self.state.cluster
        gang = cluster.gang_of(job)
        verdict = would_fit(cluster, gang)
        if verdict.reason is not Reason.PLACED:
            return verdict.reason
        if not self.may_try():
            return None
        tried = msgspec.structs.replace(
            self.entry, job=job, gang=state.patience.request(job, gang), group=None,
            hold_seconds=hold_seconds(job), likeness=None, first_start=None,
        )  # fmt: skip
        return Reason.PLACED if starts_now(state, tried, self.now, self.policy) else None


def _with(job: Job, **spec: object) -> Job:
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, **spec))


def _smaller(
    state: ClusterState, gang: GangRequest, may_try: Callable[[], bool]
) -> Iterator[Suggestion]:
    """Yield changes to one role, of its count or of one resource, that would let it start now."""

    def fits(tried: GangRequest) -> bool:
        return may_try() and fits_now(state, tried)

    if fits_now(state, gang):
        return
    for index, role in enumerate(gang.roles):

        def with_count(count: int, *, at: int = index) -> GangRequest:
            return gang.with_count(at, count)

        count = _largest(fits, with_count, role.count, 1)
        if count is not None:
            yield Suggestion(role.name, "count", role.count, count)
        for resource, asked in sorted(role.member.request, key=lambda i: resource_order(i[0])):
            if resource == "pods":
                continue

            def with_amount(amount: int, *, at: int = index, of: str = resource) -> GangRequest:
                return gang.with_amount(at, of, amount)

            step = 1 if is_device(resource) else _STEPS.get(resource, 1)
            amount = _largest(fits, with_amount, asked, step)
            if amount is not None:
                yield Suggestion(role.name, resource, asked, amount)


def _largest(
    fits_so: Callable[[GangRequest], bool], changed: Callable[[int], GangRequest], before: int,
    step: int,
) -> int | None:  # fmt: skip
    """Return the largest multiple of `step` below `before` that would fit now; None if none
    does.
    """

    def fits(steps: int) -> bool:
        return fits_so(changed(steps * step))

    low, high = 0, -(-before // step) - 1
    if high < 1 or not fits(1):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low * step or None
