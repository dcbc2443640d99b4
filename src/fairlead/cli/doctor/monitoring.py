"""Writes the alert rules for Prometheus and the boards for Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.cli.common import Common, Format, dump
from fairlead.cli.doctor.access import check_url
from fairlead.doctor.facts import Source
from fairlead.doctor.monitoring.alerts import RUNBOOKS, groups
from fairlead.doctor.monitoring.boards import boards
from fairlead.doctor.monitoring.query import JOBS
from fairlead.doctor.readers.pages import METRIC_SOURCES
from fairlead.input.errors import Code, Exit, fail


def write_alerts(
    common: Common, format_: str, jobs: Sequence[str], *, operator: bool, runbooks: str
) -> int:
    """Write the rules to stdout, as a rule file or as an object of the Prometheus operator."""
    if runbooks:
        check_url(runbooks, "--runbooks")
    rules = groups(jobs_of(jobs), runbooks or RUNBOOKS)
    if operator:
        rules = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "fairlead-alerts"},
            "spec": rules,
        }
    common.emit(dump(rules, Format(format_)))
    return Exit.OK


def write_boards(common: Common, directory: str, jobs: Sequence[str]) -> int:
    """Write each board into a file of its own; files of other names stay."""
    made = boards(jobs_of(jobs))
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, board in made.items():
            (Path(directory) / name).write_text(json.dumps(board, indent=2) + "\n")
    except OSError as error:
        message = f"'{error.filename}' cannot be written: {error.strerror}"
        raise fail(Code.DATA_UNWRITABLE, message) from error
    common.note(f"wrote {', '.join(made)} to {directory}")
    return Exit.OK


def jobs_of(given: Sequence[str]) -> Mapping[Source, str]:
    """Return the pattern of the label `job` by source; CliError."""
    jobs = dict(JOBS)
    for text in given:
        name, _, pattern = text.partition("=")
        if name not in METRIC_SOURCES or not pattern:
            known = ", ".join(METRIC_SOURCES)
            raise fail(
                Code.BAD_VALUE, f"--job: '{text}' is not SOURCE=REGEX",
                help=(f"SOURCE is one of {known}",),
            )  # fmt: skip
        try:
            re.compile(pattern)
        except re.error as error:
            raise fail(Code.BAD_VALUE, f"--job: '{pattern}' is no pattern: {error}") from error
        jobs[METRIC_SOURCES[name]] = pattern
    return jobs
