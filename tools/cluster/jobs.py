"""Jobs on a cluster through Fairlead's command line, and the processes of their members."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.cluster.cluster import Cluster, FailedError
from tools.cluster.images import ROOT

SECONDS_MAX = 180.0
POLL_SECONDS = 0.3


class Client:
    """Runs `fairlead` against a cluster as its administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        own = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        self._environment = {**own, "KUBECONFIG": str(cluster.layout.kubeconfig)}

    def run(self, *arguments: str, code: int | None = 0) -> str:
        """Return what `fairlead ARGUMENTS` prints; FailedError when its exit code is not `code`.

        With None any exit code will do.
        """
        done = subprocess.run(
            [str(Path(sys.executable).with_name("fairlead")), *arguments],
            env=self._environment, cwd=ROOT, text=True, capture_output=True,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        if code is not None and done.returncode != code:
            said = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
            raise FailedError(f"fairlead {' '.join(arguments)}: {said}")
        return done.stdout

    def job(self, name: str) -> dict[str, Any]:
        """Return a job as the API has it."""
        text = self.cluster.kubectl("get", "jobs.fairlead.dev", name, "-o", "json")
        return json.loads(text)

    def until(
        self, name: str, what: str, holds: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Poll a job until `holds(status)`; FailedError, with its status, when that takes long."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            job = self.job(name)
            if holds(job.get("status", {})):
                return job
            if time.monotonic() >= deadline:
                status = json.dumps(job.get("status", {}), indent=1)
                raise FailedError(f"{what} did not happen within {SECONDS_MAX:.0f} s: {status}")
            time.sleep(POLL_SECONDS)

    def until_state(self, name: str, *states: str) -> dict[str, Any]:
        """Poll a job until it is in one of the states."""
        wanted = " or ".join(states)
        return self.until(name, f"job {name} {wanted}", lambda s: s.get("state") in states)

    def processes(self, name: str, rank: int, program: str) -> list[int]:
        """Return the processes of a member that run `program`, as this machine counts them.

        What belongs to the cluster is told by its control groups, what belongs to the member by
        its environment.
        """
        group = f"/{self.cluster.layout.cgroup}/"
        wanted = {f"FAIRLEAD_JOB={name}".encode(), f"RANK={rank}".encode()}
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = group in (process / "cgroup").read_text()
                environment = set((process / "environ").read_bytes().split(b"\0"))
                command = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours and wanted <= environment and program.encode() in command[1:3]:
                found.append(int(process.name))
        return sorted(found)

    def kill(self, name: str, rank: int, program: str) -> int:
        """Kill the newest process of a member that runs `program`; return its number."""
        found = self.processes(name, rank, program)
        if not found:
            raise FailedError(f"rank {rank} of job {name} has no process {program}")
        os.kill(found[-1], signal.SIGKILL)
        return found[-1]
