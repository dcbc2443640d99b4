"""The images of a job's members: in the request by which it is placed, and when a domain of the
topology would have them.

Added where places are chosen that the job gets: in its first place, its repair, its move. What is
remembered of requests, or asked about them ahead, is without images, since a pull would change it:
whether a gang fits, which jobs leave for it, when it starts, what is bought for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.image_names import images_of
from fairlead.decide.placement.places.domains import Domains
from fairlead.model.gang.gangs import GangRequest, RoleRequest
from fairlead.model.inventory.image_table import LACKING_MAX
from fairlead.model.inventory.nodes import Ints, NodeTable


def with_images(table: NodeTable, job: Job, gang: GangRequest) -> GangRequest:
    """Return the gang of a job with the images of its roles; as it is while no node reports any."""
    if not table.images:
        return gang
    return gang.preferring([images_of(role.template.spec) for role in job.spec.roles])


def image_starts(
    table: NodeTable,
    domains: Domains,
    roles: Sequence[RoleRequest],
    fits: Sequence[npt.NDArray[Any]],
) -> Ints | None:
    """Return int64[domains]: the order in which gangs would have their images in domains that have
    room, earliest first; None where all nodes are alike. `fits` int[N] are those of each role.

    A gang starts with its slowest member, so first comes what the one that pulls most has to pull,
    then how many members pull, which share a registry.
    """
    slowest = np.zeros(domains.count, dtype=np.int64)
    pulling = np.zeros(domains.count, dtype=np.int64)
    is_alike = True
    for role, own in zip(roles, fits, strict=True):
        lacking = table.images.uneven(role.images, table.exists)
        if lacking is None:
            continue
        is_alike = False
        for part in range(LACKING_MAX):
            missing = role.count - domains.room(np.where(lacking <= part, own, 0))
            np.maximum(slowest, np.where(missing > 0, part + 1, 0), out=slowest)
            if not part:
                pulling += np.maximum(missing, 0)
    return None if is_alike else slowest * (pulling.max(initial=0) + 1) + pulling
