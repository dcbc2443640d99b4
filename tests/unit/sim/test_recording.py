"""A recording of a cluster: what jobs and nodes say becomes a scenario that runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.sim.scenarios.recording import record, write_recording
from fairlead.sim.scenarios.run import load_of, outages_of
from fairlead.sim.scenarios.scenario import (
    ClusterSpec,
    FaultProfile,
    Scenario,
    ScenarioError,
    check_scenario,
    faults_of,
    load_scenario,
)
from fairlead.sim.traces.readers import read_trace

#: 2026-01-01T01:00:00Z
NOW = 1_767_229_200.0


def node(name: str, gpus: int = 8) -> Node:
    held = {"cpu": "96", "memory": "1Ti", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return msgspec.convert({"metadata": {"name": name}, "status": {"allocatable": held}}, Node)


def job(name: str, minute: int, state: str, *attempts: dict[str, object], gpus: int = 8) -> Job:
    container = {
        "name": "main",
        "resources": {
            "limits": {"nvidia.com/gpu": str(gpus), "cpu": "4"},
            "requests": {"cpu": "2"},
        },
    }
    role = {"name": "worker", "count": 2, "template": {"spec": {"containers": [container]}}}
    return msgspec.convert(
        {
            "metadata": {
                "name": name, "namespace": "default",
                "creationTimestamp": f"2026-01-01T00:{minute:02d}:00Z",
            },
            "spec": {"roles": [role]},
            "status": {"state": state, "attempts": list(attempts)},
        },
        Job,
    )  # fmt: skip


def attempt(number: int, start: int, end: int | None, **more: object) -> dict[str, object]:
    ends = {} if end is None else {"finishedAt": f"2026-01-01T00:{end:02d}:00Z"}
    return {"number": number, "startedAt": f"2026-01-01T00:{start:02d}:00Z", **ends, **more}


JOBS = (
    job("done", 1, "Succeeded", attempt(1, 2, 12)),
    job("bug", 3, "Failed", attempt(1, 4, 5, cause="User")),
    job("moved", 6, "Succeeded", attempt(1, 7, 20, cause="Node", nodesLost=["n1"]),
        attempt(2, 21, 41)),
    job("runs", 30, "Running", attempt(1, 31, None)),
    job("waits", 40, "Waiting"),
)  # fmt: skip


def test_jobs_nodes_and_failures_become_a_scenario_that_reads_back(tmp_path: Path) -> None:
    nodes = [node("n0"), node("n1"), node("n2", gpus=4), node("cpu-only", gpus=0)]
    recording = record(reversed(JOBS), nodes, now=NOW)
    write_recording(recording, tmp_path)
    scenario = load_scenario(tmp_path / "scenario.yaml")
    assert (scenario.cluster.nodes, scenario.cluster.gpus) == (3, 8)
    profile = faults_of(scenario)
    assert [(f.at_seconds, f.node) for f in profile.node_failures] == [(19 * 60.0, 1)]
    trace = read_trace(tmp_path / "jobs.csv")
    assert trace.jobs == recording.trace.jobs
    assert [(j.name, j.at_seconds, j.run_seconds, j.fails) for j in trace.jobs] == [
        ("done", 0.0, 600.0, False), ("bug", 120.0, 60.0, True),
        ("moved", 300.0, 1200.0, False), ("runs", 1740.0, 1740.0, False),
    ]  # fmt: skip
    assert {(j.members, j.gpus, j.cpu_milli) for j in trace.jobs} == {(2, 8, 2000)}
    said = " ".join(trace_line for trace_line in recording.trace.assumptions)
    for part in ("1 jobs that have not run", "1 jobs run still", "1 nodes without GPUs", "all 3"):
        assert part in said
    arrivals, _, _ = load_of(scenario, profile)
    annotations = [
        a.body["spec"]["roles"][0]["template"]["metadata"]["annotations"] for a in arrivals
    ]
    assert [len(found) for found in annotations] == [1, 2, 1, 1]  # one has an exit code


def test_a_job_that_its_nodes_failed_does_not_fail_by_itself() -> None:
    lost = job("lost", 1, "Failed", attempt(1, 2, 12, cause="Node", nodesLost=["n0"]))
    (traced,) = record([lost], [node("n0")], now=NOW).trace.jobs
    assert not traced.fails


def test_a_cluster_without_nodes_or_without_a_job_that_ran_cannot_be_recorded() -> None:
    with pytest.raises(ScenarioError, match="no node"):
        record(JOBS, [], now=NOW)
    with pytest.raises(ScenarioError, match="no job that has run"):
        record(JOBS[4:], [node("n0")], now=NOW)


def test_racks_and_switches_are_lost_as_a_whole_and_equal_seeds_lose_the_same() -> None:
    cluster = ClusterSpec(nodes=70, nodes_per_rack=8, racks_per_block=4)
    faults = FaultProfile(
        name="", rack_failures_per_1000_rack_days=500.0, switch_failures_per_1000_switch_days=500.0
    )
    scenario = Scenario(cluster=cluster, faults=faults, seed=3)
    outages = outages_of(scenario, faults, 30 * 86_400.0)
    assert outages == outages_of(scenario, faults, 30 * 86_400.0)
    sizes = {len(outage.nodes) for outage in outages}
    assert sizes == {8, 32, 6}  # racks, switches; the last of each is not full
    assert all(outage.nodes.start % 8 == 0 for outage in outages)
    assert [o.at_seconds for o in outages] == sorted(o.at_seconds for o in outages)
    racks = sum(len(outage.nodes) == 8 for outage in outages)
    assert racks == pytest.approx(9 * 0.5 * 30, rel=0.3)


def test_a_failure_of_a_node_that_is_not_there_is_a_mistake() -> None:
    faults = {"name": "f", "nodeFailures": [{"atSeconds": 5.0, "node": 9}]}
    scenario = Scenario(cluster=ClusterSpec(nodes=4), faults=msgspec.convert(faults, FaultProfile))
    with pytest.raises(ScenarioError, match=r"nodeFailures\[0\].node: 9; accepted: 0 to 3"):
        check_scenario(scenario, "it")
