"""The main job, from submit to finish, on an embedded cluster of its own: what `make demo` runs.

It uses the command line as a person would, and leaves nothing running. Exit code 0 means that
everything shown has really happened: each step checks what it claims.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NODES = 200
GANG = 1000
STEPS = 600
KILL_AT_STEP = 300
SECONDS_MAX = 240.0  # for a machine that has other work; about 30 on a quiet one
LOST_RANK = 2


class Failed(Exception):
    """A step did not come out as promised."""


class Cluster:
    """An embedded cluster in a directory of its own, driven through the command line."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.started = time.monotonic()
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FAIRLEAD_KUBECONFIG": str(data / "kubeconfig"),
        }

    def say(self, text: str, *, at: float | None = None) -> None:
        """Print one line with the time since the start; `at` is that of `time.monotonic`."""
        at = time.monotonic() if at is None else at
        print(f"{at - self.started:6.1f} s  {text}", flush=True)

    def run(self, *arguments: str, code: int = 0, seconds: float = SECONDS_MAX) -> str:
        """Run `fairlead ARGUMENTS` and return its standard output."""
        done = subprocess.run(
            [BIN / "fairlead", *arguments], env=self.environment, cwd=ROOT, text=True,
            capture_output=True, timeout=seconds, check=False,
        )  # fmt: skip
        if done.returncode != code:
            command = " ".join(("fairlead", *arguments))
            raise Failed(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def show(self, *arguments: str) -> None:
        """Run a command for its looks: print it and what it prints."""
        print(f"\n$ fairlead {' '.join(arguments)}")
        print(self.run(*arguments), flush=True)

    def job(self, name: str) -> dict[str, Any]:
        """Return a job as the API has it."""
        found = json.loads(self.run("ps", "--all", "-o", "json"))
        for item in found["items"]:
            if item["metadata"]["name"] == name:
                return item
        raise Failed(f"job {name} is not there")

    def until(self, name: str, what: str, holds: Any) -> dict[str, Any]:
        """Poll a job until `holds(status)`; Failed when it does not come true in time."""
        while time.monotonic() - self.started < SECONDS_MAX:
            job = self.job(name)
            if holds(job.get("status", {})):
                return job
            if job["status"].get("state") in ("Failed", "Cancelled"):
                raise Failed(f"job {name} ended as {job['status']['state']}: {job['status']}")
            time.sleep(0.1)
        raise Failed(f"{what} did not happen within {SECONDS_MAX:.0f} s")


def rank_process(job: str, rank: int) -> int:
    """Return the process id of a rank of the training: the one that runs the training itself."""
    for directory in sorted(Path("/proc").glob("[0-9]*"), reverse=True):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
            environment = (directory / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = f"FAIRLEAD_JOB={job}".encode() in environment
        if (
            mine
            and f"RANK={rank}".encode() in environment
            and command[1:2] == [b"examples/digits/train.py"]
        ):
            return int(directory.name)
    raise Failed(f"rank {rank} of job {job} has no process on this machine")


def left_over(data: Path) -> list[str]:
    """Return the processes that still belong to the demo: those that name its directory."""
    needle = str(data).encode()
    found: list[str] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (
                needle in (directory / "cmdline").read_bytes()
                or needle in (directory / "environ").read_bytes()
            ):
                found.append(directory.name)
        except OSError:
            continue
    return [pid for pid in found if int(pid) != os.getpid()]


def virtual_gangs(cluster: Cluster) -> None:
    """Submit a big gang, then two that each want every node: one runs, the other waits."""
    script = "examples/digits/train.sh"
    cluster.run("submit", script, "--name", "gang", "--nodes", str(GANG), "--gpus", "1",
                "--simulate", "4s")  # fmt: skip
    job = cluster.until("gang", "the gang's placement", lambda s: s.get("placement"))
    places = [node for role in job["status"]["placement"]["roles"] for node in role["nodes"]]
    if len(places) != GANG:
        raise Failed(f"{len(places)} of {GANG} members were placed")
    cluster.say(f"gang: {GANG} members placed on {len(set(places))} virtual nodes, in one write")
    for name, seconds in (("all-a", "8s"), ("all-b", "3s")):
        cluster.run("submit", script, "--name", name, "--nodes", str(NODES), "--gpus", "8",
                    "--simulate", seconds)  # fmt: skip
    cluster.say(f"all-a and all-b: each wants all {NODES} nodes")
    first = cluster.until("all-a", "the start of all-a", lambda s: s.get("state") == "Running")
    second = cluster.job("all-b")
    reason = second["status"].get("verdict", {}).get("reason")
    if first["status"]["members"]["running"] != NODES or second["status"].get("placement"):
        raise Failed("all-a and all-b hold nodes at the same time")
    cluster.say(f"all-a runs on all of them, all-b waits whole: {reason}")
    cluster.show("why", "all-b")


class Loss(threading.Thread):
    """Kills a rank of the training half-way, whatever else is shown meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._told: queue.SimpleQueue[tuple[float, str] | Exception] = queue.SimpleQueue()

    def run(self) -> None:
        """Wait for the step, then kill."""

        def half_way(status: dict[str, Any]) -> bool:
            return (status.get("progress") or {}).get("checkpointStep", 0) >= KILL_AT_STEP

        try:
            job = self._cluster.until("digits", f"step {KILL_AT_STEP}", half_way)
            pid = rank_process("digits", LOST_RANK)
            os.kill(pid, signal.SIGKILL)
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            self._told.put(error)
            return
        step = job["status"]["progress"]["step"]
        text = f"digits: killed the process of rank {LOST_RANK} (pid {pid}) at step {step}"
        self._told.put((time.monotonic(), text))

    def tell(self) -> None:
        """Say what was done and when; raise what kept it from being done."""
        told = self._told.get()
        if isinstance(told, Exception):
            raise told
        self._cluster.say(told[1], at=told[0])


def timeline(job: dict[str, Any]) -> None:
    """Print what happened to the training, from the job's own record."""
    status = job["status"]
    first, second = status["attempts"][0], status["attempts"][1]
    rows = [
        (status.get("submittedAt") or job["metadata"]["creationTimestamp"], "submitted"),
        (first["begunAt"], "placed: 4 members, all at once"),
        (first["startedAt"], "running as attempt 1"),
        (first["finishedAt"], f"member lost: {first['message']} (cause: {first['cause']})"),
        (second["begunAt"], f"restarted as attempt 2 from step {second['resumedFromStep']}"),
        (status["finishedAt"], "succeeded"),
    ]
    print("\nTimeline of digits")
    for at, text in rows:
        print(f"  {at[11:19]}  {text}")


def demo(cluster: Cluster) -> None:
    """Run the whole story."""
    cluster.run("up", "--nodes", str(NODES), "--data", str(cluster.data), "--listen",
                "127.0.0.1:0", "--detach")  # fmt: skip
    cluster.say(f"cluster up: this machine and {NODES} virtual nodes with 8 GPUs each")
    cluster.run("submit", "examples/digits/train.sh", "--name", "digits", "--", "--steps",
                str(STEPS), "--step-seconds", "0.02")  # fmt: skip
    cluster.say("digits: 4 members over MPI submitted")
    cluster.until("digits", "the start of digits", lambda s: s.get("state") == "Running")
    cluster.say("digits: all members run")
    loss = Loss(cluster)
    loss.start()
    virtual_gangs(cluster)
    loss.tell()
    job = cluster.until("digits", "the end of digits", lambda s: s.get("state") == "Succeeded")
    attempts = job["status"]["attempts"]
    if len(attempts) != 2 or attempts[1].get("resumedFromStep", 0) < KILL_AT_STEP:
        raise Failed(f"digits did not restart from its checkpoint: {attempts}")
    cluster.say("digits: succeeded")
    cluster.run("wait", "gang", "all-a", "all-b", "--timeout", "60s")
    cluster.show("ps", "--all")
    timeline(job)
    accuracy = [line for line in cluster.run("logs", "digits").splitlines() if "accuracy" in line]
    if not accuracy or float(accuracy[0].split("accuracy ")[1].split()[0]) < 0.9:
        raise Failed(f"the training did not reach its accuracy: {accuracy}")
    print(f"\nResult:  {accuracy[0].partition('] ')[2] or accuracy[0]}")
    logs = sorted((cluster.data / "logs").rglob("*.log"))
    print(f"Logs:    {logs[0].parent.parent if logs else cluster.data / 'logs'}")


def main() -> int:
    """Run the demo in a directory that stays for a look, and stop all of it again."""
    data = Path(tempfile.gettempdir()) / f"fairlead-demo-{os.getuid()}"
    cluster = Cluster(data)
    if (data / "run.json").exists():  # a demo that was killed, or still runs, has left its cluster
        subprocess.run(
            [BIN / "fairlead", "down", "--data", str(data)], capture_output=True, check=False,
        )  # fmt: skip
    shutil.rmtree(data, ignore_errors=True)
    code = 0
    try:
        demo(cluster)
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"\ndemo failed: {error}", file=sys.stderr)
        log = data / "log" / "fairlead.log"
        if log.exists():
            print(f"\nthe end of {log}:\n{log.read_text()[-4000:]}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("\ninterrupted; stopping the cluster", file=sys.stderr)
        code = 130
    if (data / "kubeconfig").exists():
        subprocess.run(
            [BIN / "fairlead", "down", "--data", str(data)], capture_output=True, check=False,
            env=cluster.environment,
        )  # fmt: skip
    left = left_over(data)
    if left:
        print(f"demo failed: processes are left running: {', '.join(left)}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - cluster.started
    if code == 0:
        print(f"\nDone in {seconds:.0f} s; nothing is left running. Next: .venv/bin/fairlead up")
    return code


if __name__ == "__main__":
    sys.exit(main())
