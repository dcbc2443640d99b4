"""Runs the analysis of audit logs for `doctor audit`, `doctor audit diff` and `doctor --audit`."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.cli.connection.common import Common, Format, dump, json_text, now, text_width
from fairlead.doctor.audit.cost import CAPACITY_SEATS, CostModel, summarise
from fairlead.doctor.audit.files import UnreadableLog
from fairlead.doctor.audit.follow import Follower, windows
from fairlead.doctor.audit.measured import PAGES_MAX, MeasuredApi, measured
from fairlead.doctor.audit.parallel import Engine, has_compiler, read_logs
from fairlead.doctor.audit.policy import policy_text
from fairlead.doctor.audit.report import (
    audit_lines,
    audit_values,
    diff_lines,
    diff_values,
    flow_schema,
)
from fairlead.doctor.audit.summary import AuditSummary
from fairlead.doctor.examine import ExaminationReport, examine
from fairlead.doctor.facts import ClusterFacts
from fairlead.doctor.output.text import WIDTH_DEFAULT
from fairlead.doctor.registry import AUDIT_CHECKS
from fairlead.input.errors import Code, Exit, fail
from fairlead.input.yamlwrite import to_yaml
from fairlead.runtime.exported.metrics_page import BadPage
from fairlead.terminal import joined


def model_of(
    objects: Sequence[str], nodes: int, seats: int = 0, pages: Sequence[str] = ()
) -> CostModel:
    """Return what the flags say of the cluster; CliError for a value that is none.

    `pages` name files with metrics of the API server: one, or one of before and one of after.
    """
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for each in (part for text in objects for part in text.split(",") if part):
        name, _, value = each.partition("=")
        count, colon, size = value.partition(":")
        if not name or not count.isdecimal() or (colon and not size.isdecimal()):
            raise fail(
                Code.BAD_VALUE, f"--objects: '{each}' is not NAME=COUNT or NAME=COUNT:BYTES",
                help=("--objects pods=100000:6000,events=50000",),
            )  # fmt: skip
        counts[name] = int(count)
        if size:
            sizes[name] = int(size)
    known = _measured(pages) if pages else MeasuredApi()
    return CostModel(nodes, {**known.objects, **counts}, sizes, seats or CAPACITY_SEATS,
                 known.answer_bytes)  # fmt: skip


def _measured(pages: Sequence[str]) -> MeasuredApi:
    if len(pages) > PAGES_MAX:
        raise fail(
            Code.BAD_VALUE, "--metrics: one page, or one of before and one of after the log",
            help=("fairlead doctor audit --metrics before.txt --metrics after.txt audit.log",),
        )  # fmt: skip
    try:
        return measured([Path(name).read_bytes() for name in pages])
    except (OSError, BadPage) as error:
        raise fail(Code.MANIFEST_UNREADABLE, f"--metrics: {error}") from error


@dataclass(frozen=True, slots=True)
class LogReading:
    """How logs are read; `processes` 0 means one per core."""

    processes: int = 0
    engine: Engine = Engine.AUTO


def analyse(
    common: Common, files: Sequence[str], model: CostModel, reading: LogReading | None = None
) -> AuditSummary:
    """Return the summary of the logs; CliError for one that cannot be read."""
    reading = reading or LogReading()
    if reading.engine is Engine.COMPILED and not has_compiler():
        raise fail(
            Code.BAD_VALUE, "--engine compiled needs the package numba",
            help=("pip install 'fairlead[fast]'",),
        )  # fmt: skip
    try:
        tally = read_logs(list(files), processes=reading.processes, engine=reading.engine)
        summary = summarise(tally, model)
    except UnreadableLog as error:
        raise fail(Code.MANIFEST_UNREADABLE, str(error)) from error
    if not summary.events:
        common.note("no request was found; is this a log of audit.k8s.io/v1 in JSON?")
    return summary


def run_audit(
    common: Common, files: Sequence[str], format_: str, *, model: CostModel, reading: LogReading,
    shows_flow_schema: bool,
) -> int:  # fmt: skip
    """Analyse and report; exits as the doctor does."""
    summary = analyse(common, files, model, reading)
    report = examine(AUDIT_CHECKS, ClusterFacts(nodes=summary.nodes or None, audit=summary))
    if shows_flow_schema:
        objects = flow_schema(summary, report.findings)
        if not objects:
            common.note("no finding names a caller that a FlowSchema could isolate")
        common.emit("---\n".join(to_yaml(each) for each in objects))
        return Exit.OK
    if format_ == "text":
        common.emit(_text(summary, report))
    else:
        common.emit(dump(audit_values(summary, report), Format(format_)))
    return report.exit_code() if summary.events else 3


def run_diff(common: Common, files: Sequence[str], format_: str, *, model: CostModel) -> int:
    """Compare two logs by cost per second."""
    if len(files) != 2:
        raise fail(
            Code.MISSING_ARGUMENT, "fairlead doctor audit diff needs two logs",
            help=("fairlead doctor audit diff old.log new.log",),
        )  # fmt: skip
    old, new = (analyse(common, [each], model) for each in files)
    rows = diff_values(old, new)
    if format_ == "text":
        common.lines(diff_lines(rows))
    else:
        common.emit(dump(rows, Format(format_)))
    return Exit.OK


def run_policy(common: Common, files: Sequence[str], *, model: CostModel) -> int:
    """Write an audit policy; with logs, what it would leave out of them."""
    summary = analyse(common, files, model) if files else None
    nodes = model.nodes or (summary.nodes if summary else 0)
    common.emit(policy_text(summary, nodes))
    return Exit.OK


def run_follow(
    common: Common, files: Sequence[str], format_: str, *, model: CostModel, seconds: float
) -> int:
    """Report on each window of a growing log until the user interrupts."""
    if len(files) != 1 or files[0] == "-":
        raise fail(
            Code.BAD_VALUE, "--follow takes one file",
            help=("fairlead doctor audit --follow /var/log/kubernetes/audit.log",),
        )  # fmt: skip
    try:
        follower = Follower(files[0])
    except UnreadableLog as error:
        raise fail(Code.MANIFEST_UNREADABLE, str(error)) from error
    common.note(f"following {files[0]}, a report every {seconds:g} s; Ctrl-C ends it")
    try:
        for tally in windows(follower, seconds, now=time.monotonic, sleep=time.sleep):
            summary = summarise(tally, model)
            report = examine(AUDIT_CHECKS, ClusterFacts(nodes=summary.nodes or None, audit=summary))
            common.emit(_window(summary, report, format_))
    finally:
        follower.close()
    return Exit.OK


def _text(summary: AuditSummary, report: ExaminationReport) -> str:
    lines = audit_lines(summary, report, width=text_width(WIDTH_DEFAULT))
    return joined(lines)


def _window(summary: AuditSummary, report: ExaminationReport, format_: str) -> str:
    """Return one report: JSON in one line, YAML as a document, or text."""
    if format_ == "text":
        at = datetime.datetime.fromtimestamp(now(), datetime.UTC).strftime("%H:%M:%S")
        return f"-- {at} --\n{_text(summary, report)}"
    values = audit_values(summary, report)
    if format_ == "json":
        return json_text(values)
    return "---\n" + dump(values, Format.YAML)
