"""The settings of what members use, where nobody but the cluster's metrics says it."""

from __future__ import annotations

from typing import Annotated

from fairlead.input.sections import Section, within


class UseSettings(Section, frozen=True):
    """What members use, where their nodes do not say it."""

    sample_seconds: Annotated[
        int,
        within(0, 100, "Ask metrics.k8s.io for members that run this often, and the Prometheus of "
                       "doctor.prometheus, where there is one, for their GPUs; 0: never."),
    ] = 60  # fmt: skip
