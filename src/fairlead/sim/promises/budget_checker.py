"""Checks promise 4: no job that asks for GPUs starts while its team is over its budget.

The checker sums up what the jobs of each team surely have held in the eyes of every controller, and
reports a first place, or a nomination, of a job whose team has used more than its budget by that
sum. Whatever a controller may not know is left out:

    staleness   A write was decided on at most `STALE_SECONDS` ago: what was held since then.
    sight       A controller counts what a job holds from the first decision that sees it: the first
                `_SEEN_SECONDS` of each place.
    restarts    The sums live in a process, and in the Team's status, written every 5 minutes at
                most. A new process continues from there with what jobs hold at its first decision:
                what jobs held and gave back in between is lost to it. So are the sums of a Team
                that was made a moment ago and has no status.
    clocks      Where clocks jump by up to E seconds, a process that counted ahead counts nothing
                until its clock is there again: 2 E of each place, and 2 E of what is held when a
                process begins.
    half-life   The past is halved by the shortest half-life that the Team has had.
    rounding    `_TOLERANCE` for the status in numbers of four digits, and for a decay between two
                decisions by a half-life that has changed.

A Team whose spec changed less than `STALE_SECONDS` ago is not judged. It knows the objects only,
and shares no code with the planner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.values.quantity import GPU
from fairlead.api.values.times import parse_time
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.observers.working_time import SCHEDULER, WorkingTime
from fairlead.sim.promises.checkers import requests_of
from fairlead.sim.promises.team_model import TeamModel

_SEEN_SECONDS = 30.0
_TOLERANCE = 0.01
_HOUR_SECONDS, _DAY_SECONDS = 3600.0, 86_400.0


@dataclass(slots=True)
class _Span:
    """GPUs that a job held from one instant to another; to infinity while it still does."""

    gpus: int
    since: float
    until: float = math.inf


@dataclass(slots=True)
class _Use:
    """What the jobs of one team have held, in GPU-seconds."""

    half_life_seconds: float
    #: As of an instant: what no process can lose, since the status has it.
    past: float = 0.0
    past_at: float = 0.0
    #: What jobs have given back since; it may not be in the status yet.
    ended: list[_Span] = field(default_factory=list[_Span])
    held: dict[ObjectKey, _Span] = field(default_factory=dict[ObjectKey, _Span])
    #: When each status was seen, and the instant that it is as of; a few of the latest.
    saves: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def saved_at(self, now: float) -> float | None:
        """Return up to when the status surely has what was held; None: it says nothing."""
        old = [as_of for seen_at, as_of in self.saves if seen_at <= now - STALE_SECONDS]
        return max(old, default=None)

    def at(self, now: float, until: float) -> float:
        """Return the sum of what was held before `until`, as of `now`."""
        total = self.past * self._kept(now - self.past_at)
        spans = (*self.ended, *self.held.values())
        return total + sum(self._sum(span, min(span.until, until), now) for span in spans)

    def fold(self, now: float) -> None:
        """Add to the past what the status has, and every decision has seen."""
        saved_at = self.saved_at(now)
        final_at = -math.inf if saved_at is None else min(saved_at, now - STALE_SECONDS)
        final = [span for span in self.ended if span.until <= final_at]
        if final:
            self.past *= self._kept(now - self.past_at)
            self.past += sum(self._sum(span, span.until, now) for span in final)
            self.past_at = now
            self.ended = [span for span in self.ended if span.until > final_at]
        if saved_at is not None:
            self.saves = [each for each in self.saves if each[1] >= saved_at]

    def lose(self, began_at: float, error_seconds: float) -> None:
        """Take away what a process that began then cannot know."""
        saved_at = self.saved_at(began_at)
        if saved_at is None:
            self.past, self.ended = 0.0, []
        else:
            for span in self.ended:
                span.until = min(span.until, saved_at)
            self.ended = [span for span in self.ended if span.since < span.until]
        for span in self.held.values():
            if saved_at is not None and span.since < began_at and error_seconds:
                self.ended.append(_Span(span.gpus, span.since, began_at))
            if saved_at is None or error_seconds:
                span.since = max(span.since, began_at + 2 * error_seconds)

    def _kept(self, seconds: float) -> float:
        return math.exp2(-seconds / self.half_life_seconds)

    def _sum(self, span: _Span, until: float, now: float) -> float:
        """Return what a span is at `now`: the integral of its GPUs, each instant decayed."""
        if until <= span.since:
            return 0.0
        kept = self._kept(now - until) - self._kept(now - span.since)
        return span.gpus * self.half_life_seconds / math.log(2) * kept


@dataclass(slots=True)
class _JobModel:
    """What one unfinished job holds or is nominated for."""

    job: Job
    is_nominated: bool
    nodes: int


@dataclass(slots=True)
class BudgetChecker(Observer):
    """An `Observer` that is fed with teams, too; `model` is fed before it is.

    The clocks of the controllers are wrong by at most `clock_error_seconds`. `judged` counts the
    starts of jobs whose team has a budget.
    """

    model: TeamModel
    working: WorkingTime = field(default_factory=WorkingTime)
    clock_error_seconds: float = 0.0
    judged: int = 0
    _jobs: dict[ObjectKey, _JobModel] = field(default_factory=dict[ObjectKey, _JobModel])
    _uses: dict[str, _Use] = field(default_factory=dict[str, _Use])
    #: When the process whose sums count first decided.
    _began_at: float = -math.inf

    def team(self, new: Team | None, name: str, now: float) -> None:
        """Take in a team: its half-life, and what its status has saved."""
        self._take_in_restart()
        if new is None:
            self._uses.pop(name, None)
            return
        half_life = new.spec.budget.half_life_days * _DAY_SECONDS
        use = self._uses.get(name)
        if use is None:
            use = self._uses[name] = _Use(half_life)
            for key, model in self._jobs.items():
                if model.nodes and self.model.team_of(model.job) == name:
                    self._hold(use, key, model.job, now)
        use.half_life_seconds = min(use.half_life_seconds, half_life)
        if new.status.use.as_of is not None:
            as_of = min(parse_time(new.status.use.as_of), now) - self.clock_error_seconds
            if not use.saves or use.saves[-1][1] != as_of:
                use.saves.append((now, as_of))
                use.fold(now)

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """4: a job without nodes gets or is nominated for some only within the budget."""
        self._take_in_restart()
        before = self._jobs.pop(key, None)
        if new is None or new.is_finished:
            self._give_back(key, now)
            return
        placement, nomination = new.status.placement, new.status.nomination
        nodes = len(nodes_of(placement))
        after = self._jobs[key] = _JobModel(new, nomination is not None, nodes)
        had_place = before is not None and (before.nodes or before.is_nominated)
        if (nodes or after.is_nominated) and not had_place:
            self._check_start(key, new, now)
        had = before.nodes if before is not None else 0
        if had and nodes != had:
            self._give_back(key, now)
        if nodes and nodes != had:
            use = self._uses.get(self.model.team_of(new))
            if use is not None:
                self._hold(use, key, new, now)

    def _hold(self, use: _Use, key: ObjectKey, job: Job, now: float) -> None:
        since = now + _SEEN_SECONDS + 2 * self.clock_error_seconds
        use.held[key] = _Span(_gpus_of(job), since)

    def _give_back(self, key: ObjectKey, now: float) -> None:
        for use in self._uses.values():
            span = use.held.pop(key, None)
            if span is not None and span.since < now:
                span.until = now
                use.ended.append(span)
                use.fold(now)

    def _take_in_restart(self) -> None:
        began_at = self.working.began_at(SCHEDULER)
        if began_at not in (self._began_at, math.inf):
            self._began_at = began_at
            for use in self._uses.values():
                use.lose(began_at, self.clock_error_seconds)

    def _check_start(self, key: ObjectKey, job: Job, now: float) -> None:
        name = self.model.team_of(job)
        spec, use = self.model.specs.get(name), self._uses.get(name)
        is_stale = now - self.model.changed_at <= STALE_SECONDS
        if spec is None or use is None or is_stale or not _gpus_of(job):
            return
        hours = spec.budget.gpu_hours
        if hours is None:
            return
        self.judged += 1
        used = use.at(now + 2 * self.clock_error_seconds, now - STALE_SECONDS) / _HOUR_SECONDS
        if not hours or used > hours * (1 + _TOLERANCE):
            raise PromiseBroken(
                f"4: {key} starts while team {name} has used {used:.2f} GPU-hours, its budget is "
                f"{hours}"
            )


def _gpus_of(job: Job) -> int:
    sizes = job.sizes
    return sum(
        sizes[role.name] * requests_of(role.template.spec).get(GPU, 0) for role in job.spec.roles
    )
