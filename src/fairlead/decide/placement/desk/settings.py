"""Settings of the planner: their file is that of `app/configuration/controller_settings.py`."""

from __future__ import annotations

from typing import Annotated

from fairlead.api.values.sections import DAY, YEAR, Section, about, within


class PlacementSettings(Section, frozen=True):
    """Order of the queue, and gangs that lose nodes."""

    starvation_seconds: Annotated[
        int,
        within(0, YEAR, "A job that has waited so long at the head of the queue keeps later jobs "
                        "off the nodes that it could use; 0: from the start."),
    ] = 900  # fmt: skip
    backfills: Annotated[
        bool,
        about("Later jobs may use these nodes where that does not delay it, by the jobs' time "
              "limits (EASY backfill); false: none may."),
    ] = True  # fmt: skip
    backfill_reservations_max: Annotated[
        int,
        within(1, 32, "Room is kept for so many jobs that could use the same node. 1: no later job "
                      "delays the first one that waits (EASY backfill). More: none delays any of "
                      "these (conservative backfill)."),
    ] = 1  # fmt: skip
    predictions_seconds_max: Annotated[
        int,
        within(0, YEAR, "For so long after `starvationSeconds` jobs without a time limit count "
                        "there by the run times of past jobs of their user, name and size; 0: "
                        "never."),
    ] = 14_400  # fmt: skip
    repair_hold_seconds: Annotated[
        int,
        within(0, DAY, "A gang that finds no replacement for its lost nodes for so long releases "
                       "all its nodes."),
    ] = 300  # fmt: skip
    suspect_seconds: Annotated[
        int,
        within(0, YEAR, "For so long a node that an attempt lost, or that was not ready for a "
                        "time, takes members only after the other nodes with as many devices free; "
                        "0: it does not."),
    ] = 3_600  # fmt: skip
    preempts: Annotated[
        bool, about("Jobs of higher priority preempt running jobs of lower priority.")
    ] = True
    preempts_adopted: Annotated[
        bool, about("Gangs of other tools may be preempted: their pods are deleted for it.")
    ] = False
    preemption_min_run_seconds: Annotated[
        int, within(0, YEAR, "A job that came to its nodes less long ago is not preempted.")
    ] = 60
    defragments: Annotated[
        bool,
        about("Running gangs are moved to other nodes for a job that has waited at the head of the "
              "queue for starvationSeconds, where that makes room for it."),
    ] = False  # fmt: skip
    defragments_on_request: Annotated[
        bool,
        about("They are also moved for a waiting job with the annotation fairlead.dev/defragment: "
              "\"true\" (fairlead defrag JOB)."),
    ] = False  # fmt: skip
    move_min_run_seconds: Annotated[
        int, within(0, YEAR, "A job that has run for less since its start is not moved.")
    ] = 1800
    moves_max: Annotated[
        int,
        within(1, 1000, "Gangs that are moved at a time, for one job or to empty nodes of pools."),
    ] = 8  # fmt: skip
    consolidation_horizon_seconds: Annotated[
        int,
        within(0, YEAR, "In node pools that are consolidated, gangs are moved off a node only if "
                        "what they lose is less than keeping the node for so long; 0: never."),
    ] = 3_600  # fmt: skip
