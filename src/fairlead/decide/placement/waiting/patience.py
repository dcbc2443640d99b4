"""Jobs that ask for less until an instant: for the level of the topology that they prefer, before
they accept a wider one; for no nodes of other teams, while they back off from borrowing.

While a job waits, its entry in the queue asks for that alone; then it is put into the group of
those that ask for all. So all jobs of a group ask for the same, and nothing else has to know the
time. A patient job reserves and preempts nothing: it waits by choice. One that backs off from
borrowing does both, on the nodes of its own team and on those of none.

A job does not wait for a level of which no domain could hold it, were all nodes of the cluster
healthy and empty. That is judged again when nodes change.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field, replace
from math import inf

from fairlead.api.jobs.job import Job
from fairlead.api.meta import find_condition
from fairlead.api.names import PLACED
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.attempts.backoff import borrower_backoff
from fairlead.decide.placement.places.unplaceable import judge_empty
from fairlead.decide.placement.waiting.queue import QueueEntry, WaitQueue
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey


def waiting_since(job: Job, otherwise: float) -> float:
    """Return since when a job has waited for a place; `otherwise` where its status does not say."""
    condition = find_condition(job.status.conditions, PLACED)
    if condition is None or condition.status == "True" or not condition.last_transition_time:
        return otherwise
    return parse_time(condition.last_transition_time)


def confined_at(job: Job, gang: GangRequest, now: float) -> GangRequest:
    """Return what a job asks for, without nodes of other teams while it backs off from them."""
    return gang.confined if now < _borrows_at(job, gang) else gang


def unreachable_level(cluster: ClusterState, gang: GangRequest) -> Verdict | None:
    """Return why the level that a gang prefers can never hold it; None where that may be, and for a
    gang that does not wait for one.
    """
    if not gang.topology.preferred_seconds:
        return None
    return judge_empty(cluster, gang.within_level(gang.topology.ladder[0]))


def with_end(verdict: Verdict, entry: QueueEntry, now: float) -> Verdict:
    """Add until when the job waits by itself to the verdict that says so."""
    if isinstance(entry.gang, InvalidGang):
        return verdict
    if verdict.reason is Reason.AWAITING_PREFERRED:
        until = waiting_since(entry.job, now) + entry.gang.topology.preferred_seconds
        return replace(verdict, facts={**verdict.facts, "until": format_time(until)})
    found = borrower_backoff(entry.job.status)
    if verdict.reason is not Reason.BORROW_BACK_OFF or found is None:
        return verdict
    return replace(verdict, facts={"times": found.times, "until": format_time(found.until)})


def _accepts_at(job: Job, gang: GangRequest) -> float:
    """Return from when on a job accepts wider levels; -inf where it prefers none."""
    seconds = gang.topology.preferred_seconds
    return waiting_since(job, inf) + seconds if seconds else -inf


def _borrows_at(job: Job, gang: GangRequest) -> float:
    """Return from when on a job borrows again; -inf where it does not back off, or never may."""
    found = borrower_backoff(job.status)
    return -inf if found is None or not gang.may_borrow else found.until


@dataclass(slots=True)
class Patience:
    """The waiting jobs that ask for less for a time, and the time that they were looked at."""

    queue: WaitQueue
    cluster: ClusterState
    _now: float = -inf
    #: `NodeTable.nodes_version` that the jobs were looked at with.
    _nodes_version: int = -1
    #: Which gangs prefer a level that can never hold them, each with that version.
    _unreachable: dict[GangRequest, tuple[int, bool]] = field(
        default_factory=dict[GangRequest, tuple[int, bool]]
    )
    #: (until, job), in order: of all such jobs, whether that is over or not.
    _ends: list[tuple[float, JobKey]] = field(default_factory=list[tuple[float, JobKey]])
    #: What each job asks for in the end, beside its entry.
    _entries: dict[JobKey, tuple[QueueEntry, GangRequest]] = field(
        default_factory=dict[JobKey, tuple[QueueEntry, GangRequest]]
    )

    def request(self, job: Job, gang: GangRequest | InvalidGang) -> GangRequest | InvalidGang:
        """Return what a waiting job asks for at this time, given what it asks for in the end."""
        if isinstance(gang, InvalidGang) or _asks_for_all(job, gang):
            return gang
        return self._request(job, gang)

    def put(self, entry: QueueEntry, gang: GangRequest | InvalidGang, *, waits: bool) -> None:
        """Follow a job while it waits, in place of what it was before; `gang` as in `request`."""
        asks_for_all = not waits or isinstance(gang, InvalidGang) or _asks_for_all(entry.job, gang)
        if asks_for_all and not self._entries:
            return
        key = entry.age.job_key
        self.remove(key)
        if asks_for_all or isinstance(gang, InvalidGang):
            return
        for until in _ends(entry.job, gang):
            self._entries[key] = (entry, gang)
            insort(self._ends, (until, key))

    def remove(self, key: JobKey) -> None:
        """Follow a job no longer."""
        found = self._entries.pop(key, None)
        if found is not None:
            for until in _ends(found[0].job, found[1]):
                self._ends.remove((until, key))

    def next_end(self) -> float | None:
        """Return when the next job asks for more; None when none is to."""
        index = bisect_right(self._ends, self._now, key=_until)
        return (
            self._ends[index][0] if index < len(self._ends) and self._ends[index][0] < inf else None
        )

    def advance(self, now: float) -> None:
        """Go to another time, later or earlier: put the jobs that ask for something else there, or
        with other nodes, into the groups where they belong.
        """
        first, last = sorted((self._now, now))
        low, high = (bisect_right(self._ends, at, key=_until) for at in (first, last))
        self._now = now
        if self._nodes_version != self.cluster.table.nodes_version:
            self._nodes_version, high = self.cluster.table.nodes_version, len(self._ends)
            self._unreachable.clear()
        for key in dict.fromkeys(key for _, key in self._ends[low:high]):
            entry, gang = self._entries[key]
            asked = self._request(entry.job, gang)
            if asked == entry.gang:
                continue
            is_queued = entry.group is not None
            self.queue.remove(entry)
            entry.gang = asked
            if is_queued:
                self.queue.add(entry)

    def _request(self, job: Job, gang: GangRequest) -> GangRequest:
        if self._now < _accepts_at(job, gang) and not self._is_unreachable(gang):
            gang = gang.patient
        return confined_at(job, gang, self._now)

    def _is_unreachable(self, gang: GangRequest) -> bool:
        version, known = self.cluster.table.nodes_version, self._unreachable.get(gang)
        if known is None or known[0] != version:
            known = version, unreachable_level(self.cluster, gang) is not None
            self._unreachable[gang] = known
        return known[1]


def _ends(job: Job, gang: GangRequest) -> tuple[float, ...]:
    return tuple(at for at in (_accepts_at(job, gang), _borrows_at(job, gang)) if at > -inf)


def _asks_for_all(job: Job, gang: GangRequest) -> bool:
    """True for a job that certainly asks for the same at any time; asked at each of its events."""
    return not (gang.topology.preferred_seconds or job.status.attempts)


def _until(end: tuple[float, JobKey]) -> float:
    return end[0]
