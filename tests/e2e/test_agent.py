"""The agent as a process: killed at any time, stopped in order, beside the real kernel."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, HostTree

from fairlead.node.host import Host
from fairlead.node.sources.kmsg import KmsgReader

pytestmark = pytest.mark.e2e
PATIENCE_SECONDS = 60


class Running:
    """An agent on a tree, its state and its report."""

    def __init__(self, folder: Path) -> None:
        self.tree = HostTree(folder / "host")
        self.state, self.report = folder / "state.db", folder / "report.json"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "fairlead", "agent", "run", "--root", str(self.tree.root),
                "--state", str(self.state), "--report", str(self.report)]  # fmt: skip

    @contextmanager
    def agent(self) -> Generator[subprocess.Popen[bytes]]:
        self.report.unlink(missing_ok=True)
        with subprocess.Popen(self.command, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first report that has it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.report.exists():
                found: dict[str, Any] = json.loads(self.report.read_text())  # whole at any time
                if holds(found):
                    return found
            time.sleep(0.02)
        pytest.fail(f"not seen: {self.report.read_text() if self.report.exists() else 'no report'}")


def counted(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda report: [each["count"] for each in report["faults"]] == [count]


def test_killed_and_started_again_it_counts_every_line_once(tmp_path: Path) -> None:
    running = Running(tmp_path)
    for round_ in range(1, 4):
        with running.agent() as process:
            running.tree.xid(48)
            first = running.until(counted(2 * round_ - 1))
            running.tree.xid(48)
            running.until(counted(2 * round_))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        running.tree.passes(60)
    running.tree.boots(NEXT_BOOT)
    with running.agent() as process:
        report = running.until(lambda report: not report["faults"] and bool(report["ended"]))
        assert report["ended"][-1]["firstSeen"] == first["faults"][0]["firstSeen"]
        assert report["ended"][-1]["ending"] == "Boot"
        process.terminate()
        assert process.wait() == 0


def test_a_person_ends_a_fault_of_the_running_agent(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.tree.xid(79)
    ask = [sys.executable, "-m", "fairlead", "agent", "clear", "--state", str(running.state)]
    with running.agent() as process:
        running.until(counted(1))
        wrong = subprocess.run(
            [*ask, "gpu-xid", "0000:3b:00", "80"], capture_output=True, check=False
        )
        assert wrong.returncode == 2
        assert b"no open fault gpu-xid 0000:3b:00 80" in wrong.stderr
        subprocess.run([*ask, "gpu-xid", "0000:3b:00", "79"], capture_output=True, check=True)
        report = running.until(lambda report: not report["faults"])
        assert report["ended"][-1]["ending"] == "Person"
        second = subprocess.run(running.command, capture_output=True, check=False)
        assert second.returncode == 4
        assert b"another agent uses" in second.stderr
        process.terminate()
        assert process.wait() == 0


def test_a_report_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.report = tmp_path / "none" / "report.json"
    done = subprocess.run(running.command, capture_output=True, check=False)
    assert done.returncode == 5
    assert b"make the directory first" in done.stderr


@pytest.mark.skipif(not os.access("/dev/kmsg", os.W_OK), reason="/dev/kmsg cannot be written here")
def test_a_line_is_read_from_the_real_kernel() -> None:
    reader, mark = KmsgReader(Host()), secrets.token_hex(8)
    reader.read()
    Path("/dev/kmsg").write_text(f"<6>fairlead test {mark}\n")
    (found,) = [each for each in reader.read() if mark in each.text]
    assert found.text == f"fairlead test {mark}"
    assert abs(found.uptime_seconds - Host().now().uptime_seconds) < PATIENCE_SECONDS
