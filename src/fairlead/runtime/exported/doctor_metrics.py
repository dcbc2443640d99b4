"""What is measured of the doctor: the results of its latest examination, read at the scrape.

Labels are closed sets: severities, results, and the ids of the checks that found something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from fairlead.api.cluster.cluster_report import FindingSeverity
from fairlead.decide.doctor.examination import Examination
from fairlead.runtime.exported.scraped import ScrapedMetrics, gauge


class DoctorMetrics(ScrapedMetrics[Examination | None]):
    """The series of the doctor."""

    def series(self, report: Examination | None) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        if report is None:
            return ()
        by_severity = Counter(each.severity for each in report.found)
        findings = gauge(
            "fairlead_doctor_findings", "Findings of the latest examination by severity.",
            "severity", ((each.value.lower(), by_severity[each]) for each in FindingSeverity),
        )  # fmt: skip
        by_check = Counter((each.check, each.severity.value) for each in report.found)
        checks = GaugeMetricFamily(
            "fairlead_doctor_check_findings",
            "Findings of each check that found something.",
            labels=["check", "severity"],
        )
        for (check, severity), count in sorted(by_check.items()):
            checks.add_metric([check, severity.lower()], count)
        results = gauge(
            "fairlead_doctor_checks",
            "Checks by result: found, passed, unknown (could not be evaluated).",
            "result",
            (
                ("found", len({each.check for each in report.found})),
                ("passed", len(report.passed)),
                ("unknown", len(report.unknown)),
            ),
        )
        ended = GaugeMetricFamily(
            "fairlead_doctor_examination_timestamp_seconds",
            "When the latest examination ended.", value=report.at,
        )  # fmt: skip
        requests = GaugeMetricFamily(
            "fairlead_doctor_requests",
            "Requests to the API server that the latest examination took.",
            value=report.requests,
        )
        return (findings, checks, results, ended, requests)
