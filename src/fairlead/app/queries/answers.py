"""What the planner says to those who ask: why a job is where it is, whether one would fit.

    Answers(state, ...)      on the scheduler's own state, in the leader: nothing is read again
                             or on one that a client has assembled (`model/objects.py`)
    explain, suppose, fit    the answers, as `fairlead why` and `fairlead submit` show them

Everything is asked in transactions that are rolled back, so the state is as it was. The forecast is
a run of the planner through the ends of jobs, and answers for all jobs: it is kept for a time that
grows with what it costs. docs/design/answers.md has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from msgspec import structs

from fairlead.api.cluster.node_pool import NodePool, NodePoolStatus, Provider
from fairlead.api.cluster.team import TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import ObjectMeta
from fairlead.app.queries.messages import Explained, Fitted
from fairlead.decide.answers.alternatives import alternatives_to
from fairlead.decide.answers.explain import explain, explain_changed
from fairlead.decide.answers.explanation import Explanation, Forecast, PreemptionAhead, UnknownBound
from fairlead.decide.answers.forecast import Forecasts
from fairlead.decide.answers.supposed import changed, submitted, supposed
from fairlead.decide.fleet.buying.growth import pools_that_hold
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.whatif import fits_empty, largest_shape
from fairlead.decide.placement.waiting.patience import unreachable_level
from fairlead.decide.placement.waiting.quota import TakenQuota, excess_of
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.teams.decide import use_of
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.gang.phase import Phase
from fairlead.model.health.node_health import NodeHealth

#: A forecast that took some time answers for so many times as long: so forecasts take at most one
#: part in so many of the process, however many ask.
FORECAST_KEPT_RATIO = 20.0
FORECAST_KEPT_SECONDS_MAX = 5.0
#: The expected start takes up to so many forecasts, and is left out where that is longer.
EXPECTED_RUNS = 40

Awaited: TypeAlias = Forecast | PreemptionAhead | UnknownBound | None


@dataclass(slots=True)
class _Kept:
    """A forecast, since when it is kept, and how long it and the answers from it took."""

    forecasts: Forecasts
    since: float
    seconds: float = 0.0

    def is_current(self, now: float) -> bool:
        kept_seconds = min(FORECAST_KEPT_RATIO * self.seconds, FORECAST_KEPT_SECONDS_MAX)
        return self.since <= now <= self.since + kept_seconds


@dataclass(frozen=True, slots=True)
class KnownState:
    """What is known of a cluster beside the state of its planner."""

    nodes: Callable[[], Sequence[Node]] = tuple
    pools: Callable[[], Sequence[NodePool]] = tuple
    health: NodeHealth = field(default_factory=NodeHealth)


class PlannerAnswers:
    """Answers about one cluster; one object as long as the state lives."""

    def __init__(
        self,
        state: PlacementState,
        known: KnownState,
        policy: PlacementPolicy,
        jobs: JobsPolicy,
        *,
        stopwatch: Callable[[], float],
        seconds: Callable[[], float],
    ) -> None:
        """`stopwatch` returns instants for the durations of answers, in seconds.

        `seconds` returns how long an answer may take: in half of it what changes are tried, then
        how far the forecast looks, then whether the expected start is asked.
        """
        self.state = state
        self._known, self._policy, self._jobs = known, policy, jobs
        self._stopwatch = stopwatch
        self._seconds, self._give_up_at = seconds, 0.0
        self._kept: _Kept | None = None

    def explain(self, key: ObjectKey, now: float) -> Explained:
        """Return why a job is where it is."""
        kept = self._kept
        began, left = self._stopwatch(), self._seconds()
        self._give_up_at = began + left
        if kept is None or not kept.is_current(now):
            forecasts = Forecasts(self.state, now, self._policy, is_late=self._is_late)
            kept = self._kept = _Kept(forecasts, now)
        is_cheap = kept.seconds * EXPECTED_RUNS <= left
        found = explain(
            self.state, key, now, self._policy, forecasts=kept.forecasts,
            is_late=self._is_late if is_cheap else None,
            may_try=lambda: self._stopwatch() < began + left / 2,
        )  # fmt: skip
        kept.seconds += self._stopwatch() - began
        return self.about(key, found)

    def _is_late(self) -> bool:
        return self._stopwatch() > self._give_up_at

    def about(self, key: ObjectKey, found: Explanation | None) -> Explained:
        """Return an explanation with what is known of its job beside."""
        entry, cluster = self.state.cluster.jobs.get(key), self.state.cluster
        if entry is None or found is None:
            return Explained()
        placement = entry.job.status.placement
        health = self._known.health
        own, since = dict.fromkeys(nodes_of(placement)), health.unready_since
        pools = list(self._known.pools()) if placement is None else []
        is_impossible = found.verdict.outcome is Outcome.IMPOSSIBLE
        return Explained(
            found,
            {name: since[name] for name in own if name in since},
            [name for name in own if name in health.unreachable],
            self._jobs.node_lost_grace_seconds,
            [_for_job(pool, key) for pool in pools],
            self._holding(entry.gang, pools) if is_impossible else {},
            {name: team for name in own if (team := cluster.uses.owner(name))},
        )

    def suppose(self, wanted: Job, now: float) -> Explained:
        """Return what a decision would do with a waiting job, had it been submitted like `wanted`;
        nothing of one that does not wait for a place.
        """
        key = wanted.metadata.key
        entry = self.state.cluster.jobs.get(key)
        if entry is None or entry.phase is not Phase.QUEUED:
            return Explained(is_changed=True)
        job = changed(entry.job, wanted)
        began, left = self._stopwatch(), self._seconds()
        self._give_up_at = began + left
        kept = self._kept
        is_cheap = kept is not None and kept.seconds * EXPECTED_RUNS <= left
        found = explain_changed(
            self.state, job, now, self._policy, gives_up=self._is_late,
            is_late=self._is_late if is_cheap else None,
            may_try=lambda: self._stopwatch() < began + left / 2,
        )  # fmt: skip
        with supposed(self.state, job):
            return structs.replace(self.about(key, found), is_changed=True)

    def fit(self, job: Job, now: float) -> Fitted:
        """Return what a decision would do with a job that is submitted now."""
        self._give_up_at = self._stopwatch() + self._seconds()
        cluster = self.state.cluster
        job, shape = submitted(job, now), dict(largest_shape(cluster))
        with supposed(self.state, job):
            gang = cluster.jobs[job.metadata.key].gang
            never = fits_empty(cluster, gang)
            if never.outcome is Outcome.IMPOSSIBLE or not shape:
                return self._never(job, gang, never, shape)
            assert not isinstance(gang, InvalidGang), "its verdict is that it is impossible"
            unreachable = unreachable_level(cluster, gang)
        found = explain_changed(
            self.state, job, now, self._policy, gives_up=self._is_late, may_try=lambda: False
        )  # fmt: skip
        assert found is not None, "a job that waits is explained"
        verdict = found.verdict
        over = (
            excess_of(TakenQuota(cluster), job, gang) if verdict.reason is Reason.PLACED else None
        )
        if over is not None:  # it is placed, and its pods are refused
            verdict = Verdict(Reason.AWAITING_QUOTA, {"message": str(over)})
        place = found.place if over is None else None
        return Fitted(verdict, shape, forecast=found.forecast, unreachable=unreachable, place=place)

    def _never(
        self, job: Job, gang: GangRequest | InvalidGang, verdict: Verdict, shape: dict[str, int]
    ) -> Fitted:
        """Return the answer on a job that the present nodes can never hold."""
        pools = self._known.pools()
        holding = self._holding(gang, pools) if shape else {}
        if holding or not shape:
            held = (pool for pool in pools if pool.metadata.name in holding)
            key = job.metadata.key
            return Fitted(verdict, shape, [_for_job(pool, key) for pool in held], holding)
        instead = alternatives_to(self.state.cluster, job, gang, verdict, nodes=self._known.nodes())
        return Fitted(verdict, shape, alternatives=instead)

    def team_uses(self, now: float) -> dict[str, TeamUse]:
        """Return what each team uses, as `TeamStatus.use` has it, but for intruders."""
        cluster = self.state.cluster
        return {
            team.metadata.name: use_of(cluster, team.metadata.name, now) for team in cluster.teams
        }

    def _holding(
        self, gang: GangRequest | InvalidGang, pools: Sequence[NodePool]
    ) -> dict[str, int]:
        devices = self.state.cluster.table.devices
        return dict(pools_that_hold(self._known.nodes(), gang, pools, devices)) if pools else {}


def fitted_of_namespace(fitted: Fitted, namespace: str) -> Fitted:
    """Return an answer without the jobs of other namespaces, see `of_namespace`, and without what
    nodes say that the user may not see.
    """
    verdict, instead = fitted.verdict, fitted.alternatives
    return structs.replace(
        fitted,
        verdict=replace(verdict, blockers=_own(verdict.blockers, namespace)),
        forecast=_awaited_of_namespace(fitted.forecast, namespace),
        place=None,
        alternatives=structs.replace(instead, taints=()),
    )  # fmt: skip


def of_namespace(found: Explained, namespace: str) -> Explained:
    """Return an answer without the jobs and pods of other namespaces, for a user who may not list
    those: what the verdict in the status of his own job says of them stays.
    """
    explanation = found.explanation
    if explanation is None:
        return found
    explanation = structs.replace(explanation, place=None)  # he may not see nodes
    own = partial(_own, namespace=namespace)
    ahead, verdict = explanation.ahead, explanation.verdict
    left = structs.replace(
        explanation,
        verdict=replace(verdict, blockers=own(verdict.blockers)),
        ahead=structs.replace(ahead, jobs=own(ahead.jobs)) if ahead is not None else None,
        holders=tuple(each for each in explanation.holders if each.key[0] == namespace),
        overdue=tuple(each for each in explanation.overdue if each.key[0] == namespace),
        claimed=tuple(
            structs.replace(
                each,
                free_on=(),
                taken_on=(),
                holders=tuple(h for h in each.holders if h.key[0] == namespace),
            )
            for each in explanation.claimed
        ),
        forecast=_awaited_of_namespace(explanation.forecast, namespace),
    )
    return structs.replace(found, explanation=left, is_partial=left != explanation)


def _awaited_of_namespace(awaited: Awaited, namespace: str) -> Awaited:
    own = partial(_own, namespace=namespace)
    if isinstance(awaited, Forecast):
        return structs.replace(awaited, waits_for=own(awaited.waits_for))
    if isinstance(awaited, PreemptionAhead):
        borrowed = zip(awaited.victims, awaited.borrowed, strict=False)
        return structs.replace(
            awaited, victims=own(awaited.victims),
            borrowed=tuple(count for key, count in borrowed if key[0] == namespace),
        )  # fmt: skip
    return awaited


def _own(keys: Iterable[ObjectKey], namespace: str) -> tuple[ObjectKey, ...]:
    return tuple(key for key in keys if key[0] == namespace)


def _for_job(pool: NodePool, key: ObjectKey) -> NodePool:
    """Return what a pool is and does for one job."""
    job, spec, status = "/".join(key), pool.spec, pool.status
    balloons = status.balloons
    if balloons is not None:
        balloons = structs.replace(balloons, jobs=tuple(n for n in balloons.jobs if n == job))
    launches = (structs.replace(each, jobs=(job,)) for each in status.launches if job in each.jobs)
    return NodePool(
        ObjectMeta(name=pool.metadata.name),
        structs.replace(
            NodePool().spec, provider=Provider(spec.provider.type), mode=spec.mode,
            scale_up=spec.scale_up,
        ),
        NodePoolStatus(message=status.message, launches=tuple(launches), balloons=balloons),
    )  # fmt: skip
