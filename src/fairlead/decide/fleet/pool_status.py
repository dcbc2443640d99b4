"""The plan of one pool, and the status that says it: counts, launches, what holds the pool back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from fairlead.api.cluster.node_pool import (
    JOBS_SHOWN_MAX,
    LAUNCHES_MAX,
    VALID,
    BalloonCounts,
    Launch,
    NodePool,
    NodePoolStatus,
    PoolDecision,
    PoolMode,
    UnavailableDomain,
)
from fairlead.api.meta import Condition, set_condition
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.fleet.buying.demand import Unbought
from fairlead.decide.fleet.census import PoolCensus, has_joined, is_gone
from fairlead.decide.fleet.decisions import (
    Facts,
    balloons_changed,
    given_up,
    launched,
    refusal,
    removal_decision,
    with_decisions,
)
from fairlead.decide.fleet.leaving.deletion import deletion_words
from fairlead.decide.fleet.view import FleetView
from fairlead.decide.removal.bought import with_bought, with_lost
from fairlead.decide.removal.removals import RemovalOutcome, Ruling, rule_words
from fairlead.decide.removal.trust import SightFinding
from fairlead.decide.words import plural
from fairlead.model.gang.gangs import JobKey

UNAVAILABLE_SECONDS_MAX = 3600.0
_MESSAGE_MAX = 500
#: Alternatives that a decision names.
_PASSED_MAX = 10


@dataclass(frozen=True, slots=True)
class Buy:
    """Nodes to buy in a domain, and the jobs that need them; none: headroom, spares, min, hold."""

    domain: str
    count: int
    jobs: tuple[JobKey, ...] = ()
    #: Offers that were preferred, and why nothing is bought of them.
    passed: Mapping[str, Unbought] = field(default_factory=dict[str, Unbought])


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What is to become of one pool."""

    census: PoolCensus
    wanted: int
    buys: tuple[Buy, ...]
    surplus: int
    #: Marked nodes that are wanted again, by domain.
    returning: Mapping[str, int]
    is_acted_on: bool
    #: Something would be bought, but what is seen cannot be trusted, or the fleet is frozen.
    is_held_back: bool
    lacking: int
    #: Down to how many nodes in use jobs may be moved off nodes; None: they may not.
    consolidates_to: int | None = None
    #: Of a pool whose machines another autoscaler owns; None: of any other.
    balloons: BalloonCounts | None = None
    #: No scheduler would bind balloons on its nodes.
    is_bound_directly: bool = False

    @property
    def pool(self) -> NodePool:
        """The pool."""
        return self.census.view.pool

    @property
    def is_busy(self) -> bool:
        """True while time alone may change what is to be done soon."""
        census = self.census
        status = self.pool.status
        return bool(self.buys or census.launching or census.joining
                    or census.leaving or census.marked or status.launches)  # fmt: skip


def status_of(
    view: FleetView,
    plan: PoolPlan,
    findings: Sequence[SightFinding],
    rulings: Sequence[Ruling],
    *,
    believes_cloud: bool,
    ended: int,
    clock: float,
    noted: Sequence[PoolDecision] = (),
) -> tuple[NodePoolStatus, tuple[PoolDecision, ...]]:
    """Return the status of a pool and the new decisions in it.

    `ended`: removals of this pool that are seen through with this decision. `clock`: what the
    ledger's clock reads now. `noted`: what else was decided about the pool.
    """
    pool, census, old = plan.pool, plan.census, plan.pool.status
    at = format_time(view.now)
    launches, decided = _launches(view, plan, at)
    launch_count = len(decided)
    nodes = census.nodes.values()
    avoided, hopeless = _give_up(view, census)
    recorded = _recorded(census, old, believes_cloud=believes_cloud, ended=ended)
    lost = 0 if old.recorded is None else old.recorded - ended - (recorded or 0)
    written = view.fleet.status.clock if view.fleet is not None else clock
    status = replace(
        old,
        observed_generation=pool.metadata.generation,
        conditions=set_condition(old.conditions, _valid(census, at)),
        nodes=len(census.nodes),
        ready=sum(node.is_usable for node in nodes),
        launching=census.launching,
        joining=len(census.joining),
        idle=sum(node.is_usable and not view.nodes.is_used(node.name) for node in nodes),
        spares=len(census.spares),
        leaving=len(census.leaving),
        wanted=plan.wanted,
        launches=launches,
        launch_number=old.launch_number + launch_count,
        unavailable=tuple(u for u in avoided if not _is_stale(u, view.now)),
        balloons=plan.balloons,
        recorded=recorded,
        bought=with_bought(
            old.bought,
            written,
            _taken_up(view, census),
            present=census.instances.keys() - census.leaving.keys(),
        ),
        lost=with_lost(old.lost, clock, max(0, lost)),
        consolidates_to=_consolidates_to(plan, findings, rulings),
    )
    held = balloons_changed(old.balloons, status.balloons, at)
    status, decided = with_decisions(
        status, (*decided, *hopeless, *removed(plan, rulings, at), *held, *noted)
    )
    return replace(status, message=_message(plan, status, findings, rulings)), decided


def _consolidates_to(
    plan: PoolPlan, findings: Sequence[SightFinding], rulings: Sequence[Ruling]
) -> int | None:
    """Return the plan's answer where nodes that become idle would go: the fleet is seen and not
    frozen, and no removal of the pool waits for a budget.
    """
    name = plan.census.view.name
    waits = any(r.removal.charge.pool == name and r.outcome is RemovalOutcome.WAIT for r in rulings)
    return None if findings or waits or not plan.is_acted_on else plan.consolidates_to


def refused(
    status: NodePoolStatus, launch: Launch, reason: str, *, now: float, base: float
) -> NodePoolStatus:
    """Return the status after a provider refused a launch: the domain is avoided for a while."""
    marks, mark = _avoid(status.unavailable, launch.domain, reason, now=now, base=base)
    status, _ = with_decisions(status, [refusal(launch, reason, mark, format_time(now))])
    return replace(
        status,
        launches=tuple(each for each in status.launches if each.token != launch.token),
        unavailable=marks,
    )


def _avoid(
    marks: tuple[UnavailableDomain, ...], domain: str, reason: str, *, now: float, base: float
) -> tuple[tuple[UnavailableDomain, ...], UnavailableDomain]:
    """Return the marks with one more failure of a domain, and the new mark."""
    before = next((u for u in marks if u.domain == domain), None)
    refusals = before.refusals + 1 if before is not None else 1
    seconds = min(base * 2.0 ** (min(refusals, 20) - 1), UNAVAILABLE_SECONDS_MAX)
    mark = UnavailableDomain(domain, reason[:200], format_time(now + seconds), refusals)
    return (*(u for u in marks if u.domain != domain), mark), mark


def _give_up(
    view: FleetView, census: PoolCensus
) -> tuple[tuple[UnavailableDomain, ...], tuple[PoolDecision, ...]]:
    """Return the domains to avoid, those of hopeless launches among them, and the decisions."""
    pool, decided = census.view.pool, list[PoolDecision]()
    marks, base = pool.status.unavailable, float(pool.spec.scale_up.unavailable_seconds)
    for launch in census.hopeless:
        reason = "no answer in time" if launch.instances is None else "no machine was up in time"
        marks, mark = _avoid(marks, launch.domain, reason, now=view.now, base=base)
        decided.append(given_up(launch, reason, mark, format_time(view.now)))
    return marks, tuple(decided)


def answered(
    status: NodePoolStatus,
    launch: Launch,
    ids: tuple[str, ...],
    *,
    working: Collection[str],
    now: float,
) -> NodePoolStatus:
    """Return the status after the provider launched machines.

    `working`: machines whose nodes have taken up work before the answer. Whatever the provider says
    of these, the launch does not wait for them, and they do not count as bought.
    """
    new = tuple(dict.fromkeys(id_ for id_ in ids if id_ not in working))
    known = replace(launch, instances=new, answered_at=format_time(now), given_up_at=None)
    status, _ = with_decisions(status, [launched(launch, ids, format_time(now))])
    return replace(
        status,
        launches=tuple(known if each.token == launch.token else each for each in status.launches),
        recorded=None if status.recorded is None else status.recorded + len(new),
        unavailable=tuple(u for u in status.unavailable if u.domain != launch.domain),
    )


def taken_over(status: NodePoolStatus, others: Sequence[Launch]) -> NodePoolStatus:
    """Return the status in which this process takes over launches that another one recorded."""
    launches = tuple(
        replace(each, takeovers=each.takeovers + 1) if each in others else each
        for each in status.launches
    )
    return replace(status, launches=launches)


def goes_on(before: NodePoolStatus, after: NodePoolStatus) -> bool:
    """True when the launches are to be written before those without an answer are sent again: one
    is given up, or all were, and others take their place.
    """
    is_waited_for = any(launch.given_up_at is None for launch in before.unanswered)
    given_up = (launch.token for launch in before.launches if launch.given_up_at is not None)
    now_given_up = (launch.token for launch in after.launches if launch.given_up_at is not None)
    is_given_up = bool(set(now_given_up) - set(given_up))
    return is_given_up or (not is_waited_for and before.launches != after.launches)


def _launches(
    view: FleetView, plan: PoolPlan, at: str
) -> tuple[tuple[Launch, ...], tuple[PoolDecision, ...]]:
    pool, census = plan.pool, plan.census
    kept = [
        replace(launch, given_up_at=at) if launch in census.hopeless else launch
        for launch in pool.status.launches
        if not _is_done(view, census, launch)
    ]
    decided: list[PoolDecision] = []
    number = pool.status.launch_number
    for buy in plan.buys if plan.is_acted_on else ():
        left = buy.count
        while left > 0 and len(kept) < LAUNCHES_MAX:
            count = min(left, pool.spec.scale_up.nodes_per_launch_max)
            number += 1
            token = f"{pool.metadata.uid[:8]}-{number}"
            jobs = jobs_shown(buy.jobs)
            kept.append(Launch(token, buy.domain, count, at, jobs))
            where = f" in {buy.domain}" if buy.domain else ""
            why = f"for {', '.join(jobs[:3])}" if jobs else "for headroom, spares, min or hold"
            text = f"{plural(count, 'node')}{where} {why}"
            facts: Facts = {"token": token, "jobs": len(buy.jobs), **_facts(plan, buy)}
            decided.append(PoolDecision(at, "Launch", "Demand" if jobs else "Size", text, facts))
            left -= count
    return tuple(kept), tuple(decided)


def _taken_up(view: FleetView, census: PoolCensus) -> set[str]:
    """Return the machines of launches that are done and that have taken up work."""
    return {
        id_
        for launch in census.view.pool.status.launches if _is_done(view, census, launch)
        for id_ in launch.instances or ()
        if has_joined(view, census, view.nodes.by_instance.get(id_))
    }  # fmt: skip


def jobs_shown(jobs: Iterable[JobKey]) -> tuple[str, ...]:
    """Return the first jobs that a status names, as namespace/name."""
    return tuple("/".join(key) for key in islice(jobs, JOBS_SHOWN_MAX))


def _facts(plan: PoolPlan, buy: Buy) -> Facts:
    spec = plan.pool.spec
    passed = [f"{name} {why.value}" for name, why in buy.passed.items()][:_PASSED_MAX]
    return {
        "size": plan.census.size, "wanted": plan.wanted,
        "limit": spec.max if spec.hold is None else spec.hold,
        **({"passedOver": ", ".join(passed)} if passed else {}),
    }  # fmt: skip


def _is_done(view: FleetView, census: PoolCensus, launch: Launch) -> bool:
    """True when each machine has taken up work, is gone, or is being removed."""
    if launch.instances is None:
        return False
    return all(
        id_ in census.leaving
        or has_joined(view, census, view.nodes.by_instance.get(id_))
        or is_gone(view, census, launch, id_)
        for id_ in launch.instances
    )


def removed(plan: PoolPlan, rulings: Sequence[Ruling], at: str) -> tuple[PoolDecision, ...]:
    """Return the decisions that rulings about the pool are, but for those to wait."""
    return tuple(
        removal_decision(ruling, at)
        for ruling in rulings
        if ruling.removal.charge.pool == plan.census.view.name
        and ruling.outcome is not RemovalOutcome.WAIT
    )


def _recorded(
    census: PoolCensus, old: NodePoolStatus, *, believes_cloud: bool, ended: int
) -> int | None:
    inventory = census.view.inventory
    is_complete = inventory is not None and inventory.is_complete
    if is_complete and (old.recorded is None or believes_cloud):
        # With those whose removal is under way, which are subtracted when they are compared.
        return len(census.instances.keys() | census.leaving.keys()) - ended
    return None if old.recorded is None else old.recorded - ended


def _is_stale(mark: UnavailableDomain, now: float) -> bool:
    return now > parse_time(mark.until) + UNAVAILABLE_SECONDS_MAX


def _valid(census: PoolCensus, at: str) -> Condition:
    mistakes = census.view.mistakes
    text = "; ".join(mistakes)[:1000]
    status, reason = ("False", "InvalidSpec") if mistakes else ("True", "Valid")
    return Condition(VALID, status, reason, text, None, at)


def _message(
    plan: PoolPlan,
    status: NodePoolStatus,
    findings: Sequence[SightFinding],
    rulings: Sequence[Ruling],
) -> str:
    """Return what holds the pool back, most important first; "" when nothing does."""
    census, parts = plan.census, list[str]()
    if census.view.mistakes:
        return f"invalid: {'; '.join(census.view.mistakes)}"[:_MESSAGE_MAX]
    if about_deletion := deletion_words(census):
        parts.append(about_deletion)
    if census.view.error:
        parts.append(f"provider: {census.view.error}")
    if plan.is_held_back:
        parts.append(f"buys nothing: {findings[0].blindness.value}" if findings else "")
    elif findings and plan.surplus:
        parts.append(f"removes nothing: {findings[0].blindness.value}")
    if plan.pool.spec.mode is PoolMode.DRY_RUN and (plan.buys or plan.surplus):
        count = sum(buy.count for buy in plan.buys)
        parts.append(f"dry run: would buy {count}" if count else
                     f"dry run: {plural(plan.surplus, 'node')} too many")  # fmt: skip
    parts += _about_balloons(plan)
    waiting = [u for u in status.unavailable if plan.lacking]
    parts += [f"{u.domain or 'provider'} unavailable: {u.reason}" for u in waiting[:3]]
    held = [r for r in rulings if r.removal.charge.pool == census.view.name
            and r.outcome is RemovalOutcome.WAIT]  # fmt: skip
    if held and not findings:
        parts.append(f"{plural(len(held), 'removal')} held back: {rule_words(held[0].rule)}")
    return "; ".join(part for part in parts if part)[:_MESSAGE_MAX]


def _about_balloons(plan: PoolPlan) -> list[str]:
    counts = plan.balloons
    if counts is None:
        return []
    if plan.is_bound_directly:
        return ["keeps no balloons: Fairlead binds the pods of these nodes itself"]
    if plan.pool.spec.mode is PoolMode.DRY_RUN and counts.wanted:
        return [f"dry run: would keep {plural(counts.wanted, 'balloon')}"]
    waits = "waits" if counts.waiting == 1 else "wait"
    text = f"{plural(counts.waiting, 'balloon')} {waits} for a node of the other autoscaler"
    return [text] if counts.waiting else []
