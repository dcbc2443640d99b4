"""One node for people: its state, its faults, and what happens next (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from fairlead.api import names
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NoticeState
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.values.times import format_time, parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.jobs import latest_attempt
from fairlead.cli.views.nodes import pool_of, state_of
from fairlead.decide.attempts.record import straggler_words
from fairlead.decide.health.conditions import ConditionRules
from fairlead.decide.words import duration, plural
from fairlead.model.health.node_record import NodeRecord, NodeState, record_of
from fairlead.model.health.ticket import TicketEvent, TicketRecord, tickets_of
from fairlead.model.health.unreachable import mark_of
from fairlead.model.health.windows import Window, drain_of

_NOTHING_RUNS = "nothing runs on it"
_SHOWN_MAX = 5
_LABEL_WIDTH = 10
FAULT_COLUMNS: tuple[Column, ...] = (
    Column("SEVERITY"), Column("CHECK"), Column("COMPONENT"), Column("CODES"), Column("ACTION"),
    Column("FIRST"), Column("LAST"), Column("COUNT", Align.RIGHT),
    Column("EVIDENCE", may_cut=True),
)  # fmt: skip
TRY_COLUMNS: tuple[Column, ...] = (Column("TRIED"), Column("AGO"), Column("BOOT", wide_only=True))
REASON_COLUMNS: tuple[Column, ...] = (
    Column("NODE"), Column("STATE"), Column("SINCE"), Column("UNTIL"),
    Column("REASON", may_cut=True),
)  # fmt: skip
_SHIPPED = ConditionRules()
_NEXT = {
    NodeState.CORDONED: "gangs leave after their next checkpoint; at {deadline} the rest is "
    "evicted",
    NodeState.DRAINING: "at the end of the drain what is left is deleted; then the machine is "
    "repaired",
    NodeState.RESETTING: "the agent resets the GPU; without success by {deadline} the next step "
    "follows",
    NodeState.REBOOTING: "the machine starts again; without success by {deadline} the next step "
    "follows",
    NodeState.REPLACING: "its pool removes the machine; if it is there at {deadline}, a person is "
    "asked",
    NodeState.ASKING: "a person mends it: fairlead node repair {node}",
    NodeState.VALIDATING: "it takes work again once it has been healthy for a while",
}


@dataclass(frozen=True, slots=True)
class Preview:
    """What is on a node: jobs with a place there, and pods of others."""

    jobs: tuple[Job, ...]
    pods: tuple[Pod, ...]
    is_seen: bool = True
    #: What attempts of jobs say of slow members there, the latest first.
    slow: tuple[str, ...] = ()


def node_lines(
    node: Node, report: NodeReport | None, preview: Preview, now: float
) -> Iterator[str]:
    """Yield what is to be said of a node, a line each."""
    yield f"{node.metadata.name} (pool {pool_of(node)})"
    for label, text in node_facts(node, report, now):
        yield f"  {label:<{_LABEL_WIDTH}}{text}"
    slow = (f"slow member {text}" for text in preview.slow[:_SHOWN_MAX])
    lines = tuple(preview_lines(preview))
    if lines == (_NOTHING_RUNS,) and drain_of(node.metadata.annotations) is not None:
        lines = (f"drained: {_NOTHING_RUNS}",)
    for line in (*lines, *slow):
        yield f"  {line}"


def node_facts(node: Node, report: NodeReport | None, now: float) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of a node but for what is on it, as (label, text)."""
    notes = node.metadata.annotations
    record, drain = record_of(notes), drain_of(notes)
    if record is not None and record.is_out:
        since = duration(now - parse_time(record.entered_at))
        yield "state", f"{record.state.value.lower()} for {since}"
        yield "reason", record.reason
        yield "next", _next(record, node)
    else:
        state, reason, since = state_of(node, now)
        ago = f" for {duration(now - since)}" if since is not None else ""
        yield "state", f"{state.value}{ago}" + (f": {reason}" if reason else "")
    if (mark := mark_of(notes)) is not None and mark.until is not None:
        away = duration(mark.until - mark.since)
        yield "was away", f"unreachable for {away}, until {duration(now - mark.until)} ago"
    if drain is not None and not drain.error and drain.start < float("inf"):
        yield "drain", _drain_words(drain, now)
    if node.spec.unschedulable:
        who = notes.get(names.CORDONED_BY, "hand")
        yield "cordoned", f"by {who}; fairlead node resume ends it"
    for ticket in tickets_of(notes):
        yield "ticket", ticket_words(ticket, now)
    yield "agent", _agent_words(report, node, now)


def ticket_words(ticket: TicketRecord, now: float) -> str:
    """Return when a ticket was opened, where, and how the latest try to send it ended."""
    opened = f"at {ticket.to}, opened {duration(now - parse_time(ticket.opened_at))} ago"
    code = "" if ticket.code is None else f" {ticket.code}"
    answer = f"{ticket.reason}{code}" if ticket.reason else "no answer yet"
    is_resolved = ticket.event is TicketEvent.RESOLVED
    text = f"{opened}, resolved: " if is_resolved else f"{opened}: "
    match ticket.state:
        case NoticeState.SENDING:
            return f"{text}{answer} after {_tries(ticket)}, sent again soon"
        case NoticeState.DELIVERED:
            return f"{text}delivered ({answer})"
        case NoticeState.REFUSED:
            return f"{text}not taken ({answer})"
        case NoticeState.GIVEN_UP:
            return f"{text}given up after {_tries(ticket)} ({answer})"
        case _:
            assert_never(ticket.state)


def _tries(ticket: TicketRecord) -> str:
    return f"{ticket.tries} {'try' if ticket.tries == 1 else 'tries'}"


def _next(record: NodeRecord, node: Node) -> str:
    deadline = record.deadline or "its deadline"
    return _NEXT[record.state].format(deadline=deadline, node=node.metadata.name)


def _drain_words(drain: Window, now: float) -> str:
    at = format_time(drain.start)
    if now >= drain.start:
        return f"the deadline was {at}"
    return f"empty by {at}, in {duration(drain.start - now)}"


def _agent_words(report: NodeReport | None, node: Node, now: float) -> str:
    if report is None:
        return "reports nothing"
    status = report.status
    if status.node_uid != node.metadata.uid:
        return "reported about an earlier node of this name"
    heard = f"heard {duration(now - parse_time(status.observed_at))} ago" if status.observed_at \
        else "never heard"  # fmt: skip
    sources = "; ".join(f"{each.source} {each.state.value.lower()}" for each in status.sources)
    return heard + (f"; {sources}" if sources else "")


def preview_lines(preview: Preview) -> Iterator[str]:
    """Yield what is on a node, and how it would leave."""
    if not preview.is_seen:
        yield "you may not see what is on it"
        return
    for job in preview.jobs[:_SHOWN_MAX]:
        progress = job.status.progress
        saves = progress is not None and progress.checkpoint_step is not None
        leaves = "leaves after its next checkpoint" if saves else "saves no checkpoints"
        members = plural(job.member_count, "member")
        yield f"job {'/'.join(job.metadata.key)}, {members}: {leaves}"
    if len(preview.jobs) > _SHOWN_MAX:
        yield f"and {plural(len(preview.jobs) - _SHOWN_MAX, 'more job')}"
    if preview.pods:
        yield f"{plural(len(preview.pods), 'pod')} of others"
    if not preview.jobs and not preview.pods:
        yield _NOTHING_RUNS


def slow_members(jobs: Iterable[Job], node: str, now: float) -> tuple[str, ...]:
    """Return what the latest attempts of jobs say of slow members on a node, the latest first."""
    found: list[tuple[float, str]] = []
    for job in jobs:
        attempt = latest_attempt(job)
        for each in attempt.stragglers if attempt is not None else ():
            if each.node == node and each.found_at is not None:
                at, name = parse_time(each.found_at), "/".join(job.metadata.key)
                text = f"{duration(now - at)} ago: job {name}, {straggler_words(each)}"
                found.append((-at, text))
    return tuple(text for _, text in sorted(found))


def fault_rows(report: NodeReport | None, node: Node, now: float) -> list[Row]:
    """Return a row for each fault of a node's report, the worst first, and then for those that
    other tools state as its conditions, by the rules that are shipped.
    """
    is_own = report is not None and report.status.node_uid == node.metadata.uid
    reported = report.status.faults if report is not None and is_own else ()
    return [
        (
            each.severity.value, each.check, each.component, ",".join(each.codes) or "-",
            each.action.value, _ago(each.first_seen, now), _ago(each.last_seen, now),
            f"{each.count:,}", each.evidence,
        )
        for each in (*reported, *_SHIPPED.faults_of(node))
    ]  # fmt: skip


def _ago(at: str, now: float) -> str:
    """Return how long ago an instant was; "-" for what cannot be read, as others may state it."""
    try:
        return f"{duration(now - parse_time(at))} ago"
    except ValueError:
        return "-"


def try_rows(record: NodeRecord, now: float) -> list[Row]:
    """Return a row for each action that was asked for, the latest first."""
    return [
        (each.action.value, duration(now - parse_time(each.at)), each.boot_id or "-")
        for each in reversed(record.tries)
    ]


def reason_rows(nodes: Iterable[Node], now: float) -> list[Row]:
    """Return a row for each node that is not simply ready, by name: why, since when, until when."""
    rows: list[Row] = []
    for node in sorted(nodes, key=lambda each: each.metadata.name):
        record = record_of(node.metadata.annotations)
        if record is not None and record.is_out:
            since = duration(now - parse_time(record.entered_at))
            until = "-" if record.deadline is None else _until(parse_time(record.deadline), now)
            rows.append((node.metadata.name, record.state.value.lower(), since, until,
                         record.reason))  # fmt: skip
            continue
        state, reason, at = state_of(node, now)
        drain = drain_of(node.metadata.annotations)
        if not reason and drain is None:
            continue
        has_date = drain is not None and drain.start < float("inf")
        until = _until(drain.start, now) if drain is not None and has_date else "-"
        shown = duration(now - at) if at is not None else "-"
        rows.append((node.metadata.name, state.value, shown, until, reason))
    return rows


def _until(at: float, now: float) -> str:
    return f"in {duration(at - now)}" if at > now else "now"
