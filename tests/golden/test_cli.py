"""What people see: help texts, tables, plans, dry runs and completion, byte for byte."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import click
import pytest
from msgspec.structs import replace as with_
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW, WorldApi, ago, jobs, nodes, running

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet, FleetStatus
from fairlead.api.cluster.node_pool import (
    BalloonCounts,
    Launch,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolDecision,
    PoolMode,
    Provider,
    ProviderType,
    ScaleDown,
    UnavailableDomain,
)
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.placement import (
    HeldNodes,
    Nomination,
    Preemption,
    PreemptionKind,
    RolePlacement,
)
from fairlead.api.jobs.run_facts import (
    ListedMetric,
    RunFacts,
    RunMetric,
    RunSource,
    RunSummary,
)
from fairlead.api.jobs.use import ClassTraffic, JobTraffic
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.values.quantity import resources_to_base
from fairlead.api.values.times import parse_time
from fairlead.app.configuration.settings import Settings
from fairlead.app.queries.messages import ClusterStatus, FleetLine, NodeCounts, PartHealth, RunLine
from fairlead.app.run_file import RunningCluster
from fairlead.cli.app import ENTRIES, cli
from fairlead.cli.commands import history as history_view
from fairlead.cli.connection.common import Format, dump
from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Column, render_table
from fairlead.cli.job_request.flag_groups.run_flags import RunRequest
from fairlead.cli.job_request.jobspec import (
    Origin,
    Program,
    Script,
    build_job,
    build_script_map,
    to_manifest,
)
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.main import guarded
from fairlead.cli.submitting.fit import check_fit, shape_text
from fairlead.cli.views import cluster as cluster_view
from fairlead.cli.views import fleet as fleet_view
from fairlead.cli.views import jobs as jobs_view
from fairlead.cli.views import nodes as nodes_view
from fairlead.cli.views import runs as runs_view
from fairlead.cli.views.plan import plan_lines, submitted_line
from fairlead.terminal import joined
from fairlead.testing.builders import make_job, make_node

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


@pytest.mark.parametrize("command", ["", *ENTRIES])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded([*([command] if command else []), "--help"]) == 0
    check(f"help/{command or 'fairlead'}.txt", capsys.readouterr().out)


def test_help_of_the_commands_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ENTRIES:
        group = cli.get_command(click.Context(cli), command)
        inner = group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []
        for name in inner:
            assert guarded([command, name, "--help"]) == 0
            check(f"help/{command}-{name}.txt", capsys.readouterr().out)


@pytest.mark.parametrize("command", ENTRIES)
def test_the_line_in_the_overview_is_the_first_line_of_the_help(command: str) -> None:
    from fairlead.cli.app import LazyGroup

    assert isinstance(cli, LazyGroup)
    found = cli.commands.get(command) or cli.get_command(None, command)  # type: ignore[arg-type]
    assert found is not None
    assert (found.help or "").startswith(ENTRIES[command].line.split(";")[0].rstrip("."))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["completion", shell]) == 0
    check(f"completion/{shell}.txt", capsys.readouterr().out)


def _jobs(**options: bool) -> str:
    chosen = jobs_view.choose_jobs(jobs(), jobs_view.JobChoice())
    spread = options.pop("spread", False)
    columns = jobs_view.COLUMNS
    if spread:
        columns = (jobs_view.NAMESPACE_COLUMN, *columns)
    rows = jobs_view.job_rows(chosen, NOW, with_namespace=spread)
    return render_table(columns, rows, **options)  # type: ignore[arg-type]


def test_ps() -> None:
    check("tables/ps.txt", _jobs())
    check("tables/ps-wide.txt", _jobs(wide=True))
    check("tables/ps-all-namespaces.txt", _jobs(spread=True))


def test_ps_on_a_narrow_terminal_cuts_the_reason_and_not_the_id() -> None:
    chosen = jobs_view.choose_jobs(jobs(), jobs_view.JobChoice())
    text = render_table(jobs_view.COLUMNS, jobs_view.job_rows(chosen, NOW), width=80)
    assert max(map(len, text.splitlines())) <= 80
    check("tables/ps-80.txt", text)
    narrow = render_table(jobs_view.COLUMNS, jobs_view.job_rows(chosen, NOW), width=45)
    assert max(map(len, narrow.splitlines())) <= 45
    assert "InsufficientCapacity: needs" in narrow


def test_wide_tables_fit_on_a_terminal_of_80_columns() -> None:
    rows = nodes_view.node_rows(nodes_view.node_uses(nodes(), jobs(), (), NOW), NOW)
    wide = render_table(nodes_view.COLUMNS, rows, wide=True, width=80)
    for table in (wide, _jobs(wide=True, width=80)):
        assert max(map(len, table.splitlines())) <= 80
    check("tables/nodes-wide-80.txt", wide)


def test_nodes() -> None:
    rows = nodes_view.node_rows(nodes_view.node_uses(nodes(), jobs(), (), NOW), NOW)
    check("tables/nodes.txt", render_table(nodes_view.COLUMNS, rows))
    check("tables/nodes-wide.txt", render_table(nodes_view.COLUMNS, rows, wide=True))


def test_gpus_of_every_vendor_are_shown() -> None:
    amd = make_node("a", gpus=0, extra={"amd.com/gpu": 4})
    ((_, _, _, gpus, *_),) = nodes_view.node_rows(nodes_view.node_uses([amd], (), (), NOW), NOW)
    assert gpus == "0/4"
    assert "4 amd.com/gpu, 128" in shape_text(resources_to_base(amd.status.allocatable))


def test_history() -> None:
    def at(seconds: float) -> int:
        return int(parse_time(ago(seconds)) * 1000)

    lines = [
        history_view.HistoryLine("u1", "default", "prepare-1", "Succeeded", "ana", member_count=1,
                                 attempt_count=1, submitted_at_ms=at(9000),
                                 started_at_ms=at(8900), finished_at_ms=at(8000),
                                 traffic=JobTraffic(1, (ClassTraffic("internet", 1, 3 << 30, 7),))),
        history_view.HistoryLine("u2", "default", "bad-1", "Failed", "ben", reason="RestartLimit",
                                 message="worker-0 exited with 1", member_count=4, attempt_count=4,
                                 submitted_at_ms=at(90_000), started_at_ms=at(89_000),
                                 finished_at_ms=at(3600)),
        history_view.HistoryLine("u3", "team", "never-1", "Cancelled", "ben", reason="Cancelled",
                                 member_count=2, submitted_at_ms=at(500), finished_at_ms=at(400)),
    ]  # fmt: skip
    columns, rows = history_view.history_table(lines, NOW)
    check("tables/history.txt", render_table(columns, rows))
    check("tables/history-wide.txt", render_table(columns, rows, wide=True))
    held = HeldNodes("h100", gpus=8, gpu_hour_micros=12_290_000)
    attempt = Attempt(1, begun_at=ago(8900), finished_at=ago(8000), held=(held,))
    document = to_wire(make_job("prepare-1", status={"attempts": (attempt,)}))
    priced = [with_(lines[0], document=document), *lines[1:]]
    columns, rows = history_view.history_table(priced, NOW, with_namespace=True)
    check("tables/history-cost.txt", render_table(columns, rows))


def test_a_pool_whose_machines_another_autoscaler_owns() -> None:
    decision = PoolDecision(
        ago(60), "Balloons", "Demand", "4 balloons, 2 before", {"balloons": 4, "was": 2}
    )
    pool = NodePool(
        ObjectMeta(name="h100"),
        NodePoolSpec(
            Provider(ProviderType.EXTERNAL), NodeTemplate({"cpu": "96"}), max=64,
            mode=PoolMode.ACTIVE, headroom_nodes=4,
        ),
        NodePoolStatus(
            nodes=11, ready=11, wanted=12, balloons=BalloonCounts(4, 3, 1),
            message="1 balloon waits for a node of the other autoscaler", decisions=(decision,),
        ),
    )  # fmt: skip
    table = render_table(fleet_view.COLUMNS, fleet_view.pool_rows([pool], Fleet()))
    why = fleet_view.pool_why(pool, Fleet(), NOW)
    check("tables/fleet-balloons.txt", f"{table}\n{why}")


def test_a_pool_with_spares() -> None:
    text = "1 node, kept for repairs: h100-000009"
    pool = NodePool(
        ObjectMeta(name="h100"),
        NodePoolSpec(
            Provider(ProviderType.AWS), NodeTemplate({"cpu": "96"}), max=64,
            mode=PoolMode.ACTIVE, spare_nodes=2,
        ),
        NodePoolStatus(
            nodes=11, ready=11, wanted=12, launching=1, idle=1, spares=1,
            decisions=(PoolDecision(ago(60), "Spare", "Wanted", text, {"nodes": 1}),),
        ),
    )  # fmt: skip
    labels = {names.POOL: "h100"}
    spares = [
        make_node(name, labels=labels, taints=[Taint(names.TAINT_SPARE, "NoSchedule", value)])
        for name, value in (("h100-000009", "pool"), ("h100-000010", ""))
    ]
    text = "\n".join((
        render_table(fleet_view.COLUMNS, fleet_view.pool_rows([pool], Fleet())),
        fleet_view.pool_why(pool, Fleet(), NOW),
        *(fleet_view.node_why(node, {"h100": pool}, Fleet(), jobs=[], now=NOW) for node in spares),
        render_table(nodes_view.COLUMNS, nodes_view.node_rows(
            nodes_view.node_uses(spares, (), (), NOW), NOW)),
    ))  # fmt: skip
    check("tables/fleet-spares.txt", text)


def test_a_pool_that_is_consolidated() -> None:
    pool = NodePool(
        ObjectMeta(name="h100"),
        NodePoolSpec(
            Provider(ProviderType.AWS), NodeTemplate({"cpu": "96"}), max=64, mode=PoolMode.ACTIVE,
            scale_down=ScaleDown(consolidates=True),
        ),
        NodePoolStatus(nodes=9, ready=9, wanted=9, consolidates_to=2),
    )  # fmt: skip
    asked = Preemption(
        requested_at=ago(20), kind=PreemptionKind.EMPTY, empties=("h100-7", "h100-8")
    )
    kept = Nomination((RolePlacement("worker", ("h100-1", "h100-2")),), nominated_at=ago(20))
    job = make_job("train-1", count=2, status={"preemption": asked, "nomination": kept})
    node = make_node("h100-7", labels={names.POOL: "h100"})
    why = fleet_view.node_why(node, {"h100": pool}, Fleet(), jobs=[job], now=NOW)
    plan = fleet_view.plan_text([pool], Fleet(), [job], NOW)
    check("tables/fleet-consolidation.txt", f"{plan}\n{why}")


def test_a_pool_that_is_deleted_and_nodes_of_one_that_is_gone() -> None:
    left = "is deleted: 9 machines left, which go once nothing uses them"
    pool = NodePool(
        ObjectMeta(name="h100", deletion_timestamp=ago(60)),
        NodePoolSpec(Provider(ProviderType.AWS), NodeTemplate({"cpu": "96"}), max=64),
        NodePoolStatus(nodes=9, ready=2, leaving=2, message=left),
    )
    fleet = Fleet(status=FleetStatus(unmanaged={"a100": 46}))
    node = make_node("a100-7", labels={names.POOL: "a100"})
    text = "\n".join((
        render_table(fleet_view.COLUMNS, fleet_view.pool_rows([pool], fleet)),
        fleet_view.plan_text([pool], fleet, [], NOW),
        fleet_view.node_why(node, {"h100": pool}, fleet, jobs=[], now=NOW),
    ))  # fmt: skip
    check("tables/fleet-deleted.txt", text)


def test_a_pool_with_a_price_idle_nodes_and_a_launch_without_an_answer() -> None:
    launch = Launch("t-1", "zone-a", 8, ago(2400), ("team/train-1",), given_up_at=ago(600))
    decision = PoolDecision(
        ago(600), "GiveUp", "LaunchDeadline", f"8 nodes of {ago(2400)}: no answer in time"
    )
    pool = NodePool(
        ObjectMeta(name="h100"),
        NodePoolSpec(
            Provider(ProviderType.GCP), NodeTemplate({"cpu": "96"}), max=64,
            mode=PoolMode.ACTIVE, price_per_hour="98.32",
        ),
        NodePoolStatus(
            nodes=24, ready=24, idle=12, wanted=12, launches=(launch,), decisions=(decision,),
            unavailable=(UnavailableDomain("zone-a", "no answer in time", ago(-300)),),
            message="12 removals held back: the pool's own disruption budget is used up "
            "(PoolBudget)",
        ),
    )  # fmt: skip
    check("tables/fleet-why.txt", fleet_view.pool_why(pool, Fleet(), NOW))


def _run(name: str, run: RunSummary, *, seconds: int = 90, state: str = "Succeeded") -> RunLine:
    ended = None if state == "Running" else round(NOW * 1000) - 60_000
    began = round(NOW * 1000) - 60_000 - seconds * 1000
    return RunLine(f"u-{name}", "default", name, state, "ana", began, ended, run)


RUNS = [
    _run("train-3", RunSummary(("sweep1",), {"lr": "0.1", "opt": "adam"}), state="Running"),
    _run("train-10", RunSummary(
        ("sweep1", "b"), {"lr": "1e-2", "opt": "adam"},
        {"acc": ListedMetric(0.91, 0.1, 0.95), "loss": ListedMetric(None, 0.25, 2)},
        "a \x1b]0;title\x07</script>", "c0ffee" * 6,
    )),
    _run("train-2", RunSummary(
        (), {"lr": "0.5", "opt": "adam"}, {"acc": ListedMetric(0.12345678, 0.1, 0.5)}, "=1+1",
    ), seconds=7_200, state="Failed"),
]  # fmt: skip


def test_runs() -> None:
    def table(lines: list[RunLine], keys: list[str]) -> str:
        return render_table(runs_view.run_columns(keys), runs_view.run_rows(lines, keys, NOW))

    keys = runs_view.default_columns(RUNS, with_namespace=False)
    check("tables/runs.txt", table(RUNS, keys))
    chosen = ["name", "ended", "user", "acc.min", "acc.max", "commit", "note"]
    ordered = runs_view.sorted_runs(RUNS, "-acc", NOW)
    assert [line.name for line in ordered] == ["train-10", "train-2", "train-3"]
    check("tables/runs-columns.txt", table(ordered, chosen))
    by_rate = runs_view.sorted_runs(RUNS, "lr", NOW)
    assert [line.name for line in by_rate] == ["train-10", "train-3", "train-2"]
    rows = [[runs_view.value_of(line, key, NOW) for key in chosen] for line in RUNS]
    check("tables/runs.csv", as_csv(chosen, rows))


def _run_job(name: str, rate: str, source: RunSource, facts: RunFacts) -> Job:
    request = JobRequest(run=RunRequest((("lr", rate),), ("sweep1",), "by hand"))
    origin = Origin("/home/ana", "ana", {}, source=source)
    job = build_job(name, request, Program(("python", "train.py")), origin)
    status = with_(job.status, state="Succeeded", attempt=1, run=facts, started_at=ago(600),
                   finished_at=ago(60))  # fmt: skip
    return with_(job, status=status, metadata=with_(job.metadata, namespace="default"))


def test_one_run_and_two_side_by_side() -> None:
    loss = RunMetric(0.25, 99, 100, 0.25, 2.0, (0, 33, 66, 99), (2.0, 1.0, 0.5, 0.25))
    first = _run_job(
        "train-1", "0.1", RunSource("c0ffee" * 6, "main", ("train.py",), "-a\n+b\n"),
        RunFacts({"batch": "32"}, {"loss": loss, "bad": RunMetric(count=3)}, "noted", True),
    )  # fmt: skip
    second = _run_job("train-2", "0.2", RunSource("beef" * 10, "main"), RunFacts())
    text = joined(runs_view.run_text(first, NOW))
    check("tables/runs-show.txt", text)
    found = runs_view.differences([first, second], everything=False)
    columns = [Column("WHAT"), Column("train-1", may_cut=True), Column("train-2", may_cut=True)]
    table = render_table(columns, runs_view.difference_rows(found))
    check("tables/runs-compare.txt", table)
    assert runs_view.differences([second, second], everything=False) == []
    assert len(runs_view.differences([second, second], everything=True)) > 3


def test_history_of_the_fleet() -> None:
    at = int(parse_time(ago(600)) * 1000)
    lines = [
        FleetLine(at + 9000, "h100", "Refused", "ProviderRefused", "no capacity in zone-a"),
        FleetLine(at + 5000, "h100", "Launch", "Demand", "8 nodes in zone-a for team/train-1"),
        FleetLine(at, "", "Resume", "Clear", "nodes may be removed again"),
    ]
    table = render_table(fleet_view.HISTORY_COLUMNS, fleet_view.history_rows(lines))
    check("tables/fleet-history.txt", table)


SETTINGS = Settings(Path("/home/ana/.local/share/fairlead"), 200, 8, "", "127.0.0.1", 7443, True)
RUNNING = RunningCluster(4711, 1, "b", "https://127.0.0.1:7443", "0.1.0", NOW - 7500)


def test_first_commands_of_up() -> None:
    check("up/default.txt", cluster_view.first_commands(SETTINGS, RUNNING, default=True))
    check("up/elsewhere.txt", cluster_view.first_commands(SETTINGS, RUNNING, default=False))
    settings = dataclasses.replace(SETTINGS, host="0.0.0.0")
    check("up/open.txt", cluster_view.first_commands(settings, RUNNING, default=True))


def test_status() -> None:
    status = ClusterStatus(
        "0.1.0", 4711, NOW - 7500, str(SETTINGS.data), NodeCounts(1, 200, 0),
        {"Running": 3, "Waiting": 12, "Succeeded": 1_234, "Failed": 2}, 1_003,
        (PartHealth("store", "running"), PartHealth("jobs", "running"),
         PartHealth("scheduler", "backing-off", False, 2, "KeyError: 'v00001'")),
    )  # fmt: skip
    text = cluster_view.status_text(SETTINGS.data, RUNNING, status, (5_242_880, NOW))
    check("up/status.txt", text)
    facts = cluster_view.status_facts(RUNNING, status, 5_242_880, NOW)
    check("up/status.json", dump(facts, Format.JSON))


ORIGIN = Origin("/home/ana/vision", "ana", {"PATH": "/usr/bin:/bin", "HOME": "/home/ana"})
SCRIPT = Script("train.sh", '#!/bin/bash\npython train.py "$@"\n')


def test_the_plan_and_the_dry_run_of_a_script() -> None:
    request = JobRequest(members=4, gpus=8, cpu_millis=64_000, memory_bytes=900 << 30,
                         time_seconds=43_200, priority=10, target=Target.VIRTUAL)  # fmt: skip
    program = Program(("--lr", "0.1"), SCRIPT)
    job = build_job("train-2", request, program, ORIGIN)
    plan = [
        *plan_lines(job),
        check_fit(WorldApi(), job, NOW).text,
        submitted_line("train-2", is_held=False),
    ]
    check("submit/plan.txt", "\n".join(plan) + "\n")
    config_map = {"apiVersion": "v1", "kind": "ConfigMap",
                  **to_wire(build_script_map("train-2", SCRIPT))}  # fmt: skip
    check("submit/dry-run.yaml", dump([config_map, to_manifest(job)], Format.YAML))


def test_the_plan_of_an_elastic_job_says_with_how_many_members_it_would_start() -> None:
    request = JobRequest(members=4_000, members_min=2, gpus=8, target=Target.VIRTUAL)
    job = build_job("train-2", request, Program((), SCRIPT), ORIGIN)
    check(
        "submit/elastic.txt",
        "\n".join([*plan_lines(job), check_fit(WorldApi(), job, NOW).text]) + "\n",
    )


def test_the_plan_of_a_job_that_waits() -> None:
    request = JobRequest(members=20, gpus=8, target=Target.VIRTUAL)
    job = build_job("big-1", request, Program(("true",)), ORIGIN)
    assert "waits: " in check_fit(WorldApi(), job, NOW).text
    check("submit/waits.txt", check_fit(WorldApi(), job, NOW).text + "\n")


def test_json_of_a_job_is_complete() -> None:
    check("tables/job.json", dump(to_wire(running()), Format.JSON))


@pytest.mark.parametrize(
    "tool",
    [
        "generate_cli_reference",
        "generate_api_review",
        "generate_reference",
        "generate_rights_reference",
        "generate_man_page",
    ],
)
def test_the_reference_pages_are_up_to_date(tool: str) -> None:
    result = subprocess.run([sys.executable, "-m", f"tools.{tool}", "--check"],
                            cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
