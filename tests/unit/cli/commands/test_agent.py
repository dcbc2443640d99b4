"""`fairlead agent`: what it shows, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.cli_golden import check
from tests.unit.node.host_tree import HostTree

from fairlead.cli.formats.table import render_table
from fairlead.cli.main import guarded
from fairlead.cli.views.agent import FAULT_COLUMNS, SOURCE_COLUMNS, fault_rows, source_rows
from fairlead.input.errors import Exit


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A machine with nothing but a log; the clock, which no file has, is left out."""
    made = HostTree(tmp_path / "host")
    made.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB")
    made.write("proc/sys/fs/file-nr", "10\t0\t1000")
    made.write("proc/loadavg", "0.1 0.2 0.3 1/10 7")
    made.write("proc/sys/kernel/pid_max", 1000)
    made.write("proc/sys/kernel/threads-max", 1000)
    (tmp_path / "default.yaml").write_text("disabled: [clock]\n")
    return made


def run(tree: HostTree, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    config = ["--config", str(tree.root.parent / "default.yaml")]
    code = guarded(["agent", "check", "--root", str(tree.root), *config, *flags])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_healthy_machine(tree: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(tree, capsys)
    assert code == Exit.OK
    assert "no faults" in err
    assert out.splitlines()[0].split() == ["SOURCE", "STATE", "WHY"]


def test_a_sick_machine_ends_with_1_and_names_the_part_and_the_action(
    tree: HostTree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.xid(79, "pid=0, GPU has fallen off the bus.")
    code, out, _ = run(tree, capsys, "-o", "json")
    assert code == Exit.FAILED
    report = json.loads(out)
    (fault,) = report["faults"]
    assert (fault["component"], fault["codes"], fault["action"]) == (
        "0000:3b:00",
        ["79"],
        "Replace",
    )
    assert report["isHealthy"] is False
    code, out, err = run(tree, capsys)
    assert code == Exit.FAILED
    assert "0000:3b:00" in out
    assert "1 fault" in err


def test_one_look_reads_the_whole_log(tree: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.log(*["noise"] * 50_000)
    tree.xid(79)
    code, out, _ = run(tree, capsys)
    assert code == Exit.FAILED
    assert "0000:3b:00" in out


def test_information_alone_is_shown_and_is_healthy(
    tree: HostTree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.xid(43)
    code, out, _ = run(tree, capsys)
    assert code == Exit.OK
    assert "gpu-xid" in out


def test_a_directory_that_is_no_machine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["agent", "check", "--root", str(tmp_path)]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "boot_id cannot be read: No such file or directory" in err
    assert "name the root of a host" in err


def test_settings_are_refused_with_all_mistakes(
    tree: HostTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(
        "disabled: [kernel-lgo]\ngpu:\n  xid:\n    6x: {severity: Info, action: None}\n"
        "  stableSeconds: 1\ndisk: {warningPercent: 99}\n"
    )
    code, _, err = run(tree, capsys, "--config", str(config))
    assert code == Exit.USAGE
    assert "accepted: 60 to 2592000" in err
    config.write_text(config.read_text().replace("  stableSeconds: 1\n", ""))
    code, _, err = run(tree, capsys, "--config", str(config))
    assert code == Exit.USAGE
    for text in ("no source 'kernel-lgo'", "'6x' is not the number", "99 is more than"):
        assert text in err


def test_a_source_that_is_switched_off_is_not_read(
    tree: HostTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.xid(79)
    config = tmp_path / "node.yaml"
    config.write_text("disabled: [kernel-log]\n")
    code, out, _ = run(tree, capsys, "--config", str(config))
    assert code == Exit.OK
    assert "kernel-log" not in out


def test_the_tables(tree: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    import msgspec

    from fairlead.node.reports.report import Report

    tree.xid(79, "pid=0, GPU has fallen off the bus.")
    tree.xid(45, times=200)
    tree.log("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    _, out, _ = run(tree, capsys, "-o", "json")
    report = msgspec.structs.replace(
        msgspec.json.decode(out, type=Report), at="2026-11-28T08:00:00Z"
    )
    faults = tuple(
        msgspec.structs.replace(each, first_seen="2026-11-28T07:00:00Z") for each in report.faults
    )
    report = msgspec.structs.replace(report, faults=faults)
    text = render_table(FAULT_COLUMNS, fault_rows(report), width=100)
    text += "\n" + render_table(SOURCE_COLUMNS, source_rows(report), width=100)
    check("tables/agent-check.txt", text)
