"""What a ticket says: the node, its machine, its faults and what was tried, as evidence (pure).

It has what the objects say and no more: no secret, no text of users' programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.cluster.node_report import NodeReport, NodeReportStatus, ReportedFault
from fairlead.api.jobs.notify import NoticeForm
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import to_wire
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.notices.letters import Post, form_of, text_body
from fairlead.decide.notices.tickets import TicketTarget
from fairlead.model.health.machines import DESCRIPTION_MAX, HostReport
from fairlead.model.health.node_record import NodeRecord, NodeState, record_of
from fairlead.model.health.ticket import TicketEvent, TicketRecord

_FAULTS_MAX = 16


@dataclass(frozen=True, slots=True)
class Ticket:
    """One message of a ticket. `id` is the same in all tries of it."""

    id: str
    event: TicketEvent
    at: str
    opened_at: str
    node: str
    uid: str
    provider_id: str
    labels: Mapping[str, str]
    record: NodeRecord | None
    boot_id: str = ""
    machine_id: str = ""
    hardware: Mapping[str, str] = field(default_factory=dict[str, str])
    faults: tuple[ReportedFault, ...] = ()

    @property
    def reason(self) -> str:
        """What is wrong, or why it is over, in one line."""
        return "" if self.record is None else self.record.reason


def ticket_of(node: Node, record: TicketRecord, report: NodeReport | None, now: float) -> Ticket:
    """Return the message of a node's ticket, with what is known of the node now."""
    meta, status = node.metadata, node.status.node_info
    labels = {key: meta.labels[key] for key in (names.POOL, names.ZONE) if key in meta.labels}
    opened = int(parse_time(record.opened_at))
    id_ = f"{meta.uid}-{opened}-{record.to}-{record.event.value}".lower()
    is_own = report is not None and report.status.node_uid == meta.uid
    said = report.status if report is not None and is_own else NodeReportStatus()
    return Ticket(
        id_, record.event, format_time(now), record.opened_at, meta.name, meta.uid,
        node.spec.provider_id, labels, record_of(meta.annotations),
        said.boot_id or status.boot_id, said.machine_id, said.hardware,
        said.faults[:_FAULTS_MAX],
    )  # fmt: skip


def ticket_headline(ticket: Ticket) -> str:
    """Return the ticket in one sentence, of names and closed words."""
    if ticket.event is TicketEvent.RESOLVED:
        return f"Node {ticket.node} needs no repair any longer"
    state = NodeState.ASKING if ticket.record is None else ticket.record.state
    asks = "waits for a person" if state is NodeState.ASKING else "is replaced for a fault"
    return f"Node {ticket.node} {asks}"


def ticket_body(ticket: Ticket, form: NoticeForm) -> bytes:
    """Return what is posted, as JSON."""
    if form is not NoticeForm.JSON:
        return text_body(ticket_headline(ticket), ticket.reason, form)
    record = ticket.record
    node: dict[str, Any] = {
        "name": ticket.node, "uid": ticket.uid, "providerID": ticket.provider_id,
        "labels": dict(ticket.labels), "bootID": ticket.boot_id, "machineID": ticket.machine_id,
        "hardware": dict(ticket.hardware),
    }  # fmt: skip
    body = {
        "id": ticket.id, "type": f"node.ticket.{ticket.event.value.lower()}",
        "timestamp": ticket.at, "openedAt": ticket.opened_at, "text": ticket_headline(ticket),
        "node": node, "state": NodeState.READY.value if record is None else record.state.value,
        "reason": ticket.reason, "faults": [to_wire(each) for each in ticket.faults],
        "tried": [] if record is None else [to_wire(each) for each in record.tries],
    }  # fmt: skip
    return msgspec.json.encode(body)


def post_of_ticket(ticket: Ticket, target: TicketTarget) -> Post:
    """Return what is posted to a target; without a URL to that of the file of tickets."""
    return Post(ticket.id, target.url, lambda host: ticket_body(ticket, form_of(None, host)))


def host_report_of(ticket: Ticket) -> HostReport:
    """Return what is reported of a host to the provider of the node's machine."""
    faults = sorted(ticket.faults, key=lambda each: -each.severity.rank)
    checks = dict.fromkeys(" ".join((each.check, *each.codes[:1])) for each in faults)
    evidence = "; ".join(filter(None, (ticket.reason, *(each.evidence for each in faults[:1]))))
    return HostReport(
        ticket.id, ticket.provider_id, evidence[:DESCRIPTION_MAX], parse_time(ticket.opened_at),
        tuple(checks), is_over=ticket.event is TicketEvent.RESOLVED,
    )  # fmt: skip
