"""The month of failures, on a few machines: the engine keeps its goals, and without it none would.

The month itself is `FAIRLEAD_MONTH_NODES=2000 python -m bench --only month`.
"""

from __future__ import annotations

from dataclasses import replace

from bench.groups.month import goodput, simulated


def test_tests_of_nodes_give_the_goodput_of_an_oracle_and_take_no_good_node() -> None:
    found = simulated("meta-rsc", 12, 2.0, rate=60.0)
    engine, without = found.over_oracle
    assert found.engine.silent_faults == found.without.silent_faults > 0
    assert found.engine.nodes_taken > 0
    assert engine >= 0.98
    assert without < 0.95
    assert found.false_cordons <= 1
    assert found.repeats <= 0.05


def test_what_was_lost_or_spoiled_is_no_goodput() -> None:
    found = simulated("llama3", 2, 0.1, rate=0.0)
    plain = replace(found.oracle, useful_gpu_seconds=90.0, lost_gpu_seconds=10.0)
    assert goodput(plain) == 0.9
    assert goodput(replace(plain, spoiled_gpu_seconds=45.0)) == 0.45
    bad = replace(plain, nodes_taken=20, nodes_taken_good=3, nodes_taken_again=2)
    month = replace(found, engine=bad, node_days=1_500.0)
    assert (month.false_cordons, month.repeats) == (2.0, 0.1)
