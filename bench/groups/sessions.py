"""How long people wait for a shell in a member, and how fast bytes come out of one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time

from bench.cluster import ANSWER_SECONDS_MAX, Cluster, cluster
from bench.harness import Report, slowness

SHELLS, COPIES = 10, 3
MEGABYTES = 300
_JOB = "#!/bin/sh\n#FAIRLEAD --cpus 50m\nexec sleep 3600\n"


def run(report: Report) -> None:
    """Measure a shell to its prompt beside `--help`, in turns, and the throughput of `exec`.

    Minima of times: load of others only adds.
    """
    with cluster() as made:
        made.up("--nodes", "0")
        (made.root / "held.sh").write_text(_JOB)
        made.fairlead("submit", "held.sh", "--name", "held")
        made.fairlead("wait", "held", "--for", "started")
        helps, shells, slow = list[float](), list[float](), slowness()
        for _ in range(SHELLS):
            begin = time.perf_counter()
            made.fairlead("--help")
            helps.append(time.perf_counter() - begin)
            shells.append(_shell(made))
        slow = (slow + slowness()) / 2
        report.add("sessions.shell", min(shells) / slow * 1e3, "ms")
        report.add("sessions.shell_ratio", min(shells) / min(helps), "x help")
        rate = max(_copied(made) for _ in range(COPIES))
        report.add("sessions.exec", rate * slow, "MB/s")


def _shell(made: Cluster) -> float:
    """Return the seconds from the start of `fairlead shell` until its prompt is shown."""
    ours, theirs = pty.openpty()
    begin = time.perf_counter()
    process = subprocess.Popen(
        made.command("shell", "held"), cwd=made.root, env={**made.environment, "TERM": "dumb"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    shown = b""
    while not shown.rstrip().endswith((b"$", b"#")):
        assert select.select([ours], [], [], ANSWER_SECONDS_MAX)[0], shown
        shown += os.read(ours, 4096)
    taken = time.perf_counter() - begin
    os.write(ours, b"exit\n")
    assert process.wait(ANSWER_SECONDS_MAX) == 0, shown
    os.close(ours)
    os.close(theirs)
    return taken


def _copied(made: Cluster) -> float:
    """Return the MB/s at which a program's output comes, from the first byte on."""
    size = MEGABYTES * 1_000_000
    with subprocess.Popen(
        made.command("exec", "held", "--", "head", "-c", str(size), "/dev/zero"),
        cwd=made.root, env=made.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        left = size - len(process.stdout.read(1))
        begin = time.perf_counter()
        while data := process.stdout.read(1 << 20):
            left -= len(data)
        taken = time.perf_counter() - begin
    assert (left, process.returncode) == (0, 0)
    return size / 1e6 / taken
