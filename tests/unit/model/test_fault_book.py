"""Each open fault has a clock of its own, and ends by its own rule."""

from __future__ import annotations

import pytest

from fairlead.model.health import fault_book
from fairlead.model.health.fault_book import FaultBook
from fairlead.model.health.faults import (
    CODES_MAX,
    EVIDENCE_MAX,
    Action,
    Ending,
    FaultVerdict,
    Identity,
    Look,
    Moment,
    Recovery,
    Severity,
    identity,
    observed,
    steady,
)

PORT = Identity("port", "mlx5_0/1", ("flap",))
OTHER = Identity("port", "mlx5_1/1", ("flap",))
STEADY = steady(Severity.CRITICAL, Action.WATCH, 100)
LATCHED = FaultVerdict(Severity.CRITICAL, Action.REPLACE, Recovery.COUNTER_RESET)


def book() -> FaultBook:
    return FaultBook(boot_id="a")


def look(
    at: float, *seen: Identity, verdict: FaultVerdict = STEADY,
    components: frozenset[str] | None = None, resets: frozenset[Identity] = frozenset(),
) -> Look:  # fmt: skip
    moment = Moment(1000 + at, at)
    return Look(("port",), moment, tuple(observed(each, verdict, "x", moment) for each in seen),
                components, resets)  # fmt: skip


def test_a_state_is_counted_each_time_that_it_begins() -> None:
    it = book()
    for at, seen in enumerate([True, True, False, True, True, False, True]):
        it.fold(look(at, *[PORT] * seen))
    (fault,) = it.faults
    assert fault.count == 3
    assert fault.first_seen == 1000
    assert fault.last_seen == 1006


def test_a_fault_is_over_after_stable_time_in_unbroken_sight() -> None:
    it = book()
    it.fold(look(0, PORT))
    assert it.fold(look(10)) == []
    assert it.fold(look(109)) == []
    (ended,) = it.fold(look(110))
    assert (ended.ending, ended.fault.identity) == (Ending.STABLE_TIME, PORT)
    assert it.faults == ()


def test_a_port_that_still_flaps_is_not_good_because_its_first_flap_is_old() -> None:
    it = book()
    for at in range(0, 1000, 50):
        it.fold(look(at, PORT))
        it.fold(look(at + 25))
    assert len(it.faults) == 1
    assert it.fold(look(1125)) != []


def test_time_in_which_nothing_looked_does_not_count() -> None:
    it = book()
    it.fold(look(0, PORT))
    it.fold(look(10))
    it.not_looked(["port"])
    assert it.fold(look(200)) == []
    assert it.fold(look(300)) != []


def test_time_in_which_the_component_was_not_looked_at_does_not_count() -> None:
    it = book()
    it.fold(look(0, PORT))
    it.fold(look(10, components=frozenset({PORT.component})))
    it.fold(look(150, components=frozenset({"mlx5_9/1"})))
    assert it.fold(look(200, components=frozenset({PORT.component}))) == []
    assert it.fold(look(300, components=frozenset({PORT.component}))) != []


def test_a_latched_fault_ends_by_its_counter_and_not_by_time() -> None:
    it = book()
    it.fold(look(0, PORT, OTHER, verdict=LATCHED))
    assert it.fold(look(100_000)) == []
    (ended,) = it.fold(look(100_001, resets=frozenset({PORT})))
    assert (ended.fault.identity, ended.ending) == (PORT, Ending.COUNTER_RESET)
    assert [fault.identity for fault in it.faults] == [OTHER]


@pytest.mark.parametrize(
    ("recovery", "action", "ending"),
    [
        (Recovery.BOOT, Action.REBOOT, Ending.BOOT),
        (Recovery.COUNTER_RESET, Action.REBOOT, Ending.BOOT),
        (Recovery.PERSON, Action.REBOOT, None),
        (Recovery.STABLE_TIME, Action.REBOOT, Ending.BOOT),
        (Recovery.STABLE_TIME, Action.RESET_GPU, Ending.BOOT),
        (Recovery.STABLE_TIME, Action.REPLACE, None),
        (Recovery.STABLE_TIME, Action.WATCH, None),
    ],
)
def test_a_reboot_ends_what_it_cures(
    recovery: Recovery, action: Action, ending: Ending | None
) -> None:
    it = book()
    it.fold(look(0, PORT, verdict=FaultVerdict(Severity.CRITICAL, action, recovery, 100)))
    after = FaultBook(it.faults, boot_id="b")
    ended = after.resume(["port"], logs=(), now=2000)
    assert [each.ending for each in ended] == ([ending] if ending else [])


def test_a_component_that_is_not_there_after_a_reboot_has_no_faults() -> None:
    it = book()
    it.fold(look(0, PORT))
    assert it.fold(look(1, components=frozenset({"mlx5_9/1"}))) == [], "it vanished while up"
    after = FaultBook(it.faults, boot_id="b")
    after.resume(["port"], logs=(), now=2000)
    (ended,) = after.fold(look(5, components=frozenset({"mlx5_9/1"})))
    assert ended.ending is Ending.COMPONENT_GONE


def test_a_check_that_was_removed_leaves_no_fault() -> None:
    it = book()
    it.fold(look(0, PORT))
    after = FaultBook(it.faults, boot_id="a")
    (ended,) = after.resume(["disk"], logs=(), now=2000)
    assert ended.ending is Ending.CHECK_REMOVED
    assert after.faults == ()


def test_a_person_ends_any_fault() -> None:
    it = book()
    it.fold(look(0, PORT, verdict=FaultVerdict(Severity.CRITICAL, Action.REPLACE, Recovery.PERSON)))
    assert it.clear(OTHER, 5) is None
    ended = it.clear(PORT, 5)
    assert ended is not None
    assert ended.ending is Ending.PERSON


def test_a_state_that_becomes_worse_or_better_stays_one_fault() -> None:
    it = book()
    it.fold(look(0, PORT, verdict=steady(Severity.WARNING, Action.WATCH, 0)))
    it.fold(look(1, PORT, verdict=steady(Severity.CRITICAL, Action.REBOOT, 0)))
    assert it.faults[0].verdict.severity is Severity.CRITICAL
    it.fold(look(2, PORT, verdict=steady(Severity.WARNING, Action.WATCH, 0)))
    assert it.faults[0].verdict.severity is Severity.WARNING
    assert it.faults[0].first_seen == 1000


def test_of_a_log_the_worst_line_counts_while_the_fault_is_open() -> None:
    it = book()
    worst, mild = steady(Severity.CRITICAL, Action.REBOOT, 9), steady(Severity.INFO, Action.NONE, 9)
    for at, verdict in enumerate([mild, worst, mild]):
        moment = Moment(1000 + at, at)
        it.fold(Look(("port",), moment, (observed(PORT, verdict, "x", moment),), is_log=True))
    assert it.faults[0].verdict == worst
    assert it.faults[0].count == 3


def test_with_too_many_faults_the_least_harmful_ones_are_left_out_and_counted() -> None:
    it = book()
    many = [Identity("port", f"p{number:05}") for number in range(fault_book.FAULTS_MAX + 5)]
    it.fold(look(0, *many, verdict=steady(Severity.INFO, Action.NONE, 9)))
    it.fold(look(1, PORT, verdict=LATCHED))
    assert len(it.faults) == fault_book.FAULTS_MAX
    assert it.dropped == 6
    assert it.faults[0].identity == PORT


def test_texts_of_others_have_bounded_sizes() -> None:
    of = identity("c" * 10, "x" * 9999, [f"{number}" * 99 for number in range(99)])
    seen = observed(of, STEADY, "y" * 9999, Moment(0, 0))
    assert len(of.component) < 200
    assert len(of.codes) == CODES_MAX
    assert len(seen.evidence) == EVIDENCE_MAX
