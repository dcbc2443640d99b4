"""Settings of balloons: their file is that of `app/configuration/controller_settings.py`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.api.names import BALLOON_IMAGE
from fairlead.api.values.sections import Section, within


class BalloonSettings(Section, frozen=True):
    """Pods that hold idle nodes of pools whose machines another autoscaler owns."""

    image: Annotated[
        str,
        Meta(min_length=1, max_length=512, description="Image of a balloon: one that waits and "
             "does nothing, with its digest."),
    ] = BALLOON_IMAGE  # fmt: skip
    changes_max: Annotated[
        int, within(1, 1000, "Balloons that are created or deleted per second.")
    ] = 50
    evictions_max: Annotated[
        int, within(1, 10_000, "Balloons that leave for real work per second, beside these.")
    ] = 500
