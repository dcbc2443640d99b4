"""A team's budget over nodes: never exceeded, used while demand suffices, settled in 3 rounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.decide.network import DividePolicy, divide, safe_share
from fairlead.decide.network.divide import Rates
from fairlead.model.egress_lease import BITS_PER_SECOND_MIN, EgressLeaseTimes, leased_rate

G = 10**9
TIMES = EgressLeaseTimes(60.0, 30.0)

budgets = st.integers(10**7, 10**13)


def of(values: list[int]) -> Rates:
    return np.array(values, dtype=np.int64)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Rates, Rates]:
    """Demand, of which some is far more than any budget, and weights."""
    count = draw(st.integers(1, 40))
    size = st.one_of(st.just(0), st.integers(0, 10**7), st.integers(0, 1 << 62))
    demand = draw(st.lists(size, min_size=count, max_size=count))
    weights = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    return of(demand), of(weights)


def in_order(budget: int, demand: Rates, weights: Rates, rounds: int, held: Rates) -> Rates:
    """Return the rates after rounds that all nodes confirm; checks the sum on the way."""
    for _ in range(rounds):
        new = divide(budget, demand, held, weights)
        assert int(np.maximum(held, new).sum()) <= max(budget, int(held.sum()))
        held = new
    return held


def assert_used(budget: int, demand: Rates, rates: Rates) -> None:
    """Assert that 95 % of what could be sent is sent."""
    wanted = min(budget, sum(map(int, demand)))
    assert int(np.minimum(rates, demand).sum()) >= 0.95 * wanted - len(demand)


@given(budgets, st.lists(fleets(), min_size=2, max_size=4))
def test_whichever_rates_have_arrived_their_sum_is_within_the_budget(
    budget: int, moves: list[tuple[Rates, Rates]]
) -> None:
    count = min(len(demand) for demand, _ in moves)
    held = np.zeros(count, dtype=np.int64)
    for demand, weights in moves:
        held = in_order(budget, demand[:count], weights[:count], 1, held)
        assert int(held.sum()) <= budget


@given(budgets, fleets(), fleets())
def test_three_rounds_after_any_change_of_demand_what_can_be_sent_is_sent(
    budget: int, before: tuple[Rates, Rates], after: tuple[Rates, Rates]
) -> None:
    count = min(len(before[0]), len(after[0]))
    held = np.zeros(count, dtype=np.int64)
    held = in_order(budget, before[0][:count], before[1][:count], 3, held)
    demand, weights = after[0][:count], after[1][:count]
    assert_used(budget, demand, in_order(budget, demand, weights, 3, held))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.floats(0.6, 3.0), st.integers(10**9, 10**12))
def test_three_rounds_divide_a_heavy_tailed_demand_of_7500_nodes(
    seed: int, shape: float, budget: int
) -> None:
    draw = np.random.default_rng(seed)
    ones = np.ones(7_500, dtype=np.int64)
    held = np.zeros(7_500, dtype=np.int64)
    for _ in range(2):  # from nothing, and from another demand of the same kind
        demand = np.minimum(draw.pareto(shape, 7_500) * 10**6, 4e11).astype(np.int64)
        held = in_order(budget, demand, ones, 3, held)
        assert_used(budget, demand, held)


@given(budgets, fleets())
def test_equal_nodes_that_want_more_than_there_is_have_shares_by_weight(
    budget: int, fleet: tuple[Rates, Rates]
) -> None:
    weights = fleet[1]
    demand = np.full(len(weights), 1 << 60, dtype=np.int64)
    rates = in_order(budget, demand, weights, 3, np.zeros(len(weights), dtype=np.int64))
    fair = 0.98 * budget * weights / int(weights.sum())  # without reserve and floors
    assert (rates >= 0.97 * fair - 2).all()


@given(budgets, fleets())
def test_a_node_that_begins_to_send_has_its_floor_at_once(
    budget: int, fleet: tuple[Rates, Rates]
) -> None:
    demand, weights = fleet
    held = in_order(budget, demand, weights, 3, np.zeros(len(demand), dtype=np.int64))
    joined = divide(budget, np.append(demand, 1 << 60), np.append(held, 0), np.append(weights, 1))
    assert int(joined[-1]) >= budget // 100 // (len(demand) + 1) - 1


@given(fleets(), st.floats(0.985, 1.015))
def test_demand_that_moves_little_changes_no_rate(fleet: tuple[Rates, Rates], part: float) -> None:
    demand, weights = np.clip(fleet[0], 10**6, 10**11), fleet[1]
    budget = 2 * int(demand.sum())
    held = in_order(budget, demand, weights, 3, np.zeros(len(demand), dtype=np.int64))
    moved = divide(budget, (demand * part).astype(np.int64), held, weights)
    assert (moved == held).all()


def test_a_budget_that_is_cut_lowers_rates_at_once_and_raises_none_before_they_are_confirmed() -> (
    None
):
    demand, ones = of([G, G, G]), of([1, 1, 1])
    held = in_order(3 * G, demand, ones, 3, of([0, 0, 0]))
    new = divide(G, np.append(demand, G), np.append(held, 0), np.append(ones, 1))
    assert int(new.sum()) <= G
    assert int(new[-1]) == 0
    assert int(in_order(G, np.append(demand, G), np.append(ones, 1), 1, new)[-1]) > 0


@given(
    st.integers(10**8, 10**12),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=50),
    st.floats(0, 1000),
)
def test_without_a_divider_the_sum_stays_within_the_budget_and_no_rate_is_zero_or_unbounded(
    budget: int, nodes: list[tuple[float, float]], silent: float
) -> None:
    whole = max(1.0, sum(part for part, _ in nodes))
    safe = safe_share(budget, len(nodes))
    rates = [
        leased_rate(
            int(budget * part / whole), safe, silent + late * TIMES.hold_seconds, times=TIMES
        )
        for part, late in nodes
    ]
    assert sum(rates) <= budget + len(nodes) * BITS_PER_SECOND_MIN
    assert all(BITS_PER_SECOND_MIN <= each <= budget for each in rates)


@pytest.mark.parametrize("rate", [10**6, 5 * 10**8])
def test_in_the_end_each_node_has_the_safe_share(rate: int) -> None:
    safe = safe_share(G, 5)
    assert safe == G // 8
    late = TIMES.rise_seconds + TIMES.fall_seconds
    assert leased_rate(rate, safe, late + 1, times=TIMES) == safe
    assert leased_rate(rate, safe, TIMES.hold_seconds, times=TIMES) == rate


def test_a_rate_falls_in_steps() -> None:
    found = [leased_rate(10**9, 10**8, 60.0 + t, times=TIMES) for t in range(0, 31, 3)]
    assert found == sorted(found, reverse=True)
    assert max(a - b for a, b in itertools.pairwise(found)) <= 2 * (10**9 - 10**8) // 10
    assert found[-1] == 10**8


def test_a_policy_keeps_its_parts_small_enough_to_use_the_budget() -> None:
    policy = DividePolicy()
    assert policy.reserve_permille + 2 * policy.band_permille <= 50
