"""The rails: the defects of autoscalers before this one, each as a test, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairlead.api.fleet import RemovalCause
from fairlead.decide.rails.ledger import DAY, HOUR, Account, Budgets, Charge, Ledger, Peaks
from fairlead.decide.rails.removals import Outcome, Permit, Removal, Rule, Ruling, rule_on
from fairlead.decide.rails.sight import (
    Blindness,
    Finding,
    Listing,
    Sight,
    SightLimits,
    SightMemory,
    look,
)

LIMITS = SightLimits()


def ids(count: int) -> frozenset[str]:
    return frozenset(f"i{i}" for i in range(count))


def clear(count: int = 100) -> Sight:
    return Sight(Listing(ids(count)), Listing(ids(count)), recorded=count)


def findings(sight: Sight, before: Sight | None = None) -> list[Blindness]:
    """Look clearly a few times, then once at `sight`."""
    memory = SightMemory()
    for _ in range(5):
        memory, found = look(memory, before or clear(), LIMITS, 15.0)
    assert found == (), "the sight before is clear"
    _, found = look(memory, sight, LIMITS, 15.0)
    return [finding.blindness for finding in found]


def removal(number: int, cause: RemovalCause = RemovalCause.IDLE, *, pool: str = "p") -> Removal:
    charge = Charge(pool, f"block-{number // 8}", cause)
    return Removal(charge, f"i{number}", pool, f"n{number}", f"i{number}", marked_loops=1)


def account(ledger: Ledger, **sizes: int) -> Account:
    return Account(ledger, Peaks().within(0.0, sizes), Budgets())


def rule(
    removals: Sequence[Removal], ledger: Ledger | None = None, *, size: int = 1000,
    blind: Sequence[Finding] = (), permits: Sequence[Permit] = (), room: int = 10_000,
) -> tuple[Ruling, ...]:  # fmt: skip
    books = account(ledger or Ledger(), p=size)
    return rule_on(removals, books, blind, permits=permits, room=room)


def removed(rulings: Sequence[Ruling]) -> list[str]:
    return [r.removal.node for r in rulings if r.outcome is Outcome.REMOVE]


# The ancestor's seven defects (one of them, that gangs are unknown, is decide/fleet's)


def test_a_backlog_beyond_the_budget_makes_partial_progress() -> None:
    rulings = rule([removal(i) for i in range(300)])
    assert len(removed(rulings)) == 100, "a tenth of 1,000 in five minutes, and not nothing"
    waiting = [r for r in rulings if r.outcome is Outcome.WAIT]
    assert {r.rule for r in waiting} == {Rule.CAUSE_BUDGET}
    assert waiting[0].facts == {"scope": "fleet", "window": 300, "used": 100, "allowed": 100}


def test_instances_that_never_registered_pass_the_same_rails() -> None:
    never = [
        Removal(Charge("p", "", RemovalCause.FAILED_LAUNCH), f"i{n}", "p", marked_loops=1)
        for n in range(500)
    ]
    assert 0 < len([r for r in rule(never) if r.outcome is Outcome.REMOVE]) <= 20
    sight = Sight(Listing(ids(500)), Listing(ids(1000)), recorded=1000)
    assert findings(sight, clear(1000))[0] is Blindness.LISTS_DIFFER


def test_a_tenth_of_what_is_left_again_and_again_ends_at_half_of_the_fleet() -> None:
    ledger, peaks, left = Ledger(), Peaks(), 1000
    for minute in range(24 * 60):
        now = minute * 60.0
        ledger, peaks = ledger.at(now), peaks.at(now, {"p": left})
        books = Account(ledger, peaks.within(now, {"p": left}), Budgets())
        wanted = [removal(i) for i in range(left)]
        gone = [r for r in rule_on(wanted, books, (), room=512) if r.outcome is Outcome.REMOVE]
        ledger = ledger.with_removed(r.removal.charge for r in gone)
        left -= len(gone)
    assert left == 500


def test_the_clock_of_the_ledger_counts_whole_days() -> None:
    ledger = Ledger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500)
    assert not removed(rule([removal(1)], ledger.at(DAY - 1)))
    assert removed(rule([removal(1)], ledger.at(DAY + 1)))
    assert len(ledger.at(DAY - 1).removed) == 1, "what is old is kept, merged"


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_partial_list_is_not_trusted_whether_it_says_so_or_not(is_complete: bool) -> None:
    sight = Sight(Listing(ids(60), is_complete=is_complete), Listing(ids(100)), recorded=100)
    assert Blindness.LISTS_DIFFER in findings(sight)
    sight = Sight(Listing(ids(100)), Listing(ids(100), is_complete=False), recorded=100)
    assert findings(sight) == [Blindness.LIST_PARTIAL]


# Sight


def test_blind_nothing_is_removed_or_marked() -> None:
    blind = (Finding(Blindness.LISTS_DIFFER, {"nodes": 1, "cloud": 100}),)
    rulings = rule([removal(1), replace(removal(2), marked_loops=0)], blind=blind)
    assert {(r.outcome, r.rule) for r in rulings} == {(Outcome.WAIT, Rule.BLIND)}


def test_a_stale_list_blinds() -> None:
    assert findings(replace(clear(), cloud=Listing(ids(100), 61.0))) == [Blindness.CLOUD_LIST_STALE]
    assert findings(replace(clear(), nodes=Listing(ids(100), float("nan")))) == [
        Blindness.NODE_LIST_STALE
    ]


def test_two_lists_cut_alike_differ_from_the_records_and_from_the_past() -> None:
    cut = Sight(Listing(ids(50)), Listing(ids(50)), recorded=100)
    assert findings(cut) == [Blindness.RECORDS_DIFFER, Blindness.COUNT_CHANGED]


def test_all_nodes_not_ready_at_once_means_that_we_are_blind() -> None:
    assert findings(replace(clear(), unready=100)) == [
        Blindness.NODES_UNREADY, Blindness.UNREADY_RISES,
    ]  # fmt: skip


def test_a_failing_or_slow_control_plane_blinds() -> None:
    assert findings(replace(clear(), api_error_share=0.2)) == [Blindness.CONTROL_PLANE_UNHEALTHY]
    assert findings(replace(clear(), api_latency_seconds=3.0)) == [
        Blindness.CONTROL_PLANE_UNHEALTHY
    ]


def test_sight_resumes_by_itself_two_loops_after_it_is_back() -> None:
    memory = SightMemory()
    seen: list[bool] = []
    for loop in range(40):
        unready = 100 if 5 <= loop < 10 else 0
        memory, found = look(memory, replace(clear(), unready=unready), LIMITS, 15.0)
        seen.append(not found)
    assert seen == [False, False, *[True] * 3, *[False] * 7, *[True] * 28]


def test_nodes_that_are_coming_or_going_are_no_difference() -> None:
    coming = replace(clear(100), cloud=Listing(ids(150)), joining=ids(150) - ids(100), recorded=150)
    assert findings(coming) == []
    going = Sight(
        Listing(ids(100)), Listing(ids(60)), recorded=60, leaving=ids(100) - ids(60)
    )  # fmt: skip
    memory, _ = look(SightMemory(stable_count=100, clear_loops=3), going, LIMITS, 1, own_change=-40)
    assert memory.clear_loops == 3


# Budgets, phases, ownership


def test_half_of_a_pool_is_the_ceiling_of_all_causes_together() -> None:
    ledger = Ledger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500).at(HOUR * 2)
    rulings = rule([removal(1, RemovalCause.REPAIR)], ledger)
    assert [(r.outcome, r.rule) for r in rulings] == [(Outcome.WAIT, Rule.CEILING)]


def test_an_override_names_the_nodes_that_may_exceed_a_budget() -> None:
    ledger = Ledger().with_removed([Charge("p", "", RemovalCause.IDLE)] * 500)
    permit = Permit("move-out", frozenset({"n7"}))
    rulings = rule([removal(7), removal(8)], ledger, permits=[permit])
    assert removed(rulings) == ["n7"]
    assert rulings[0].facts == {"override": "move-out"}
    assert not removed(rule([removal(7)], permits=[permit], blind=(Finding(Blindness.FROZEN),)))


def test_a_removal_is_marked_first_and_carried_out_a_loop_later() -> None:
    rulings = rule([replace(removal(1), marked_loops=0)])
    assert [(r.outcome, r.rule) for r in rulings] == [(Outcome.MARK, Rule.TWO_PHASES)]


def test_what_is_marked_goes_first_and_marks_are_within_the_budget() -> None:
    wanted = [replace(removal(i), marked_loops=int(i >= 150)) for i in range(300)]
    rulings = rule(wanted)
    assert len(removed(rulings)) == 100
    assert not any(r.outcome is Outcome.MARK for r in rulings)


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
    assert [(r.outcome, r.rule) for r in rule([foreign])] == [(Outcome.WAIT, Rule.NOT_OWNED)]


def test_no_more_removals_are_on_their_way_than_there_is_room_for() -> None:
    rulings = rule([removal(i) for i in range(5)], room=2)
    assert len(removed(rulings)) == 2
    assert rulings[-1].rule is Rule.IN_FLIGHT


def test_a_small_pool_may_replace_a_node_but_not_all() -> None:
    wanted = [removal(i, RemovalCause.REPAIR) for i in range(3)]
    assert len(removed(rule(wanted, size=3))) == 1


def test_the_domain_of_a_repair_has_a_budget_of_its_own() -> None:
    wanted = [removal(i, RemovalCause.REPAIR) for i in range(8)]
    books = Account(
        Ledger(), Peaks().within(0.0, {"p": 1000, "p/block-0": 8}), Budgets()
    )  # fmt: skip
    rulings = rule_on(wanted, books, (), room=100)
    assert len(removed(rulings)) == 1
    assert rulings[-1].facts["scope"] == "domain/p/block-0"
