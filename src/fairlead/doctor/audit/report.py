"""The analysis of an audit log as values and as text, and what changed between two (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.doctor.audit.summary import AuditSummary, CallerCost, Key
from fairlead.doctor.check import Finding
from fairlead.doctor.examine import ExaminationReport
from fairlead.doctor.output.plain import finding_values
from fairlead.doctor.output.text import WIDTH_DEFAULT, finding_lines, number

CALLERS_SHOWN = 15


def caller_values(caller: CallerCost) -> dict[str, Any]:
    """Return one caller as plain values."""
    return {
        **caller.key._asdict(), "requests": caller.requests,
        "seat_seconds": round(caller.seat_seconds, 6), "bytes": caller.bytes,
        "nodes": caller.nodes, "exponent": caller.exponent, "is_daemonset": caller.is_fan,
        "requests_per_second": round(caller.requests_per_second, 6),
        "period_seconds": caller.period_seconds, "rejected": caller.rejected,
        "codes": {str(code): count for code, count in caller.codes.items()},
        "latency_mean_seconds": round(caller.latency_mean_seconds, 6),
        "latency_max_seconds": caller.latency_max_seconds,
        "queue_seconds": caller.queue_seconds, "full_share_nodes": caller.full_share_nodes,
    }  # fmt: skip


def audit_values(summary: AuditSummary, report: ExaminationReport) -> dict[str, Any]:
    """Return the whole analysis; callers by cost, the dearest first."""
    return {
        "events": summary.events,
        "span_seconds": summary.span_seconds,
        "nodes": summary.nodes,
        "callers": [caller_values(each) for each in summary.callers],
        "findings": [finding_values(each) for each in report.findings],
        "skipped": dict(summary.skipped),
    }


def audit_lines(
    summary: AuditSummary, report: ExaminationReport, *, width: int = WIDTH_DEFAULT
) -> Iterator[str]:
    """Yield the lines for a terminal: callers by cost, then findings, then what was left out."""
    total = summary.seat_seconds or 1.0
    yield (f"{summary.events:,} requests in {summary.span_seconds:,.0f} s, "
           f"{len(summary.callers):,} kinds from {summary.nodes:,} nodes")  # fmt: skip
    yield ""
    yield f"{'SHARE':>6}  {'SEAT-S':>10}  {'REQUESTS':>10}  {'NODES':>6}  {'GROWS':>6}  CALLER"
    for each in summary.callers[:CALLERS_SHOWN]:
        grows = ("-", "N", "N^2")[min(each.exponent, 2)]
        shape = f" [{each.shape}]" if each.shape else ""
        yield (f"{each.seat_seconds / total * 100:5.1f}%  {each.seat_seconds:10,.1f}  "
               f"{each.requests:10,}  {each.nodes:6,}  {grows:>6}  "
               f"{each.name}: {each.does}{shape}")  # fmt: skip
    if len(summary.callers) > CALLERS_SHOWN:
        yield f"and {len(summary.callers) - CALLERS_SHOWN:,} more kinds; -o json has them all"
    yield ""
    for finding in report.findings:
        yield from finding_lines(finding, width=width)
    for check_id, count in sorted((report.left_out or {}).items()):
        yield f"{check_id}: {count:,} more findings are not shown"
    for reason, count in summary.skipped.items():
        yield f"left out: {count:,} x {reason}"


def diff_values(old: AuditSummary, new: AuditSummary) -> list[dict[str, Any]]:
    """Return what changed per caller, the largest rise of cost first; costs are per second."""
    before = _by_key(old)
    after = _by_key(new)
    rows: list[dict[str, Any]] = []
    for key in sorted(before.keys() | after.keys()):
        earlier, later = before.get(key, (0.0, 0.0)), after.get(key, (0.0, 0.0))
        rows.append({
            **key._asdict(), "seats_old": earlier[0], "seats_new": later[0],
            "requests_per_second_old": earlier[1], "requests_per_second_new": later[1],
            "change": "new" if key not in before else "gone" if key not in after else "both",
        })  # fmt: skip
    rows.sort(key=lambda row: -(row["seats_new"] - row["seats_old"]))
    return rows


def _by_key(summary: AuditSummary) -> dict[Key, tuple[float, float]]:
    span = max(summary.span_seconds, 1.0)
    return {c.key: (c.seat_seconds / span, c.requests_per_second) for c in summary.callers}


def diff_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a comparison."""
    yield f"{'SEATS OLD':>10}  {'NEW':>10}  {'REQ/S OLD':>10}  {'NEW':>10}  CALLER"
    for row in rows[: 2 * CALLERS_SHOWN]:
        name = row["workload"] or f"{row['program'] or 'unknown program'} as {row['principal']}"
        asks = f"{row['verb']} {row['resource']} ({row['scope']})"
        shape = f" [{row['shape']}]" if row["shape"] else ""
        mark = "" if row["change"] == "both" else f" ({row['change']})"
        yield (f"{number(row['seats_old']):>10}  {number(row['seats_new']):>10}  "
               f"{number(row['requests_per_second_old']):>10}  "
               f"{number(row['requests_per_second_new']):>10}  "
               f"{name}: {asks}{shape}{mark}")  # fmt: skip


def flow_schema(summary: AuditSummary, findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    """Return a FlowSchema and a PriorityLevelConfiguration for the dearest caller with a finding.

    Empty when no finding names a caller that a FlowSchema can match. The level gets 5 shares and
    queues what is over them.
    """
    subjects = {finding.subject for finding in findings}
    for caller in summary.callers:
        is_system = caller.principal.startswith("system:") and not caller.principal.startswith(
            "system:serviceaccount:"
        )
        if is_system or f"{caller.name}: {caller.does}" not in subjects:
            continue
        whose = (caller.workload or caller.principal).lower()
        plain = "".join(c if c.isalnum() else "-" for c in whose).strip("-")
        name = f"doctor-{plain[:50].rstrip('-')}"
        return [_level(name), _schema(name, caller)]
    return []


def _level(name: str) -> dict[str, Any]:
    queuing = {"queues": 16, "handSize": 4, "queueLengthLimit": 50}
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 5, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Queue", "queuing": queuing}}},
    }  # fmt: skip


def _schema(name: str, caller: CallerCost) -> dict[str, Any]:
    prefix = "system:serviceaccount:"
    subject: dict[str, Any] = {"kind": "User", "user": {"name": caller.principal}}
    if caller.principal.startswith(prefix):
        namespace, _, account = caller.principal[len(prefix) :].partition(":")
        subject = {"kind": "ServiceAccount",
                   "serviceAccount": {"namespace": namespace, "name": account}}  # fmt: skip
    rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True,
            "namespaces": ["*"]}  # fmt: skip
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "matchingPrecedence": 800, "priorityLevelConfiguration": {"name": name},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [subject], "resourceRules": [rule]}],
        },
    }  # fmt: skip
