"""Runs `doctor metrics`: asks one Prometheus server, reads who uses it, and reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.cli.connection.common import Common, Format, dump
from fairlead.cli.doctor.access import check_url, tell_unreadable, web_of
from fairlead.doctor.prometheus.api import BadPrometheusAnswer, PrometheusApi, server_get
from fairlead.doctor.prometheus.drops import drop_rules, replay, unfinished, unused
from fairlead.doctor.prometheus.promql import uses_of
from fairlead.doctor.prometheus.reader import PrometheusReader, expressions_of
from fairlead.doctor.prometheus.report import MetricsReport, metrics_lines, metrics_values
from fairlead.input.errors import Code, fail
from fairlead.runtime.exported.metrics_page import BadPage
from fairlead.runtime.outside.fetch import said


def run_metrics(common: Common, url: str, format_: str, options: Mapping[str, Any]) -> int:
    """Report on a server; 1 when much is unused or large, 3 when it could not be asked."""
    check_url(url, "URL")
    expressions = [each for name in options["uses"] for each in _expressions(name)]
    reader = PrometheusReader(PrometheusApi(server_get(url, web_of(options))))
    try:
        report = analyse(reader, expressions)
    except OSError as error:
        return tell_unreadable(url, said(error))
    except (BadPrometheusAnswer, BadPage) as error:
        return tell_unreadable(url, str(error)[:300])
    except (KeyError, TypeError):
        return tell_unreadable(url, "its answer is not one of Prometheus")
    if not options["uses"]:
        common.note("no dashboard was given (--uses): only rules of the server count as use")
    if format_ == "text":
        common.lines(metrics_lines(report))
    else:
        common.emit(dump(metrics_values(report), Format(format_)))
    return report.exit_code()


def analyse(reader: PrometheusReader, expressions: list[str]) -> MetricsReport:
    """Return the report of a server for these expressions and its own rules."""
    series = reader.series()
    known = [*expressions, *reader.rules()]
    uses = uses_of(known)
    candidates = unused(series, uses)
    jobs = reader.jobs(candidates)
    rules = drop_rules(candidates, jobs)
    plan = replay(series, jobs, rules, uses)
    cannot_finish = tuple(unfinished(series, expressions))
    return MetricsReport(series, uses, len(known), candidates, jobs, rules, plan, cannot_finish)


def _expressions(name: str) -> list[str]:
    try:
        return expressions_of(Path(name))
    except OSError as error:
        message = f"--uses: '{name}' cannot be read: {error.strerror}"
        raise fail(Code.MANIFEST_UNREADABLE, message) from error
    except ValueError as error:
        raise fail(Code.MANIFEST_SYNTAX, f"--uses: '{name}': {error}") from error
