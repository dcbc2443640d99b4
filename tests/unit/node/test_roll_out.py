"""What a profile would change on nodes, from what they have reported."""

from __future__ import annotations

from typing import Any

from fairlead.api.cluster.node_report import (
    ReportedSetting,
    ReportedTuning,
    SettingState,
    TuningMode,
)
from fairlead.node.tuning import RollOut, parse_profile, roll_out

PROFILE = """
name: wanted
facts: {pods: 1000}
lines:
- {kind: Sysctl, name: net.core.somaxconn, atLeast: 2 * nodes, reason: r, source: s}
- {kind: Sysctl, name: kernel.numa_balancing, value: 0, when: gpus, reason: r, source: s}
- {kind: RuntimeLimit, name: memlock, value: unlimited, when: rdma_devices, reason: r, source: s}
"""
GPUS = {"gpus": 8, "rdma_devices": 8, "nodes": 100}
VALUES = {"net.core.somaxconn": "4096", "kernel.numa_balancing": "1",
          "RuntimeLimit memlock": "65536"}  # fmt: skip


def report(facts: dict[str, int] | None = None, *, hand: str = "", **values: str) -> ReportedTuning:
    given = VALUES | {name.replace("__", "."): value for name, value in values.items()}
    hands = (ReportedSetting(hand, SettingState.SET_BY_HAND),) if hand else ()
    known = GPUS if facts is None else facts
    return ReportedTuning("old", TuningMode.VERIFY, known, given, hands)


def planned(
    reports: dict[str, ReportedTuning | None], text: str = PROFILE, **given: int
) -> RollOut:
    return roll_out(parse_profile(text, "profile.yaml"), given, reports)


def said(found: RollOut) -> list[tuple[Any, ...]]:
    return [(each.setting, each.actual, each.how, each.nodes) for each in found.changes]


def test_nodes_that_change_alike_are_one_change_in_the_order_of_the_profile() -> None:
    good = report(kernel__numa_balancing="0", net__core__somaxconn="9000")
    found = planned({"n2": report(), "n1": report(), "n3": report(net__core__somaxconn="128"),
                     "n4": report({"gpus": 0, "rdma_devices": 0, "nodes": 100}), "n5": good,
                     "n6": None})  # fmt: skip
    limit = "LimitMEMLOCK= in a drop-in of the container runtime's unit, then restart the runtime"
    assert said(found) == [
        ("net.core.somaxconn", "128", "at once", ("n3",)),
        ("kernel.numa_balancing", "1", "at once", ("n1", "n2", "n3")),
        ("RuntimeLimit memlock", "65536", limit, ("n1", "n2", "n3", "n5")),
    ]
    assert (found.as_wanted, found.unreported) == (("n4",), ("n6",))


def test_given_facts_replace_those_of_the_nodes() -> None:
    assert "net.core.somaxconn" not in {each.setting for each in planned({"n1": report()}).changes}
    (first, *_) = planned({"n1": report()}, nodes=7500).changes
    assert (first.wanted, first.formula) == ("at least 15000", "2 * nodes with nodes = 7,500")


def test_what_a_node_has_not_reported_is_not_judged() -> None:
    text = PROFILE.replace("net.core.somaxconn, atLeast", "net.core.other, atLeast")
    (first, *_) = planned({"n1": report()}, text).changes
    assert (first.state, first.how) == (SettingState.NOT_JUDGED, "the value is not reported")
    (first, *_) = planned({"n1": report({"gpus": 8, "rdma_devices": 0})}).changes
    assert (first.state, first.how) == (SettingState.NOT_JUDGED, "not known: nodes")


def test_what_a_person_has_set_stays_unless_the_profile_overwrites_it() -> None:
    hand = report(hand="kernel.numa_balancing")
    (first, *_) = planned({"n1": hand}).changes
    assert (first.state, first.how) == (SettingState.SET_BY_HAND, "stays: a person set it")
    text = PROFILE.replace("value: 0,", "value: 0, overwrite: true,")
    assert planned({"n1": hand}, text).changes[0].how == "at once"


def test_values_that_follow_from_the_memory_are_one_change_of_a_range() -> None:
    text = PROFILE.replace("2 * nodes", "memory_bytes // 1000")
    reports = {
        f"n{i}": report({"memory_bytes": 10_000_000 + i * 1000}, net__core__somaxconn=str(900 + i))
        for i in range(9)
    }
    found = planned(dict(reports), text)
    first = found.changes[0]
    assert (first.actual, first.wanted) == ("900..908", "at least 10000..10008")
    assert first.formula == "memory_bytes // 1000"
    assert len(first.nodes) == 9
