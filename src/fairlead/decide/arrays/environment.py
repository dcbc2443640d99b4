"""The variables of an array's elements: Fairlead's own, the parameters of a sweep, and those that
Slurm's scripts read; and their annotations.

Source: slurm.schedmd.com/job_array.html, "Job ID and Environment Variables".
"""

from __future__ import annotations

import re

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.run_facts import PARAMETER_PREFIX, source_of
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.indices import Indices

#: What Kubernetes would expand.
_LITERAL = re.compile(r"\$(?=[$(])")


def element_environment(
    array: JobArray, indices: Indices, index: int
) -> tuple[tuple[str, str], ...]:
    """Return the variables of one element of an array, as (name, value)."""
    return (
        *(
            (PARAMETER_PREFIX + name, _LITERAL.sub("$$", values[index]))
            for name, values in array.spec.parameters.items()
            if index < len(values)
        ),
        (names.ENV_ARRAY, array.metadata.name),
        (names.ENV_ARRAY_INDEX, str(index)),
        ("SLURM_ARRAY_JOB_ID", str(array.status.number)),
        ("SLURM_ARRAY_TASK_ID", str(index)),
        ("SLURM_ARRAY_TASK_COUNT", str(len(indices))),
        ("SLURM_ARRAY_TASK_MIN", str(indices.first)),
        ("SLURM_ARRAY_TASK_MAX", str(indices.last)),
        ("SLURM_ARRAY_TASK_STEP", str(indices.step)),
    )


def element_annotations(array: ObjectMeta) -> dict[str, str]:
    """Return the annotations of an array's elements: whose they are, and what is said of the run.

    What was changed in the code stays with the array: elements may be very many.
    """
    kept = (names.SUBMITTED_BY, names.RUN_TAGS, names.RUN_NOTE)
    out = {key: text for key in kept if (text := array.annotations.get(key))}
    if (source := source_of(array)) is not None:
        short = msgspec.structs.replace(source, diff="", files=())
        out[names.RUN_SOURCE] = msgspec.json.encode(short).decode()
    return out
