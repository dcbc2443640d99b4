"""What an array adds to its elements: programs of one line, and jobs on virtual nodes.

Beside each, in the same run, what it cannot do without: the same programs started one after
another by a loop, and the same jobs created without anything that runs them. Of the latter the CPU
time of the cluster is compared, its threads included, until it is at rest. As an array does, as
many are created at a time as come: a job that is created alone costs what waking each controller
costs, 5 ms where 32 at once are 1 to 2 ms each, and how many come together over one connection
depends on what else the machine does. How many writes an element takes is a count. What the start
alone of an element costs is measured on elements that go on: the CPU time until their pods run, by
which a core could start so many in a second. And arrays of 1,000,000 that are held are created,
once all that is to be written of those elements has been; how soon they are answered is measured in
turns with arrays of ten.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from typing import Any

from bench.cluster import JOBS, PODS, Cluster, cluster, wait_until
from bench.harness import Report, cpu_slowness, slowness
from bench.objects import encoded, gang_body
from bench.processes import cpu_seconds, cpu_seconds_at_rest

PROGRAMS, ELEMENTS, NODES = 200, 1_000, 200
CREATED_AT_ONCE, HELD, ANSWERS = 32, 5, 20
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
        _starts(made, report)
        _million(made, report)
        _answers(made, report)


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
    before, begun = cpu_seconds_at_rest(made.pid), time.perf_counter()
    made.post_all(JOBS, bodies, at_once=CREATED_AT_ONCE)
    bare, after = time.perf_counter() - begun, cpu_seconds_at_rest(made.pid)
    bare_cpu, version = after - before, _version(made)
    _create(made, "sweep", run_seconds=1, elements=ELEMENTS)
    taken = _wait(made, "sweep")
    cpu, writes = cpu_seconds_at_rest(made.pid) - after, _version(made) - version
    print(f"  {ELEMENTS} elements: {bare:.2f} s for creates, {taken:.2f} s as an array", flush=True)
    report.add("arrays.elements", cpu / bare_cpu, "x creates, CPU")
    report.add("arrays.element", cpu / ELEMENTS / cpu_slowness() * 1e3, "ms CPU")
    report.add("arrays.writes", writes / ELEMENTS, "writes")


def _starts(made: Cluster, report: Report) -> None:
    """Start elements that go on, all at once: the nodes have room for them."""
    begun, before = time.perf_counter(), cpu_seconds(made.pid)
    _create(made, "going", run_seconds=86_400, elements=ELEMENTS)

    def all_run() -> bool:
        counts = made.call("GET", f"{ARRAYS}/going").get("status", {}).get("elements", {})
        if counts.get("running", 0) < ELEMENTS:
            return False
        pods = made.call("GET", PODS)["items"]  # asked for once or twice: the list is long
        return sum(pod["status"].get("phase") == "Running" for pod in pods) == ELEMENTS

    wait_until(all_run, seconds=WAIT_SECONDS_MAX, look_seconds=0.2)
    cpu, taken = cpu_seconds(made.pid) - before, time.perf_counter() - begun
    print(f"  {ELEMENTS} starts: {taken:.2f} s", flush=True)
    report.add("arrays.start", cpu / ELEMENTS / cpu_slowness() * 1e3, "ms CPU")


def _million(made: Cluster, report: Report) -> None:
    """Create arrays of 1,000,000 elements that are held: each is one object, and nothing else.

    The elements that go on are written as running first, 2 s after their starts.
    """
    wait_until(lambda: made.running_jobs() == ELEMENTS, seconds=WAIT_SECONDS_MAX, look_seconds=0.5)
    jobs, before = made.count(JOBS), cpu_seconds_at_rest(made.pid)
    held = ("Held", 1_000_000)

    def found(name: str) -> tuple[str, int]:
        status = made.call("GET", f"{ARRAYS}/{name}").get("status", {})
        return status.get("state", ""), status.get("elements", {}).get("total", 0)

    for name in [f"million-{i}" for i in range(HELD)]:
        _create(made, name, run_seconds=1, elements=1_000_000, suspend=True)
        wait_until(
            lambda name=name: found(name) == held, seconds=WAIT_SECONDS_MAX, look_seconds=0.2
        )
    cpu = cpu_seconds_at_rest(made.pid) - before
    assert made.count(JOBS) == jobs, "an element became a job"
    report.add("arrays.million", cpu / HELD / cpu_slowness() * 1e3, "ms CPU")


def _answers(made: Cluster, report: Report) -> None:
    """Report how long a submission of 1,000,000 elements is answered after, beside one of ten."""
    answered: dict[int, list[float]] = {10: [], 1_000_000: []}
    for number in range(ANSWERS):
        for elements, taken in answered.items():
            begun, name = time.perf_counter(), f"answer-{elements}-{number}"
            _create(made, name, run_seconds=1, elements=elements, suspend=True)
            taken.append(time.perf_counter() - begun)
    few, million = map(statistics.median, answered.values())
    report.add("arrays.answer_ratio", million / few, "x ten")
    report.add("arrays.answer", million / slowness() * 1e3, "ms")


def _create(
    made: Cluster, name: str, *, run_seconds: int, elements: int, suspend: bool = False
) -> None:
    template = gang_body("x", 1, run_seconds=run_seconds)["spec"]
    spec = {"indices": f"0-{elements - 1}", "suspend": suspend, "template": template}
    array = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "JobArray",
             "metadata": {"name": name}, "spec": spec}  # fmt: skip
    made.call("POST", ARRAYS, json.dumps(array).encode())


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
