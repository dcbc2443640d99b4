"""Turns the report of an agent into the status of its node's NodeReport."""

from __future__ import annotations

import msgspec

from fairlead.api.cluster.node_report import (
    BLIND_SPOTS_MAX,
    CHECK_MAX,
    CLASS_NAME_MAX,
    CODE_MAX,
    CODES_MAX,
    COMPONENT_MAX,
    DESTINATIONS_MAX,
    EVIDENCE_MAX,
    FACTS_MAX,
    ID_MAX,
    REPORTED_CHECKS_MAX,
    REPORTED_CLASSES_MAX,
    REPORTED_DIFFERENCES_MAX,
    REPORTED_ENDED_MAX,
    REPORTED_FAULTS_MAX,
    REPORTED_FLOWS_MAX,
    REPORTED_PODS_MAX,
    REPORTED_SETTINGS_MAX,
    REPORTED_SOURCES_MAX,
    REPORTED_TEAMS_MAX,
    SKETCHES_MAX,
    VALUE_MAX,
    WHY_MAX,
    Action,
    AgentAnswer,
    NodeReportStatus,
    Recovery,
    ReportedDestination,
    ReportedExports,
    ReportedFault,
    ReportedFlow,
    ReportedPodEgress,
    ReportedSetting,
    ReportedShaping,
    ReportedSketch,
    ReportedSource,
    ReportedTeamEgress,
    ReportedTraffic,
    ReportedTuning,
    RequestAnswer,
    Severity,
    SourceState,
)
from fairlead.api.meta import to_wire
from fairlead.api.values.times import format_time, parse_time
from fairlead.node.exports import ExportsUsage
from fairlead.node.reports.report import VERSION, FaultLine, RepairLine, Report, SourceLine
from fairlead.node.shaping import ShapingUsage, TeamEgress
from fairlead.node.sources.tuning import TuningMemory
from fairlead.node.traffic import TrafficUsage

_WORKING = (SourceState.OK.value, SourceState.SKIPPED.value)


class UnreadableReport(ValueError):
    """The text is no report of an agent of this version; the message says why."""


def decode_report(data: bytes) -> Report:
    """Return the report in a file of an agent; UnreadableReport."""
    try:
        report = msgspec.json.decode(data, type=Report)
    except ValueError as error:
        raise UnreadableReport(f"it is no report of an agent: {error}") from error
    if report.version != VERSION:
        raise UnreadableReport(f"it has version {report.version}; accepted: {VERSION}")
    return report


def report_status(report: Report, *, node_uid: str, now: float) -> NodeReportStatus:
    """Return the status that a report is; UnreadableReport, also for what the kind does not take.

    It was observed when the agent wrote it, but not in the future: the agent may have ended since.
    """
    try:
        status = _status(report, node_uid, now)
        return msgspec.convert(to_wire(status), NodeReportStatus)
    except (ValueError, msgspec.ValidationError) as error:
        said = str(error)[:WHY_MAX]
        raise UnreadableReport(f"it has a value that is unknown: {said}") from error


def _status(report: Report, node_uid: str, now: float) -> NodeReportStatus:
    faults = tuple(_fault(each) for each in report.faults)
    sources = tuple(_source(each) for each in report.sources if each.state not in _WORKING)
    return NodeReportStatus(
        observed_at=format_time(min(parse_time(report.at), now)),
        node_uid=node_uid,
        boot_id=report.boot_id[:ID_MAX],
        machine_id=report.machine_id[:ID_MAX],
        hardware={
            name: value[:VALUE_MAX] for name, value in sorted(report.hardware.items())[:FACTS_MAX]
        },
        critical=sum(each.severity is Severity.CRITICAL for each in faults),
        warning=sum(each.severity is Severity.WARNING for each in faults),
        faults=faults[:REPORTED_FAULTS_MAX],
        left_out=max(0, len(faults) - REPORTED_FAULTS_MAX) + report.dropped_faults,
        sources=sources[:REPORTED_SOURCES_MAX],
        tuning=_tuning(report.tuning) if report.tuning else None,
        shaping=_shaping(report.shaping) if report.shaping else None,
        traffic=_traffic(report.traffic) if report.traffic else None,
        answered=_answer(report.repair) if report.repair else None,
        exports=_exports(report.exports, now) if report.exports else None,
    )


def _exports(found: ExportsUsage, now: float) -> ReportedExports:
    """Return what of a window has room in the report; it did not end in the future."""
    shown = found.sketches[:SKETCHES_MAX]
    return ReportedExports(
        format_time(min(parse_time(found.at), now)), found.seconds,
        tuple(ReportedSketch(each.metric, each.sketch, each.namespace, each.pod)
              for each in shown),
        found.left_out + len(found.sketches) - len(shown), found.refused,
    )  # fmt: skip


def _answer(line: RepairLine) -> RequestAnswer:
    return RequestAnswer(line.id[:ID_MAX], AgentAnswer(line.answer), line.message[:WHY_MAX])


def _fault(line: FaultLine) -> ReportedFault:
    return ReportedFault(
        line.check[:CHECK_MAX], line.component[:COMPONENT_MAX], Severity(line.severity),
        Action(line.action), Recovery(line.recovery), format_time(parse_time(line.first_seen)),
        format_time(parse_time(line.last_seen)),
        tuple(code[:CODE_MAX] for code in line.codes[:CODES_MAX]), line.count,
        line.evidence[:EVIDENCE_MAX], format_time(parse_time(line.due)) if line.due else None,
    )  # fmt: skip


def _tuning(found: TuningMemory) -> ReportedTuning:
    """Return what of the last look at a profile has room in the report."""
    shown = found.differences[:REPORTED_DIFFERENCES_MAX]
    facts = [each for each in found.facts.items() if len(each[0]) <= COMPONENT_MAX]
    values = [
        (name, value)
        for name, value in found.values.items()
        if len(name) <= COMPONENT_MAX and len(value) <= VALUE_MAX
    ]
    return ReportedTuning(
        found.profile[:CHECK_MAX], found.mode,
        dict(sorted(facts)[:FACTS_MAX]),
        dict(values[:REPORTED_SETTINGS_MAX]),
        tuple(
            ReportedSetting(each.setting[:COMPONENT_MAX], each.state, each.actual[:VALUE_MAX],
                            each.wanted[:VALUE_MAX], (each.why or each.formula)[:WHY_MAX])
            for each in shown
        ),
        found.left_out + len(found.differences) - len(shown),
        len(found.not_judged),
    )  # fmt: skip


def _shaping(found: ShapingUsage) -> ReportedShaping:
    """Return what of the limits has room in the report."""
    shown = found.pods[:REPORTED_PODS_MAX]
    return ReportedShaping(
        found.mechanism[:VALUE_MAX], found.why[:WHY_MAX],
        format_time(parse_time(found.shares)) if found.shares else None,
        _teams(found.teams),
        tuple(ReportedPodEgress(each.namespace, each.name, each.team, each.limit, each.sent,
                                each.dropped, each.held_back_seconds) for each in shown),
        found.pods_left_out + len(found.pods) - len(shown), _teams(found.ingress),
        tuple(ReportedDestination(each.destination[:CLASS_NAME_MAX], each.direction, each.limit,
                                  each.sent, each.demand, each.dropped, each.pods)
              for each in found.destinations[:DESTINATIONS_MAX]),
        tuple(each[:CLASS_NAME_MAX] for each in found.classes[:REPORTED_CLASSES_MAX]),
    )  # fmt: skip


def _teams(lines: tuple[TeamEgress, ...]) -> tuple[ReportedTeamEgress, ...]:
    return tuple(
        ReportedTeamEgress(each.team, each.limit, each.sent, each.demand, each.dropped, each.pods)
        for each in lines[:REPORTED_TEAMS_MAX]
    )


def _traffic(found: TrafficUsage) -> ReportedTraffic:
    """Return what of the traffic has room in the report."""
    return ReportedTraffic(
        found.coverage_permille,
        tuple(ReportedFlow(each.traffic_class[:CLASS_NAME_MAX], each.namespace, each.team, each.job,
                           each.sent, each.received, each.sent_rate, each.received_rate)
              for each in found.flows[:REPORTED_FLOWS_MAX]),
        tuple(each[:WHY_MAX] for each in found.blind_spots[:BLIND_SPOTS_MAX]),
        tuple(ReportedFlow(each.traffic_class[:CLASS_NAME_MAX], each.namespace, sent=each.sent,
                           received=each.received, pod=each.uid)
              for each in found.ended[:REPORTED_ENDED_MAX]),
    )  # fmt: skip


def _source(line: SourceLine) -> ReportedSource:
    return ReportedSource(
        line.source[:CHECK_MAX], SourceState(line.state), line.why[:WHY_MAX],
        tuple(each[:CHECK_MAX] for each in line.checks[:REPORTED_CHECKS_MAX]), line.lost,
    )  # fmt: skip
