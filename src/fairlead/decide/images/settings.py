"""Settings of the images controller: `app/configuration` reads their file."""

from __future__ import annotations

from typing import Annotated

from fairlead.api.values.sections import DAY, HOUR, Section, about, within


class ImagesSettings(Section, frozen=True):
    """Images that are pulled before work comes: those of image sets, and of waiting jobs."""

    prefetch_jobs: Annotated[
        bool,
        about("Pull the images of a waiting job onto the nodes that are kept for it, by pods in "
              "its namespace."),
    ] = False  # fmt: skip
    pulls_per_node_max: Annotated[int, within(1, 16, "Pulls at a time on a node.")] = 1
    pulls_per_registry_max: Annotated[int, within(1, 1000, "Pulls at a time from a registry.")] = 32
    pulls_per_namespace_max: Annotated[
        int, within(1, 1000, "Pulls at a time for the jobs of a namespace.")
    ] = 16
    pulls_max: Annotated[int, within(1, 1000, "Pulls at a time in all.")] = 64
    starts_per_registry_max: Annotated[
        int, within(1, 10_000, "Pulls from a registry that begin within a minute.")
    ] = 120
    pull_seconds_max: Annotated[int, within(60, DAY, "A pull that takes longer is given up.")] = (
        3600
    )
    disk_percent_max: Annotated[
        int,
        within(1, 100, "What images may take of a node's disk for one more to be pulled, counted "
               "three times, for their layers and files. Kubelets remove images from 85 % on."),
    ] = 75  # fmt: skip
    retry_seconds: Annotated[
        int,
        within(
            10,
            HOUR,
            "An image that could not be pulled, or that its node removed (after "
            "twice as long), is tried again after so long.",
        ),
    ] = 60
    retry_seconds_max: Annotated[
        int, within(60, DAY, "The same after many failures; the time doubles each time.")
    ] = 3600
