"""The images of a job's members, in the request by which it is placed.

Added where places are chosen that the job gets: in its first place, its repair, its move. What is
remembered of requests, or asked about them ahead, is without images, since a pull would change it:
whether a gang fits, which jobs leave for it, when it starts, what is bought for it.
"""

from __future__ import annotations

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.image_names import images_of
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.nodes import NodeTable


def with_images(table: NodeTable, job: Job, gang: GangRequest) -> GangRequest:
    """Return the gang of a job with the images of its roles; as it is while no node reports any."""
    if not table.images:
        return gang
    return gang.preferring([images_of(role.template.spec) for role in job.spec.roles])
