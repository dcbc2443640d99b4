"""What the planner says to those who ask: why a job is where it is, whether one would fit.

    Answers(state, ...)      on the scheduler's own state, in the leader: nothing is read again
                             or on one that a client has assembled (`model/objects.py`)
    explain, dry_run         the answers, as `fairlead why` and `fairlead submit` show them

Everything is asked in transactions that are rolled back, so the state is as it was. The forecast is
a run of the planner through the ends of jobs, and answers for all jobs: it is kept for a time that
grows with what it costs. docs/design/answers.md has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
from msgspec import structs

from fairlead.api.core import Node
from fairlead.api.job import Job
from fairlead.api.meta import ObjectMeta
from fairlead.api.node_pool import NodePool, NodePoolStatus, Provider
from fairlead.api.placement import nodes_of
from fairlead.api.team import TeamUse
from fairlead.app.messages import Fitted
from fairlead.decide.explain import Explanation, explain
from fairlead.decide.fleet.growth import pools_that_hold
from fairlead.decide.forecast import Forecast, Forecasts, Preemption
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.dry_run import dry_run
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.placement.whatif import largest_shape
from fairlead.decide.reasons import Outcome
from fairlead.decide.teams.decide import use_of
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.node_health import NodeHealth

#: A forecast that took some time answers for so many times as long: so forecasts take at most one
#: part in so many of the process, however many ask.
FORECAST_KEPT_RATIO = 20.0
FORECAST_KEPT_SECONDS_MAX = 5.0
#: The expected start takes up to so many forecasts, and is left out where that is longer.
EXPECTED_RUNS = 40


class Explained(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of a job beside its object."""

    #: None for a job that is not known, or has ended.
    explanation: Explanation | None = None
    #: Nodes of the job that are not ready, and since when.
    unready: dict[str, float] = {}
    #: How long the job waits for those.
    node_lost_grace_seconds: float = 0.0
    #: The pools, with what they do for this job and nothing of others.
    pools: list[NodePool] = []
    #: How many nodes of which pools would hold a job that the present nodes never can.
    holding: dict[str, int] = {}
    #: The team of each node of the job that has one.
    owners: dict[str, str] = {}
    #: Jobs of other namespaces are left out.
    is_partial: bool = False


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
class Known:
    """What is known of a cluster beside the state of its planner."""

    nodes: Callable[[], Sequence[Node]] = tuple
    pools: Callable[[], Sequence[NodePool]] = tuple
    health: NodeHealth = field(default_factory=NodeHealth)


class Answers:
    """Answers about one cluster; one object as long as the state lives."""

    def __init__(
        self,
        state: PlacementState,
        known: Known,
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
        own, since = dict.fromkeys(nodes_of(placement)), self._known.health.unready_since
        pools = list(self._known.pools()) if placement is None else []
        is_impossible = found.verdict.outcome is Outcome.IMPOSSIBLE
        return Explained(
            found,
            {name: since[name] for name in own if name in since},
            self._jobs.node_lost_grace_seconds,
            [_for_job(pool, key) for pool in pools],
            self._holding(entry.gang, pools) if is_impossible else {},
            {name: team for name in own if (team := cluster.uses.owner(name))},
        )

    def dry_run(self, job: Job, now: float) -> Fitted:
        """Return whether a job that is not queued yet would fit."""
        cluster, pools = self.state.cluster, self._known.pools()
        verdict, shape = dry_run(cluster, job, now), dict(largest_shape(cluster))
        if verdict.outcome is not Outcome.IMPOSSIBLE or not (shape and pools):
            return Fitted(verdict, shape)
        holding = self._holding(cluster.gang_of(job), pools)
        held = (pool for pool in pools if pool.metadata.name in holding)
        key = job.metadata.key
        return Fitted(verdict, shape, [_for_job(pool, key) for pool in held], holding)

    def team_uses(self, now: float) -> dict[str, TeamUse]:
        """Return what each team uses, as `TeamStatus.use` has it, but for intruders."""
        cluster = self.state.cluster
        return {
            team.metadata.name: use_of(cluster, team.metadata.name, now) for team in cluster.teams
        }

    def _holding(
        self, gang: GangRequest | InvalidGang, pools: Sequence[NodePool]
    ) -> dict[str, int]:
        return dict(pools_that_hold(self._known.nodes(), gang, pools)) if pools else {}


def fitted_of_namespace(fitted: Fitted, namespace: str) -> Fitted:
    """Return an answer without the jobs of other namespaces; see `of_namespace`."""
    verdict = fitted.verdict
    blockers = _own(verdict.blockers, namespace)
    return structs.replace(fitted, verdict=replace(verdict, blockers=blockers))


def of_namespace(found: Explained, namespace: str) -> Explained:
    """Return an answer without the jobs and pods of other namespaces, for a user who may not list
    those: what the verdict in the status of his own job says of them stays.
    """
    explanation = found.explanation
    if explanation is None:
        return found
    own = partial(_own, namespace=namespace)
    ahead, forecast, verdict = explanation.ahead, explanation.forecast, explanation.verdict
    if isinstance(forecast, Forecast):
        forecast = structs.replace(forecast, waits_for=own(forecast.waits_for))
    elif isinstance(forecast, Preemption):
        borrowed = zip(forecast.victims, forecast.borrowed, strict=False)
        forecast = structs.replace(
            forecast, victims=own(forecast.victims),
            borrowed=tuple(count for key, count in borrowed if key[0] == namespace),
        )  # fmt: skip
    left = replace(
        explanation,
        verdict=replace(verdict, blockers=own(verdict.blockers)),
        ahead=replace(ahead, jobs=own(ahead.jobs)) if ahead is not None else None,
        holders=tuple(each for each in explanation.holders if each.key[0] == namespace),
        overdue=tuple(each for each in explanation.overdue if each.key[0] == namespace),
        forecast=forecast,
    )
    return structs.replace(found, explanation=left, is_partial=left != explanation)


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
