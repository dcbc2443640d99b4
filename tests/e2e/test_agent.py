"""The agent as a process: killed at any time, stopped in order, beside the real kernel."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.patience import PATIENCE_SECONDS
from tests.unit.node.host_tree import NEXT_BOOT, HostTree

from fairlead.api.values.sketch import parse_sketch
from fairlead.model.health.faults import Moment
from fairlead.node import agent as agent_module
from fairlead.node.agent import Agent
from fairlead.node.files import on_replaced, replace_file
from fairlead.node.reports.state import open_state
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, Nothing, SignalSource
from fairlead.node.sources import kernel_log
from fairlead.node.sources.kmsg import KmsgReader
from fairlead.node.sources.programs import Said

pytestmark = pytest.mark.e2e
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "node-agent.md"


class Exporter(BaseHTTPRequestHandler):
    """A page with one GPU of a pod."""

    asked = 0

    def do_GET(self) -> None:
        Exporter.asked += 1
        self.send_response(200)
        self.end_headers()
        labels = 'gpu="0",namespace="vision",pod="train-0"'
        self.wfile.write(b"# TYPE x gauge\nDCGM_FI_DEV_GPU_UTIL{%s} 91\n" % labels.encode())

    def log_message(self, *args: object) -> None:
        pass


class Running:
    """An agent on a tree, its state and its report."""

    def __init__(self, folder: Path) -> None:
        self.tree = HostTree(folder / "host")
        self.state, self.report = folder / "state.db", folder / "report.json"

    more: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "fairlead", "agent", "run", "--root", str(self.tree.root),
                "--state", str(self.state), "--report", str(self.report), *self.more]  # fmt: skip

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


def test_values_of_an_exporter_are_in_the_report_of_their_window(tmp_path: Path) -> None:
    running, config = Running(tmp_path), tmp_path / "node.yaml"
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/metrics"
        settings = {"reportSeconds": 1, "exporters": {
            "periodSeconds": 5, "windowSeconds": 15,
            "pages": [{"url": url, "metrics": [{"name": "DCGM_FI_DEV_GPU_UTIL"}]}],
        }}  # fmt: skip
        config.write_text(json.dumps(settings))
        running.more = ["--config", str(config)]
        with running.agent() as process:
            for _ in range(2):  # `passes` moves the machine's clock; the looks follow real time
                looks = Exporter.asked
                running.tree.passes(15)
                running.until(lambda _, looks=looks: Exporter.asked > looks)
            found = running.until(lambda report: bool(report["exports"]))
            process.terminate()
            assert process.wait() == 0
        http.shutdown()
    (sketch,) = found["exports"]["sketches"]
    assert (sketch["namespace"], sketch["pod"]) == ("vision", "train-0")
    values = parse_sketch(sketch["sketch"])
    assert values.count >= 1
    assert round(next(values.quantiles([0.5]))) == 91


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


async def test_a_fault_of_our_own_stops_one_source_and_a_full_disk_stops_no_report(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path)
    host = running.tree.host()

    def wrong() -> None:
        raise ZeroDivisionError("ours")

    def judged(_facts: object, memory: Nothing, _at: Moment) -> Judged[Nothing]:
        return Judged(memory)

    broken = SignalSource("wrong", ("wrong",), Nothing, wrong, judged, period_seconds=1)
    chosen = (kernel_log.source(host, AgentSettings()), broken)
    state = open_state(running.state)
    agent = Agent(host, chosen, state, report=running.report, read_seconds_max=5, report_seconds=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        try:
            running.tree.xid(48)
            await asyncio.to_thread(running.until, counted(1))
            found = await asyncio.to_thread(running.until, lambda report: "Blind" in str(report))
            states = {each["source"]: (each["state"], each["why"]) for each in found["sources"]}
            assert states["wrong"][0] == "Blind"
            assert "ZeroDivisionError: ours" in states["wrong"][1]
            state.close()
            running.tree.xid(48)
            found = await asyncio.to_thread(running.until, counted(2))
            assert found["notKept"].startswith("the state cannot be written: ")
        finally:
            agent.stop()


async def test_the_begin_of_a_fault_is_reported_before_the_second_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "TICK_SECONDS", 1e6)  # such a second ends never
    running = Running(tmp_path)
    host = running.tree.host()
    state = open_state(running.state)
    agent = Agent(host, (kernel_log.source(host, AgentSettings()),), state, report=running.report,
                  read_seconds_max=5, report_seconds=1)  # fmt: skip
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        try:
            await asyncio.to_thread(running.until, lambda report: not report["faults"])
            for number, code in enumerate((48, 79), 1):
                running.tree.xid(code)
                await asyncio.to_thread(
                    running.until, lambda report, number=number: len(report["faults"]) == number
                )
            running.tree.xid(79)
        finally:
            agent.stop()
    state.close()


async def test_a_file_that_is_replaced_is_notified_of_and_others_are_not(tmp_path: Path) -> None:
    path, calls, seen = tmp_path / "node.json", 0, asyncio.Event()

    def call() -> None:
        nonlocal calls
        calls += 1
        seen.set()

    async def wait() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await seen.wait()
        seen.clear()

    with on_replaced(path, call):
        replace_file(path, b"1", mode=0o644)
        await wait()
        replace_file(tmp_path / "rates.json", b"1", mode=0o644)
        path.read_bytes()
        replace_file(path, b"2", mode=0o644)
        await wait()
        assert calls == 2
    replace_file(path, b"3", mode=0o644)
    await asyncio.sleep(0)
    assert calls == 2
    with (
        pytest.raises(FileNotFoundError, match="nowhere"),
        on_replaced(tmp_path / "nowhere" / "node.json", call),
    ):
        pass


def test_the_commands_and_the_program_of_the_page_work_as_written(tmp_path: Path) -> None:
    page = PAGE.read_text()
    running = Running(tmp_path)
    running.tree.xid(79)
    (settings,) = re.findall(r"```yaml\n(infiniband:.*?)```", page, re.DOTALL)
    (tmp_path / "node.yaml").write_text(settings)
    (text,) = re.findall(r"^\$ cat \S+/raid\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    program = tmp_path / "raid"
    program.write_text(text.replace("/proc/mdstat", str(tmp_path / "mdstat")))
    (tmp_path / "mdstat").write_text("md0 : active raid1\n      [2/2] [UU]\n")
    assert subprocess.run(["sh", program], capture_output=True, check=False).returncode == 0
    (tmp_path / "mdstat").write_text("md0 : active raid1\n      [2/1] [U_]\n")
    done = subprocess.run(["sh", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert msgspec.json.decode(done.stdout, type=Said).component == "md0"

    commands = re.findall(r"^\$ (fairlead agent .*?)(?:\s+# .*)?$", page, re.MULTILINE)
    here = {"/host": str(running.tree.root), "/var/lib/fairlead/agent.db": str(running.state),
            "/run/fairlead/node.json": str(running.report),
            "names.names=storage.example.com": "names.names=localhost"}  # fmt: skip
    shell = [sys.executable, "-m"]
    own = {**os.environ, "TMPDIR": str(tmp_path)}  # one suite runs at a time, by a lock in there
    # The suites in full load all cores for three minutes; what they measure is not asserted here.
    brief = ("cpu.seconds=0.3", "memory.bytes=4194304", "clock.seconds=0.1")
    seen: list[str] = []
    for command in commands:
        words = [here.get(word, word) for word in command.split()]
        if words[2] in ("network", "pair"):  # test_traffic.py and test_pair_mtu.py run these
            continue
        seen.append(words[2])
        if words[2] == "test":
            words += [word for option in brief for word in ("--set", option)]
        if words[2] == "run":
            with subprocess.Popen([*shell, *words, "--root", here["/host"]]) as process:
                running.until(counted(1))
                process.terminate()
            assert process.returncode == 0
            continue
        result = subprocess.run(
            [*shell, *words], cwd=tmp_path, env=own, capture_output=True, check=False
        )  # fmt: skip
        assert result.returncode in ((0, 1) if words[2] == "check" else (0,)), result.stderr
    assert seen == ["check", "check", "check", "test", "test", "test", "run", "clear"]


@pytest.mark.skipif(not os.access("/dev/kmsg", os.W_OK), reason="/dev/kmsg cannot be written here")
def test_a_line_is_read_from_the_real_kernel() -> None:
    reader, mark = KmsgReader(Host()), secrets.token_hex(8)
    reader.read()
    Path("/dev/kmsg").write_text(f"<6>fairlead test {mark}\n")
    (found,) = [each for each in reader.read() if mark in each.text]
    assert found.text == f"fairlead test {mark}"
    assert abs(found.uptime_seconds - Host().now().uptime_seconds) < PATIENCE_SECONDS
