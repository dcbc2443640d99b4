"""How long a roll-out takes at least within the budgets of removals."""

from __future__ import annotations

import pytest

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.values.node_limit import parse_limit
from fairlead.decide.removal.ledger import DAY, HOUR, Budgets, CauseBudget, Charge, PoolBudget
from fairlead.decide.removal.ledger import Shares as Of
from fairlead.decide.removal.pace import least_seconds

OUT = 600.0
WIDE = Budgets(
    {cause: CauseBudget(Of(1, 1, 1), Of(1, 1, 1), None) for cause in RemovalCause}, 1.0, 100
)


def seconds(
    count: int, nodes: int, pool: PoolBudget | None = None, *, budgets: Budgets | None = None
) -> float | None:
    charges = [Charge("p", "z", RemovalCause.REPAIR)] * count
    limits = {} if pool is None else {"p": pool}
    sizes = {"p": nodes, "p/z": nodes}
    return least_seconds(charges, sizes, limits, out_seconds=OUT, budgets=budgets)


def test_none_takes_no_time_and_what_all_budgets_allow_takes_the_time_of_one() -> None:
    assert seconds(0, 100) == 0
    assert seconds(1, 100) == OUT
    assert seconds(50, 100, budgets=WIDE) == OUT


@pytest.mark.parametrize(
    ("limits", "last"),
    [(PoolBudget(at_once=parse_limit(1)), 4 * OUT), (PoolBudget(hour=parse_limit(2)), 2 * HOUR),
     (PoolBudget(day=parse_limit("2%")), 2 * DAY)],
)  # fmt: skip
def test_the_limits_of_a_pool_space_its_nodes(limits: PoolBudget, last: float) -> None:
    assert seconds(5, 100, limits, budgets=WIDE) == last + OUT


def test_the_budgets_of_the_fleet_hold_by_the_day() -> None:
    """15 % of 7,500 nodes a day: 1,125, so the last of them goes out on the seventh."""
    found = seconds(7500, 7500)
    assert found is not None
    assert 6 * DAY < found < 7 * DAY


def test_more_than_90_days_is_no_answer() -> None:
    assert seconds(100, 400, PoolBudget(day=parse_limit(1)), budgets=WIDE) is None
