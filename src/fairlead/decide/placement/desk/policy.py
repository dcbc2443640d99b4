"""Options of the planner, read once and passed in."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.decide.placement.desk.settings import PlacementSettings

#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = PlacementSettings()


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How strict, how patient, and how much work at a time."""

    starvation_seconds: float = _SETTINGS.starvation_seconds
    backfills: bool = _SETTINGS.backfills
    backfill_reservations_max: int = _SETTINGS.backfill_reservations_max
    predictions_seconds_max: float = _SETTINGS.predictions_seconds_max
    #: Say where jobs at the head of the queue are going to be, also where no job comes after them.
    expects_places: bool = False
    repair_hold_seconds: float = _SETTINGS.repair_hold_seconds
    suspect_seconds: float = _SETTINGS.suspect_seconds
    preempts: bool = _SETTINGS.preempts
    preempts_adopted: bool = _SETTINGS.preempts_adopted
    preemption_min_run_seconds: float = _SETTINGS.preemption_min_run_seconds
    defragments: bool = _SETTINGS.defragments
    defragments_on_request: bool = _SETTINGS.defragments_on_request
    move_min_run_seconds: float = _SETTINGS.move_min_run_seconds
    moves_max: int = _SETTINGS.moves_max
    consolidation_horizon_seconds: float = _SETTINGS.consolidation_horizon_seconds
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
