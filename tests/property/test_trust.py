"""Sight, against its rules as they are said: a reason is given when, and only when, it holds.

The rules are stated here once more, in whole nodes and by counting all that was seen, so that each
limit is met from both sides.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.api.cluster.cluster_report import ReportCondition
from fairlead.decide.removal.trust import (
    Blindness,
    Listing,
    Reported,
    Sight,
    SightLimits,
    SightMemory,
    look,
)

LIMITS = SightLimits()
LEAST, TWENTIETH, FIFTH = LIMITS.differ_least, Fraction(1, 20), Fraction(1, 5)
#: Sizes at which a twentieth is a whole number of nodes, and others.
COUNTS = st.sampled_from([0, 1, 3, 4, 59, 60, 61, 79, 80, 99, 100, 101])
NEAR = st.integers(-7, 7)


def ids(first: int, count: int) -> frozenset[str]:
    return frozenset(f"i{number:04}" for number in range(first, first + max(0, count)))


@st.composite
def sights(draw: st.DrawFn) -> Sight:
    """Lists that lack a few of each other's nodes, some of which are joining or leaving."""
    common, extra = draw(COUNTS), draw(st.integers(0, 8))
    cloud = ids(0, common) | ids(1000, extra)
    nodes = ids(0, common) | ids(2000, draw(st.integers(0, 8)))
    ages = st.sampled_from([0.0, 59.9, 60.0, 60.1, 180.0, 180.1, float("inf"), float("nan")])
    report_ages = st.sampled_from([-300.1, -300.0, 0.0, 1800.0, 1800.1])
    return Sight(
        nodes=Listing(nodes, draw(ages), draw(st.integers(0, 9)) > 0),
        cloud=Listing(cloud, draw(ages), draw(st.integers(0, 9)) > 0),
        recorded=draw(st.none() | NEAR.map(lambda more: max(0, len(cloud) + more))),
        joining=ids(1000, draw(st.integers(0, 8))),
        leaving=ids(draw(st.sampled_from([0, 1000, 2000])), draw(st.integers(0, 5))),
        unready=draw(st.sampled_from([0, 3, 4, 11, 12, 13, 16, 17, 20, 21])),
        api_error_share=draw(st.sampled_from([0.0, 0.1, 0.11])),
        api_latency_seconds=draw(st.sampled_from([0.0, 2.0, 2.1])),
        reported=tuple(
            Reported(condition, "seen", draw(report_ages))
            for condition in draw(st.sets(st.sampled_from(list(ReportCondition))))
        ),
        is_frozen=draw(st.booleans()),
    )


def expected(sight: Sight) -> set[Blindness]:
    """The reasons that need no past."""
    nodes, cloud = sight.nodes.ids - sight.leaving, sight.cloud.ids - sight.leaving
    lonely = {i for i in cloud - nodes if i not in sight.joining} | (nodes - cloud)
    most = max(len(nodes), len(cloud))
    recorded = sight.recorded if sight.recorded is not None else len(cloud)
    larger = max(len(cloud), recorded)
    reported = {each.condition: -300 <= each.age_seconds <= 1800 for each in sight.reported}
    rules = {
        Blindness.FROZEN: sight.is_frozen,
        Blindness.NODE_LIST_STALE: not sight.nodes.age_seconds <= 180,
        Blindness.CLOUD_LIST_STALE: not sight.cloud.age_seconds <= 60,
        Blindness.LIST_PARTIAL: not (sight.nodes.is_complete and sight.cloud.is_complete),
        Blindness.LISTS_DIFFER: len(lonely) > LEAST and len(lonely) > most // 20,
        Blindness.RECORDS_DIFFER: abs(len(cloud) - recorded) > LEAST
        and abs(len(cloud) - recorded) > larger // 20,
        Blindness.CONTROL_PLANE_UNHEALTHY: sight.api_error_share > 0.1
        or sight.api_latency_seconds > 2,
        Blindness.ETCD_NEARLY_FULL: reported.get(ReportCondition.ETCD_NEARLY_FULL, False),
        Blindness.API_SERVER_DEGRADED: reported.get(ReportCondition.API_SERVER_DEGRADED, False),
        Blindness.NODES_UNREADY: sight.unready > LEAST
        and sight.unready > len(sight.nodes.ids) * FIFTH,
    }
    return {reason for reason, holds in rules.items() if holds}


@given(sights())
def test_a_reason_is_given_when_its_rule_holds_and_only_then(sight: Sight) -> None:
    _, found = look(SightMemory(), sight, LIMITS, 15.0)
    reasons = {finding.blindness for finding in found}
    returning = {Blindness.SIGHT_RETURNING} if sight.nodes.ids or sight.cloud.ids else set()
    assert reasons == (expected(sight) or returning)


#: Seconds since the look before, nodes, of them not ready, and the change that was our own.
LOOKS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 60.0, 150.0, 299.0, 300.0, 301.0, 600.0]),
        COUNTS,
        st.sampled_from([0, 1, 3, 4, 5, 6, 8, 9]),
        st.sampled_from([0, 0, 4, 20, -3, -40]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(LOOKS)
@example([(1.0, 100, 0, 0), (300.0, 100, 6, 0)])
@example([(1.0, 100, 0, 0), (301.0, 100, 6, 0)])
@example([(1.0, 100, 0, 0), (150.0, 90, 0, 0), (450.0, 90, 0, 0)])
def test_what_was_seen_before_counts_for_as_long_as_it_says(
    looks: list[tuple[float, int, int, int]],
) -> None:
    memory, at, clear = SightMemory(), 0.0, 0
    #: When so many were not ready; the nodes that are believed, and for how long others stood.
    unready, believed, stood = list[tuple[float, int]](), None, 0.0
    for elapsed, count, ill, own in looks:
        at += elapsed
        sight = Sight(Listing(ids(0, count)), Listing(ids(0, count)), unready=ill)
        memory, found = look(memory, sight, LIMITS, elapsed, own_change=own)
        reasons = {finding.blindness for finding in found}
        least = min((before for then, before in unready if then >= at - 300), default=ill)
        unready.append((at, ill))
        rises = ill - least > LEAST and ill - least > count * TWENTIETH
        assert (Blindness.UNREADY_RISES in reasons) == rises
        if believed is not None:
            believed, stood = max(0, believed + own), stood + elapsed
        is_fewer = believed is not None and believed - count > max(LEAST, believed // 20)
        assert (Blindness.COUNT_CHANGED in reasons) == (is_fewer and stood < 600)
        if not is_fewer or stood >= 600:
            believed, stood = count, 0.0
        others = reasons - {Blindness.SIGHT_RETURNING}
        clear = 0 if others else clear + 1
        assert (Blindness.SIGHT_RETURNING in reasons) == (not others and clear <= 2 and count > 0)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_of_two_lists_the_shorter_one_is_compared_with_what_was_there(
    before: int, nodes: int, cloud: int
) -> None:
    both = Sight(Listing(ids(0, before)), Listing(ids(0, before)))
    memory, _ = look(SightMemory(), both, LIMITS, 15.0)
    _, found = look(memory, Sight(Listing(ids(0, nodes)), Listing(ids(0, cloud))), LIMITS, 15.0)
    lacking = before - min(nodes, cloud)
    is_changed = lacking > max(LEAST, before // 20)
    assert (Blindness.COUNT_CHANGED in {each.blindness for each in found}) == is_changed


@pytest.mark.parametrize(
    ("more", "fewer", "differ"),
    [(60, 57, False), (60, 56, True), (80, 76, False), (79, 75, True), (100, 95, False),
     (100, 94, True), (3, 0, False), (4, 0, True)],
)  # fmt: skip
def test_counts_may_differ_by_a_twentieth_of_the_larger_one_whichever_it_is(
    more: int, fewer: int, differ: bool
) -> None:
    for cloud, recorded in ((more, fewer), (fewer, more)):
        same = Listing(ids(0, cloud))
        _, found = look(SightMemory(), Sight(same, same, recorded), LIMITS, 15.0)
        assert (Blindness.RECORDS_DIFFER in {each.blindness for each in found}) == differ
        _, found = look(SightMemory(), Sight(same, Listing(ids(0, recorded))), LIMITS, 15.0)
        assert (Blindness.LISTS_DIFFER in {each.blindness for each in found}) == differ


def test_nodes_that_fail_one_by_one_are_a_rise_however_often_it_is_looked() -> None:
    memory, fleet = SightMemory(), Listing(ids(0, 400))
    for ill in range(30):
        memory, found = look(memory, Sight(fleet, fleet, unready=ill), LIMITS, 2.0)
        rises = Blindness.UNREADY_RISES in {each.blindness for each in found}
        assert rises == (ill > 400 // 20)


def test_a_rise_over_minutes_is_seen_by_a_process_that_looks_ten_times_a_second() -> None:
    memory, fleet = SightMemory(), Listing(ids(0, 400))
    for ill in range(30):
        for _ in range(90):
            memory, found = look(memory, Sight(fleet, fleet, unready=ill), LIMITS, 0.1)
        rises = Blindness.UNREADY_RISES in {each.blindness for each in found}
        assert rises == (ill > 400 // 20)


def test_what_is_kept_of_the_past_is_bounded() -> None:
    memory, fleet = SightMemory(), Listing(ids(0, 4))
    for _ in range(1000):
        memory, _ = look(memory, Sight(fleet, fleet), LIMITS, 0.01)
    assert len(memory.unready) <= LIMITS.rise_seconds / 2 + 1
