"""Jobs that the scheduler knows as admitted before their status says so.

Most jobs are placed at once, so a write that says no more than that a job may be placed is undone
by the next one. The jobs controller offers such a job to the scheduler instead, and the write that
places it admits it. What the scheduler does not write on in its next decision, or not in time, the
jobs controller admits by a write of its own. Both write the version of the job that was judged: a
compare-and-swap, of which one wins.

An offer is kept in memory only. After a crash the job is judged again, as one that was never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fairlead.api.jobs.job import Job
from fairlead.decide.verdict import ObjectKey

#: How long the scheduler has for an offer, several times the longest cycle of a busy cluster.
OFFER_SECONDS_MAX = 2.0


@dataclass(slots=True)
class _Offer:
    """A job as it is once it is admitted; of the version that was judged."""

    job: Job
    until: float
    is_declined: bool = False


class Admissions:
    """The offers of one process. Without listeners, and a scheduler among them, none is taken."""

    def __init__(
        self, latest: Callable[[ObjectKey], Job | None], show: Callable[[Job], None]
    ) -> None:
        """`latest` returns a job as the mirror has it.

        `show` is called with each job that is offered, for the cluster state to take in.
        """
        self._latest = latest
        self._show = show
        self._offers: dict[ObjectKey, _Offer] = {}
        #: Those of which the scheduler has not decided yet.
        self._new: dict[ObjectKey, None] = {}
        self._listeners: list[Callable[[], None]] = []
        self._declined: list[Callable[[ObjectKey], None]] = []
        self._scheduler_count = 0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that are offered, as they are once they are admitted."""
        return tuple(offer.job for offer in self._offers.values())

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back after an offer and an answer, which no mirror shows; return what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def on_declined(self, listener: Callable[[ObjectKey], None]) -> Callable[[], None]:
        """Call back with each job that is not placed now; return what ends it."""
        self._declined.append(listener)
        return lambda: self._declined.remove(listener)

    def attach(self) -> Callable[[], None]:
        """Note that a scheduler takes offers; return what ends it."""
        self._scheduler_count += 1

        def detach() -> None:
            self._scheduler_count -= 1

        return detach

    def offer(self, job: Job, now: float) -> float | None:
        """Offer a job, given as admitted; return until when, or None where it is to be written.

        To offer the same version again changes nothing. One that the job does not have any more is
        not offered: the state would lose what has been written since, such as its place.
        """
        key = job.metadata.key
        latest = self._latest(key)
        if latest is None or latest.metadata.version != job.metadata.version:
            return now
        known = self._offers.get(key)
        if known is not None and known.job.metadata.version == job.metadata.version:
            # The clock may have been set back since.
            is_open = now < known.until <= now + OFFER_SECONDS_MAX
            return known.until if is_open and not known.is_declined else None
        if not self._listeners or not self._scheduler_count:
            return None
        until = now + OFFER_SECONDS_MAX
        self._offers[key] = _Offer(job, until)
        self._new[key] = None
        self._show(job)
        self._notify()
        return until

    def decided(self, written: Collection[ObjectKey]) -> None:
        """Decline the new offers on which the scheduler writes nothing now."""
        fresh, self._new = self._new, {}
        declined = [key for key in fresh if key not in written]
        for key in declined:
            self._offers[key].is_declined = True
            for listener in self._declined:
                listener(key)
        if declined:
            self._notify()

    def drop(self, key: ObjectKey) -> None:
        """Forget the offer of a job that has changed, or is gone."""
        if self._offers.pop(key, None) is not None:
            self._new.pop(key, None)

    def clear(self) -> None:
        """Forget all offers: the state that took them in is gone."""
        self._offers.clear()
        self._new.clear()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()
