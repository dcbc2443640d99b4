"""Placements whose write has an unknown outcome.

A write that timed out may still be in flight, or was carried out and its answer was lost. It is a
compare-and-swap on one version of one job: it can succeed exactly as long as the job is at that
version, whatever is written on *other* jobs. If its room were given to another gang, both could
succeed.

So the room stays reserved until the mirror shows the job at another version, or its deletion: then
the placement either shows or has become impossible. Until then the same write is repeated, by the
loop within its cycle and whenever the loop retries the job. Any answer settles it: a success
changes the job's version, a conflict says that the version has changed.
"""

from __future__ import annotations

from fairlead.api.job import Job
from fairlead.api.status import ApiError, TooManyRequests
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.verdict import ObjectKey


class UncertainPlacements:
    """The placements whose outcome is unknown; their room is reserved in the state."""

    def __init__(self, state: PlacementState, placements: dict[ObjectKey, PlaceJob]) -> None:
        """Continue with `placements`, which earlier schedulers sent; this object modifies them."""
        self._state = state
        self._open = placements
        #: Those to be sent again in the next decision.
        self._due: dict[ObjectKey, None] = {}
        for key, action in list(self._open.items()):
            entry = state.jobs.get(key)
            if entry is None or not _is_same(entry.job, action.job):
                self.seen(key, entry.job if entry is not None else None)
            else:
                state.reserve_uncertain(action.job, action.placement)
                self.repeat(key)

    def __len__(self) -> int:
        """Return how many placements wait for their answer."""
        return len(self._open)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._open

    def note(self, action: PlaceJob, error: ApiError) -> None:
        """Reserve the room of a placement if the error leaves its outcome open."""
        key = action.job.metadata.key
        if not may_come_late(error) or key in self._open:
            return
        entry = self._state.jobs.get(key)
        if entry is None or not _is_same(entry.job, action.job):
            return  # the job has changed meanwhile
        self._open[key] = action
        self._state.reserve_uncertain(action.job, action.placement)

    def seen(self, key: ObjectKey, job: Job | None) -> None:
        """Release what the job, as it is now, has made impossible or shows; None: it is gone."""
        action = self._open.get(key)
        if action is None or (job is not None and _is_same(job, action.job)):
            return
        del self._open[key]
        self._due.pop(key, None)
        self._state.release_uncertain(key)

    def repeat(self, key: ObjectKey) -> None:
        """Let the next decision send it again."""
        self._due[key] = None

    def take_due(self) -> tuple[PlaceJob, ...]:
        """Return what is to be sent again, in key order, each once."""
        keys, self._due = sorted(self._due), {}
        return tuple(self._open[key] for key in keys)


def may_come_late(error: ApiError) -> bool:
    """True when a write with this answer, or none, may have been or may yet be carried out.

    429 is said before anything is done (Kubernetes API priority and fairness); other answers that
    are worth a retry, a 500 of a store that timed out among them, say nothing of it.
    """
    return error.retryable and not isinstance(error, TooManyRequests)


def _is_same(job: Job, other: Job) -> bool:
    ours, theirs = job.metadata, other.metadata
    return (ours.uid, ours.resource_version) == (theirs.uid, theirs.resource_version)
