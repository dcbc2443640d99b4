"""All checks, in order of harm within a severity: what takes the control plane down comes first."""

from __future__ import annotations

from fairlead.api.cluster.cluster_report import ReportCondition
from fairlead.doctor.check import Check
from fairlead.doctor.checks import (
    apiserver,
    audit,
    autoscaler,
    dns,
    etcd,
    images,
    network,
    nodes,
    prometheus,
    scheduling,
    webhooks,
)
from fairlead.doctor.expressions import Function
from fairlead.doctor.facts import Source

CHECKS: tuple[Check, ...] = (
    *etcd.CHECKS,
    *apiserver.CHECKS,
    *webhooks.CHECKS,
    *audit.CHECKS,
    *dns.CHECKS,
    *autoscaler.CHECKS,
    *nodes.CHECKS,
    *images.CHECKS,
    *network.CHECKS,
    *scheduling.CHECKS,
    *prometheus.CHECKS,
)
#: Those that an audit log alone can answer.
AUDIT_CHECKS = tuple(check for check in CHECKS if check.needs == (Source.AUDIT,))
BY_ID: dict[str, Check] = {check.id: check for check in CHECKS}
#: The checks behind each condition of the report.
BEHIND: dict[ReportCondition, tuple[str, ...]] = {
    condition: tuple(check.id for check in CHECKS if check.condition is condition)
    for condition in ReportCondition
}


def wanted_samples() -> dict[Source, frozenset[str]]:
    """Return the sample names that the checks read, by source."""
    names: dict[Source, set[str]] = {}
    for check in CHECKS:
        for source, name in check.expression.samples() if check.expression else ():
            names.setdefault(source, set()).add(name)
    return {source: frozenset(found) for source, found in names.items()}


def gauges_of_functions(source: Source) -> frozenset[str]:
    """Return the names of the gauges of a source that checks over it read by a function."""
    measures = (check.measure for check in CHECKS if check.needs[:1] == (source,))
    functions = (measure for measure in measures if isinstance(measure, Function))
    return frozenset(name for each in functions for where, name in each.gauges if where is source)
