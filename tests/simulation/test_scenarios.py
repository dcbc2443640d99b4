"""Scenario runs: the figures agree with a bare model, runs repeat, and stop with a valid report."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from bench.bare_queue import BareJob, bare_waits
from msgspec.structs import replace

from fairlead.cli.main import guarded
from fairlead.sim.scenarios.recorder import RunRecorder
from fairlead.sim.scenarios.report import figure_rows, render_report
from fairlead.sim.scenarios.run import (
    RunProgress,
    RunResult,
    ScenarioRun,
    load_of,
    team_changes_of,
    write_results,
)
from fairlead.sim.scenarios.scenario import (
    CloudSpec,
    ClusterSpec,
    FaultProfile,
    LoadSpec,
    NodeFailure,
    PoolSpec,
    Scenario,
    ScenarioError,
    TenantTeams,
    check_scenario,
    fault_profiles,
    faults_of,
    load_scenario,
)

GPUS = 32
GOLDEN = Path(__file__).parents[1] / "golden" / "data"
EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"


def crowded_load(count: int, seed: int) -> list[BareJob]:
    """Jobs that want about 1.3 times what 32 GPUs give, so that a queue builds up."""
    rng = random.Random(seed)
    at, jobs = 0.0, []
    for _ in range(count):
        at += rng.expovariate(1 / 120)
        gpus = rng.choice((1, 1, 1, 2, 4, 8, 8, 16))
        jobs.append(BareJob(round(at, 3), round(rng.uniform(100, 1600), 3), gpus))
    return jobs


def written(jobs: list[BareJob], path: Path, *, have_limits: bool = False) -> Path:
    limit = ",limit_seconds" if have_limits else ""
    rows = [f"submit_seconds,run_seconds,members,gpus,name{limit}"]
    for i, job in enumerate(jobs):
        row = f"{job.at},{job.run_seconds},1,{job.gpus},job-{i}"
        rows.append(f"{row},{job.run_seconds}" if have_limits else row)
    path.write_text("\n".join(rows) + "\n")
    return path


def ideal(trace: Path, **changes: Any) -> Scenario:
    scenario = Scenario(
        cluster=ClusterSpec(nodes=1, gpus=GPUS),
        load=LoadSpec(trace=str(trace)),
        policy="fifo",
        ideal=True,
    )
    return replace(scenario, **changes)


def run(scenario: Scenario) -> RunResult:
    return ScenarioRun(scenario).run()


@pytest.fixture(scope="module")
def in_order(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """A trace of 100 jobs that build up a queue, and how it runs in strict order."""
    path = tmp_path_factory.mktemp("in_order") / "jobs.csv"
    trace = written(crowded_load(100, 3), path, have_limits=True)
    return trace, run(ideal(trace))


def test_strict_order_on_one_pool_waits_as_long_as_the_bare_model(tmp_path: Path) -> None:
    jobs = crowded_load(150, 1)
    expected = bare_waits(jobs, GPUS, backfills=False)
    result = run(ideal(written(jobs, tmp_path / "jobs.csv")))
    by_number = sorted(result.recorder.jobs.values(), key=lambda r: int(r.name.rsplit("-", 1)[1]))
    found = [record.wait_seconds for record in by_number]
    assert statistics.fmean(expected) > 600, "the load must build up a queue"
    assert all(
        wait is not None and wait >= bare - 1e-3 for wait, bare in zip(found, expected, strict=True)
    )
    assert result.summary.wait_mean_seconds == pytest.approx(statistics.fmean(expected), rel=0.01)
    p95 = sorted(expected)[int(0.95 * len(expected)) - 1]
    assert result.summary.wait_p95_seconds == pytest.approx(p95, rel=0.05)
    work = sum(job.gpus * job.run_seconds for job in jobs)
    end = max(w + j.at + j.run_seconds for w, j in zip(expected, jobs, strict=True))
    assert result.summary.utilization == pytest.approx(work / (end * GPUS), rel=0.02)


def test_backfill_on_one_pool_waits_as_long_as_the_bare_model(tmp_path: Path) -> None:
    """EASY with exact time limits, which are in whole seconds."""
    jobs = [
        BareJob(round(job.at), round(job.run_seconds), job.gpus) for job in crowded_load(200, 3)
    ]
    strict, expected = (
        statistics.fmean(bare_waits(jobs, GPUS, backfills=backfills)) for backfills in (False, True)
    )
    assert expected < 0.8 * strict, "the load must let jobs pass"
    result = run(ideal(written(jobs, tmp_path / "jobs.csv", have_limits=True), policy="easy"))
    assert result.summary.wait_mean_seconds == pytest.approx(expected, rel=1e-3)


def test_conservative_backfill_lets_fewer_jobs_pass_than_easy(
    in_order: tuple[Path, RunResult],
) -> None:
    trace, strict = in_order
    conservative, easy = (run(ideal(trace, policy=policy)) for policy in ("conservative", "easy"))

    def passed(result: RunResult) -> int:
        """Return how many pairs of jobs do not start in order of arrival."""
        starts = {
            int(record.name.rsplit("-", 1)[1]): record.submitted + (record.wait_seconds or 0.0)
            for record in result.recorder.jobs.values()
        }
        return sum(starts[late] < starts[early] for late in range(100) for early in range(late))

    assert all(each.summary.finished == 100 for each in (strict, conservative, easy))
    assert passed(strict) == 0 < passed(conservative) < passed(easy)


def test_a_policy_that_lets_small_jobs_pass_waits_less_than_strict_order(
    in_order: tuple[Path, RunResult],
) -> None:
    trace, strict = in_order
    greedy = run(ideal(trace, policy="greedy"))
    assert strict.summary.wait_mean_seconds is not None
    assert greedy.summary.wait_mean_seconds is not None
    assert greedy.summary.wait_mean_seconds < strict.summary.wait_mean_seconds


def test_equal_scenarios_give_equal_hashes_and_other_seeds_other_ones() -> None:
    faults = FaultProfile(name="f", node_failures_per_1000_node_days=3000, repair_sigma=1.0)
    scenario = Scenario(
        cluster=ClusterSpec(nodes=10), load=LoadSpec(days=0.1, jobs_per_day=200, members_max=4),
        faults=faults,
    )  # fmt: skip
    first, second = run(scenario), run(scenario)
    assert first.summary.node_failures > 0
    assert first.summary.log_hash == second.summary.log_hash
    assert first.recorder.jobs == second.recorder.jobs
    other = Scenario(cluster=scenario.cluster, load=scenario.load, faults=faults, seed=1)
    assert run(other).summary.log_hash != first.summary.log_hash


def test_lost_work_is_attributed_to_its_cause() -> None:
    faults = FaultProfile(
        name="f", node_failures_per_1000_node_days=40_000, repair_seconds_median=600
    )
    scenario = Scenario(
        cluster=ClusterSpec(nodes=6),
        load=LoadSpec(days=0.15, jobs_per_day=150, run_seconds_median=3000, members_max=2),
        faults=faults,
    )  # fmt: skip
    summary = run(scenario).summary
    assert summary.finished == summary.jobs
    assert summary.lost_gpu_seconds > 0
    assert summary.attempts > summary.jobs
    # Jobs of the load that come with a high priority preempt others.
    causes = summary.lost_gpu_seconds_by_cause
    assert {"Node"} <= set(causes) <= {"Node", "Infrastructure", "Preempted"}
    assert causes["Node"] > causes["Preempted"] > 0
    assert sum(causes.values()) == pytest.approx(summary.lost_gpu_seconds, abs=summary.attempts)
    lost, _, shown = dict(figure_rows(summary))["Lost GPU hours"].partition(": ")
    assert lost == f"{summary.lost_gpu_seconds / 3600:,.0f}"
    assert shown.startswith(f"{causes['Node'] / 3600:,.0f} Node, ")


def test_hardware_that_fails_or_is_slow_costs_time_and_the_report_says_how_often() -> None:
    scenario = Scenario(
        cluster=ClusterSpec(nodes=6),
        load=LoadSpec(days=0.15, jobs_per_day=150, run_seconds_median=1000, members_max=2),
    )
    faults = FaultProfile(
        name="f", gpu_faults_per_1000_node_days=20_000, gpu_repair_seconds_median=600,
        slowdowns_per_1000_node_days=20_000, slow_seconds_median=600, storage_stalls_per_day=50,
    )  # fmt: skip
    calm, rough = run(scenario).summary, run(replace(scenario, faults=faults)).summary
    assert rough.finished == rough.jobs == calm.jobs
    assert min(rough.gpu_faults, rough.slowdowns, rough.stalls) > 3
    assert (calm.gpu_faults, calm.slowdowns, calm.stalls) == (0, 0, 0)
    assert rough.attempts > calm.attempts
    assert rough.lost_gpu_seconds_by_cause["User"] > 0
    rows, names = dict(figure_rows(rough)), ("GPU faults", "Slow nodes", "Storage stalls")
    assert [rows[name] for name in names] == [
        str(count) for count in (rough.gpu_faults, rough.slowdowns, rough.stalls)
    ]
    assert not dict(figure_rows(calm)).keys() & set(names)
    slow = replace(faults, gpu_faults_per_1000_node_days=0.0)
    only_slow = run(replace(scenario, faults=slow)).summary
    assert only_slow.attempts == calm.attempts
    assert only_slow.jct_mean_seconds is not None
    assert calm.jct_mean_seconds is not None
    assert only_slow.jct_mean_seconds > calm.jct_mean_seconds * 1.2


def test_a_run_that_is_stopped_early_leaves_a_report_that_says_so(tmp_path: Path) -> None:
    runs: list[ScenarioRun] = []
    shown: list[RunProgress] = []

    def stop_soon(progress: RunProgress) -> None:
        shown.append(progress)

    run_ = ScenarioRun(
        ideal(written(crowded_load(60, 3), tmp_path / "jobs.csv")), stop_soon, until=10_000.0
    )
    runs.append(run_)
    result = run_.run()
    assert not result.summary.is_complete
    assert result.summary.finished < 60
    busy, offered = result.recorder.busy_gpu_seconds, result.recorder.capacity_gpu_seconds
    assert result.summary.utilization == pytest.approx(busy / offered)
    assert shown[-1].is_over
    write_results(result, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "stopped early" in page
    assert page.count("<svg") == page.count("</svg>") >= 5
    assert "http" not in page.split("</style>")[1], "the page loads nothing from elsewhere"


def test_the_command_runs_a_trace_replays_it_and_tells_one_jobs_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = written(crowded_load(25, 4), tmp_path / "jobs.csv")
    out = tmp_path / "out"
    flags = ["--nodes", "1", "--gpus", str(GPUS), "--policy", "fifo", "--ideal", "--out", str(out)]
    assert guarded(["sim", "run", "--trace", str(trace), *flags]) == 0
    assert "Wait, mean" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        "report.html", "summary.json", "jobs.csv", "samples.csv", "scenario.json",
    }  # fmt: skip
    rows = (out / "jobs.csv").read_text().splitlines()
    assert len(rows) == 26
    assert guarded(["sim", "replay", str(out)]) == 0
    assert "same log hash" in capsys.readouterr().err
    name = rows[3].split(",")[0]
    assert guarded(["sim", "replay", str(out), "--trace-job", name]) == 0
    story = capsys.readouterr().out
    assert "Succeeded" in story
    assert f"pod {name}" in story
    assert guarded(["sim", "compare", str(out), str(out)]) == 0
    assert "wait, mean" in capsys.readouterr().out


def test_a_scenario_takes_a_profile_that_was_imported_from_kwok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods start after the delays of the file's stages, and run as long as the trace says."""
    written([BareJob(0.0, 600.0, 1)], tmp_path / "jobs.csv")
    delay = "delay: {durationMilliseconds: 45000}"
    text = (GOLDEN / "kwok" / "fast.yaml").read_text().replace("next:", f"{delay}\n  next:", 1)
    (tmp_path / "stages.yaml").write_text(text)
    assert (
        guarded(["sim", "import", str(tmp_path / "stages.yaml"), str(tmp_path / "life.yaml")]) == 0
    )
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("cluster: {nodes: 1}\nload: {trace: jobs.csv}\nprofile: life.yaml\n")
    out = tmp_path / "out"
    assert guarded(["sim", "run", str(scenario), "--out", str(out)]) == 0
    figures = json.loads((out / "summary.json").read_text())
    assert 645 <= figures["jct_mean_seconds"] < 650
    assert guarded(["sim", "replay", str(out)]) == 0
    assert "same log hash" in capsys.readouterr().err
    with pytest.raises(ScenarioError, match="only without ideal"):
        check_scenario(Scenario(profile="flaky", ideal=True), "s")


def test_an_import_never_overwrites_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written([BareJob(0.0, 60.0, 8)], tmp_path / "jobs.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "jobs.csv")
    before = (tmp_path / "jobs.csv").read_bytes()
    for target in ("jobs.csv", "link.csv"):
        assert guarded(["sim", "import", str(tmp_path / "jobs.csv"), str(tmp_path / target)]) != 0
        assert "would be overwritten" in capsys.readouterr().err
    assert (tmp_path / "jobs.csv").read_bytes() == before
    assert guarded(["sim", "import", str(tmp_path / "none.csv"), str(tmp_path / "jobs.csv")]) != 0
    assert guarded(["sim", "import", str(tmp_path / "jobs.csv"), str(tmp_path / "new.csv")]) == 0


def test_a_replay_under_another_hash_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(ideal(written(crowded_load(5, 5), tmp_path / "jobs.csv")))
    write_results(result, tmp_path / "out")
    summary = tmp_path / "out" / "summary.json"
    summary.write_text(summary.read_text().replace(result.summary.log_hash, "0" * 64))
    assert guarded(["sim", "replay", str(tmp_path / "out")]) == 2
    assert "hash differs" in capsys.readouterr().err


def test_all_mistakes_of_a_scenario_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("cluster: {nodes: many}\npolicy: 3\nseeds: 4\n")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    text = str(caught.value)
    assert "cluster.nodes" in text
    assert "policy" in text
    assert "seeds" in text
    scenario = Scenario(cluster=ClusterSpec(nodes=0), policy="lifo", faults="nope")
    with pytest.raises(ScenarioError) as caught:
        check_scenario(scenario, "flags")
    assert len(caught.value.mistakes) == 3
    with pytest.raises(ScenarioError, match="cannot be read: No such file or directory"):
        load_scenario(tmp_path / "none.yaml")


def test_every_fault_profile_names_its_sources() -> None:
    for name in fault_profiles():
        profile = faults_of(Scenario(faults=name))
        assert profile.name == name
        assert profile.sources or name == "none"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_example_scenarios_are_valid_and_explain_themselves(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.description


def bursts(**changes: Any) -> Scenario:
    """The day of bursts of the examples, on a fiftieth of its nodes, for a quarter of the time."""
    whole = load_scenario(EXAMPLES / "day-of-bursts.yaml")
    pool = replace(whole.cluster.pools[0], max=40)
    load = replace(whole.load, days=0.25, jobs_per_day=160)
    return replace(whole, cluster=replace(whole.cluster, pools=(pool,)), load=load, **changes)


def test_a_day_of_bursts_buys_machines_from_none_and_reports_what_idled() -> None:
    result = ScenarioRun(bursts()).run()
    summary = result.summary
    assert (summary.violations, summary.finished) == ((), summary.jobs)
    assert 20 < summary.machines_most <= 40
    assert summary.machine_seconds is not None
    assert summary.idle_machine_seconds is not None
    busy_machine_seconds = result.recorder.busy_gpu_seconds / 8
    in_use = summary.machine_seconds - summary.idle_machine_seconds
    assert busy_machine_seconds < in_use < summary.machine_seconds
    rows = dict(figure_rows(summary))
    assert rows["Machines bought"] == f"{summary.machines}, {summary.machines_most} at once at most"
    assert rows["Machine hours"].endswith(" % idle")
    assert summary.per_pod is not None
    assert rows["Without gangs: machine hours"].endswith(" % idle")
    assert summary.per_pod.machines_most <= 40
    page = render_report(result.scenario, result.load, summary, result.recorder)
    assert "on 40 nodes with 8 GPUs each, 40 of them bought" in page


def test_drawn_jobs_come_in_bursts_as_stated() -> None:
    scenario = bursts()
    arrivals, _, _ = load_of(scenario, faults_of(scenario))
    instants = [arrival.at for arrival in arrivals]
    assert instants == sorted(instants)
    assert {int(at // 14_400) for at in instants} == {0, 1}
    assert max(at % 14_400 for at in instants) <= 900
    even = replace(scenario, load=replace(scenario.load, bursts_per_day=0))
    spread, _, _ = load_of(even, faults_of(even))
    assert [a.name for a in spread] == [a.name for a in arrivals]
    assert max(arrival.at % 14_400 for arrival in spread) > 900


def test_what_no_run_can_be_made_of_is_named() -> None:
    cluster = ClusterSpec(cpu="many", memory="-1", nodes_per_rack=0, racks_per_block=0)
    load = LoadSpec(members_max=0, run_seconds_median=0.0, run_seconds_max=float("nan"),
                    run_seconds_sigma=-1.0)  # fmt: skip
    failures = (NodeFailure(at_seconds=-1.0, node=90),)
    faults = FaultProfile(name="bad", repair_seconds_median=float("inf"), node_failures=failures,
                          rack_failures_per_1000_rack_days=-1.0)  # fmt: skip
    with pytest.raises(ScenarioError) as caught:
        check_scenario(Scenario(cluster=cluster, load=load, faults=faults), "it")
    assert [mistake.partition(":")[0] for mistake in caught.value.mistakes] == [
        "cluster.cpu", "cluster.memory", "cluster.nodesPerRack", "cluster.racksPerBlock",
        "load.runSecondsMedian", "load.runSecondsMax", "load.runSecondsSigma", "load.membersMax",
        "faults.repairSecondsMedian", "faults.rackFailuresPer1000RackDays",
        "faults.nodeFailures[0].atSeconds", "faults.nodeFailures[0].node",
    ]  # fmt: skip


def test_mistakes_of_pools_and_bursts_are_all_named() -> None:
    pools = (PoolSpec("H100", max=0), PoolSpec("a", max=2, min=3), PoolSpec("a", max=1))
    cluster = ClusterSpec(nodes=0, pools=pools, cloud=CloudSpec(-1.0, refused_share=1.0))
    load = LoadSpec(bursts_per_day=24, burst_seconds=7200.0, checkpoint_seconds=0.0)
    with pytest.raises(ScenarioError) as caught:
        check_scenario(Scenario(cluster=cluster, load=load), "it")
    named = [mistake.partition(":")[0] for mistake in caught.value.mistakes]
    assert named == [
        "cluster.pools[0].name", "cluster.pools[0].max", "cluster.pools[1].min",
        "cluster.pools[2].name", "cluster.cloud.refusedShare", "cluster.cloud.launchSeconds",
        "load.burstSeconds", "load.checkpointSeconds",
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="nodes: 0; accepted: 1 to"):
        check_scenario(Scenario(cluster=ClusterSpec(nodes=0)), "it")


def test_the_recorder_fills_its_grid_without_events() -> None:
    recorder = RunRecorder(0.0, sample_seconds=10.0, tenants={})
    recorder.finish(35.0)
    assert [sample.at for sample in recorder.samples] == [0.0, 10.0, 20.0, 30.0]


def test_requests_are_counted_by_controller_and_decisions_are_timed(tmp_path: Path) -> None:
    trace = written([BareJob(0.0, 60.0, 8), BareJob(5.0, 60.0, 4)], tmp_path / "jobs.csv")
    result = run(ideal(trace))
    requests = result.summary.requests_by_service
    assert requests["scheduler"]["patch jobs/status"] >= 2
    assert requests["jobs"]["create pods"] == 2
    assert requests["events"]["create events"] >= 2  # sent, though not stored
    assert "events" not in result.summary.writes_by_kind
    assert sum(sum(counts.values()) for counts in requests.values()) > 20
    assert [name for name in requests if name.startswith("Task-")] == []
    times = result.recorder.decision_times["scheduler"]
    assert times.count > 0
    assert 0.0 < times.seconds_max <= times.seconds
    write_results(result, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "API requests by controller" in page
    assert "2 to 8 (2 jobs)" in page
    assert "Decisions, in real time" in page


TENANTS = """submit_seconds,run_seconds,members,gpus,name,tenant
300,3600,4,8,big,red
900,60,1,8,own,Blue Lab
"""


def test_each_tenant_of_a_trace_may_be_a_team_with_an_equal_share(tmp_path: Path) -> None:
    """A gang of red takes all four nodes; two are of the other tenant, which has one back."""
    trace = tmp_path / "jobs.csv"
    trace.write_text(TENANTS)
    scenario = Scenario(
        cluster=ClusterSpec(nodes=4), load=LoadSpec(trace=str(trace)), teams=TenantTeams()
    )
    changes = team_changes_of(scenario, {"big": "red", "own": "Blue Lab"})
    assert [(c.name, c.spec and c.spec["shares"]) for c in changes] == [
        ("blue-lab", [{"nodes": 2}]), ("red", [{"nodes": 2}]),
    ]  # fmt: skip
    result = ScenarioRun(scenario).run()
    assert result.summary.violations == ()
    waits = {record.tenant: record.wait_seconds for record in result.recorder.jobs.values()}
    assert waits["Blue Lab"] is not None
    assert waits["Blue Lab"] <= 60.0
    assert result.summary.attempts == 3  # the gang was preempted once


def test_a_job_with_checkpoints_goes_on_from_the_last_one(tmp_path: Path) -> None:
    """The gang of red gives way 10 minutes after its start, and runs an hour in all."""
    trace = tmp_path / "jobs.csv"
    trace.write_text(TENANTS)
    needed = dict[float | None, float]()
    for every in (None, 250.0):
        load = LoadSpec(trace=str(trace), checkpoint_seconds=every)
        result = run(Scenario(cluster=ClusterSpec(4), load=load, teams=TenantTeams(), ideal=True))
        assert result.summary.attempts == 3
        assert result.summary.violations == ()
        big = next(record for record in result.recorder.jobs.values() if record.tenant == "red")
        assert big.ended is not None
        needed[every] = big.ended - big.submitted
    assert needed[None] == pytest.approx(600 + 60 + 3600, abs=60)
    # Two checkpoints of 250 s are kept; a third one is due too late to be waited for.
    assert needed[None] - needed[250.0] == pytest.approx(500, abs=30)


def test_drawn_jobs_have_no_tenants_to_be_teams() -> None:
    with pytest.raises(ScenarioError, match="teams: drawn jobs have no tenants"):
        check_scenario(Scenario(teams=TenantTeams()), "a.yaml")
