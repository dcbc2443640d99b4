"""What `make demo-cluster` shows: an MPI job in real containers on several nodes loses a member
and comes back from its checkpoint. Each step checks what it claims.
"""

from __future__ import annotations

import os
from typing import Any

from tools.cluster.cluster import Cluster, FailedError, Say
from tools.cluster.images import version
from tools.cluster.jobs import Client

JOB = "digits"
STEPS, KILL_AT_STEP = 600, 300
LOST_RANK = 1
PROGRAM = "examples/digits/train.py"
ACCURACY_MIN = 0.9
#: Thousandths of the CPUs of a node that a member asks for: too much for two on one node.
SHARE = 550


def demo(cluster: Cluster, say: Say) -> None:
    """Run the job, kill a member half-way, and print what happened; FailedError if it did not."""
    client, members = Client(cluster), cluster.layout.size
    cpus = f"{SHARE * (os.cpu_count() or 1)}m"
    client.run(
        "submit", "examples/digits/train.sh", "--name", JOB, "--nodes", str(members),
        "--image", f"fairlead-examples:{version()}", "--chdir", "/work", "--cpus", cpus,
        "--memory", "256Mi", "--", "--steps", str(STEPS), "--step-seconds", "0.02",
    )  # fmt: skip
    say(f"{JOB}: {members} members over MPI submitted")
    job = client.until_state(JOB, "Running", "Failed")
    nodes = sorted({name for role in job["status"]["placement"]["roles"] for name in role["nodes"]})
    say(f"{JOB}: all members run, in containers on {', '.join(nodes)}")

    def half_way(_: dict[str, Any]) -> bool:
        return f"step {KILL_AT_STEP} " in client.run("logs", JOB, code=None)

    client.until(JOB, f"step {KILL_AT_STEP}", half_way)
    pid = client.kill(JOB, LOST_RANK, PROGRAM)
    say(f"{JOB}: killed the process of rank {LOST_RANK} (pid {pid} of this machine)")
    job = client.until_state(JOB, "Succeeded", "Failed")
    attempts = job["status"]["attempts"]
    logs = client.run("logs", JOB)
    resumed = [line for line in logs.splitlines() if "resumed from the checkpoint" in line]
    if len(attempts) != 2 or not resumed:
        raise FailedError(f"{JOB} did not restart once, from its checkpoint: {attempts}\n{logs}")
    say(f"{JOB}: succeeded")
    _timeline(job, nodes, int(resumed[0].split()[-1]))
    accuracy = [line for line in logs.splitlines() if "accuracy" in line]
    if not accuracy or float(accuracy[0].split("accuracy ")[1].split()[0]) < ACCURACY_MIN:
        raise FailedError(f"the training did not reach its accuracy: {accuracy}")
    print(f"\nResult:  {accuracy[0].partition('] ')[2] or accuracy[0]}\n", flush=True)


def _timeline(job: dict[str, Any], nodes: list[str], step: int) -> None:
    first, second = job["status"]["attempts"]
    members = sum(role["count"] for role in job["spec"]["roles"])
    rows = [
        (job["metadata"]["creationTimestamp"], "submitted"),
        (first["begunAt"], f"placed: {members} members on {len(nodes)} nodes, all at once"),
        (first["startedAt"], "running as attempt 1"),
        (first["finishedAt"], f"member lost: {first['message']} (cause: {first['cause']})"),
        (second["begunAt"], "placed as attempt 2"),
        (second["startedAt"], f"running again, from the checkpoint of step {step}"),
        (job["status"]["finishedAt"], "succeeded"),
    ]
    print(f"\nTimeline of {JOB}")
    for at, text in rows:
        print(f"  {at[11:19]}  {text}")
