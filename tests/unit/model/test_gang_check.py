"""The test of a gang: who meets whom, and whose node a result condemns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest

from fairlead.api.cluster.machine_result import Figure, MachineFinding, PairMeasure, SuiteResult
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.model.health.gang_check import (
    CheckedMember,
    Pair,
    judge_gang,
    located,
    merged,
    ring,
    second_opinions,
)

GOOD, RATE, TRIP = 1e9, 1e9, 5e-5
PASSED = MachineFinding("cpu", MachineOutcome.PASSED)


def _nodes(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def _measure(pair: Pair, slow: Iterable[int], *, factor: float = 0.2) -> PairMeasure:
    is_slow = any(rank in slow for rank in pair)
    return PairMeasure(pair[1], RATE * (factor if is_slow else 1.0), TRIP)


def _met(size: int, slow: Iterable[int]) -> dict[Pair, PairMeasure]:
    """Return what the ring and the second opinions measure of a gang with some slow nodes."""
    slow = set(slow)
    measures = {pair: _measure(pair, slow) for pairs in ring(size) for pair in pairs}
    again = second_opinions(measures, _nodes(size))
    return measures | {pair: _measure(pair, slow) for pair in again}


def _member(
    rank: int, *findings: MachineFinding, pairs: tuple[PairMeasure, ...] = (), node: str = ""
) -> CheckedMember:
    result = SuiteResult("gang", findings or (PASSED,), pairs=pairs)
    return CheckedMember(rank, node or f"n{rank}", "worker", result)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 100, 101])
def test_every_member_meets_its_neighbours_and_nobody_twice_in_a_round(size: int) -> None:
    met: dict[int, set[int]] = {rank: set() for rank in range(size)}
    rounds = list(ring(size))
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(set(ranks)) == len(ranks)
        for a, b in pairs:
            assert a < b
            met[a].add(b)
            met[b].add(a)
    assert len(rounds) <= 3
    for rank, others in met.items():
        assert others == {(rank - 1) % size, (rank + 1) % size} - {rank}


def test_a_gang_of_one_meets_nobody() -> None:
    assert list(ring(1)) == []


@pytest.mark.parametrize("size", [3, 4, 5, 8, 33])
def test_a_slow_node_is_told_apart_from_its_partners_wherever_it_is(size: int) -> None:
    for bad in range(size):
        assert list(located(_met(size, [bad]), _nodes(size))) == [bad]


def test_slow_nodes_are_found_side_by_side_and_apart() -> None:
    rng = random.Random(7)
    for _ in range(200):
        size = rng.randrange(8, 40)
        bad = sorted(rng.sample(range(size), rng.randrange(1, size // 5 + 1)))
        found = located(_met(size, bad), _nodes(size))
        assert set(found) <= set(bad)
        if all((b - a) % size > 2 for a, b in zip(bad, [*bad[1:], bad[0]], strict=True)):
            assert sorted(found) == bad


def test_one_slow_link_condemns_none_of_its_ends() -> None:
    measures = _met(6, [])
    measures[2, 3] = _measure((2, 3), [2])
    assert located(measures, _nodes(6)) == {}


def test_a_dip_that_does_not_come_again_condemns_nothing() -> None:
    measures = {pair: _measure(pair, [4]) for pairs in ring(8) for pair in pairs}
    again = second_opinions(measures, _nodes(8))
    assert [pair for pair in again if 4 in pair] == list(again) != []
    assert located(measures | {pair: _measure(pair, []) for pair in again}, _nodes(8)) == {}


def test_of_two_members_none_can_be_told_apart() -> None:
    wrong = {(0, 1): PairMeasure(1, RATE, TRIP, is_wrong=True)}
    assert located(wrong, _nodes(2)) == {}
    members = [_member(0, pairs=(wrong[0, 1],)), _member(1)]
    verdict = judge_gang(members)
    assert verdict.outcome is MachineOutcome.ERROR
    assert "which one it is was not found" in verdict.message


def test_paths_that_lose_full_packets_are_bad_whatever_the_others_have() -> None:
    lost = PairMeasure(1, 0.0, TRIP, loses_full_packets=True)
    members = [_member(0, pairs=(lost,)), _member(1, pairs=(PairMeasure(0, error="late"),))]
    verdict = judge_gang(members)
    assert verdict.outcome is MachineOutcome.ERROR, "the program would hang"
    assert "packets of full size are lost" in verdict.message
    lossy = {pair: lost for pair in _met(3, [2]) if 2 in pair}
    found = located(_met(3, [2]) | lossy, _nodes(3))
    assert {rank: "full size" in why for rank, why in found.items()} == {2: True}


def test_partners_that_did_not_answer_are_no_measurement() -> None:
    gone = PairMeasure(2, error="no answer")
    members = [
        _member(0, pairs=(PairMeasure(1, RATE, TRIP), gone)),
        _member(1, pairs=(PairMeasure(0, RATE), gone)),
        _member(2, pairs=(PairMeasure(0, error="x"), PairMeasure(1, error="x"))),
    ]
    assert judge_gang(members).outcome is MachineOutcome.PASSED
    assert set(merged({each.rank: each.result for each in members if each.result})) == {(0, 1)}


def test_members_on_one_node_say_nothing_of_the_network() -> None:
    measures = {pair: _measure(pair, [1]) for pairs in ring(4) for pair in pairs}
    assert located(measures, ["n0"] * 4) == {}
    assert second_opinions(measures, ["n0"] * 4) == ()


def test_a_late_pair_is_bad_beside_the_others() -> None:
    measures = _met(5, [])
    late: Mapping[Pair, PairMeasure] = {
        pair: PairMeasure(pair[1], RATE, 0.05) for pair in measures if 3 in pair
    }
    assert list(located(measures | dict(late), _nodes(5))) == [3]


def test_a_node_that_computes_wrong_has_failed_and_the_words_name_it() -> None:
    wrong = MachineFinding("cpu", MachineOutcome.FAILED, "wrong results on 1 CPU")
    verdict = judge_gang([_member(0), _member(1, wrong), _member(2)])
    assert verdict.outcome is MachineOutcome.FAILED
    assert verdict.message == "n1 (cpu: wrong results on 1 CPU)"
    assert list(verdict.failed) == [1]


def test_an_error_says_nothing_about_the_hardware() -> None:
    lost = CheckedMember(1, "n1", "worker", None, "it did not come in time")
    verdict = judge_gang([_member(0), lost])
    assert (verdict.outcome, verdict.failed) == (MachineOutcome.ERROR, {})
    assert verdict.message == "n1: it did not come in time"


def test_so_many_failures_at_once_are_the_test() -> None:
    wrong = MachineFinding("cpu", MachineOutcome.FAILED, "wrong")
    few = judge_gang([_member(i, wrong) for i in range(3)])
    assert few.outcome is MachineOutcome.FAILED
    many = judge_gang([_member(i, wrong if i < 4 else PASSED) for i in range(16)])
    assert (many.outcome, many.failed) == (MachineOutcome.ERROR, {})


def test_a_slow_gpu_fails_beside_those_of_its_gang_and_a_slow_cpu_does_not() -> None:
    def found(rank: int, rate: float, cpu: float) -> CheckedMember:
        flops = (Figure("bf16FlopsPerSecond", rate),)
        rounds = (Figure("roundsPerSecond", cpu),)
        return _member(
            rank, MachineFinding("gpu-matmul", MachineOutcome.PASSED, figures=flops),
            MachineFinding("cpu", MachineOutcome.PASSED, figures=rounds),
        )  # fmt: skip

    gang = [found(i, GOOD + i, 100.0) for i in range(12)]
    assert judge_gang(gang).outcome is MachineOutcome.PASSED
    gang[5] = found(5, GOOD / 2, 100.0)
    gang[7] = found(7, GOOD, 10.0)
    assert list(judge_gang(gang).failed) == [5]


def test_a_gang_that_measured_nothing_was_skipped() -> None:
    skipped = MachineFinding("gpu-matmul", MachineOutcome.SKIPPED, "no GPU")
    assert judge_gang([_member(0, skipped)]).outcome is MachineOutcome.SKIPPED
