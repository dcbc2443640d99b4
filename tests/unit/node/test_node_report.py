"""The report of an agent as the status of a NodeReport."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.node.host_tree import HostTree, Looks

from fairlead.api.cluster.node_report import Action, NodeReportStatus, Severity, SourceState
from fairlead.api.meta import to_wire
from fairlead.api.values.times import parse_time
from fairlead.node.node_report import UnreadableReport, decode_report, report_status
from fairlead.node.report import Report, report_of


def said(tree: HostTree) -> Report:
    """Return the report of one look at the kernel's log, as its file has it."""
    looks = Looks(tree, "kernel-log")
    looks.look()
    report = report_of(looks.watch, looks.host.now(), machine_id="board-7")
    return decode_report(msgspec.json.encode(report))


def test_faults_arrive_with_identity_clock_severity_and_action(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.xid(48, "DBE", times=3)
    report = said(tree)
    now = parse_time(report.at) + 5
    status = report_status(report, node_uid="uid", now=now)
    (fault,) = status.faults
    assert (fault.check, fault.component, fault.codes) == ("gpu-xid", "0000:3b:00", ("48",))
    assert (fault.severity, fault.action, fault.count) == (Severity.CRITICAL, Action.RESET_GPU, 3)
    assert (status.critical, status.node_uid, status.machine_id) == (1, "uid", "board-7")
    assert status.observed_at == report.at, "when the agent wrote it, not when it was read"
    assert msgspec.convert(to_wire(status), NodeReportStatus) == status


def test_a_source_that_does_not_look_is_named_with_its_checks(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    looks = Looks(tree, "kernel-log")
    looks.watch.blind(looks.sources[0], "it cannot be read", looks.host.now())
    report = report_of(looks.watch, looks.host.now())
    status = report_status(report, node_uid="uid", now=parse_time(report.at))
    (source,) = status.sources
    assert (source.state, source.why) == (SourceState.BLIND, "it cannot be read")
    assert "gpu-xid" in source.checks


def test_a_report_of_the_future_was_observed_now(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    report = said(tree)
    now = parse_time(report.at) - 3600
    observed = report_status(report, node_uid="uid", now=now).observed_at
    assert observed is not None
    assert parse_time(observed) <= now


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"version": 1}', b"x" * 100_000])
def test_what_is_no_report_is_refused_with_the_reason(data: bytes) -> None:
    with pytest.raises(UnreadableReport, match="it is no report of an agent"):
        decode_report(data)


def test_a_report_of_another_version_or_with_an_unknown_word_is_refused(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.xid(48)
    report = said(tree)
    other = msgspec.structs.replace(report, version=2)
    with pytest.raises(UnreadableReport, match="it has version 2; accepted: 1"):
        decode_report(msgspec.json.encode(other))
    line = msgspec.structs.replace(report.faults[0], severity="Awful")
    strange = msgspec.structs.replace(report, faults=(line,))
    with pytest.raises(UnreadableReport, match="Awful"):
        report_status(strange, node_uid="uid", now=0)
