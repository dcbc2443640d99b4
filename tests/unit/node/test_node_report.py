"""The report of an agent as the status of a NodeReport."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.node.host_tree import HostTree, Looks

from fairlead.api.cluster.node_report import Action, NodeReportStatus, Severity, SourceState
from fairlead.api.meta import to_wire
from fairlead.api.values.times import parse_time
from fairlead.node.files import read_file
from fairlead.node.reports.node_report import UnreadableReport, decode_report, report_status
from fairlead.node.reports.report import Report, report_of
from fairlead.node.shaping import ShapingUsage, TeamEgress
from fairlead.node.traffic import EndedTrafficLine, FlowLine, TrafficUsage


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


HOSTILE = (
    None, True, -1, 2**63, 2**200, 1e308, "", "x" * 100_000, "2026-13-99T99:99:99Z", [], [[]], {},
    {"a": 1}, "\u0000", "Critical",
)  # fmt: skip


def mutated(tree: Any, rng: random.Random) -> Any:
    """Return a report with one value replaced, somewhere."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(sorted(tree))
        return {**tree, key: mutated(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        index = rng.randrange(len(tree))
        return [*tree[:index], mutated(tree[index], rng), *tree[index + 1 :]]
    return rng.choice(HOSTILE)


def test_whatever_an_agent_writes_is_a_report_within_its_bounds_or_is_refused(
    tmp_path: Path,
) -> None:
    tree = HostTree(tmp_path / "host")
    tree.xid(48)
    team = TeamEgress("team", 1, 2, 3, 4, 5)
    report = msgspec.structs.replace(
        said(tree),
        shaping=ShapingUsage("htb", shares="2026-01-01T00:00:00Z", teams=(team,)),
        traffic=TrafficUsage(
            flows=(FlowLine("a", "team", "job", "internet", 1, 2, 3, 4),),
            ended=(EndedTrafficLine("a", "uid", "internet", 1, 2),),
        ),
    )
    whole = msgspec.json.decode(msgspec.json.encode(report))
    now, accepted, refused, longest = parse_time(report.at), 0, 0, 0
    for seed in range(3000):
        data = msgspec.json.encode(mutated(whole, random.Random(seed)))
        try:
            status = report_status(decode_report(data), node_uid="uid", now=now)
        except UnreadableReport as error:
            refused += 1
            longest = max(longest, len(str(error)))
            continue
        accepted += 1
        assert msgspec.convert(to_wire(status), NodeReportStatus) == status
        assert len(msgspec.json.encode(status)) < 256 * 1024
        assert status.node_uid == "uid"
    assert min(accepted, refused) > 100
    assert longest < 500, "it goes to a log"


def test_a_file_that_is_no_report_can_have_the_reader_neither_wait_nor_read_another(
    tmp_path: Path,
) -> None:
    good, link, pipe = (tmp_path / name for name in ("report", "link", "pipe"))
    good.write_bytes(b"12345")
    assert read_file(good, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_file(good, 4)
    link.symlink_to(good)
    with pytest.raises(OSError, match="symbolic links"):
        read_file(link, 5)
    os.mkfifo(pipe)
    for each in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            read_file(each, 5)
