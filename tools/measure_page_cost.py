"""Measures what 200 open pages cost `fairlead up`: `python -m tools.measure_page_cost`.

Windows with and without the page take turns; in each an array of 300 jobs that take two seconds is
run on 60 virtual nodes. It prints the CPU time of the process that serves the API and schedules,
for each window: what it prints for both differs by what the page costs the scheduler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from bench.processes import cpu_seconds

FAIRLEAD = Path(sys.executable).with_name("fairlead")
NODES, JOBS, WINDOWS = 60, 300, 6
SETTLE_SECONDS = 15.0
SCRIPT = "#!/bin/sh\n#FAIRLEAD --nodes 1 --gpus 8 --simulate 2s --time 5m\nsleep 2\n"
URLS = (
    *(f"/jobs?n={n}" for n in range(60)), *(f"/?n={n}" for n in range(60)),
    *(f"/cluster?n={n}" for n in range(60)), *(f"/nodes/v{n:05}" for n in range(20)),
)  # fmt: skip


class MeasuredCluster:
    """A cluster of `fairlead up` in a directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.environment = {
            **os.environ, "FAIRLEAD_KUBECONFIG": str(data / "kubeconfig"),
            "XDG_RUNTIME_DIR": str(data.parent),
        }  # fmt: skip

    def command(self, *arguments: str) -> None:
        """Run a command of it."""
        subprocess.run(
            [FAIRLEAD, *arguments], env=self.environment, check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @contextmanager
    def pages(self) -> Iterator[None]:
        """Have 200 pages open."""
        page = subprocess.Popen(
            [FAIRLEAD, "web", "--url", "--port", "0"], env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert page.stdout is not None
        link = page.stdout.readline().strip()
        readers = subprocess.Popen([sys.executable, "-m", "bench.web_readers", link, *URLS])
        try:
            time.sleep(SETTLE_SECONDS)
            yield
        finally:
            readers.kill()
            readers.wait()
            page.send_signal(signal.SIGINT)
            page.wait()

    def window(self, number: int) -> float:
        """Run the jobs; return the CPU seconds of the process."""
        pid = int(json.loads((self.data / "run.json").read_bytes())["pid"])
        script = self.data.parent / "job.sh"
        script.write_text(SCRIPT)
        before = cpu_seconds(pid)
        self.command("submit", str(script), "--name", f"w{number}", "--array", f"0-{JOBS - 1}")
        self.command("wait", f"w{number}", "--timeout", "240s")
        return cpu_seconds(pid) - before


def main() -> None:
    """Measure in turns, and print."""
    with tempfile.TemporaryDirectory(prefix="fairlead-page-") as directory:
        cluster = MeasuredCluster(Path(directory) / "data")
        cluster.command("up", "--nodes", str(NODES), "--data", str(cluster.data), "--listen",
                        "127.0.0.1:0", "--detach")  # fmt: skip
        found: dict[bool, list[float]] = {True: [], False: []}
        try:
            cluster.window(0)  # the first one loads what the others use
            for number in range(1, WINDOWS + 1):
                if number % 2:
                    with cluster.pages():
                        found[True].append(cluster.window(number))
                else:
                    found[False].append(cluster.window(number))
        finally:
            cluster.command("down", "--data", str(cluster.data))
    for has_pages, values in found.items():
        listed = ", ".join(f"{value:.2f}" for value in values)
        print(f"{'with' if has_pages else 'without'} 200 pages: {listed} s")
    print(f"ratio of the means: {fmean(found[True]) / fmean(found[False]):.3f}")


if __name__ == "__main__":
    main()
