"""Sequences of requests that both servers get; each covers the points that its name gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.conformance import scenarios_admission as admission
from tests.conformance import scenarios_apply as apply
from tests.conformance import scenarios_quota as quota
from tests.conformance import scenarios_reads as reads
from tests.conformance import scenarios_resize as resize
from tests.conformance import scenarios_versions as versions
from tests.conformance import scenarios_writes as writes
from tests.conformance.recorder import Recorder

Scenario = Callable[[Recorder], Awaitable[None]]

SCENARIOS: tuple[Scenario, ...] = (
    writes.p01_p06_objects_of_every_kind,
    writes.p04_p08_what_is_not_trusted_and_names,
    writes.p08_pods_that_are_wrong,
    admission.p04_metadata_of_wrong_types,
    admission.p04_bodies_without_a_kind,
    admission.p08_pod_specs_that_are_wrong,
    apply.p09_managers_of_every_kind,
    apply.p09_managers_of_updates,
    apply.p09_managers_are_reset_and_set,
    apply.p09_managers_of_pods_and_status,
    apply.p19_applies,
    apply.p19_refused_applies,
    apply.p19_applied_lists,
    apply.p19_applied_custom_resources,
    apply.p19_apply_after_other_writes,
    writes.p11_p13_puts,
    writes.p15_bindings_and_evictions,
    resize.p15_resizes,
    resize.p15_resizes_that_are_refused,
    resize.p15_resizes_of_whole_pods,
    resize.p15_resizes_on_nodes,
    resize.p64_bounds_of_resizes,
    writes.p16_p20_patches,
    writes.p21_p24_dry_runs_immutable_fields_and_sizes,
    writes.p22_field_validation,
    writes.p25_p34_deletes,
    writes.p29_p30_owners,
    writes.p32_namespaces,
    reads.p35_p41_lists,
    reads.p42_p50_watches,
    reads.p51_p52_errors,
    reads.p53_p55_discovery,
    reads.p56_p57_forms,
    reads.p59_not_claimed,
    reads.p60_p62_definitions,
    versions.p60_versions_of_other_names,
    versions.p45_watches_of_both_versions,
    versions.p19_applies_in_either_version,
    versions.p60_p62_deprecated_versions,
    reads.p64_p65_admission_and_reviews,
    quota.p64_quotas,
    quota.p64_quotas_with_scopes,
    quota.p64_quotas_of_other_kinds,
    quota.p64_quotas_that_make_no_sense,
    quota.p64_limit_ranges,
    quota.p64_limit_ranges_of_pods_and_claims,
    quota.p64_limit_ranges_that_make_no_sense,
)
