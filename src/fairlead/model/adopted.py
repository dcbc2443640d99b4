"""Jobs that represent pods of another tool, as decisions see them.

Who may write jobs in a namespace may write the spec of such a job as well, where admission is not
asked. Its pods exist and say what they need and may: it gets room, rank and time for what they
state, and nothing that only the job says has an effect.

| Field of `spec` | From |
| --- | --- |
| `roles` | the pods: the adoption controller admits a job only while they follow from its pods |
| `team` | the pods' label; once placed, the team that the placement was made for |
| `adopts` | the pods' labels and owners; a job that says otherwise is deleted |
| `suspend`, `cancel` | the job: these only give up |
| `priority` | shown, not used: the class of the pods says it |
| all others | no effect: no pod could state them |
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobSpec
from fairlead.api.names import SUBMITTED_BY


def as_stated(job: Job) -> Job:
    """Return a job without what it says beyond its pods; a job of other pods stays as it is."""
    spec, placement = job.spec, job.status.placement
    if spec.adopts is None:
        return job
    metadata = job.metadata
    if SUBMITTED_BY in metadata.annotations:
        kept = {key: text for key, text in metadata.annotations.items() if key != SUBMITTED_BY}
        metadata = replace(metadata, annotations=kept)
    stated = JobSpec(
        roles=spec.roles, team=(placement.team if placement is not None else "") or spec.team,
        priority=spec.priority, suspend=spec.suspend, cancel=spec.cancel, adopts=spec.adopts,
    )  # fmt: skip
    if stated == spec and metadata is job.metadata:
        return job
    return replace(job, spec=stated, metadata=metadata)
