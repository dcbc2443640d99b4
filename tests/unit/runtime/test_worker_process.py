"""Workers of a pool do not outlive the process that started them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

PARENT = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from fairlead.runtime.outside.worker_process import end_with_parent

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""


def runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go at any moment
        return False


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path, method: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, script, method],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    worker = Path("/proc", parent.stdout.readline().strip(), "stat")
    assert worker.exists()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while runs(worker):
        assert time.monotonic() < deadline, "the worker still runs"
        time.sleep(0.02)
