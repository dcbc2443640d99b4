"""What an array adds to its elements: programs of one line, and jobs on virtual nodes.

Beside each, in the same run, what it cannot do without: the same programs started one after
another by a loop, and the same jobs created one after another without anything that runs them. Of
the latter the CPU time of the cluster is compared, its threads included: it stands still for
nobody else on the machine. How many writes an element takes is a count.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from bench.cluster import JOBS, Cluster, cluster, wait_until
from bench.harness import Report, cpu_slowness
from bench.objects import encoded, gang_body
from bench.processes import cpu_seconds

PROGRAMS, ELEMENTS, NODES = 200, 1_000, 200
WAIT_SECONDS_MAX = 600
ARRAYS = JOBS.removesuffix("jobs") + "jobarrays"
_LINE = "#!/bin/bash\necho $SLURM_ARRAY_TASK_ID\n"


def run(report: Report) -> None:
    """Run both arrays, each beside its bare loop."""
    with cluster() as made:
        made.up()
        report.add("arrays.programs", _programs(made), "x a loop")
    with cluster() as made:
        made.up("--nodes", str(NODES))
        _elements(made, report)


def _programs(made: Cluster) -> float:
    script, config = made.root / "line.sh", ("--kubeconfig", str(made.data / "kubeconfig"))
    script.write_text(_LINE)
    begun = time.perf_counter()
    for _ in range(PROGRAMS):
        subprocess.run(["/bin/bash", str(script)], check=True, stdout=subprocess.DEVNULL)
    bare = time.perf_counter() - begun
    indices = f"0-{PROGRAMS - 1}"
    made.fairlead("submit", str(script), "--name", "lines", "--array", indices, "--cpus", "100m",
                  *config)  # fmt: skip
    taken = _wait(made, "lines")
    print(f"  {PROGRAMS} programs: {bare:.2f} s by a loop, {taken:.2f} s as an array", flush=True)
    return taken / bare


def _elements(made: Cluster, report: Report) -> None:
    held = [gang_body(f"raw-{i}", 1) for i in range(ELEMENTS)]
    bodies = [encoded({**body, "spec": {**body["spec"], "suspend": True}}) for body in held]
    begun, before = time.perf_counter(), cpu_seconds(made.pid)
    for body in bodies:
        made.call("POST", JOBS, body)
    bare, bare_cpu = time.perf_counter() - begun, cpu_seconds(made.pid) - before
    template = gang_body("x", 1, run_seconds=1)["spec"]
    spec = {"indices": f"0-{ELEMENTS - 1}", "template": template}
    array = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "JobArray",
             "metadata": {"name": "sweep"}, "spec": spec}  # fmt: skip
    before, version = cpu_seconds(made.pid), _version(made)
    made.call("POST", ARRAYS, json.dumps(array).encode())
    taken = _wait(made, "sweep")
    cpu, writes = cpu_seconds(made.pid) - before, _version(made) - version
    print(f"  {ELEMENTS} elements: {bare:.2f} s for creates, {taken:.2f} s as an array", flush=True)
    report.add("arrays.elements", cpu / bare_cpu, "x creates, CPU")
    report.add("arrays.element", cpu / ELEMENTS / cpu_slowness() * 1e3, "ms CPU")
    report.add("arrays.writes", writes / ELEMENTS, "writes")


def _version(made: Cluster) -> int:
    """Return the version of the cluster's last write."""
    return int(made.call("GET", f"{JOBS}?limit=1")["metadata"]["resourceVersion"])


def _wait(made: Cluster, name: str) -> float:
    """Wait for the end of an array that was just made; return how long that took, in seconds."""
    begun = time.perf_counter()

    def status() -> Any:
        return made.call("GET", f"{ARRAYS}/{name}").get("status", {})

    wait_until(lambda: "finishedAt" in status(), seconds=WAIT_SECONDS_MAX, look_seconds=0.2)
    assert status()["state"] == "Succeeded", status()
    return time.perf_counter() - begun
