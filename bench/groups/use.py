"""What it costs to look at what members use: a node with 100 of them, of three processes each."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from bench.harness import Report, cpu_slowness
from fairlead.decide.use.use_meter import UseMeter, UseReading
from fairlead.embedded.local.host import LocalOptions
from fairlead.embedded.local.memory import measure

MEMBERS = 100
LOOKS = 10
#: A member as the node has it: what supervises it, and below that a shell and two programs.
_MEMBER = "sh -c 'sleep 600 & sleep 600 & wait' & wait"


def run(report: Report) -> None:
    """Measure the processor time of one look, as a share of the time between two."""
    members = [
        subprocess.Popen(["sh", "-c", _MEMBER], stdout=subprocess.DEVNULL, start_new_session=True)
        for _ in range(MEMBERS)
    ]
    try:
        pids = [member.pid for member in members]
        until = time.monotonic() + 30
        while any(len(found.pids) < 3 for found in measure(pids).values()):
            assert time.monotonic() < until, "the members have not started"
            time.sleep(0.2)
        seconds = min(_look(pids) for _ in range(LOOKS))
    finally:
        for member in members:
            os.killpg(member.pid, signal.SIGKILL)  # it leads a session
            member.wait()
    share = seconds / cpu_slowness() / LocalOptions().use_seconds
    report.add("use.look_share_of_core_100", share * 100, "%")


def _look(pids: list[int]) -> float:
    meters = {pid: UseMeter(0.0) for pid in pids}
    began = time.thread_time()
    for pid, found in measure(pids).items():
        meters[pid].look(5.0, UseReading(found.cpu_milliseconds, found.resident_bytes))
    return time.thread_time() - began
