"""What people see of one node: state, faults, tries, what happens next, and who is not ready."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW

from fairlead.api import names
from fairlead.api.cluster.node_report import (
    Action,
    NodeReport,
    NodeReportStatus,
    Recovery,
    ReportedFault,
    ReportedSource,
    Severity,
    SourceState,
)
from fairlead.api.jobs.attempt import Attempt, Progress, Straggler
from fairlead.api.jobs.notify import NoticeState
from fairlead.api.kubernetes.core import Node, NodeCondition, Taint
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.cli.formats.table import render_table
from fairlead.cli.views.node import (
    FAULT_COLUMNS,
    REASON_COLUMNS,
    TRY_COLUMNS,
    Preview,
    fault_rows,
    node_lines,
    reason_rows,
    slow_members,
    try_rows,
)
from fairlead.model.health.node_record import NodeRecord, NodeRequest, NodeState, Try, record_text
from fairlead.model.health.ticket import TicketEvent, TicketRecord, tickets_text
from fairlead.testing.builders import make_job, make_node, make_pod

UNTIL = format_time(NOW - 30)
DRAIN = f"{format_time(NOW - 120)}/{format_time(NOW + 480)}"


def sick(state: NodeState, name: str = "n17", **fields: object) -> Node:
    record = NodeRecord(
        state, format_time(NOW - 95), "Critical gpu-xid 0000:3b:00 48", 1,
        format_time(NOW + 505), DRAIN, **fields,  # type: ignore[arg-type] # by name
    )  # fmt: skip
    return make_node(
        name, labels={names.POOL: "h100"}, taints=[Taint(names.TAINT_UNHEALTHY, "NoSchedule")],
        annotations={names.HEALTH: record_text(record), names.HEALTH_DRAIN: DRAIN},
    )  # fmt: skip


def report(node: Node) -> NodeReport:
    fault = ReportedFault(
        "gpu-xid", "0000:3b:00", Severity.CRITICAL, Action.RESET_GPU, Recovery.BOOT,
        format_time(NOW - 130), format_time(NOW - 30), ("48",), 12, "DBE, pid=7",
    )  # fmt: skip
    source = ReportedSource("disks", SourceState.HUNG, "a read has not returned for 30 s")
    status = NodeReportStatus(
        format_time(NOW - 12), node.metadata.uid, "boot-1", faults=(fault,), sources=(source,)
    )
    return NodeReport(ObjectMeta(node.metadata.name), status=status)


def shown(node: Node, found: NodeReport | None, preview: Preview) -> str:
    return "\n".join([*node_lines(node, found, preview, NOW), ""])


def test_a_node_that_a_person_drained_is_shown_as_drained_and_not_as_cordoned_alone() -> None:
    def drained(deadline: float) -> Node:
        drain = f"{format_time(NOW - 7200)}/{format_time(deadline)}"
        notes = {names.CORDONED_BY: "ana: fan", names.DRAIN: drain}
        node = make_node("n17", labels={names.POOL: "h100"}, annotations=notes)
        return replace(node, spec=replace(node.spec, unschedulable=True))

    text = "".join(
        shown(node, None, Preview((), ())) + "\n"
        for node in (drained(NOW + 600), drained(NOW - 60))
    )
    busy = Preview((), (make_pod("notebook", node="n17"),))
    text += shown(drained(NOW + 600), None, busy)
    check("node/drained.txt", text)


def test_what_other_tools_state_of_a_node_is_among_its_faults() -> None:
    stated = (
        NodeCondition("KernelDeadlock", "True", "DockerHung", "task docker:20744 blocked",
                      last_transition_time=format_time(NOW - 600)),
        NodeCondition("XIDErrors", "True", "GPUXID79", "unread", last_transition_time="never"),
    )  # fmt: skip
    node = make_node("n17", labels={names.POOL: "h100"})
    node = replace(node, status=replace(node.status, conditions=stated))
    check("node/stated.txt", render_table(FAULT_COLUMNS, fault_rows(None, node, NOW), width=None))


def test_a_node_whose_repair_was_asked_for_says_whom_when_and_what_came_of_it() -> None:
    at, session = format_time(NOW - 95), format_time(NOW - 120)

    def ticket(to: str, state: NoticeState, **fields: Any) -> TicketRecord:
        return TicketRecord(to, session, TicketEvent.OPENED, at, state=state, **fields)

    node = sick(NodeState.ASKING)
    tickets = (
        ticket("desk.example", NoticeState.DELIVERED, tries=1, reason="Delivered", code=202),
        ticket("Provider", NoticeState.REFUSED, tries=1, reason="Rejected"),
        ticket("Secret", NoticeState.SENDING, tries=2, reason="Busy", code=503),
        ticket("old.example", NoticeState.GIVEN_UP, tries=8, reason="Timeout"),
        replace(
            ticket("well.example", NoticeState.DELIVERED, tries=1, reason="Delivered", code=200),
            event=TicketEvent.RESOLVED,
        ),
    )
    notes = {**node.metadata.annotations, names.TICKETS: tickets_text(tickets)}
    node = replace(node, metadata=replace(node.metadata, annotations=notes))
    check("node/tickets.txt", shown(node, report(node), Preview((), ())))


def test_a_node_that_is_drained_says_why_until_when_and_who_is_there() -> None:
    node = sick(NodeState.DRAINING)
    job = make_job("train", namespace="ml", count=12)
    progress = Progress(300, 300)
    saving = replace(job, status=replace(job.status, progress=progress))
    preview = Preview((saving, make_job("plain")), (make_pod("notebook", node="n17"),))
    found = report(node)
    text = shown(node, found, preview)
    text += "\n" + render_table(FAULT_COLUMNS, fault_rows(found, node, NOW), width=None)
    check("node/draining.txt", text)


def test_a_node_that_is_reset_says_what_was_tried() -> None:
    tries = (Try(Action.RESET_GPU, format_time(NOW - 95), "boot-1"),)
    node = sick(NodeState.RESETTING, request=NodeRequest("1", Action.RESET_GPU), tries=tries)
    record = NodeRecord(NodeState.RESETTING, format_time(NOW), tries=tries)
    text = shown(node, None, Preview((), ()))
    text += "\n" + render_table(TRY_COLUMNS, try_rows(record, NOW), width=None)
    check("node/resetting.txt", text)


def test_a_node_that_needs_a_person_says_the_command() -> None:
    text = shown(sick(NodeState.ASKING), report(make_node("n17", uid="of before")), Preview((), ()))
    check("node/asking.txt", text)


def test_a_node_that_a_person_drains_and_one_that_is_ready() -> None:
    notes = {names.DRAIN: DRAIN, names.CORDONED_BY: "ann: new fan"}
    drained = make_node("n3", unschedulable=True, annotations=notes)
    unseen = Preview((), (), is_seen=False)
    check("node/by-hand.txt", shown(drained, None, unseen) + shown(make_node("n4"), None, unseen))


def test_a_node_that_is_unreachable_and_one_that_was() -> None:
    lost = make_node("n6", annotations={names.UNREACHABLE: format_time(NOW - 20)})
    back = make_node("n7", annotations={names.UNREACHABLE: f"{format_time(NOW - 90)}/{UNTIL}"})
    empty = Preview((), ())
    check("node/unreachable.txt", shown(lost, None, empty) + shown(back, None, empty))


def test_a_node_with_a_slow_member_says_of_which_job_and_by_how_much() -> None:
    slow = Straggler("worker-3", "n4", 610_000, 410_000, 8, format_time(NOW - 7200), True)
    elsewhere = replace(slow, member="worker-1", node="n5")
    attempt = Attempt(2, stragglers=(elsewhere, slow))
    job = make_job("train", namespace="ml", count=8)
    job = replace(job, status=replace(job.status, attempt=2, attempts=(attempt,)))
    preview = Preview((), (), slow=slow_members([job], "n4", NOW))
    check("node/slow.txt", shown(make_node("n4"), None, preview))


def test_the_table_of_reasons_has_who_is_not_simply_ready() -> None:
    notes = {names.DRAIN: DRAIN, names.CORDONED_BY: "ann: new fan"}
    nodes = [
        sick(NodeState.ASKING, "n9"), sick(NodeState.VALIDATING, "n1"), make_node("n2"),
        make_node("n3", unschedulable=True, annotations=notes), make_node("n5", ready=False),
        make_node("n6", annotations={names.UNREACHABLE: format_time(NOW - 20)}),
        make_node("n7", annotations={names.UNREACHABLE: f"{format_time(NOW - 90)}/{UNTIL}"}),
    ]  # fmt: skip
    rows = reason_rows(nodes, NOW)
    check("node/reasons.txt", render_table(REASON_COLUMNS, rows, width=None))
