"""Gangs of real processes that keep a journal, and ways to do them and their cluster harm."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.cli_world import Shell, eventually

RANKS = range(4)

#: A member. It notes in the journal that it has begun, and in `twice` when another process of the
#: same rank is alive; it counts in its log until the file `finish` is there.
MEMBER = """
import fcntl, os, pathlib, sys, time
home = pathlib.Path(sys.argv[1])
rank, attempt = os.environ["RANK"], os.environ["FAIRLEAD_ATTEMPT"]
lock = open(home / f"rank-{rank}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with open(home / "twice", "a") as twice:
        twice.write(f"rank {rank} of attempt {attempt}\\n")
with open(home / "journal", "a") as journal:
    journal.write(f"{attempt} {rank} {os.getpid()}\\n")
tick = 0
while not (home / "finish").exists():
    print(f"attempt {attempt} tick {tick}", flush=True)
    tick += 1
    time.sleep(0.02)
print(f"attempt {attempt} end {tick}", flush=True)
"""


class Gang:
    """A job of four members that run until they are told to finish."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell, self.name = shell, name
        self.home = shell.root / f"home-{name}"

    def submit(self, *arguments: str) -> None:
        """Submit it and wait until all members run."""
        self.submit_only(*arguments)
        self.until_attempt_runs(1)

    def submit_only(self, *arguments: str) -> None:
        """Submit it."""
        self.home.mkdir()
        member = self.home / "member.py"
        member.write_text(MEMBER)
        script = self.home / "gang.sh"
        script.write_text(f'exec {sys.executable} -S {member} "$1"\n')
        self.shell.run("submit", str(script), "--name", self.name, "--nodes", "4", "--cpus",
                       "100m", *arguments, "--", str(self.home))  # fmt: skip

    def until_attempt_runs(self, attempt: int) -> None:
        """Wait until all members of the attempt run."""
        eventually(lambda: len(self.pids(attempt)), len(RANKS))
        eventually(lambda: (self.status()["attempt"], self.status()["state"]),
                   (attempt, "Running"))  # fmt: skip

    def pids(self, attempt: int) -> list[int]:
        """Return the processes that the attempt has started, by rank; from the journal."""
        return [pid for number, _, pid in sorted(self._journal()) if number == attempt]

    def _journal(self) -> list[tuple[int, int, int]]:
        path = self.home / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        fields = [line.split() for line in lines]
        return [(int(attempt), int(rank), int(pid)) for attempt, rank, pid in fields]

    def status(self) -> dict[str, Any]:
        """Return the job's status."""
        status: dict[str, Any] = self.shell.job(self.name)["status"]
        return status

    def finish(self) -> dict[str, Any]:
        """Let the members end and return the job's last status; it must succeed."""
        (self.home / "finish").touch()
        ended = self.shell.run("wait", self.name, "--timeout", "100s")
        assert ended.out == f"{self.name} Succeeded\n"
        return self.status()

    def check_ran_once(self, attempts: int) -> None:
        """Check that each member of each attempt ran once and alone."""
        starts = Counter((attempt, rank) for attempt, rank, _ in self._journal())
        expected = [(attempt, rank) for attempt in range(1, attempts + 1) for rank in RANKS]
        assert starts == Counter(expected)
        assert not (self.home / "twice").exists(), (self.home / "twice").read_text()

    def check_no_member_ran_twice(self) -> None:
        """Check that no member began twice in an attempt, and none beside its successor."""
        starts = Counter((attempt, rank) for attempt, rank, _ in self._journal())
        assert set(starts.values()) <= {1}, starts
        assert not (self.home / "twice").exists(), (self.home / "twice").read_text()

    def starts(self) -> int:
        """Return how many members have begun, of all attempts."""
        return len(self._journal())

    def check_log_is_whole(self, *arguments: str, attempt: int, is_ended: bool) -> None:
        """Check that the logs of an attempt have every line that the members printed, once."""
        lines = self.shell.run("logs", self.name, *arguments).out.splitlines()
        for rank in RANKS:
            head = f"[worker-{rank}] attempt "
            mine = [line.removeprefix(head) for line in lines if line.startswith(head)]
            if is_ended:
                assert mine.pop() == f"{attempt} end {len(mine)}"
            assert len(mine) > 0
            assert mine == [f"{attempt} tick {tick}" for tick in range(len(mine))]


def kill(pids: Sequence[int]) -> None:
    """Kill processes of ours, as power loss would; those that have ended already are fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_of(data: Path) -> list[int]:
    """Return the living processes that name the data directory: cluster, supervisors, members."""
    marker = os.fsencode(data)
    found: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            told = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
            if marker in told and int(directory.name) != os.getpid():
                found.append(int(directory.name))
    return sorted(found)


def crash(shell: Shell) -> None:
    """Kill the cluster's process and wait until the system has let go of its lock."""
    os.kill(shell.pid(), signal.SIGKILL)
    eventually(lambda: _is_unlocked(shell.data / "store" / "lock"), expected=True)


def _is_unlocked(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def write_config_map(shell: Shell, name: str) -> tuple[int, str]:
    """Write a ConfigMap of 1 kB and return the code and the message of the answer."""
    token = (shell.data / "token").read_text().strip()
    body = json.dumps({"metadata": {"name": name}, "data": {"a": "x" * 1000}})
    connection = shell.https()
    try:
        connection.request("POST", "/api/v1/namespaces/default/configmaps", body,
                           {"Authorization": f"Bearer {token}"})  # fmt: skip
        answer = connection.getresponse()
        return answer.status, str(json.loads(answer.read()).get("message", ""))
    finally:
        connection.close()


def job_names(shell: Shell) -> set[str]:
    """Return the names of all jobs that the API has."""
    code, jobs = shell.get("/apis/fairlead.dev/v1alpha1/jobs")
    assert code == 200, jobs
    return {job["metadata"]["name"] for job in jobs["items"]}


def history_rows(shell: Shell, name: str) -> list[str]:
    """Return the lines of the history that are about a job."""
    lines = shell.run("history", "--no-headers").out.splitlines()
    return [line for line in lines if re.match(rf"{re.escape(name)}\s", line)]


def log_of_cluster(shell: Shell) -> str:
    """Return what the detached cluster has said."""
    return (shell.data / "log" / "fairlead.log").read_text()


def manifest_of(shell: Shell, script: Path, *arguments: str) -> dict[str, Any]:
    """Return what `submit` would store for a script, as a value to change."""
    dry = shell.run("submit", str(script), *arguments, "--dry-run", "-o", "json").out
    value: dict[str, Any] = json.loads(dry)
    return value
