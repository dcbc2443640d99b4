"""The rails: the defects of autoscalers before this one, each as a test, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from fairlead.api.cluster.cluster_report import ClusterReport, ClusterReportStatus, ReportCondition
from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.cluster.node_pool import Bought, Lost
from fairlead.api.meta import Condition
from fairlead.api.values.node_limit import parse_limit
from fairlead.api.values.times import format_time
from fairlead.decide.removal.bought import (
    BOUGHT_MAX,
    bought_within_day,
    with_bought,
    with_lost,
)
from fairlead.decide.removal.ledger import (
    DAY,
    HOUR,
    Budgets,
    Charge,
    Peaks,
    PoolBudget,
    RailsAccount,
    RemovalLedger,
)
from fairlead.decide.removal.removals import (
    Permit,
    Removal,
    RemovalOutcome,
    RemovalRule,
    Ruling,
    rule_on,
    rule_words,
)
from fairlead.decide.removal.trust import (
    HALF_LIFE_SECONDS,
    Blindness,
    Listing,
    Pulse,
    Reported,
    Sight,
    SightFinding,
    SightLimits,
    SightMemory,
    look,
    reported_of,
)
from fairlead.testing.builders import EPOCH

LIMITS = SightLimits()


def ids(count: int) -> frozenset[str]:
    return frozenset(f"i{i}" for i in range(count))


def clear(count: int = 100) -> Sight:
    return Sight(Listing(ids(count)), Listing(ids(count)), recorded=count)


def findings(sight: Sight, before: Sight | None = None) -> list[Blindness]:
    """Look clearly a few times, then once at `sight`."""
    memory, found = SightMemory(), ()
    for _ in range(5):
        memory, found = look(memory, before or clear(), LIMITS, 15.0)
    assert found == (), "the sight before is clear"
    _, found = look(memory, sight, LIMITS, 15.0)
    return [finding.blindness for finding in found]


def removal(number: int, cause: RemovalCause = RemovalCause.IDLE, *, pool: str = "p") -> Removal:
    charge = Charge(pool, f"block-{number // 8}", cause)
    return Removal(charge, f"i{number}", pool, f"n{number}", f"i{number}", marked_loops=1)


def account(ledger: RemovalLedger, **sizes: int) -> RailsAccount:
    return RailsAccount(ledger, Peaks().within(0.0, sizes), Budgets())


def test_a_pools_own_budget_counts_all_causes_and_what_is_under_way() -> None:
    budget = PoolBudget(parse_limit(3), parse_limit("10%"), parse_limit("0%"))
    wanted = [
        Removal(Charge("p", f"d{n}", cause), f"i{n}", "p", marked_loops=1)
        for n, cause in enumerate([RemovalCause.REPAIR] * 4 + [RemovalCause.IDLE] * 16)
    ]

    def allowed(budget: PoolBudget, leaving: int = 0) -> tuple[int, dict[str, Any]]:
        peaks = Peaks().within(0.0, {"p": 100, "q": 900})
        books = RailsAccount(
            RemovalLedger(), peaks, Budgets(), of_pools={"p": budget}, leaving={"p": leaving}
        )
        rulings = rule_on(wanted, books, (), room=512)
        held = next(r for r in rulings if r.outcome is RemovalOutcome.WAIT)
        assert held.rule is RemovalRule.POOL_BUDGET
        return sum(r.outcome is RemovalOutcome.REMOVE for r in rulings), dict(held.facts)

    assert allowed(replace(budget, day=None)) == (
        3, {"scope": "pool/p", "window": 0, "used": 3, "allowed": 3}
    )  # fmt: skip
    assert allowed(replace(budget, day=None), leaving=2)[0] == 1
    assert allowed(replace(budget, at_once=None, day=None)) == (
        10, {"scope": "pool/p", "window": 3600, "used": 10, "allowed": 10}
    )  # fmt: skip
    assert allowed(budget)[0] == 0, "0% of a day: automation removes none"


def rule(
    removals: Sequence[Removal], ledger: RemovalLedger | None = None, *, size: int = 1000,
    blind: Sequence[SightFinding] = (), permits: Sequence[Permit] = (), room: int = 10_000,
) -> tuple[Ruling, ...]:  # fmt: skip
    books = account(ledger or RemovalLedger(), p=size)
    return rule_on(removals, books, blind, permits=permits, room=room)


def removed(rulings: Sequence[Ruling]) -> list[str]:
    return [r.removal.node for r in rulings if r.outcome is RemovalOutcome.REMOVE]


# The ancestor's seven defects (one of them, that gangs are unknown, is decide/fleet's)


def test_a_backlog_beyond_the_budget_makes_partial_progress() -> None:
    rulings = rule([removal(i) for i in range(300)])
    assert len(removed(rulings)) == 100, "a tenth of 1,000 in five minutes, and not nothing"
    waiting = [r for r in rulings if r.outcome is RemovalOutcome.WAIT]
    assert {r.rule for r in waiting} == {RemovalRule.CAUSE_BUDGET}
    assert waiting[0].facts == {"scope": "fleet", "window": 300, "used": 100, "allowed": 100}


def test_instances_that_never_registered_pass_the_same_rails() -> None:
    never = [
        Removal(Charge("p", "", RemovalCause.FAILED_LAUNCH), f"i{n}", "p", marked_loops=1)
        for n in range(500)
    ]
    assert 0 < len([r for r in rule(never) if r.outcome is RemovalOutcome.REMOVE]) <= 20
    sight = Sight(Listing(ids(500)), Listing(ids(1000)), recorded=1000)
    assert findings(sight, clear(1000))[0] is Blindness.LISTS_DIFFER


def test_a_tenth_of_what_is_left_again_and_again_ends_at_half_of_the_fleet() -> None:
    ledger, peaks, left = RemovalLedger(), Peaks(), 1000
    machines = [removal(i) for i in range(left)]
    for minute in range(24 * 60):
        now = minute * 60.0
        ledger, peaks = ledger.at(now), peaks.at(now, {"p": left})
        books = RailsAccount(ledger, peaks.within(now, {"p": left}), Budgets())
        wanted = machines[: min(left, 200)]  # twice a tenth
        gone = [
            r for r in rule_on(wanted, books, (), room=512) if r.outcome is RemovalOutcome.REMOVE
        ]
        ledger = ledger.with_removed(r.removal.charge for r in gone)
        left -= len(gone)
    assert left == 500


def test_merged_removals_count_until_the_last_of_them_is_a_day_old() -> None:
    idle = [Charge("p", "", RemovalCause.IDLE)]
    ledger = RemovalLedger().with_removed(idle).at(HOUR - 1).with_removed(idle).at(3 * HOUR)
    assert [each.count for each in ledger.removed] == [2]
    assert [each.count for each in ledger.at(DAY + HOUR - 2).removed] == [2]


def test_the_clock_of_the_ledger_counts_whole_days() -> None:
    ledger = RemovalLedger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500)
    assert not removed(rule([removal(1)], ledger.at(DAY - 1)))
    assert removed(rule([removal(1)], ledger.at(DAY + 1)))
    assert len(ledger.at(DAY - 1).removed) == 1, "what is old is kept, merged"


# What automation bought within a day


def breathe(bought: dict[int, float], *, count: int, hours: float = 6.0) -> list[list[int]]:
    """Let idle nodes 0 to `count` of a pool go as they may; return which went in each hour.

    `bought`: when nodes were bought, by the clock of the ledger, which begins at a day.
    """
    ledger, peaks, left = RemovalLedger(DAY), Peaks(), list(range(count))
    hourly: list[list[int]] = []
    for loop in range(int(hours * 12)):
        now = DAY + loop * 300.0
        ledger = ledger.at(now)
        of_pool = {"p": len(left)}, {"p": sum(n in bought for n in left)}
        peaks = peaks.at(now, *of_pool)
        books = RailsAccount(ledger, peaks.within(now, *of_pool), Budgets())
        wanted = [
            replace(removal(n), charge=replace(removal(n).charge, bought=bought.get(n)), order=n)
            for n in left
        ]
        gone = [r.removal for r in rule_on(wanted, books, (), room=512)
                if r.outcome is RemovalOutcome.REMOVE]  # fmt: skip
        ledger = ledger.with_removed(each.charge for each in gone)
        if not loop % 12:
            hourly.append([])
        hourly[-1] += [each.order for each in gone]
        left = [n for n in left if n not in {each.order for each in gone}]
    return hourly


def test_what_was_bought_for_one_gang_goes_within_an_hour_a_tenth_in_five_minutes() -> None:
    hours = breathe(dict.fromkeys(range(30), DAY - 7200.0), count=30)
    assert sorted(hours[0]) == list(range(30))
    hours = breathe({}, count=30)
    assert [len(each) for each in hours] == [9, 6, 0, 0, 0, 0], "what was there before: half"


def test_what_was_there_before_goes_as_if_nothing_had_been_bought() -> None:
    bought = dict.fromkeys(range(100, 1000), DAY - 7200.0)
    gone = [n for hour in breathe(bought, count=1000) for n in hour]
    assert len(gone) == len(set(gone)) == 900 + 50, "all that was bought, and half of the others"
    assert sum(n < 100 for n in gone) == 50
    assert sum(n < 100 for n in breathe(bought, count=1000)[0]) == 30


def test_what_was_bought_counts_again_in_windows_in_which_it_was_there_before() -> None:
    charge = Charge("p", "", RemovalCause.IDLE, bought=100.0)
    ledger = RemovalLedger(HOUR).with_removed([charge] * 500)
    assert removed(rule([removal(1)], ledger.at(2 * HOUR)))
    assert not removed(rule([removal(1)], ledger.at(DAY + 101)))
    early = replace(charge, bought=4000.0)
    both = RemovalLedger(2 * HOUR).with_removed([charge, early]).at(5 * HOUR)
    assert [(each.count, each.bought) for each in both.removed] == [(1, 100.0), (1, 4000.0)]
    near = replace(charge, bought=50.0)
    both = RemovalLedger(2 * HOUR).with_removed([charge, near]).at(5 * HOUR)
    assert [(each.count, each.bought) for each in both.removed] == [(2, 50.0)], "the first of them"


@pytest.mark.parametrize("bought", [2 * DAY, -DAY], ids=["ahead of the clock", "long ago"])
def test_a_purchase_of_another_ledger_or_day_exempts_nothing(bought: float) -> None:
    ledger = RemovalLedger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500)
    late = removal(1)
    late = replace(late, charge=replace(late.charge, bought=bought))
    assert not removed(rule([late], ledger.at(HOUR)))
    late = replace(late, charge=replace(late.charge, bought=1.0))
    assert removed(rule([late], ledger.at(HOUR)))


@pytest.mark.parametrize("cause", [c for c in RemovalCause if c is not RemovalCause.IDLE])
def test_only_idle_nodes_go_beyond_the_shares(cause: RemovalCause) -> None:
    ledger = RemovalLedger().with_removed([Charge("p", "", cause)] * 500)
    new = removal(1, cause)
    assert not removed(rule([replace(new, charge=replace(new.charge, bought=1.0))], ledger))


def test_a_pools_own_limits_count_what_was_bought() -> None:
    wanted = [
        Removal(Charge("p", "", RemovalCause.IDLE, bought=1.0), f"i{n}", "p", marked_loops=1)
        for n in range(20)
    ]
    own = {"p": PoolBudget(hour=parse_limit(3))}
    books = RailsAccount(
        RemovalLedger(HOUR), Peaks().within(0.0, {"p": 100}), Budgets(), of_pools=own
    )
    assert (
        sum(r.outcome is RemovalOutcome.REMOVE for r in rule_on(wanted, books, (), room=512)) == 3
    )


@pytest.mark.parametrize(
    ("own", "window"),
    [(PoolBudget(hour=parse_limit(3)), HOUR), (PoolBudget(day=parse_limit(3)), DAY)],
)
def test_a_pools_own_limits_count_what_left_within_their_window(
    own: PoolBudget, window: float
) -> None:
    charge = Charge("p", "", RemovalCause.IDLE)
    wanted = [Removal(charge, f"i{n}", "p", marked_loops=1) for n in range(20)]
    ledger = RemovalLedger().with_removed([charge] * 2)

    def may_leave(seconds_later: float) -> int:
        peaks = Peaks().within(0.0, {"p": 100, "q": 900})
        books = RailsAccount(ledger.at(seconds_later), peaks, Budgets(), of_pools={"p": own})
        return sum(r.outcome is RemovalOutcome.REMOVE for r in rule_on(wanted, books, (), room=512))

    assert may_leave(window - 1.0) == 1
    assert may_leave(window) == 3


def test_a_replacement_is_no_growth() -> None:
    old, new = [f"old{i}" for i in range(70)], [f"new{i}" for i in range(40)]
    bought = with_bought((), 1000.0, new, present=[*old, *new])
    assert bought == (Bought(900.0, tuple(sorted(new))),), "an earlier reading counts for less long"
    assert bought_within_day(bought, (), 2000.0).keys() == set(new)
    lost = with_lost((), 1500.0, 30)
    assert len(bought_within_day(bought, lost, 2000.0)) == 10
    assert bought_within_day(bought, with_lost(lost, 1600.0, 30), 2000.0) == {}
    assert len(bought_within_day(bought, lost, 900.0 + DAY - 1)) == 10
    assert bought_within_day(bought, lost, 900.0 + DAY) == {}


def test_records_of_what_was_bought_and_lost_stay_small() -> None:
    ids = [f"i{i:04}" for i in range(BOUGHT_MAX + 10)]
    bought = with_bought((), 1000.0, ids[:20], present=ids)
    bought = with_bought(bought, 2000.0, ids[20:], present=ids)
    assert [len(each.instances) for each in bought] == [10, BOUGHT_MAX - 10]
    assert with_bought(bought, 2000.0, (), present=ids[25:30])[0].instances == tuple(ids[25:30])
    assert with_bought(bought, 2000.0 + DAY, (), present=ids) == ()
    lost: tuple[Lost, ...] = ()
    for minute in range(3 * 24 * 60):
        lost = with_lost(lost, minute * 60.0, minute % 2)
    assert len(lost) <= 25
    assert sum(each.count for each in lost) in range(720, 751)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_partial_list_is_not_trusted_whether_it_says_so_or_not(is_complete: bool) -> None:
    sight = Sight(Listing(ids(60), is_complete=is_complete), Listing(ids(100)), recorded=100)
    assert Blindness.LISTS_DIFFER in findings(sight)
    sight = Sight(Listing(ids(100)), Listing(ids(100), is_complete=False), recorded=100)
    assert findings(sight) == [Blindness.LIST_PARTIAL]


# What users of other autoscalers reported (docs/design/fleet.md has the list)


def test_a_health_agent_that_calls_all_nodes_sick_loses_a_few_of_them() -> None:
    """kubernetes-sigs/karpenter#2811: a faulty agent marked good nodes, and repair killed them."""
    wanted = [removal(i, RemovalCause.REPAIR) for i in range(1000)]
    assert len(removed(rule(wanted))) == 20, "2 % in five minutes"
    ledger = RemovalLedger().with_removed([Charge("p", "", RemovalCause.REPAIR)] * 150).at(2 * HOUR)
    assert removed(rule(wanted, ledger)) == [], "15 % in a day"


def test_pools_of_any_size_are_repaired() -> None:
    """kubernetes-sigs/karpenter#2321: a fixed share of 20 % never let a small pool be repaired."""
    for size in (1, 2, 3, 4, 10):
        assert len(removed(rule([removal(0, RemovalCause.REPAIR)], size=size))) == 1


# Sight


def test_blind_nothing_is_removed_or_marked() -> None:
    blind = (SightFinding(Blindness.LISTS_DIFFER, {"only_in_cloud": 99, "only_in_nodes": 0}),)
    rulings = rule([removal(1), replace(removal(2), marked_loops=0)], blind=blind)
    assert {(r.outcome, r.rule) for r in rulings} == {(RemovalOutcome.WAIT, RemovalRule.BLIND)}


def test_nodes_that_vanish_while_as_many_join_are_noticed() -> None:
    new = frozenset(f"new{i}" for i in range(50))
    sight = Sight(Listing(ids(50)), Listing(ids(50) | new), recorded=100, joining=new)
    assert findings(sight) == [Blindness.COUNT_CHANGED]


def test_a_stale_list_blinds() -> None:
    assert findings(changed(clear(), cloud=Listing(ids(100), 61.0))) == [Blindness.CLOUD_LIST_STALE]
    assert findings(changed(clear(), nodes=Listing(ids(100), float("nan")))) == [
        Blindness.NODE_LIST_STALE
    ]


def test_two_lists_cut_alike_differ_from_the_records_and_from_the_past() -> None:
    cut = Sight(Listing(ids(50)), Listing(ids(50)), recorded=100)
    assert findings(cut) == [Blindness.RECORDS_DIFFER, Blindness.COUNT_CHANGED]


def test_all_nodes_not_ready_at_once_means_that_we_are_blind() -> None:
    assert findings(changed(clear(), unready=100)) == [
        Blindness.NODES_UNREADY, Blindness.UNREADY_RISES,
    ]  # fmt: skip


def test_nodes_that_fail_a_few_at_a_time_within_minutes_are_noticed() -> None:
    def blind_at(seconds: float) -> list[int]:
        """Return at how many unready nodes we are blind, with one more every so often."""
        memory, out = SightMemory(), list[int]()
        for unready in range(15):
            sight = changed(clear(), unready=unready)
            memory, found = look(memory, sight, LIMITS, seconds)
            rises = Blindness.UNREADY_RISES in {finding.blindness for finding in found}
            out += [unready] if rises else []
        return out

    assert blind_at(LIMITS.rise_seconds / 6) == list(range(6, 15))
    assert blind_at(LIMITS.rise_seconds / 4) == []


def test_a_failing_or_slow_control_plane_blinds() -> None:
    assert findings(changed(clear(), api_error_share=0.2)) == [Blindness.CONTROL_PLANE_UNHEALTHY]
    assert findings(changed(clear(), api_latency_seconds=3.0)) == [
        Blindness.CONTROL_PLANE_UNHEALTHY
    ]


@pytest.mark.parametrize("condition", ReportCondition)
def test_a_fresh_report_of_the_doctor_blinds_and_a_stale_one_does_not(
    condition: ReportCondition,
) -> None:
    def report(status: str, kind: ReportCondition = condition) -> ClusterReport:
        conditions = (Condition(kind.value, status, "FindingsPresent", "ETCD-04 etcd-0: 0.9"),)
        observed_at = format_time(EPOCH)
        status_ = ClusterReportStatus(observed_at=observed_at, conditions=conditions)
        return ClusterReport(status=status_)

    def seen(report: ClusterReport | None, age: float) -> list[str]:
        sight = changed(clear(), reported=reported_of(report, EPOCH + age))
        return [blindness.value for blindness in findings(sight)]

    for age in (0, 900, 1800, -60):
        assert seen(report("True"), age) == [condition.value]
    for age in (1801, 86_400, -301, -86_400):
        assert seen(report("True"), age) == []
    assert seen(report("Unknown"), 0) == seen(report("False"), 0) == []
    assert seen(ClusterReport(), 0) == seen(None, 0) == []


def test_sight_resumes_by_itself_two_loops_after_it_is_back() -> None:
    memory = SightMemory()
    seen: list[bool] = []
    for loop in range(40):
        unready = 100 if 5 <= loop < 10 else 0
        memory, found = look(memory, changed(clear(), unready=unready), LIMITS, 15.0)
        seen.append(not found)
    assert seen == [False, False, *[True] * 3, *[False] * 7, *[True] * 28]


def test_an_empty_fleet_has_nothing_to_wait_for() -> None:
    memory, found = look(SightMemory(), Sight(Listing(ids(0)), Listing(ids(0))), LIMITS, 15.0)
    assert found == ()
    _, found = look(SightMemory(), clear(1), LIMITS, 15.0)
    assert [each.blindness for each in found] == [Blindness.SIGHT_RETURNING]
    assert memory.clear_loops == 1


def test_nodes_that_are_coming_or_going_are_no_difference() -> None:
    coming = changed(clear(100), cloud=Listing(ids(150)), joining=ids(150) - ids(100), recorded=150)
    assert findings(coming) == []
    going = Sight(
        Listing(ids(100)), Listing(ids(60)), recorded=60, leaving=ids(100) - ids(60)
    )  # fmt: skip
    memory, _ = look(SightMemory(stable_count=100, clear_loops=3), going, LIMITS, 1, own_change=-40)
    assert memory.clear_loops == 3


# Budgets, phases, ownership


def test_half_of_a_pool_is_the_ceiling_of_all_causes_together() -> None:
    ledger = RemovalLedger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500).at(HOUR * 2)
    rulings = rule([removal(1, RemovalCause.REPAIR)], ledger)
    assert [(r.outcome, r.rule) for r in rulings] == [(RemovalOutcome.WAIT, RemovalRule.CEILING)]


def test_an_override_names_the_nodes_that_may_exceed_a_budget() -> None:
    ledger = RemovalLedger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500)
    permit = Permit("move-out", frozenset({"n7"}))
    rulings = rule([removal(7), removal(8)], ledger, permits=[permit])
    assert removed(rulings) == ["n7"]
    assert rulings[0].facts == {"override": "move-out"}
    assert not removed(
        rule([removal(7)], permits=[permit], blind=(SightFinding(Blindness.FROZEN),))
    )


def test_a_removal_is_marked_first_and_carried_out_a_loop_later() -> None:
    rulings = rule([replace(removal(1), marked_loops=0)])
    assert [(r.outcome, r.rule) for r in rulings] == [(RemovalOutcome.MARK, RemovalRule.TWO_PHASES)]


def test_what_is_marked_goes_first_and_marks_are_within_the_budget() -> None:
    wanted = [replace(removal(i), marked_loops=int(i >= 150)) for i in range(300)]
    rulings = rule(wanted)
    assert len(removed(rulings)) == 100
    assert not any(r.outcome is RemovalOutcome.MARK for r in rulings)


def test_what_is_marked_goes_before_what_is_more_certain() -> None:
    more_certain = replace(removal(1, RemovalCause.REPAIR), marked_loops=0)
    assert removed(rule([more_certain, removal(2)], room=1)) == ["n2"]


@pytest.mark.parametrize(
    "foreign",
    [
        replace(removal(1), tagged_pool=""),
        replace(removal(1), tagged_pool="other"),
        replace(removal(1), node_instance="i2"),
        replace(removal(1), instance=""),
    ],
)
def test_only_what_tag_and_provider_id_both_claim_is_touched(foreign: Removal) -> None:
    assert [(r.outcome, r.rule) for r in rule([foreign])] == [
        (RemovalOutcome.WAIT, RemovalRule.NOT_OWNED)
    ]


def test_no_more_removals_are_on_their_way_than_there_is_room_for() -> None:
    rulings = rule([removal(i) for i in range(5)], room=2)
    assert len(removed(rulings)) == 2
    assert rulings[-1].rule is RemovalRule.IN_FLIGHT


def test_a_small_pool_may_replace_a_node_but_not_all() -> None:
    wanted = [removal(i, RemovalCause.REPAIR) for i in range(3)]
    assert len(removed(rule(wanted, size=3))) == 1


def test_the_domain_of_a_repair_has_a_budget_of_its_own() -> None:
    wanted = [removal(i, RemovalCause.REPAIR) for i in range(8)]
    books = RailsAccount(
        RemovalLedger(), Peaks().within(0.0, {"p": 1000, "p/block-0": 8}), Budgets()
    )  # fmt: skip
    rulings = rule_on(wanted, books, (), room=100)
    assert len(removed(rulings)) == 1
    assert rulings[-1].facts["scope"] == "domain/p/block-0"


def test_averages_of_our_own_requests_age_when_none_is_sent() -> None:
    pulse = Pulse()
    for second in range(30):
        pulse = pulse.after(3.0, failed=True, instant=float(second))
    assert pulse.error_share > 0.9
    assert pulse.latency_seconds > 2.5
    later = pulse.aged(29.0 + 4 * HALF_LIFE_SECONDS)
    assert later.error_share < 0.1, "or a controller that sends nothing stays blind for ever"
    assert later.after(0.1, failed=False, instant=later.at).error_share < later.error_share


def test_every_reason_to_wait_is_a_sentence_with_its_name() -> None:
    blind = Sight(
        Listing(frozenset({"a"}), float("inf"), is_complete=False),
        Listing(frozenset({f"m{i}" for i in range(50)}), 7200.0),
        recorded=100, unready=50, api_error_share=0.5, is_frozen=True,
        reported=tuple(Reported(each, "API-01 apiserver: 20 /s", 61.5) for each in ReportCondition),
    )  # fmt: skip
    _, seen = look(SightMemory(stable_count=100), blind, LIMITS, 1)
    messages = [finding.message for finding in seen]
    assert "there is no list of nodes yet (NodeListStale)" in messages
    assert "the provider has 50 machines, the records have 100 (RecordsDiffer)" in messages
    assert "the API server fails 50% of the requests and takes 0.0 s (ControlPlaneUnhealthy)" in (
        messages
    )
    assert (
        "etcd is nearly full by the report of the doctor, 61 s old: API-01 apiserver: 20 /s "
        "(EtcdNearlyFull)"
    ) in messages
    assert len({finding.blindness for finding in seen}) >= 9
    assert all(rule_words(rule).endswith(f" ({rule.value})") for rule in RemovalRule)
