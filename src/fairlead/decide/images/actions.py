"""The closed set of the images controller's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.cluster.image_set import ImageSet, ImageSetStatus
from fairlead.decide.images.plan import EndPull, StartPull


@dataclass(frozen=True, slots=True)
class SetImageSet:
    """Write how far an image set is."""

    image_set: ImageSet
    status: ImageSetStatus


Action: TypeAlias = StartPull | EndPull | SetImageSet
