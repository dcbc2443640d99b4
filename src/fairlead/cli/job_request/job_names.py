"""Jobs as people name them: `train-1`, `job/train-1`, `sweep[7]` (pure)."""

from __future__ import annotations

import re

from fairlead.api.jobs.job_array import element_name

_ELEMENT = re.compile(r"([^\[\]]+)\[(\d{1,9})\]", re.ASCII)


def clean_reference(name: str) -> str:
    """Return the bare name of `train-1`, `job/train-1`, `job.fairlead.dev/train-1`; of an array's
    element such as `sweep[7]` that of its job.
    """
    bare = name.rpartition("/")[2]
    match = _ELEMENT.fullmatch(bare)
    return bare if match is None else element_name(match[1], int(match[2]))
