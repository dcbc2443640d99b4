"""A machine that its cloud is about to stop: empty by then, not repaired, back when it is over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.decide.health_world import HealthWorld, fault

from fairlead.api.cluster.node_report import CLOUD_MAINTENANCE, Action, ReportedFault, Severity
from fairlead.api.values.times import format_time, parse_time
from fairlead.model.health.node_record import NodeState
from fairlead.model.health.windows import drain_of


def announced(
    at: float, due: float | None, *, severity: Severity = Severity.CRITICAL
) -> ReportedFault:
    found = fault(CLOUD_MAINTENANCE, severity=severity, action=Action.WATCH, at=at,
                  component="machine", codes=("reboot",))  # fmt: skip
    return replace(found, due_time=None if due is None else format_time(due))


def seeing(*, used: bool = True) -> HealthWorld:
    world = HealthWorld(replaceable=True)
    world.run(30)
    if used:
        world.used.add("n03")
    return world


def deadline(world: HealthWorld) -> float:
    drain = drain_of(world.nodes["n03"].metadata.annotations)
    assert drain is not None
    return drain.start


@pytest.mark.parametrize("seconds", [120, 400])
def test_a_node_is_to_be_empty_when_its_cloud_stops_the_machine(seconds: float) -> None:
    world = seeing()
    due = parse_time(format_time(world.now + seconds))
    world.tell("n03", announced(world.now, due))
    world.run(10, step=2)
    assert (world.out(), deadline(world)) == (["n03"], due)


def test_what_stops_later_than_a_critical_fault_waits_moves_no_deadline_later() -> None:
    world = seeing()
    at = world.now
    world.tell("n03", announced(at, at + 3000))
    world.run(10, step=2)
    assert deadline(world) == parse_time(format_time(at)) + world.policy.critical_drain_seconds


def test_an_event_that_is_days_away_closes_nothing() -> None:
    world = seeing()
    world.tell("n03", announced(world.now, None, severity=Severity.INFO))
    world.run(60)
    assert world.out() == []


def test_an_empty_machine_waits_for_its_stop_and_is_neither_repaired_nor_replaced() -> None:
    world = seeing(used=False)
    event = announced(world.now, world.now + 300)
    world.tell("n03", event)
    world.run(3600, step=30)
    world.tell("n03", event)
    world.run(3600, step=30)
    assert world.state("n03") is NodeState.DRAINING
    record = world.record("n03")
    assert record is not None
    assert (record.tries, record.request) == ((), None)
    world.tell("n03", boot="boot-2")
    world.run(120)
    assert world.out() == [], "it is back once the event is over"


def test_a_person_is_asked_where_an_announced_stop_lasts_for_more_than_a_day() -> None:
    world = seeing(used=False)
    world.tell("n03", announced(world.now, world.now + 300))
    record = world.until("n03", NodeState.ASKING, seconds=2 * 86_400)
    assert record.reason.startswith("a person is needed: Critical cloud-maintenance machine reboot")
    assert record.tries == ()


def test_a_fault_beside_an_announced_stop_is_repaired_as_any_other() -> None:
    world = seeing(used=False)
    world.tell("n03", announced(world.now, world.now + 300), fault(at=world.now))
    world.until("n03", NodeState.RESETTING, seconds=60)


def test_a_stop_in_the_past_is_not_before_the_node_was_made() -> None:
    world = seeing()
    world.tell("n03", announced(world.now, 0.0))
    world.run(10, step=2)
    created = parse_time(world.nodes["n03"].metadata.creation_timestamp or "")
    assert created <= deadline(world) <= world.now
