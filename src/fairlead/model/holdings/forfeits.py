"""Placements that count as given back, though the API refuses to record that."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.jobs.job import Job
from fairlead.model.gang.phase import OPEN, phase_of


@dataclass(frozen=True, slots=True)
class Forfeit:
    """A placement that counts as given back. `is_final`: until the job ends or is gone."""

    uid: str
    is_final: bool

    def is_over(self, job: Job) -> bool:
        """True once the job shows it, or has become another one."""
        if self.uid != job.metadata.uid or job.is_finished:
            return True
        has_begun = job.spec.adopts is None and phase_of(job) in OPEN
        return not self.is_final and (job.status.placement is None or has_begun)
