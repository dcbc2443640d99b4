"""The plan of one pool, and the status that says it: counts, launches, what holds the pool back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api.meta import Condition, set_condition
from fairlead.api.node_pool import (
    JOBS_SHOWN_MAX,
    LAUNCHES_MAX,
    VALID,
    Launch,
    NodePool,
    NodePoolStatus,
    PoolDecision,
    PoolMode,
    Unavailable,
)
from fairlead.api.times import format_time, parse_time
from fairlead.decide.fleet.census import Census, is_gone, is_joined
from fairlead.decide.fleet.view import FleetView
from fairlead.decide.rails.removals import Outcome, Ruling
from fairlead.decide.rails.sight import Finding
from fairlead.decide.words import plural
from fairlead.model.gangs import JobKey

DECISIONS_MAX = 50
UNAVAILABLE_SECONDS_MAX = 3600.0
_MESSAGE_MAX = 500


@dataclass(frozen=True, slots=True)
class Buy:
    """Nodes to buy in a domain, and the jobs that need them; none: headroom, min or hold."""

    domain: str
    count: int
    jobs: tuple[JobKey, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What is to become of one pool."""

    census: Census
    wanted: int
    buys: tuple[Buy, ...]
    surplus: int
    #: Marked nodes that are wanted again, by domain.
    returning: Mapping[str, int]
    is_acted_on: bool
    #: Something would be bought, but what is seen cannot be trusted, or the fleet is frozen.
    is_held_back: bool
    lacking: int

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
    findings: Sequence[Finding],
    rulings: Sequence[Ruling],
    *,
    believes_cloud: bool,
    ended: int,
) -> tuple[NodePoolStatus, tuple[PoolDecision, ...]]:
    """Return the status of a pool and the new decisions in it.

    `ended`: removals of this pool that are seen through with this decision.
    """
    pool, census, old = plan.pool, plan.census, plan.pool.status
    at = format_time(view.now)
    launches, decided = _launches(view, plan, at)
    decided = (*decided, *_removed(plan, rulings, at))
    nodes = census.nodes.values()
    status = replace(
        old,
        observed_generation=pool.metadata.generation,
        conditions=set_condition(old.conditions, _valid(census, at)),
        nodes=len(census.nodes),
        ready=sum(node.is_usable for node in nodes),
        launching=census.launching,
        joining=len(census.joining),
        leaving=len(census.leaving),
        wanted=plan.wanted,
        launches=launches,
        launch_number=old.launch_number + len(decided_launches(decided)),
        unavailable=tuple(u for u in old.unavailable if not _is_stale(u, view.now)),
        recorded=_recorded(census, old, believes_cloud=believes_cloud, ended=ended),
        decisions=(*old.decisions, *decided)[-DECISIONS_MAX:],
    )
    return replace(status, message=_message(plan, status, findings, rulings)), decided


def decided_launches(decided: Sequence[PoolDecision]) -> list[PoolDecision]:
    """Return the launches among decisions."""
    return [each for each in decided if each.action == "Launch"]


def refused(
    status: NodePoolStatus, launch: Launch, reason: str, *, now: float, base: float
) -> NodePoolStatus:
    """Return the status after a provider refused a launch: the domain is avoided for a while."""
    before = next((u for u in status.unavailable if u.domain == launch.domain), None)
    refusals = before.refusals + 1 if before is not None else 1
    seconds = min(base * 2.0 ** (min(refusals, 20) - 1), UNAVAILABLE_SECONDS_MAX)
    mark = Unavailable(launch.domain, reason[:200], format_time(now + seconds), refusals)
    others = tuple(u for u in status.unavailable if u.domain != launch.domain)
    said = PoolDecision(format_time(now), "Refused", "ProviderRefused", reason[:_MESSAGE_MAX])
    return replace(
        status,
        launches=tuple(each for each in status.launches if each.token != launch.token),
        unavailable=(*others, mark),
        decisions=(*status.decisions, said)[-DECISIONS_MAX:],
    )


def answered(status: NodePoolStatus, launch: Launch, ids: tuple[str, ...]) -> NodePoolStatus:
    """Return the status after the provider launched machines."""
    known = replace(launch, instances=ids)
    return replace(
        status,
        launches=tuple(known if each.token == launch.token else each for each in status.launches),
        recorded=None if status.recorded is None else status.recorded + len(ids),
        unavailable=tuple(u for u in status.unavailable if u.domain != launch.domain),
    )


def _launches(
    view: FleetView, plan: PoolPlan, at: str
) -> tuple[tuple[Launch, ...], tuple[PoolDecision, ...]]:
    pool, census = plan.pool, plan.census
    kept = [launch for launch in pool.status.launches if not _is_done(view, census, launch)]
    decided: list[PoolDecision] = []
    number = pool.status.launch_number
    for buy in plan.buys if plan.is_acted_on else ():
        left = buy.count
        while left > 0 and len(kept) < LAUNCHES_MAX:
            count = min(left, pool.spec.scale_up.nodes_per_launch_max)
            number += 1
            token = f"{pool.metadata.uid[:8]}-{number}"
            jobs = tuple("/".join(key) for key in buy.jobs[:JOBS_SHOWN_MAX])
            kept.append(Launch(token, buy.domain, count, at, jobs))
            where = f" in {buy.domain}" if buy.domain else ""
            why = f"for {', '.join(jobs[:3])}" if jobs else "for headroom, min or hold"
            text = f"{plural(count, 'node')}{where} {why}"
            decided.append(PoolDecision(at, "Launch", "Demand" if jobs else "Size", text))
            left -= count
    return tuple(kept), tuple(decided)


def _is_done(view: FleetView, census: Census, launch: Launch) -> bool:
    """True when each machine has taken up work, is gone, or is being removed."""
    if launch.instances is None:
        return False
    return all(
        id_ in census.leaving
        or is_joined(view.nodes.by_instance.get(id_))
        or is_gone(view, census.view, launch, id_)
        for id_ in launch.instances
    )


def _removed(plan: PoolPlan, rulings: Sequence[Ruling], at: str) -> tuple[PoolDecision, ...]:
    out: list[PoolDecision] = []
    for ruling in rulings:
        removal = ruling.removal
        if removal.charge.pool != plan.census.view.name or ruling.outcome is Outcome.WAIT:
            continue
        text = f"{removal.name}: {removal.why} ({ruling.rule.value})"
        action = "Remove" if ruling.outcome is Outcome.REMOVE else "Mark"
        out.append(PoolDecision(at, action, removal.charge.cause.value, text))
    return tuple(out[:DECISIONS_MAX])


def _recorded(
    census: Census, old: NodePoolStatus, *, believes_cloud: bool, ended: int
) -> int | None:
    inventory = census.view.inventory
    if inventory is None or not inventory.is_complete:
        return old.recorded
    if old.recorded is None or believes_cloud:
        # With those whose removal is under way, which are subtracted when they are compared.
        return len(census.instances.keys() | census.leaving.keys()) - ended
    return old.recorded - ended


def _is_stale(mark: Unavailable, now: float) -> bool:
    return now > parse_time(mark.until) + UNAVAILABLE_SECONDS_MAX


def _valid(census: Census, at: str) -> Condition:
    mistakes = census.view.mistakes
    text = "; ".join(mistakes)[:1000]
    status, reason = ("False", "InvalidSpec") if mistakes else ("True", "Valid")
    return Condition(VALID, status, reason, text, None, at)


def _message(
    plan: PoolPlan, status: NodePoolStatus, findings: Sequence[Finding], rulings: Sequence[Ruling]
) -> str:
    """Return what holds the pool back, most important first; "" when nothing does."""
    census, parts = plan.census, list[str]()
    if census.view.mistakes:
        return f"invalid: {'; '.join(census.view.mistakes)}"[:_MESSAGE_MAX]
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
    waiting = [u for u in status.unavailable if plan.lacking]
    parts += [f"{u.domain or 'provider'} unavailable: {u.reason}" for u in waiting[:3]]
    held = [r for r in rulings if r.removal.charge.pool == census.view.name
            and r.outcome is Outcome.WAIT]  # fmt: skip
    if held and not findings:
        parts.append(f"{plural(len(held), 'removal')} held back: {held[0].rule.value}")
    return "; ".join(part for part in parts if part)[:_MESSAGE_MAX]
