"""Options of the planner, read once and passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How strict, how patient, and how much work at a time."""

    #: A job at the head of the queue that has waited this long for room keeps later jobs off the
    #: nodes that it could use. 0: from the start; infinity: never.
    starvation_seconds: float = 900.0
    #: Later jobs may use those nodes where that does not delay it, by the jobs' time limits.
    backfills: bool = True
    #: Room is kept for so many jobs that could use the same node. 1: EASY backfill, no later job
    #: delays the first one that waits; more: conservative backfill, none delays any of these.
    backfill_reservations_max: int = 1
    #: For so long after `starvation_seconds` jobs without a time limit count there by the run times
    #: of past jobs. 0: never. As it may be wrong, it must not be so for ever.
    predictions_seconds_max: float = 14_400.0
    #: Say where jobs at the head of the queue are going to be, also where no job comes after them.
    expects_places: bool = False
    #: A gang whose lost nodes find no replacement for this long gives up all its nodes.
    repair_hold_seconds: float = 300.0
    #: For so long a node that was lost, or came back after it was not ready, takes members after
    #: nodes that have as many devices free. 0: it does not.
    suspect_seconds: float = 3600.0
    #: Jobs of higher priority preempt running ones of lower priority.
    preempts: bool = True
    #: Groups of other tools' pods may be preempted: their pods are deleted for it.
    preempts_adopted: bool = False
    #: A job that has run for less since its start is not preempted.
    preemption_min_run_seconds: float = 60.0
    #: Running gangs are moved for a job at the head of the queue that has waited for
    #: `starvation_seconds`, where that makes room for it.
    defragments: bool = False
    #: They are moved for any job that asks for it.
    defragments_on_request: bool = False
    #: A job that has run for less since its start is not moved.
    move_min_run_seconds: float = 1800.0
    #: Gangs that are moved at a time.
    moves_max: int = 8
    #: A gang leaves a node that is to empty only if what it loses is less than keeping the node for
    #: so long costs.
    consolidation_horizon_seconds: float = 3600.0
    #: Places kept for jobs that preempt, per decision; the next one goes on.
    nominations_max: int = 8
    #: A verdict near the head of the queue is made again at most this often.
    refresh_seconds: float = 10.0
    #: Pause between rounds of looking again at verdicts deep in the queue.
    deep_refresh_seconds: float = 1.0
    #: Jobs at the head of the queue whose verdicts are kept fresh to the last number.
    fresh_jobs_max: int = 32
    #: Gangs tried per decision; what is left over is tried in the next one.
    evaluations_max: int = 1000
    #: Gangs placed per decision.
    placements_max: int = 256
    #: Verdicts made per decision.
    judgements_max: int = 32
    #: Verdicts written per decision.
    writes_max: int = 256
