"""What is measured of the doctor: the results of its latest examination, read at the scrape.

Labels are closed sets: severities, results, and the ids of the checks that found something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.api.cluster.cluster_report import FindingSeverity
from fairlead.decide.doctor.examination import Examination

#: Returns the latest examination; None: there was none yet. Reading must not wait.
DoctorSource = Callable[[], Examination | None]


class DoctorMetrics(Collector):
    """The series of the doctor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: DoctorSource | None = None
        registry.register(self)

    def watch(self, source: DoctorSource | None) -> None:
        """Read this at each scrape; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        examination = self._source() if self._source is not None else None
        if examination is None:
            return ()
        by_severity = Counter(each.severity for each in examination.found)
        findings = GaugeMetricFamily(
            "fairlead_doctor_findings", "Findings of the latest examination by severity.",
            labels=["severity"],
        )  # fmt: skip
        for severity in FindingSeverity:
            findings.add_metric([severity.value.lower()], by_severity[severity])
        by_check = Counter((each.check, each.severity.value) for each in examination.found)
        checks = GaugeMetricFamily(
            "fairlead_doctor_check_findings",
            "Findings of each check that found something.",
            labels=["check", "severity"],
        )
        for (check, severity), count in sorted(by_check.items()):
            checks.add_metric([check, severity.lower()], count)
        results = GaugeMetricFamily(
            "fairlead_doctor_checks",
            "Checks by result: found, passed, unknown (could not be evaluated).",
            labels=["result"],
        )
        results.add_metric(["found"], len({each.check for each in examination.found}))
        results.add_metric(["passed"], len(examination.passed))
        results.add_metric(["unknown"], len(examination.unknown))
        ended = GaugeMetricFamily(
            "fairlead_doctor_examination_timestamp_seconds",
            "When the latest examination ended.", value=examination.at,
        )  # fmt: skip
        requests = GaugeMetricFamily(
            "fairlead_doctor_requests",
            "Requests to the API server that the latest examination took.",
            value=examination.requests,
        )
        return (findings, checks, results, ended, requests)
