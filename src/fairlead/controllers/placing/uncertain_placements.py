"""Placements that were sent and are not seen yet: their room must not be given away.

A write that timed out may still be in flight, or was carried out and its answer was lost. It is a
compare-and-swap on one version of one job: it can succeed exactly as long as the job is at that
version, whatever is written on *other* jobs. If its room were given to another gang, both could
succeed.

So the room stays booked until the mirror shows the job at another version, or its deletion: then
the placement either shows or has become impossible. Until then the same write is repeated, by the
loop within its cycle and whenever the loop retries the job. Any answer settles it: a success
changes the job's version, a conflict says that the version has changed. Where a node of the
placement takes no more pods meanwhile, it is not repeated: a verdict that says so is written
instead, which changes the version as well.

The writes of a scheduler that crashed are as uncertain, answered or not: the barrier that waited
for them went with it. The next one in the process books their room, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement, nodes_of
from fairlead.api.status import ApiError, TooManyRequests
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob, WriteVerdict
from fairlead.decide.placement.outcome import changed_verdict
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import ObjectKey, Verdict


class UncertainPlacements:
    """The placements whose outcome is unknown; their room is booked in the state."""

    def __init__(
        self,
        state: PlacementState,
        sent: dict[ObjectKey, PlaceJob],
        usable: Mapping[str, bool],
    ) -> None:
        """Continue with `sent`: what earlier schedulers wrote and no mirror has shown.

        This object modifies it. `usable` is true for each node that takes pods now.
        """
        self._state = state
        self._usable = usable
        self._sent = sent
        self._booked: dict[ObjectKey, None] = {}
        #: Those to be sent again in the next decision.
        self._due: dict[ObjectKey, None] = {}
        for key, action in list(sent.items()):
            entry = state.jobs.get(key)
            self._book(key, action)
            self.repeat(key)
            self.seen(key, entry.job if entry is not None else None)

    def __len__(self) -> int:
        """Return how many placements wait for their answer."""
        return len(self._booked)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._booked

    def send(self, action: PlaceJob) -> None:
        """Note a placement before it is written."""
        self._sent[action.job.metadata.key] = action

    def failed(self, action: PlaceJob, error: ApiError) -> None:
        """Book the room of a placement if the error leaves its outcome open, else forget it."""
        key = action.job.metadata.key
        if key not in self._sent or key in self._booked:
            return  # seen, or booked before
        entry = self._state.jobs.get(key)
        is_open = entry is not None and _is_same(entry.job, action.job)
        if is_open and may_come_late(error):
            self._book(key, action)
        else:
            del self._sent[key]

    def _book(self, key: ObjectKey, action: PlaceJob) -> None:
        self._booked[key] = None
        self._state.book_uncertain(action.job, action.placement)

    def seen(self, key: ObjectKey, job: Job | None) -> None:
        """Release what the job, as it is now, has made impossible or shows; None: it is gone."""
        action = self._sent.get(key)
        if action is None or (job is not None and _is_same(job, action.job)):
            return
        del self._sent[key]
        self._due.pop(key, None)
        if key in self._booked:
            del self._booked[key]
            self._state.unbook_uncertain(key)

    def repeat(self, key: ObjectKey) -> None:
        """Let the next decision send it again, or what settles it."""
        self._due[key] = None

    def take_due(self, now: float) -> Iterator[PlaceJob | WriteVerdict]:
        """Yield what is to be sent at `now`, in key order, each once."""
        keys, self._due = sorted(self._due), {}
        for key in keys:
            action = self._sent[key]
            node = self._first_closed(action)
            yield action if node is None else _withdrawal(action, node, format_time(now))

    def _first_closed(self, action: PlaceJob) -> str | None:
        """Return the first node that is new to the job and takes no more pods; None: all do."""
        new = _nodes(action.placement) - _nodes(action.job.status.placement)
        return min((node for node in new if not self._usable.get(node, False)), default=None)


def may_come_late(error: ApiError) -> bool:
    """True when a write with this answer, or none, may have been or may yet be carried out.

    429 is said before anything is done (Kubernetes API priority and fairness); other answers that
    are worth a retry, a 500 of a store that timed out among them, say nothing of it.
    """
    return error.retryable and not isinstance(error, TooManyRequests)


def _withdrawal(action: PlaceJob, node: str, at: str) -> WriteVerdict | PlaceJob:
    """Return the write after which the placement is impossible, whenever it arrives.

    The verdict names the instant of the placement, so it differs from each that was written before.
    """
    facts = {"node": node, "placed_at": action.placement.placed_at or at}
    verdict = Verdict(Reason.PLACE_WITHDRAWN, facts)
    return changed_verdict(action.job, verdict, at, is_fresh=True) or action


def _nodes(placement: Placement | None) -> set[str]:
    return set(nodes_of(placement))


def _is_same(job: Job, other: Job) -> bool:
    ours, theirs = job.metadata, other.metadata
    return (ours.uid, ours.resource_version) == (theirs.uid, theirs.resource_version)
