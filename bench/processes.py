"""Starting the benchmark's own processes, reading what they used, and ending them for sure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
END_SECONDS_MAX = 30
_QUIET_SECONDS = 0.5
#: A cluster at rest has used 10 ms in that time, and sometimes 20; one with work left, more.
_QUIET_CPU_SECONDS_MAX = 0.025


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and all its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def cpu_seconds_at_rest(pid: int) -> float:
    """Wait until a process has hardly used a core for half a second; return `cpu_seconds`."""
    while True:
        before = cpu_seconds(pid)
        time.sleep(_QUIET_SECONDS)
        now = cpu_seconds(pid)
        if now - before < _QUIET_CPU_SECONDS_MAX:
            return now


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return _size(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Return the most resident memory that a process has had."""
    return _size(pid, "VmHWM")


def _size(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("a process has a resident size")


@dataclass(frozen=True)
class Child:
    """A process of ours that answers one JSON line per line."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def read(self) -> Any:
        """Return the next line's value."""
        line = self._out.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return json.loads(line)

    def ask(self, line: str = "") -> Any:
        """Send a line and return the answer."""
        self.tell(line)
        return self.read()

    def tell(self, line: str = "") -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """Run `python -m module arguments` beside the block; it ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    try:
        yield Child(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
