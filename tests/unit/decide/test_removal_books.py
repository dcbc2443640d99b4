"""What rails take from objects: a pool's own limits."""

from __future__ import annotations

import itertools

import pytest

from fairlead.api.cluster.node_pool import (
    Disruption,
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.node_limit import NodeLimit
from fairlead.decide.removal.books import budget_of
from fairlead.decide.removal.ledger import PoolBudget

MEANT = {None: None, 3: NodeLimit(3), "10%": NodeLimit(10, is_percent=True)}


@pytest.mark.parametrize("own", list(itertools.product(MEANT, repeat=3)))
def test_a_pools_own_limits_are_those_that_it_states(own: tuple[int | str | None, ...]) -> None:
    spec = NodePoolSpec(
        Provider(ProviderType.AWS), NodeTemplate({"cpu": "8"}), max=9, disruption=Disruption(*own)
    )
    pool = NodePool(ObjectMeta(name="p"), spec)
    assert budget_of(pool) == PoolBudget(*map(MEANT.__getitem__, own))
