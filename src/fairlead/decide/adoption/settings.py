"""Settings of gangs of other tools: `app/configuration` reads their file."""

from __future__ import annotations

from typing import Annotated

from fairlead.api.values.sections import DAY, HOUR, YEAR, Section, within


class AdoptionSettings(Section, frozen=True):
    """Gangs of other tools; for clusters with a scheduler of their own."""

    bind_patience_seconds: Annotated[
        int,
        within(1, HOUR, "A released pod that its scheduler refuses for longer releases its place."),
    ] = 10  # fmt: skip
    bare_patience_seconds: Annotated[
        int,
        within(1, DAY, "The same for a pod without a controller: it is deleted, and nothing "
                       "creates it again."),
    ] = 300  # fmt: skip
    refusals_max: Annotated[
        int, within(1, 1000, "After so many such refusals in a row the whole gang queues again.")
    ] = 5
    again_seconds_max: Annotated[
        int, within(10, DAY, "Longest wait of such a gang before it queues again.")
    ] = 600
    idle_seconds_max: Annotated[
        int, within(0, DAY, "A gang whose pods are all gone keeps its place for so long.")
    ] = 60
    keep_finished_seconds: Annotated[
        int,
        within(0, YEAR, "The job of a gang that has ended and has no owner is kept for so long."),
    ] = 3600  # fmt: skip
