"""One decision about the fleet: count, look, buy, let join, remove, and write down why.

    census     what each pool has, what is coming and going
    sight      can what is seen be trusted? (`decide/removal/`)
    demand     what waiting gangs need beyond what is there and coming
    joins      which new nodes may take work now, and which nodes are spares
    surplus    what should be removed, and what the rails allow

The status of a pool is written before its provider is called, and the ledger before a machine is
ended: whatever line the controller dies at, the next one finds what it had begun. It takes over a
launch by a write before it sends it: late writes of the one that died then conflict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from fairlead.api.cluster.fleet import GRANTS_MAX, Fleet, Grant
from fairlead.api.cluster.node_pool import NodePool, PoolDecision
from fairlead.api.values.times import format_time
from fairlead.decide.fleet.actions import (
    Action,
    Admit,
    Announce,
    AwaitTurn,
    CallLaunch,
    DeleteNode,
    Mark,
    SetSpare,
    Terminate,
    Unmark,
    WritePool,
)
from fairlead.decide.fleet.budgets import sizes_of
from fairlead.decide.fleet.buying.demand import Demand
from fairlead.decide.fleet.buying.purchases import plan_purchases
from fairlead.decide.fleet.census import PoolCensus, is_used_again, take_census
from fairlead.decide.fleet.decisions import (
    admitted,
    announced,
    await_turn,
    begins_early,
    removal_end,
    sight_changed,
    spares_changed,
    unmarked,
)
from fairlead.decide.fleet.external import census_of_nodes, with_balloons
from fairlead.decide.fleet.leaving.announced import announcements, begun_early
from fairlead.decide.fleet.leaving.deletion import (
    drained,
    ending,
    finalizer_of,
    is_kept,
    release_of,
    to_drain,
    unmanaged,
    unmanaged_changed,
)
from fairlead.decide.fleet.leaving.quiet import counts_time, quiet_of, stays_quiet
from fairlead.decide.fleet.leaving.returns import NO_TAINTS, TAINTED_MAX, away, restarts
from fairlead.decide.fleet.leaving.spares import SpareChanges, change_spares
from fairlead.decide.fleet.leaving.surplus import removals_of
from fairlead.decide.fleet.pool_status import PoolPlan, goes_on, removed, status_of, taken_over
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView, about
from fairlead.decide.removal.books import (
    CreateFleet,
    WriteFleet,
    budget_of,
    leaving_of,
    permits_of,
    with_frozen,
)
from fairlead.decide.removal.bought import bought_within_day
from fairlead.decide.removal.ledger import RailsAccount, RemovalLedger
from fairlead.decide.removal.removals import Removal, RemovalOutcome, Ruling, rule_on
from fairlead.decide.removal.trust import Blindness, Listing, Sight, SightFinding, look, reported_of
from fairlead.decide.verdict import Decision
from fairlead.model.health.machines import InstanceState

#: Sights in which nothing is bought either: waiting gangs may be the symptom.
_NO_BUYING = frozenset(
    (
        Blindness.FROZEN, Blindness.NODE_LIST_STALE, Blindness.CONTROL_PLANE_UNHEALTHY,
        Blindness.API_SERVER_DEGRADED, Blindness.NODES_UNREADY, Blindness.UNREADY_RISES,
    )
)  # fmt: skip
#: Of these alone, while the lists agree, our records are what is wrong.
_RECORDS = frozenset((Blindness.RECORDS_DIFFER, Blindness.COUNT_CHANGED, Blindness.SIGHT_RETURNING))
_GRANTS_PER_LOOP_MAX = 100


@dataclass(frozen=True, slots=True)
class FleetCycleReport:
    """What a decision found, for people: `fairlead fleet plan` prints it."""

    findings: tuple[SightFinding, ...]
    demand: Demand
    plans: tuple[PoolPlan, ...]
    rulings: tuple[Ruling, ...]


def decide_fleet(
    view: FleetView, policy: FleetPolicy, memory: FleetMemory
) -> tuple[Decision[Action], FleetCycleReport | None]:
    """Return what to do, and why; changes `memory`. PoolFault where it raises over one pool.

    The report is None where there is still nothing to do.
    """
    grants = view.fleet.status.grants if view.fleet is not None else ()
    if not view.pools and not grants:
        return Decision(_without_pools(view)), None
    if view.fleet is None:
        return Decision((CreateFleet(),), wake_at=view.now + policy.loop_seconds), None
    if stays_quiet(view, policy, memory):
        return Decision(wake_at=view.now + policy.idle_loop_seconds), None
    memory.quiet = None
    return _Cycle(view, policy, memory, view.fleet).run()


def _without_pools(view: FleetView) -> tuple[Action, ...]:
    """Say which nodes belong to no pool any more, where there are no pools."""
    fleet, found = view.fleet, unmanaged(view)
    if fleet is None:
        return ()
    new = with_frozen(fleet, replace(fleet.status, unmanaged=found), view.now)
    said = unmanaged_changed(fleet.status, found, format_time(view.now))
    return () if new == fleet.status else (WriteFleet(fleet, new, said),)


@dataclass(slots=True)
class _Cycle:
    view: FleetView
    policy: FleetPolicy
    memory: FleetMemory
    fleet: Fleet
    sight: Sight = field(init=False)
    actions: list[Action] = field(default_factory=list[Action])
    elapsed: float = 0.0
    ledger: RemovalLedger = field(default_factory=RemovalLedger)
    #: Removals of each pool that are seen through.
    ended: dict[str, int] = field(default_factory=dict[str, int])
    censuses: dict[str, PoolCensus] = field(default_factory=dict[str, PoolCensus])
    #: What was decided about each pool beside its launches and removals.
    noted: dict[str, list[PoolDecision]] = field(default_factory=dict)

    def run(self) -> tuple[Decision[Action], FleetCycleReport]:
        """Decide."""
        view, memory = self.view, self.memory
        if memory.looked_at is not None:
            self.elapsed = max(0.0, view.instant - memory.looked_at)
        memory.looked_at = view.instant
        everything = [self._census(pool) for pool in view.pools]
        # Of the others another autoscaler owns the machines: only the plan has to do with them.
        censuses = [census for census in everything if not census.view.pool.is_external]
        self.censuses = {census.view.name: census for census in censuses}
        findings = self._look(censuses)
        is_buying = not any(finding.blindness in _NO_BUYING for finding in findings)
        purchases = plan_purchases(view, everything, is_buying=is_buying)
        may_taint = not any(finding.blindness in NO_TAINTS for finding in findings)
        self._join(censuses, purchases.demand.needed, may_taint=may_taint)
        if may_taint:
            self._await_turns(censuses)
        plans = [plan for plan in purchases.plans if not plan.pool.is_external]
        external = [
            with_balloons(view, plan, self.policy, findings)
            for plan in purchases.plans if plan.pool.is_external
        ]  # fmt: skip
        rulings = self._remove(plans, purchases.demand, findings)
        self._unmark(plans, purchases.demand, rulings)
        if may_taint and self.fleet.spec.freeze is None:
            self._drain(censuses)
        self._announce(plans, purchases.demand, findings)
        self._see_through(censuses)
        plans += external
        for plan in plans:
            self._write_pool(plan, findings, rulings)
        report = FleetCycleReport(findings, purchases.demand, tuple(plans), rulings)
        if not (self.actions or findings or rulings):
            memory.quiet = quiet_of(
                view, self.policy, memory, fleet=self.fleet, plans=plans, sight=self.sight
            )
        is_busy = bool(self.actions) or any(plan.is_busy for plan in plans) or bool(findings)
        seconds = self.policy.loop_seconds if is_busy else self.policy.idle_loop_seconds
        return Decision(tuple(self.actions), wake_at=view.now + seconds), report

    def _census(self, pool: PoolView) -> PoolCensus:
        if pool.pool.is_external:
            return census_of_nodes(self.view, pool, self.policy)
        pool = dataclasses.replace(pool, pool=ending(pool.pool))
        return take_census(self.view, pool, self.memory)

    # Sight

    def _look(self, censuses: Sequence[PoolCensus]) -> tuple[SightFinding, ...]:
        view, memory = self.view, self.memory
        leaving = frozenset(grant.instance for grant in self.fleet.status.grants)
        cloud = frozenset(id_ for census in censuses for id_ in census.listed)
        nodes = frozenset(node.instance for census in censuses for node in census.nodes.values())
        joining = frozenset(id_ for census in censuses for id_ in census.awaited)
        gone = frozenset(node.instance for census in censuses for node in census.gone.values())
        known = [census.view.pool.status.recorded for census in censuses]
        recorded = None if None in known else sum(count or 0 for count in known) - len(leaving)
        if recorded is not None:  # what was launched a moment ago is in no list yet
            recorded -= sum(
                len((census.awaited & census.instances.keys()) - census.listed)
                for census in censuses
            )
        ages = [census.view.age_seconds for census in censuses]
        complete = [c.view.inventory is not None and c.view.inventory.is_complete for c in censuses]
        sight = Sight(
            Listing(nodes, view.nodes_age_seconds),
            Listing(cloud, max(ages, default=0.0), all(complete)),
            recorded=recorded,
            joining=joining,
            leaving=leaving | gone,
            unready=len(view.nodes.unready.keys() & self._working(censuses)),
            api_error_share=view.api_error_share,
            api_latency_seconds=view.api_latency_seconds,
            reported=reported_of(view.report, view.now),
            is_frozen=self.fleet.spec.freeze is not None,
        )
        self.sight = sight
        own_change = -len(leaving - memory.leaving)
        memory.leaving = leaving
        memory.sight, findings = look(
            memory.sight, sight, self.policy.sight, self.elapsed, own_change=own_change
        )
        agree = {finding.blindness for finding in findings} <= _RECORDS
        memory.agree_seconds = memory.agree_seconds + self.elapsed if agree else 0.0
        return findings

    def _working(self, censuses: Sequence[PoolCensus]) -> set[str]:
        """Return the nodes that have worked once and have a machine: others are not expected to
        be ready.
        """
        return {
            node.name
            for census in censuses
            for node in census.nodes.values()
            if not node.is_joining
            and node.instance not in census.awaited
            and node.name not in census.gone
        }

    # Joins

    def _join(self, censuses: Sequence[PoolCensus], needed: set[str], *, may_taint: bool) -> None:
        """Let nodes take work, and see to it that each pool has its spares."""
        view, memory = self.view, self.memory
        memory.bucket = memory.bucket.after(
            self.elapsed, view.state.table.node_count, self.policy.joins,
            latency=view.api_latency_seconds, errors=view.api_error_share,
        )  # fmt: skip
        for census in censuses:
            pool = census.view.pool
            waiting = sorted(census.joining, key=lambda node: node.name)
            is_served = (pool.is_active or is_kept(pool)) and not census.view.mistakes
            if not is_served:  # what we hold back goes on all the same
                waiting = [node for node in waiting if node.is_returning]
            most = max(1, int(pool.spec.joins_per_minute * self.policy.loop_seconds / 60))
            tokens = memory.bucket.tokens
            count, memory.bucket = memory.bucket.take(min(len(waiting), most))
            if count:
                said = admitted(count, len(waiting), tokens=tokens, at=format_time(view.now))
                self._note(census.view.name, said)
            admits, changes = waiting[:count], SpareChanges()
            if is_served and may_taint:
                changes = change_spares(view, census, admits, needed)
                needed.update(node.name for node in changes.made)
            for said in spares_changed(changes, format_time(view.now)):
                self._note(census.view.name, said)
            self.actions += [Admit(n.node, is_spare=n in changes.admitted) for n in admits]
            self.actions += [SetSpare(node.node, is_spare=True) for node in changes.made]
            ended = (*changes.used, *changes.surplus)
            self.actions += [SetSpare(node.node, is_spare=False) for node in ended]

    def _await_turns(self, censuses: Sequence[PoolCensus]) -> None:
        """Taint nodes that are not ready, a few at a time."""
        left = TAINTED_MAX
        for census in censuses:
            if not census.view.pool.is_active or census.view.mistakes:
                continue
            found = away(self.view, census)[:left]
            left -= len(found)
            if found:
                self._note(census.view.name, await_turn(len(found), format_time(self.view.now)))
            self.actions.extend(AwaitTurn(node.node) for node in found)

    # Removals

    def _remove(
        self, plans: Sequence[PoolPlan], demand: Demand, findings: Sequence[SightFinding]
    ) -> tuple[Ruling, ...]:
        """Mark and grant removals; a grant is written to the ledger, and carried out after."""
        view, memory = self.view, self.memory
        ledger = self.ledger = memory.ledger.ledger(self.fleet, view.instant)
        wanted, bought = list[Removal](), dict[str, dict[str, float]]()
        for plan in plans:
            pool, of_pool = plan.pool, plan.pool.status
            bought[pool.metadata.name] = bought_within_day(
                of_pool.bought, of_pool.lost, ledger.clock
            )
            if plan.is_acted_on:
                wanted += removals_of(
                    view, plan.census, memory, needed=demand.needed,
                    surplus=plan.surplus if pool.spec.scale_down.enabled else 0,
                    bought=bought[pool.metadata.name],
                )  # fmt: skip
        sizes, counts = sizes_of([plan.census for plan in plans], bought)
        memory.peaks = memory.peaks.at(view.instant, sizes, counts)
        rulings = ()
        if wanted:
            account = RailsAccount(
                ledger, memory.peaks.within(view.instant, sizes, counts), self.policy.budgets,
                of_pools={plan.pool.metadata.name: budget_of(plan.pool)
                          for plan in plans if plan.is_acted_on},
                leaving=leaving_of(self.fleet.status),
            )  # fmt: skip
            rulings = self._rule(wanted, account, findings)
        memory.marked = frozenset(
            ruling.removal.name
            for ruling in rulings
            if ruling.outcome is RemovalOutcome.MARK or ruling.removal.marked_loops
        )
        for ruling in rulings:
            node = view.nodes.by_name.get(ruling.removal.node)
            if ruling.outcome is RemovalOutcome.MARK and node is not None and not node.removal:
                why = f"{ruling.removal.charge.cause.value}: {ruling.removal.why}"
                self.actions.append(Mark(node.node, why))
        self._write_fleet(ledger, rulings, findings)
        return rulings

    def _rule(
        self, wanted: Sequence[Removal], account: RailsAccount, findings: Sequence[SightFinding]
    ) -> tuple[Ruling, ...]:
        room = min(GRANTS_MAX - len(self.fleet.status.grants), _GRANTS_PER_LOOP_MAX)
        permits = permits_of(self.fleet, self.view.now)
        return rule_on(wanted, account, findings, permits=permits, room=room)

    def _write_fleet(
        self, ledger: RemovalLedger, rulings: Sequence[Ruling], findings: Sequence[SightFinding]
    ) -> None:
        status, at = self.fleet.status, format_time(self.view.now)
        granted = [ruling.removal for ruling in rulings if ruling.outcome is RemovalOutcome.REMOVE]
        kept = tuple(grant for grant in status.grants if not self._is_over(grant))
        for grant in status.grants:
            if grant in kept:
                continue
            is_used = is_used_again(self.view, grant)
            self._note(grant.pool, removal_end(grant, at, is_used=is_used))
            self.ended[grant.pool] = self.ended.get(grant.pool, 0) + (not is_used)
        grants = (
            *kept,
            *(Grant(r.charge.pool, r.instance, r.node, r.charge.cause, at) for r in granted),
        )
        blind = tuple(sorted({finding.blindness.value for finding in findings}))
        new = replace(
            status, grants=grants, blind=blind, unmanaged=unmanaged(self.view),
            message="; ".join(finding.message for finding in findings),
            since=status.since if status.since and blind == status.blind else at,
        )  # fmt: skip
        new = with_frozen(self.fleet, new, self.view.now)
        is_counting = status.removed or any(map(counts_time, self.view.pools))
        is_old = ledger.clock - status.clock >= self.policy.ledger_seconds and is_counting
        if granted or grants != status.grants or is_old:
            paid = (removal.charge for removal in granted if not removal.is_paid)
            booked = ledger.with_removed(paid)
            new = replace(new, clock=booked.clock, removed=booked.removed)
        is_same = (grants, blind, new.since) == (status.grants, status.blind, status.since)
        is_said = (new.unmanaged, new.conditions) == (status.unmanaged, status.conditions)
        is_changed = granted or is_old or not (is_same and is_said)
        if is_changed:
            said = unmanaged_changed(status, new.unmanaged, at)
            self.actions.append(
                WriteFleet(self.fleet, new, (*sight_changed(status, new, at), *said))
            )

    def _note(self, pool: str, decision: PoolDecision) -> None:
        self.noted.setdefault(pool, []).append(decision)

    def _is_over(self, grant: Grant) -> bool:
        """True when the machine and its node are gone, or when the node is in use again."""
        census = self.censuses.get(grant.pool)
        if census is None:
            return True  # the pool is gone, and its machines are no longer ours
        if is_used_again(self.view, grant):
            return True
        is_there = grant.instance in census.instances
        return not is_there and grant.instance not in self.view.nodes.by_instance

    def _see_through(self, censuses: Sequence[PoolCensus]) -> None:
        """End the machines whose removal is granted, and delete the nodes of those that ended."""
        for census in censuses:
            pool, ids = census.view.pool, list[str]()
            for id_ in sorted(census.leaving):
                node = self.view.nodes.by_instance.get(id_)
                machine = census.instances.get(id_)
                is_ending = machine is not None and machine.state is InstanceState.STOPPING
                if id_ in census.listed and not is_ending:
                    ids.append(id_)
                elif machine is None and node is not None:
                    self.actions.append(DeleteNode(node.node))
            if ids:
                self.actions.append(Terminate(pool, tuple(ids)))

    def _unmark(self, plans: Sequence[PoolPlan], demand: Demand, rulings: Sequence[Ruling]) -> None:
        """Take our mark off nodes that are needed, in use, or no longer to go."""
        going = {ruling.removal.node for ruling in rulings}
        for plan in (each for each in plans if not each.pool.is_draining):
            census, returning = plan.census, dict(plan.returning)
            for node in census.nodes.values():
                if not node.removal or node.instance in census.leaving:
                    continue
                domain = census.domain_of(node.instance)
                is_wanted = returning.get(domain, 0) > 0
                if is_wanted:
                    returning[domain] -= 1
                if is_wanted or node.name not in going or not node.is_cordoned:
                    self.actions.append(Unmark(node.node))
                    at = format_time(self.view.now)
                    self._note(census.view.name, unmarked(node, at, is_wanted=is_wanted))

    def _drain(self, censuses: Sequence[PoolCensus]) -> None:
        """Cordon the nodes of pools whose machines are to go, a few at a time."""
        for census in censuses:
            nodes = to_drain(census)
            self.actions += [Mark(node.node, "Drain: its pool is deleted") for node in nodes]
            if nodes:
                self._note(census.view.name, drained(nodes, format_time(self.view.now)))

    def _announce(
        self, plans: Sequence[PoolPlan], demand: Demand, findings: Sequence[SightFinding]
    ) -> None:
        """Write what the providers announce of maintenance on the nodes, and begin it early."""
        view, at = self.view, format_time(self.view.now)
        for plan in (plan for plan in plans if plan.is_acted_on):
            for action in announcements(view, plan.census, self.policy):
                self.actions.append(action)
                self._note(plan.census.view.name, announced(action, at))
            if findings:
                continue
            self.actions += restarts(view, plan.census)
            early = begun_early(view, plan.census, self.policy, demand.needed)
            if early is not None:
                self.actions.append(early)
            if isinstance(early, Announce):
                self._note(plan.census.view.name, begins_early(early, at))

    # Statuses

    def _write_pool(
        self, plan: PoolPlan, findings: Sequence[SightFinding], rulings: Sequence[Ruling]
    ) -> None:
        hold = finalizer_of(plan.census, self.memory)
        if hold is not None:  # its write comes first: the status is decided with the next version
            self.actions.append(hold)
            return
        release = release_of(plan.census, format_time(self.view.now))
        if release is not None:
            self._note(plan.census.view.name, release)
        is_clear = not findings
        is_settled = self.memory.agree_seconds >= self.policy.sight.settle_seconds
        name = plan.census.view.name
        with about(name):
            status, decided = status_of(
                self.view,
                plan,
                findings,
                rulings,
                believes_cloud=is_clear or is_settled,
                ended=self.ended.get(name, 0),
                clock=self.ledger.clock,
                noted=self.noted.get(name, ()),
            )
        pool: NodePool = plan.pool
        unanswered = pool.status.unanswered
        is_frozen = any(finding.blindness is Blindness.FROZEN for finding in findings)
        is_sending = bool(unanswered) and plan.is_acted_on and not (is_frozen or pool.is_deleted)
        own = self.memory.own_launches.get(name, ())
        if is_sending and (others := [launch for launch in unanswered if launch not in own]):
            self.actions.append(WritePool(pool, taken_over(status, others), decided))
        elif is_sending and not goes_on(pool.status, status):
            # Alone: the answer is written with the version of the pool that was decided on.
            beside = (
                *removed(plan, rulings, format_time(self.view.now)),
                *self.noted.get(name, ()),
            )
            # What is not waited for any more goes last: its provider may be what fails.
            launches = sorted(unanswered, key=lambda launch: launch.given_up_at is not None)
            # What removals that ended changed in the records is not seen again.
            base = replace(pool.status, recorded=status.recorded, lost=status.lost)
            self.actions.append(CallLaunch(pool, tuple(launches), base, beside))
        elif decided or status != pool.status:
            self.actions.append(WritePool(pool, status, decided))
