"""The variables of an array's elements: Fairlead's own and those that Slurm's scripts read.

Source: slurm.schedmd.com/job_array.html, "Job ID and Environment Variables".
"""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.values.indices import Indices


def element_environment(
    array: JobArray, indices: Indices, index: int
) -> tuple[tuple[str, str], ...]:
    """Return the variables of one element of an array, as (name, value)."""
    return (
        (names.ENV_ARRAY, array.metadata.name),
        (names.ENV_ARRAY_INDEX, str(index)),
        ("SLURM_ARRAY_JOB_ID", str(array.status.number)),
        ("SLURM_ARRAY_TASK_ID", str(index)),
        ("SLURM_ARRAY_TASK_COUNT", str(len(indices))),
        ("SLURM_ARRAY_TASK_MIN", str(indices.first)),
        ("SLURM_ARRAY_TASK_MAX", str(indices.last)),
        ("SLURM_ARRAY_TASK_STEP", str(indices.step)),
    )
