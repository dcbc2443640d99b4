"""The main job, from submit to finish, on an embedded cluster of its own: what `make demo` runs.

It uses the command line as a person would, and leaves nothing running. Exit code 0 means that
everything shown has really happened: each step checks what it claims.

Each run has a directory of its own, which it locks. The process that it kills is a descendant of
the supervisor that its own cluster recorded in that directory, and is signalled through a process
descriptor, so no process of another cluster or user can be meant. A run removes the directories of
earlier runs that nobody holds any more.
"""

from __future__ import annotations

import argparse
import fcntl
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
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fairlead.api.resources import JOBS
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.connection.transport import Api

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NODES = 200
GANG_PER_NODE = 5
STEPS = 600
KILL_AT_STEP = 300
SECONDS_MAX = 240.0  # for a machine that has other work; about 30 on a quiet one
LOST_RANK = 2
TRAINING = b"examples/digits/train.py"
LOCK_FILE = "demo.lock"


class Failed(Exception):
    """A step did not come out as promised."""


class Cluster:
    """An embedded cluster in a directory of its own, driven through the command line."""

    def __init__(self, data: Path, nodes: int) -> None:
        self.data, self.nodes = data, nodes
        self.started = time.monotonic()
        self._printing = threading.Lock()
        own = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_")}
        self.environment = {
            **own,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FAIRLEAD_KUBECONFIG": str(data / "kubeconfig"),
        }

    def say(self, text: str) -> None:
        """Print one line with the time since the start; lines are in the order of their times."""
        with self._printing:
            print(f"{time.monotonic() - self.started:6.1f} s  {text}", flush=True)

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
        shown = self.run(*arguments)
        with self._printing:
            print(f"\n$ fairlead {' '.join(arguments)}\n{shown}", flush=True)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return all jobs by name, as the API has them at one instant.

        Polled through the API: a command per look is more work than the cluster itself does.
        """
        connection = find_connection(Choice(str(self.data / "kubeconfig")), {})
        with closing(Api(connection, timeout_seconds=SECONDS_MAX)) as api:
            return {item["metadata"]["name"]: item for item in api.list(JOBS.raw)}

    def until(
        self,
        name: str,
        what: str,
        holds: Callable[[dict[str, Any]], bool],
        check: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Poll a job until `holds(status)`; Failed when that takes too long.

        `check` is called with all jobs of each poll.
        """
        while time.monotonic() - self.started < SECONDS_MAX:
            jobs = self.jobs()
            check(jobs)
            job = jobs[name]
            status = job.get("status", {})  # none until the controllers have seen the job
            if holds(status):
                return job
            if status.get("state") in ("Failed", "Cancelled"):
                raise Failed(f"job {name} ended as {status['state']}; {story(job)}")
            time.sleep(0.1)
        raise Failed(f"{what} did not happen within {SECONDS_MAX:.0f} s")


def story(job: dict[str, Any]) -> str:
    """Return the attempts of a job in words."""
    attempts = job.get("status", {}).get("attempts", [])
    told = [f"attempt {a['number']}: {a.get('message') or a.get('reason') or 'goes on'}"
            for a in attempts]  # fmt: skip
    return "; ".join(told) or "it had no attempt"


def kill_rank(data: Path, job: str, rank: int) -> int:
    """Kill the process of a rank of the training in the cluster of `data`; return its number."""
    for pid in sorted(member_processes(data, job, rank), reverse=True):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:  # what is read below is of the process that the descriptor means, while it lives
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if command[1:2] == [TRAINING] and os.fsencode(data) in environment:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return pid
        except (FileNotFoundError, ProcessLookupError):
            continue
        finally:
            os.close(descriptor)
    raise Failed(f"rank {rank} of job {job} has no process in the cluster of {data}")


def member_processes(data: Path, job: str, rank: int) -> set[int]:
    """Return the processes of a member: below the supervisors that the cluster has recorded."""
    found: set[int] = set()
    for record in (data / "local" / "pods").glob("*/pod.json"):
        name = json.loads(record.read_bytes())["name"]
        if not name.startswith(f"{job}-") or not name.endswith(f"-worker-{rank}"):
            continue
        for shim in record.parent.glob("containers/*/*/shim.json"):
            waiting = {int(json.loads(shim.read_bytes())["pid"])}
            while waiting:
                pid = waiting.pop()
                found.add(pid)
                waiting |= children(pid) - found
    return found


def children(pid: int) -> set[int]:
    """Return the processes whose parent this one is."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found |= {int(word) for word in file.read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


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
    script, nodes = "examples/digits/train.sh", cluster.nodes
    members = nodes * GANG_PER_NODE
    cluster.run("submit", script, "--name", "gang", "--nodes", str(members), "--gpus", "1",
                "--simulate", "4s")  # fmt: skip
    job = cluster.until(
        "gang", "the gang's placement",
        lambda s: bool(s.get("placement")) or s.get("state") == "Succeeded",
    )["status"]  # fmt: skip
    places = [node for role in job.get("placement", {}).get("roles", ()) for node in role["nodes"]]
    placed = len(places) or job["members"]["succeeded"]  # a slow machine sees only the end
    if placed != members:
        raise Failed(f"{placed} of {members} members were placed")
    where = f"on {len(set(places))} virtual nodes" if places else "and ended"
    cluster.say(f"gang: {members} members placed {where}, in one write")
    for name, seconds in (("all-a", "10s"), ("all-b", "3s")):
        cluster.run("submit", script, "--name", name, "--nodes", str(nodes), "--gpus", "8",
                    "--simulate", seconds, "--hold")  # fmt: skip
    cluster.run("release", "all-a", "all-b")
    cluster.say(f"all-a and all-b: each wants all {nodes} nodes")
    reasons: list[str] = []

    def one_at_a_time(jobs: dict[str, dict[str, Any]]) -> None:
        verdict = jobs["all-b"].get("status", {}).get("verdict")
        if verdict and verdict["outcome"] == "Waiting":
            reasons.append(verdict["reason"])
        if all(jobs[name].get("status", {}).get("placement") for name in ("all-a", "all-b")):
            raise Failed("all-a and all-b hold nodes at the same time")

    def is_settled(status: dict[str, Any]) -> bool:
        all_run = status.get("members", {}).get("running") == nodes
        return (all_run and bool(reasons)) or status.get("state") == "Succeeded"

    cluster.until("all-a", "the start of all of all-a", is_settled, one_at_a_time)
    if reasons:
        cluster.say(f"all-a runs on all of them, all-b waits whole: {reasons[-1]}")
    cluster.show("why", "all-b")


class Loss(threading.Thread):
    """Kills a rank of the training half-way, whatever else is shown meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Wait for the step, then kill."""

        def half_way(status: dict[str, Any]) -> bool:
            return (status.get("progress") or {}).get("checkpointStep", 0) >= KILL_AT_STEP

        try:
            job = self._cluster.until("digits", f"step {KILL_AT_STEP}", half_way)
            pid = kill_rank(self._cluster.data, "digits", LOST_RANK)
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            self._outcome.put(error)
            return
        step = job["status"]["progress"]["step"]
        rank = f"rank {LOST_RANK} (pid {pid})"
        self._cluster.say(f"digits: killed the process of {rank} at step {step}")
        self._outcome.put(None)

    def check(self) -> None:
        """Wait until the process was killed; raise what kept it from being killed."""
        error = self._outcome.get()
        if error is not None:
            raise error


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
    cluster.run("up", "--nodes", str(cluster.nodes), "--data", str(cluster.data), "--listen",
                "127.0.0.1:0", "--detach")  # fmt: skip
    cluster.say(f"cluster up: this machine and {cluster.nodes} virtual nodes with 8 GPUs each")
    cluster.run("submit", "examples/digits/train.sh", "--name", "digits", "--", "--steps",
                str(STEPS), "--step-seconds", "0.02")  # fmt: skip
    cluster.say("digits: 4 members over MPI submitted")
    cluster.until("digits", "the start of digits", lambda s: s.get("state") == "Running")
    cluster.say("digits: all members run")
    loss = Loss(cluster)
    loss.start()
    virtual_gangs(cluster)
    loss.check()
    job = cluster.until("digits", "the end of digits", lambda s: s.get("state") == "Succeeded")
    attempts = job["status"]["attempts"]
    if len(attempts) != 2 or attempts[1].get("resumedFromStep", 0) < KILL_AT_STEP:
        raise Failed(f"digits did not restart once, from its checkpoint; {story(job)}")
    cluster.say("digits: succeeded")
    cluster.run("wait", "gang", "all-a", "all-b", "--timeout", "120s")
    jobs = cluster.jobs()
    first, second = (jobs[name]["status"] for name in ("all-a", "all-b"))
    if second["attempts"][0]["begunAt"] < first["finishedAt"]:
        raise Failed("all-b began before all-a had ended")
    cluster.say("all-b: began when all-a had ended, not before")
    cluster.show("ps", "--all")
    timeline(job)
    accuracy = [line for line in cluster.run("logs", "digits").splitlines() if "accuracy" in line]
    if not accuracy or float(accuracy[0].split("accuracy ")[1].split()[0]) < 0.9:
        raise Failed(f"the training did not reach its accuracy: {accuracy or 'none was logged'}")
    print(f"\nResult:  {accuracy[0].partition('] ')[2] or accuracy[0]}")
    logs = sorted((cluster.data / "logs").rglob("*.log"))
    print(f"Logs:    {logs[0].parent.parent if logs else cluster.data / 'logs'}")


@contextmanager
def own_directory() -> Generator[Path]:
    """Give a new directory, locked for the length of the block; it stays for a look."""
    prefix = f"fairlead-demo-{os.getuid()}-"
    base = Path(tempfile.gettempdir()).resolve()
    for old in base.glob(f"{prefix}*"):
        remove_unused(old)
    data = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    with (data / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield data


def remove_unused(data: Path) -> None:
    """Remove the directory of an earlier run, and stop its cluster, unless a demo holds it."""
    try:
        if data.stat().st_uid != os.getuid():
            return
        with (data / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stop(data):
                shutil.rmtree(data, ignore_errors=True)
    except (FileNotFoundError, NotADirectoryError, PermissionError, BlockingIOError):
        return  # being made, being removed, or in use


def stop(data: Path) -> bool:
    """Stop the cluster of this directory, if it has one; False when it did not stop."""
    if not (data / "run.json").exists():
        return True
    done = subprocess.run(
        [BIN / "fairlead", "down", "--data", str(data)], capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def main() -> int:
    """Run the demo in a directory of its own, and stop all of it again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=NODES, help=f"virtual nodes ({NODES})")
    nodes = parser.parse_args().nodes
    with own_directory() as data:
        return run(Cluster(data, nodes))


def run(cluster: Cluster) -> int:
    """Run the demo on its cluster and return the exit code; nothing is left running."""
    data, code = cluster.data, 0
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
    stop(data)
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
