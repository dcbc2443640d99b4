"""The jobs of an array's elements, sorted as they change by what a decision asks of them.

An array may have thousands of jobs that run, and is decided on whenever one of them comes, is
placed, ends or goes. So the jobs are sorted per change, and a decision reads those alone that may
ask for an action.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import is_true


class ElementJobs:
    """Jobs by the positions of their elements; each is in one of `ended`, `waiting`, `running`."""

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        """Sort jobs, by position."""
        self._jobs: dict[int, Job] = {}
        #: Jobs that have ended; that have no place yet; that have one.
        self.ended: set[int] = set()
        self.waiting: set[int] = set()
        self.running: set[int] = set()
        #: Those of the ended that did not succeed.
        self.unsuccessful: set[int] = set()
        #: Those, ended or not, that were held with their array; that are being deleted.
        self.held: set[int] = set()
        self.leaving: set[int] = set()
        #: The set of all, as in `model/element_sets.py`.
        self.all = 0
        for position, job in jobs.items():
            self.put(position, job)

    def __getitem__(self, position: int) -> Job:
        """Return the job of an element; KeyError when it has none."""
        return self._jobs[position]

    def copy(self) -> ElementJobs:
        """Return the same jobs, to be changed apart."""
        return ElementJobs(self._jobs)

    def put(self, position: int, job: Job) -> None:
        """Set the job of an element."""
        if position in self._jobs:
            self._unsort(position)
        else:
            self.all |= 1 << position
        self._jobs[position] = job
        if job.is_finished:
            self.ended.add(position)
            if not is_true(job.status.conditions, names.SUCCEEDED):
                self.unsuccessful.add(position)
        elif job.status.placement is None:
            self.waiting.add(position)
        else:
            self.running.add(position)
        if names.HELD_BY_ARRAY in job.metadata.annotations:
            self.held.add(position)
        if job.metadata.deletion_timestamp is not None:
            self.leaving.add(position)

    def remove(self, position: int) -> None:
        """Take out the job of an element, if there is one."""
        if self._jobs.pop(position, None) is not None:
            self.all ^= 1 << position
            self._unsort(position)

    def _unsort(self, position: int) -> None:
        for each in (
            self.ended, self.unsuccessful, self.waiting, self.running, self.held, self.leaving
        ):  # fmt: skip
            each.discard(position)
