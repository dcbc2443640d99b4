"""Runs the analysis of audit logs for `doctor audit`, `doctor audit diff` and `doctor --audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.cli.common import Common, Format, dump
from fairlead.doctor.audit.cost import CAPACITY_SEATS, Model, summarise
from fairlead.doctor.audit.files import UnreadableLog
from fairlead.doctor.audit.parallel import Engine, has_compiler, read_logs
from fairlead.doctor.audit.report import (
    audit_lines,
    audit_values,
    diff_lines,
    diff_values,
    flow_schema,
)
from fairlead.doctor.audit.summary import AuditSummary
from fairlead.doctor.examine import examine
from fairlead.doctor.facts import Facts
from fairlead.doctor.registry import AUDIT_CHECKS
from fairlead.input.errors import Code, Exit, fail
from fairlead.input.yamlwrite import to_yaml


def model_of(objects: Sequence[str], nodes: int, seats: int = 0) -> Model:
    """Return what the flags say of the cluster; CliError for a value that is none."""
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
    return Model(nodes, counts, sizes, seats or CAPACITY_SEATS)


@dataclass(frozen=True, slots=True)
class Reading:
    """How logs are read; `processes` 0 means one per core."""

    processes: int = 0
    engine: Engine = Engine.AUTO


def analyse(
    common: Common, files: Sequence[str], model: Model, reading: Reading | None = None
) -> AuditSummary:
    """Return the summary of the logs; CliError for one that cannot be read."""
    reading = reading or Reading()
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
    common: Common, files: Sequence[str], format_: str, *, model: Model, reading: Reading,
    shows_flow_schema: bool,
) -> int:  # fmt: skip
    """Analyse and report; exits as the doctor does."""
    summary = analyse(common, files, model, reading)
    report = examine(AUDIT_CHECKS, Facts(nodes=summary.nodes or None, audit=summary))
    if shows_flow_schema:
        objects = flow_schema(summary, report.findings)
        if not objects:
            common.note("no finding names a caller that a FlowSchema could isolate")
        common.emit("---\n".join(to_yaml(each) for each in objects))
        return Exit.OK
    if format_ == "text":
        common.emit("".join(f"{line}\n" for line in audit_lines(summary, report)))
    else:
        common.emit(dump(audit_values(summary, report), Format(format_)))
    return report.exit_code() if summary.events else 3


def run_diff(common: Common, files: Sequence[str], format_: str, *, model: Model) -> int:
    """Compare two logs by cost per second."""
    if len(files) != 2:
        raise fail(
            Code.MISSING_ARGUMENT, "fairlead doctor audit diff needs two logs",
            help=("fairlead doctor audit diff old.log new.log",),
        )  # fmt: skip
    old, new = (analyse(common, [each], model) for each in files)
    rows = diff_values(old, new)
    if format_ == "text":
        common.emit("".join(f"{line}\n" for line in diff_lines(rows)))
    else:
        common.emit(dump(rows, Format(format_)))
    return Exit.OK
