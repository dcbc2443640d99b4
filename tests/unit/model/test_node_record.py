"""The record of a node in its annotation."""

from __future__ import annotations

import pytest

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.cluster.node_report import Action
from fairlead.api.names import HEALTH, RETIRE
from fairlead.model.health.node_record import (
    Departure,
    NodeRecord,
    NodeRequest,
    NodeState,
    Try,
    departure_of,
    record_of,
    record_text,
)

AT = "2026-12-01T08:00:00Z"


def test_a_record_is_read_as_it_was_written() -> None:
    record = NodeRecord(
        NodeState.RESETTING, AT, "why", 3, AT, f"{AT}/{AT}",
        NodeRequest("id", Action.RESET_GPU, ("0000:3b:00",)), (Try(Action.RESET_GPU, AT, "boot"),),
    )  # fmt: skip
    assert record_of({HEALTH: record_text(record)}) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"state":"Gone","enteredAt":""}',
        '{"state":3}',
        "\x00",
        '{"state":"Asking","enteredAt":"soon"}',
        '{"state":"Asking","enteredAt":"2026-12-01T08:00:00Z","deadline":"never"}',
    ],
)
def test_what_cannot_be_read_is_no_record(text: str) -> None:
    assert record_of({HEALTH: text}) is None
    assert departure_of({HEALTH: text}) is None


def test_a_machine_goes_where_it_is_to_be_replaced_or_a_person_retires_it() -> None:
    replacing = {HEALTH: record_text(NodeRecord(NodeState.REPLACING, AT, "why"))}
    assert departure_of(replacing) == Departure("why", RemovalCause.REPAIR)
    retired = Departure("retired: old", RemovalCause.MAINTENANCE, is_by_person=True)
    assert departure_of({**replacing, RETIRE: "old"}) == retired
    assert departure_of({HEALTH: record_text(NodeRecord(NodeState.ASKING, AT))}) is None


def test_each_state_is_reached_and_every_state_that_keeps_work_away_leads_back() -> None:
    names = {state.value for state in NodeState}
    reached = {exit_ for state in NodeState for exit_ in state.exits}
    assert reached <= names
    assert names - reached == {"Joining"}
    back = {"Ready"}
    while more := {s.value for s in NodeState if s.value not in back and back & {*s.exits}}:
        back |= more
    assert back == names
