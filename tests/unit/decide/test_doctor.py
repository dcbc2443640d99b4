"""The doctor's decisions: what the report says, when it is written, and which Events follow."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import replace

from fairlead.api.cluster.cluster_report import (
    FINDINGS_MAX,
    ClusterReport,
    ClusterReportStatus,
    FindingSeverity,
    ReportCondition,
)
from fairlead.api.meta import ObjectMeta, find_condition
from fairlead.api.values.times import format_time
from fairlead.decide.doctor.actions import ChangeKind, CreateReport, WriteReport
from fairlead.decide.doctor.decide import decide_report, report_status
from fairlead.decide.doctor.examination import Examination, ExaminationFinding
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.doctor.check import Harm as Harm
from fairlead.doctor.registry import BEHIND, BY_ID
from fairlead.testing.builders import EPOCH

POLICY = DoctorPolicy()
FULL = ExaminationFinding(
    "ETCD-04", FindingSeverity.CRITICAL, "etcd-0", "close to its quota", "0.91"
)
ODD = ExaminationFinding(
    "ETCD-17", FindingSeverity.WARNING, "kube-apiserver", "odd interval", "10m"
)
PASSED = tuple(check for checks in BEHIND.values() for check in checks)

examined = partial(Examination, behind=BEHIND)


def report_of(examination: Examination) -> ClusterReport:
    status = report_status(ClusterReportStatus(), examination)
    return ClusterReport(ObjectMeta("cluster"), status)


def written(report: ClusterReport, examination: Examination) -> WriteReport | None:
    actions = decide_report(report, examination, POLICY)
    assert len(actions) <= 1
    action = actions[0] if actions else None
    assert action is None or isinstance(action, WriteReport)
    return action


def status_of(examination: Examination, type_: ReportCondition) -> str:
    found = find_condition(report_of(examination).status.conditions, type_.value)
    assert found is not None
    return found.status


def test_the_report_is_created_before_it_is_written() -> None:
    assert decide_report(None, examined(EPOCH), POLICY) == (CreateReport(),)


def test_numbers_that_change_are_no_reason_to_write_but_a_confirmation_is_due() -> None:
    report = report_of(examined(EPOCH, (FULL,)))
    other = ExaminationFinding(
        "ETCD-04", FindingSeverity.CRITICAL, "etcd-0", "close to its quota", "0.92", 0.92
    )
    assert written(report, examined(EPOCH + 300, (other,))) is None
    late = written(report, examined(EPOCH + 900, (other,)))
    assert late is not None
    assert late.changes == ()
    assert late.status.findings[0].evidence == "0.92"
    assert late.status.findings[0].value == 0.92
    assert late.status.findings[0].since == format_time(EPOCH)


def test_a_report_from_the_future_is_replaced() -> None:
    report = report_of(examined(EPOCH + 3600, (FULL,)))
    assert written(report, examined(EPOCH, (FULL,))) is not None


def test_a_finding_begins_worsens_and_ends_once_each() -> None:
    report = report_of(examined(EPOCH, (ODD,)))
    began = written(report, examined(EPOCH + 300, (FULL, ODD)))
    assert began is not None
    assert [(c.kind, c.finding.check) for c in began.changes] == [(ChangeKind.BEGAN, "ETCD-04")]
    assert (began.status.critical, began.status.warning) == (1, 1)
    ended = written(replace(report, status=began.status), examined(EPOCH + 600))
    assert ended is not None
    assert [(c.kind, c.finding.check) for c in ended.changes] == [
        (ChangeKind.ENDED, "ETCD-04"), (ChangeKind.ENDED, "ETCD-17"),
    ]  # fmt: skip
    worse = ExaminationFinding("ETCD-17", FindingSeverity.CRITICAL, "kube-apiserver")
    changed = written(report, examined(EPOCH + 300, (worse,)))
    assert changed is not None
    assert changed.changes == ()


def test_a_check_that_is_no_longer_seen_has_not_passed_and_its_finding_has_not_ended() -> None:
    report = report_of(examined(EPOCH, (FULL,), passed=("ETCD-08",)))
    blind = examined(EPOCH + 300, unknown=("ETCD-04",), passed=("ETCD-08",))
    action = written(report, blind)
    assert action is not None
    assert [c.kind for c in action.changes] == [ChangeKind.NOT_SEEN]
    condition = find_condition(action.status.conditions, "EtcdNearlyFull")
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", "NotSeen")
    assert condition.last_transition_time == format_time(EPOCH + 300)


def test_conditions_are_false_only_when_each_of_their_checks_has_passed() -> None:
    nearly_full = ReportCondition.ETCD_NEARLY_FULL
    assert status_of(examined(EPOCH, passed=PASSED), nearly_full) == "False"
    assert status_of(examined(EPOCH, (FULL,), unknown=("ETCD-08",)), nearly_full) == "True"
    assert status_of(examined(EPOCH, unknown=("ETCD-08",)), nearly_full) == "Unknown"
    mild = ExaminationFinding("ETCD-04", FindingSeverity.WARNING, "etcd-0")
    assert status_of(examined(EPOCH, (mild,), passed=("ETCD-08",)), nearly_full) == "False"
    # A check that is in no result was not evaluated, so nothing is known about it.
    assert status_of(examined(EPOCH), nearly_full) == "Unknown"


def test_a_condition_keeps_the_instant_of_its_transition() -> None:
    first = report_status(ClusterReportStatus(), examined(EPOCH, (FULL,)))
    second = report_status(first, examined(EPOCH + 900, (FULL,)))
    condition = find_condition(second.conditions, "EtcdNearlyFull")
    assert condition is not None
    assert condition.last_transition_time == format_time(EPOCH)


def test_the_size_is_bounded_and_what_has_no_room_has_not_ended() -> None:
    many = tuple(
        ExaminationFinding(
            "API-22", FindingSeverity.CRITICAL, f"webhook-{i:04}" + "x" * 900, "t" * 900, "e" * 9000
        )
        for i in range(1000)
    )
    report = report_of(examined(EPOCH, many, unknown=tuple(f"X-{i}" for i in range(9999))))
    assert len(report.status.findings) == FINDINGS_MAX
    assert report.status.left_out == 1000 - FINDINGS_MAX
    assert len(msgspec.json.encode(report)) < 100_000
    before = tuple(
        ExaminationFinding("API-22", FindingSeverity.WARNING, f"old-{i}")
        for i in range(FINDINGS_MAX)
    )
    crowded = written(report_of(examined(EPOCH, before)), examined(EPOCH + 1, many + before))
    assert crowded is not None
    assert {change.kind for change in crowded.changes} == {ChangeKind.BEGAN}
    assert len(crowded.changes) == POLICY.events_max


def test_a_finding_that_an_examination_had_no_room_for_has_not_ended() -> None:
    old = ExaminationFinding("ETCD-04", FindingSeverity.CRITICAL, "etcd-1")
    report = report_of(examined(EPOCH, (FULL, old, ODD)))
    cut = written(report, examined(EPOCH + 300, (FULL,), left_out=1))
    assert cut is not None
    assert [(c.kind, c.finding.check) for c in cut.changes] == [(ChangeKind.ENDED, "ETCD-17")]


def test_every_condition_has_checks_and_each_can_make_it_true() -> None:
    for condition in ReportCondition:
        for check in BEHIND[condition]:
            assert BY_ID[check].worst is Harm.CRITICAL
            finding = ExaminationFinding(check, FindingSeverity.CRITICAL, "x")
            others = tuple(each for each in PASSED if each != check)
            assert status_of(examined(EPOCH, (finding,), passed=others), condition) == "True"
            assert status_of(examined(EPOCH, passed=others), condition) == "Unknown"
        assert status_of(examined(EPOCH, passed=PASSED), condition) == "False"


def test_a_condition_that_no_check_is_behind_is_unknown() -> None:
    examination = Examination(EPOCH, passed=PASSED)
    assert {status_of(examination, each) for each in ReportCondition} == {"Unknown"}
