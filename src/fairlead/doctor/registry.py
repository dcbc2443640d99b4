"""All checks, in order of harm within a severity: what takes the control plane down comes first."""

from __future__ import annotations

from fairlead.api.cluster_report import ReportCondition
from fairlead.doctor.check import Check
from fairlead.doctor.checks import (
    apiserver,
    audit,
    autoscaler,
    components,
    etcd,
    network,
    nodes,
    objects,
    prometheus,
    runtime,
    scheduling,
    workloads,
)
from fairlead.doctor.expressions import sample_names
from fairlead.doctor.facts import Source

CHECKS: tuple[Check, ...] = (
    *etcd.CHECKS,
    *apiserver.CHECKS,
    *audit.CHECKS,
    *objects.CHECKS,
    *workloads.CHECKS,
    *autoscaler.CHECKS,
    *nodes.CHECKS,
    *network.CHECKS,
    *runtime.CHECKS,
    *components.CHECKS,
    *scheduling.CHECKS,
    *prometheus.CHECKS,
)
#: Those that an audit log alone can answer.
AUDIT_CHECKS: tuple[Check, ...] = audit.CHECKS
BY_ID: dict[str, Check] = {check.id: check for check in CHECKS}
#: The checks behind each condition of the report.
BEHIND: dict[ReportCondition, tuple[str, ...]] = {
    condition: tuple(check.id for check in CHECKS if check.condition is condition)
    for condition in ReportCondition
}

#: Sample names that measures read which are functions rather than expressions.
MORE_SAMPLES: tuple[tuple[Source, str], ...] = (
    (Source.ETCD, "etcd_mvcc_db_total_size_in_bytes"),
    (Source.ETCD, "etcd_mvcc_db_total_size_in_use_in_bytes"),
    (Source.ETCD, "etcd_server_quota_backend_bytes"),
    (Source.APISERVER, "apiserver_resource_objects"),
    (Source.APISERVER, "apiserver_storage_objects"),
    (Source.APISERVER, "apiserver_longrunning_requests"),
    (Source.ETCD, "etcd_server_version"),
    (Source.PROMETHEUS, "prometheus_tsdb_head_series_created_total"),
    (Source.PROMETHEUS, "prometheus_target_scrape_pool_targets"),
    (Source.SCHEDULER, "scheduler_schedule_attempts_total"),
)


def wanted_samples() -> dict[Source, frozenset[str]]:
    """Return the sample names that the checks read, by source."""
    names: dict[Source, set[str]] = {}
    for check in CHECKS:
        for source, name in sample_names(check.measure):
            names.setdefault(source, set()).add(name)
    for source, name in MORE_SAMPLES:
        names.setdefault(source, set()).add(name)
    return {source: frozenset(found) for source, found in names.items()}
