"""Labels, taints, and what constraints make of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fairlead.api.kubernetes.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from fairlead.model.asks.requests import NAME_COLUMN, Constraints
from fairlead.model.inventory.labels import LabelTable

NODES = (
    {"zone": "a", "size": "8"},
    {"zone": "b", "size": "80"},
    {"zone": "c"},
    {"size": "x"},
)


@pytest.fixture
def table() -> LabelTable:
    table = LabelTable(4)
    for slot, labels in enumerate(NODES):
        table.set(slot, {**labels, NAME_COLUMN: f"n{slot}"}, ())
    return table


def selected(table: LabelTable, constraints: Constraints) -> list[int]:
    return np.flatnonzero(table.selected(constraints, np.arange(4))).tolist()


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("zone", "In", ("a", "c"), [0, 2]),
        ("zone", "In", ("nowhere",), []),
        ("zone", "NotIn", ("a",), [1, 2, 3]),
        ("zone", "Exists", (), [0, 1, 2]),
        ("zone", "DoesNotExist", (), [3]),
        ("gpu", "DoesNotExist", (), [0, 1, 2, 3]),
        ("gpu", "NotIn", ("x",), [0, 1, 2, 3]),
        ("gpu", "In", ("x",), []),
        ("size", "Gt", ("8",), [1]),
        ("size", "Lt", ("80",), [0]),
        ("size", "Gt", ("many",), []),
        ("size", "Unheard", ("1",), []),
    ],
)
def test_affinity_operators_select_like_kubernetes(
    table: LabelTable, key: str, operator: str, values: tuple[str, ...], expected: list[int]
) -> None:
    term = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key, operator, values),))
    assert selected(table, Constraints(affinity=NodeSelector((term,)))) == expected


def test_terms_are_alternatives_and_their_expressions_must_all_hold(table: LabelTable) -> None:
    def expression(key: str, value: str) -> NodeSelectorRequirement:
        return NodeSelectorRequirement(key, "In", (value,))

    both = NodeSelectorTerm((expression("zone", "a"), expression("size", "8")))
    never = NodeSelectorTerm((expression("zone", "a"), expression("size", "80")))
    named = NodeSelectorTerm(match_fields=(expression("metadata.name", "n3"),))
    assert selected(table, Constraints(affinity=NodeSelector((both, never, named)))) == [0, 3]
    assert selected(table, Constraints(affinity=NodeSelector((NodeSelectorTerm(),)))) == []
    assert selected(table, Constraints(affinity=NodeSelector())) == []


def test_a_label_that_goes_away_no_longer_selects(table: LabelTable) -> None:
    constraints = Constraints(node_selector=(("zone", "a"),))
    assert selected(table, constraints) == [0]
    assert table.set(0, {"size": "8"}, ())
    assert selected(table, constraints) == []
    table.clear(1)
    assert selected(table, Constraints(node_selector=(("size", "80"),))) == []


def test_setting_the_same_again_is_no_change(table: LabelTable) -> None:
    assert not table.set(0, {**NODES[0], NAME_COLUMN: "n0"}, ())
    taints = (Taint(key="x", effect="PreferNoSchedule"),)
    assert not table.set(0, {**NODES[0], NAME_COLUMN: "n0"}, taints)


def test_a_label_that_keeps_changing_does_not_grow_the_table() -> None:
    table = LabelTable(4)
    for beat in range(5000):
        table.set(0, {"beat": str(beat)}, ())
    assert len(table._columns["beat"].numbers) < 2000
    assert selected(table, Constraints(node_selector=(("beat", "4999"),))) == [0]
    assert selected(table, Constraints(node_selector=(("beat", "4998"),))) == []


def test_domains_within_others_follow_every_change_of_either_label() -> None:
    rng, table = random.Random(1), LabelTable(6)
    labels: dict[int, dict[str, str]] = {}
    met = set[int]()
    for _ in range(300):
        slot = rng.randrange(6)
        drawn = {key: rng.choice("abc") for key in ("rack", "zone") if rng.random() < 0.9}
        if rng.random() < 0.1:
            table.clear(slot)
            labels.pop(slot, None)
        else:
            table.set(slot, drawn, ())
            labels[slot] = drawn
        pairs = {s: (n["zone"], n["rack"]) for s, n in labels.items() if len(n) == 2}
        places = sorted(set(pairs.values()))
        cells, count = table.ordered_domains_within("rack", "zone")
        expected = [places.index(pairs[s]) if s in pairs else -1 for s in range(6)]
        found = dict(zip(cells.tolist(), expected, strict=True))
        assert [found[cell] for cell in cells.tolist()] == expected
        assert found.get(-1, -1) == -1
        assert (count, len(found)) == (len(places), len(set(expected)))
        met.add(count)
    assert {0, 1, 4} <= met, met


LASTING = Taint(key="team", value="a", effect="NoSchedule")
PASSING = Taint(key="node.kubernetes.io/disk-pressure", effect="NoSchedule")
EVICTING = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (None, (False, True, True)),
        (Toleration(key="team", value="a"), (True, True, True)),
        (Toleration(key="team", value="b"), (False, True, True)),
        (Toleration(key="team", operator="Exists"), (True, True, True)),
        (Toleration(key="team", operator="Exists", effect="NoExecute"), (False, True, True)),
        (Toleration(operator="Exists"), (True, True, True)),
        (Toleration(value="a"), (False, True, True)),
    ],
)
def test_tolerations_cover_taints_like_kubernetes(
    toleration: Toleration | None, expected: tuple[bool, bool, bool]
) -> None:
    table = LabelTable(2)
    table.set(0, {}, (LASTING,))
    constraints = Constraints(tolerations=(toleration,) if toleration else ())
    verdicts = table.tolerated(constraints, np.array([0]))
    assert tuple(bool(v[0]) for v in verdicts) == expected


def test_lasting_passing_and_evicting_taints_are_told_apart() -> None:
    table = LabelTable(3)
    for slot, taint in enumerate((LASTING, PASSING, EVICTING)):
        table.set(slot, {}, (taint,))
    lasting, passing, endured = table.tolerated(Constraints(), np.arange(3))
    assert lasting.tolist() == [False, True, True]
    assert passing.tolist() == [True, False, False]
    assert endured.tolist() == [True, True, False]


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_a_bound_of_any_length_is_judged_and_matches_nothing(
    table: LabelTable, operator: str
) -> None:
    term = NodeSelectorTerm(
        match_expressions=(NodeSelectorRequirement("size", operator, ("9" * 5000,)),)
    )
    assert selected(table, Constraints(affinity=NodeSelector((term,)))) == []


def test_a_label_of_any_length_is_no_number(table: LabelTable) -> None:
    table.set(2, {"size": "9" * 5000}, ())
    term = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement("size", "Gt", ("9",)),))
    assert selected(table, Constraints(affinity=NodeSelector((term,)))) == [1]
