"""Tickets of nodes: when one is opened and resolved, whom for, how often, and what it says."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from msgspec.structs import replace
from tests.unit.decide.health_world import fault

from fairlead.api import names
from fairlead.api.cluster.node_report import Action, NodeReport, NodeReportStatus
from fairlead.api.jobs.notify import NoticeForm, NoticeState
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.times import format_time
from fairlead.decide.notices import (
    SendTicket,
    TicketAction,
    TicketKey,
    TicketsPolicy,
    TicketTarget,
    TicketView,
    TryOutcome,
    TryReason,
    decide_tickets,
    host_report_of,
    key_of_ticket,
    ticket_body,
    ticket_of,
    with_ticket,
)
from fairlead.model.health.node_record import NodeRecord, NodeState, Try, record_text
from fairlead.model.health.ticket import TicketEvent, TicketRecord, tickets_of, tickets_text
from fairlead.testing.builders import EPOCH, make_node

DESK = TicketTarget("desk.example", "https://desk.example/secret-path")
PROVIDER = TicketTarget("Provider")
POLICY = TicketsPolicy((DESK, PROVIDER))
DELIVERED = TryOutcome(TryReason.DELIVERED, 204)
BUSY = TryOutcome(TryReason.BUSY, 503)


class TicketWorld:
    """One node whose state the test sets; `run` does what is owed, in virtual time."""

    def __init__(self, policy: TicketsPolicy = POLICY, *, has_provider: bool = True) -> None:
        node = make_node("n1")
        spec = replace(node.spec, provider_id="fake:///m-1" if has_provider else "")
        self.node: Node = replace(node, spec=spec)
        self.policy, self.now = policy, EPOCH
        self.is_granted, self.is_gone = True, False
        self.outcomes: dict[TicketKey, TryOutcome] = {}
        #: What was sent, in order, as "Opened Provider", and how often each message was tried.
        self.sent: list[str] = []
        self.tries: Counter[tuple[str, str, TicketEvent]] = Counter()

    def note(self, key: str, text: str | None) -> None:
        notes = {**self.node.metadata.annotations, key: text or ""}
        if text is None:
            del notes[key]
        self.node = replace(self.node, metadata=replace(self.node.metadata, annotations=notes))

    def enter(self, state: NodeState, *, session: float = EPOCH) -> None:
        """Let the health controller write that the node is in a state."""
        tries = (Try(Action.REBOOT, format_time(EPOCH), "boot-0"),)
        record = NodeRecord(state, format_time(self.now), "Critical gpu-xid 79", tries=tries,
                            drain=f"{format_time(session)}/")  # fmt: skip
        self.note(names.HEALTH, record_text(record))

    @property
    def tickets(self) -> tuple[TicketRecord, ...]:
        return tickets_of(self.node.metadata.annotations)

    def step(self, outcome: TryOutcome | None) -> TicketAction | None:
        """Take one step; a try ends by `outcome`, None: the process ends in it."""
        view = TicketView(self.node, self.outcomes, is_granted=self.is_granted,
                          is_gone=self.is_gone)  # fmt: skip
        decision = decide_tickets(view, self.policy, self.now, has_turn=True)
        if not decision.actions:
            if decision.wake_at is None:
                return None
            self.now = decision.wake_at
            return self.step(outcome)
        (action,) = decision.actions
        self.note(names.TICKETS, tickets_text(with_ticket(self.tickets, action.record)))
        if isinstance(action, SendTicket):
            record = action.record
            self.sent.append(f"{record.event.value} {record.to}")
            self.tries[record.to, record.opened_at, record.event] += 1
            if outcome is not None:
                self.outcomes[key_of_ticket(record)] = outcome
        return action

    def run(self, outcome: TryOutcome | None = DELIVERED) -> list[str]:
        """Do all that is owed; return what was sent meanwhile."""
        before = len(self.sent)
        for _ in range(100):
            if self.step(outcome) is None:
                return self.sent[before:]
        raise AssertionError("it never comes to an end")


def test_a_node_that_waits_for_a_person_has_one_ticket_until_it_takes_work_again() -> None:
    world = TicketWorld()
    world.enter(NodeState.DRAINING)
    assert world.run() == []
    world.enter(NodeState.ASKING)
    assert world.run() == ["Opened desk.example", "Opened Provider"]
    for state in (NodeState.VALIDATING, NodeState.ASKING, NodeState.VALIDATING):
        world.now += 600
        world.enter(state)  # a fault that comes and goes is the same ticket
        assert world.run() == []
    world.note(names.HEALTH, None)
    assert world.run() == ["Resolved desk.example", "Resolved Provider"]
    assert world.run() == []
    world.now += 3600
    world.enter(NodeState.ASKING, session=world.now)
    assert world.run() == ["Opened desk.example", "Opened Provider"], "the next time is another one"
    assert len({each.opened_at for each in world.tickets}) == 1


def test_a_machine_that_is_replaced_is_reported_to_its_provider_alone() -> None:
    world = TicketWorld()
    world.enter(NodeState.REPLACING)
    assert world.run() == ["Opened Provider"]
    world.is_gone = True
    assert world.run() == [], "the machine is not there any more"
    (ticket,) = world.tickets
    assert ticket.event is TicketEvent.RESOLVED


@pytest.mark.parametrize("how", ["retired", "gone", "another session"])
def test_a_ticket_is_resolved_however_the_need_for_it_ends(how: str) -> None:
    world = TicketWorld(TicketsPolicy((DESK,)))
    world.enter(NodeState.ASKING)
    assert world.run() == ["Opened desk.example"]
    if how == "retired":
        world.note(names.RETIRE, "old")
    elif how == "gone":
        world.is_gone = True
    else:  # it was well for a while in which no controller ran
        world.now += 7200
        world.enter(NodeState.ASKING, session=world.now)
    more = ["Opened desk.example"] if how == "another session" else []
    assert world.run() == ["Resolved desk.example", *more]


def test_no_provider_takes_a_machine_for_the_word_of_its_node() -> None:
    world = TicketWorld()
    world.is_granted = False
    world.enter(NodeState.ASKING)
    assert world.run() == ["Opened desk.example"]
    bare = TicketWorld(has_provider=False)
    bare.enter(NodeState.ASKING)
    assert bare.run() == ["Opened desk.example"]


def test_a_ticket_that_never_arrives_is_given_up_and_its_end_is_not_said() -> None:
    world = TicketWorld(TicketsPolicy((DESK,)))
    world.enter(NodeState.ASKING)
    assert world.run(BUSY) == ["Opened desk.example"] * 8
    (ticket,) = world.tickets
    assert (ticket.state, ticket.reason, ticket.code) == (NoticeState.GIVEN_UP, "Busy", 503)
    assert 3600 < world.now - EPOCH < 7200
    world.note(names.HEALTH, None)
    assert world.run() == []
    refused = TicketWorld(TicketsPolicy((DESK,)))
    refused.enter(NodeState.ASKING)
    assert refused.run(TryOutcome(TryReason.REJECTED, 403)) == ["Opened desk.example"]
    assert refused.tickets[0].state is NoticeState.REFUSED


def test_a_ticket_whose_try_was_lost_may_have_arrived_so_its_end_is_said() -> None:
    world = TicketWorld(TicketsPolicy((DESK,)))
    world.enter(NodeState.ASKING)
    world.step(None)
    world.note(names.HEALTH, None)
    assert world.run() == ["Resolved desk.example"]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_tries_are_bounded_and_messages_are_in_their_order(seed: int) -> None:
    rng, world = random.Random(seed), TicketWorld()
    states = [NodeState.ASKING, NodeState.VALIDATING, NodeState.REPLACING, NodeState.READY]
    session = EPOCH
    for _ in range(40):
        if rng.random() < 0.4:
            state = rng.choice(states)
            session = world.now if rng.random() < 0.3 else session
            world.enter(state, session=session)
        if rng.random() < 0.1:
            world.outcomes.clear()  # another process
        world.now += rng.choice((1.0, 60.0, 4000.0))
        world.step(rng.choice((DELIVERED, BUSY, None, TryOutcome(TryReason.REJECTED, 400))))
    world.note(names.HEALTH, None)
    world.run()
    assert world.sent, "something was sent"
    assert max(world.tries.values()) <= POLICY.sending.tries_max
    said = {(to, opened) for to, opened, event in world.tries if event is TicketEvent.RESOLVED}
    assert said <= {(to, at) for to, at, event in world.tries if event is TicketEvent.OPENED}
    assert all(each.event is TicketEvent.RESOLVED for each in world.tickets)
    assert all(each.state is not NoticeState.SENDING for each in world.tickets)


def test_what_a_node_writes_there_that_cannot_be_read_is_no_ticket() -> None:
    for text in ("", "[", "{}", '[{"to": 1}]', "[" * 100_000, '[{"to":"a","session":"s",'
                 '"event":"Opened","openedAt":"never"}]'):  # fmt: skip
        assert tickets_of({names.TICKETS: text}) == ()


def test_a_ticket_has_the_evidence_and_no_secret() -> None:
    world = TicketWorld()
    world.enter(NodeState.ASKING)
    world.run()
    status = NodeReportStatus(
        format_time(EPOCH), world.node.metadata.uid, "boot-1", "board-7",
        {"gpus": "GPU-1a2b"}, 1, faults=(fault(action=Action.ASK_PERSON), fault("gpu-lost")),
    )  # fmt: skip
    report = NodeReport(world.node.metadata, status=status)
    ticket = ticket_of(world.node, world.tickets[0], report, world.now)
    body = ticket_body(ticket, NoticeForm.JSON)
    found = json.loads(body)
    assert (found["type"], found["state"]) == ("node.ticket.opened", "Asking")
    assert found["text"] == "Node n1 waits for a person"
    assert found["node"]["machineID"] == "board-7"
    assert found["node"]["hardware"] == {"gpus": "GPU-1a2b"}
    assert (found["node"]["bootID"], found["node"]["providerID"]) == ("boot-1", "fake:///m-1")
    assert [each["check"] for each in found["faults"]] == ["gpu-xid", "gpu-lost"]
    assert found["tried"][0]["action"] == "Reboot"
    assert b"secret-path" not in body
    assert "secret-path" not in repr(DESK) + str(world.node)
    slack = json.loads(ticket_body(ticket, NoticeForm.SLACK))
    assert slack == {"text": "Node n1 waits for a person\nCritical gpu-xid 79"}
    host = host_report_of(ticket)
    assert (host.machine, host.checks) == ("fake:///m-1", ("gpu-xid 79", "gpu-lost 79"))
    assert not set(host.token) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    stale = replace(report, status=replace(status, node_uid="another"))
    assert ticket_of(world.node, world.tickets[0], stale, world.now).faults == ()
