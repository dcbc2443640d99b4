"""Metrics: names, labels, and what is read at the scrape."""

from __future__ import annotations

import asyncio
import random

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fairlead.api.cluster.node_pool import (
    VALID,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    Provider,
    ProviderType,
)
from fairlead.api.cluster.team import Budget, JobLimits, TeamStatus, TeamUse
from fairlead.api.jobs.job import VerdictStatus
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.resources import CONFIG_MAPS
from fairlead.api.status import Forbidden
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind, Recorder
from fairlead.runtime.exported.fleet_metrics import FleetSource
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.exported.traffic_metrics import TEAMS_MAX
from fairlead.runtime.exported.use_metrics import IdleReport, UseMetrics, bounded
from fairlead.runtime.loop import ActionResult
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job, make_team
from fairlead.testing.fake_client import FakeClient


def samples(metrics: Metrics) -> dict[str, float]:
    """`name{label values in the order of the labels' names}` → value."""
    out: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(sample.labels[name] for name in sorted(sample.labels))
            out[f"{sample.name}{{{labels}}}"] = sample.value
    return out


def test_what_happens_is_counted_under_stable_names() -> None:
    metrics = Metrics(CollectorRegistry(), version="1.2.3", commit="abc")
    metrics.decided("scheduler", 0.02)
    metrics.acted("scheduler", "PlaceJob", ActionResult.DONE)
    metrics.acted("scheduler", "PlaceJob", ActionResult.DONE)
    metrics.acted("scheduler", "PlaceJob", ActionResult.OUTDATED)
    short = VerdictStatus("Waiting", "InsufficientCapacity")
    strange = VerdictStatus("Waiting", "a reason of somebody's own")
    jobs = [
        make_job("a", status={"state": "Waiting"}, verdict=short),
        make_job("b", status={"state": "Waiting"}, verdict=short),
        make_job("c", status={"state": "Waiting"}, verdict=strange),
        make_job("d", status={"state": "no state"}),
        make_job("e", status={"state": "Succeeded"}, verdict=short),
    ]
    metrics.watch_jobs(lambda: jobs)
    metrics.crashed("scheduler", ZeroDivisionError())
    metrics.watch_queue("jobs", lambda: 17)
    metrics.compacted(is_failing=True)
    seen = samples(metrics)
    assert seen["fairlead_build_info{abc,1.2.3}"] == 1
    assert seen["fairlead_decide_duration_seconds_count{scheduler}"] == 1
    assert seen["fairlead_decide_duration_seconds_bucket{scheduler,0.03}"] == 1
    assert seen["fairlead_decide_duration_seconds_bucket{scheduler,0.01}"] == 0
    assert seen["fairlead_actions_total{PlaceJob,scheduler,done}"] == 2
    assert seen["fairlead_actions_total{PlaceJob,scheduler,outdated}"] == 1
    assert seen["fairlead_jobs{InsufficientCapacity,Waiting}"] == 2
    assert seen["fairlead_jobs{,Waiting}"] == 2
    assert seen["fairlead_jobs_waiting_with_room{}"] == 0
    assert seen["fairlead_jobs{,Succeeded}"] == 1
    assert seen["fairlead_jobs{,Running}"] == 0
    assert sum(value for name, value in seen.items() if name.startswith("fairlead_jobs{")) == 5
    metrics.watch_jobs(None)
    assert not [name for name in samples(metrics) if name.startswith("fairlead_jobs{")]
    assert seen["fairlead_service_crashes_total{scheduler}"] == 1
    assert seen["fairlead_workqueue_depth{jobs}"] == 17
    assert seen["fairlead_store_compaction_failing{}"] == 1
    metrics.compacted(is_failing=False)
    assert samples(metrics)["fairlead_store_compaction_failing{}"] == 0


def test_a_mirrors_lag_is_read_at_the_scrape_and_the_laggard_of_a_kind_counts() -> None:
    async def main() -> None:
        metrics = Metrics(CollectorRegistry(), version="1")
        fresh, cut_off = FakeClient(), FakeClient()
        mirrors = [
            Mirror(client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1))
            for client in (fresh, cut_off)
        ]
        for mirror in mirrors:
            metrics.watch_mirror(mirror)
        assert "fairlead_mirror_lag_seconds{ConfigMap}" not in samples(metrics)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(mirror.run()) for mirror in mirrors]
            await asyncio.sleep(100)
            fresh.send_bookmarks()
            await asyncio.sleep(1)
            assert 100 < samples(metrics)["fairlead_mirror_lag_seconds{ConfigMap}"] < 102
            metrics.forget_mirrors(mirrors[1:])
            assert samples(metrics)["fairlead_mirror_lag_seconds{ConfigMap}"] < 2
            for task in tasks:
                task.cancel()

    run(main())


def test_two_clusters_in_one_process_do_not_share_series() -> None:
    first = Metrics(CollectorRegistry(), version="1")
    second = Metrics(CollectorRegistry(), version="1")
    first.watch_jobs(lambda: [make_job("a", status={"state": "Running"})])
    assert samples(first)["fairlead_jobs{,Running}"] == 1
    assert "fairlead_jobs{,Running}" not in samples(second)


def test_events_that_were_never_written_are_counted() -> None:
    async def main() -> None:
        metrics = Metrics(CollectorRegistry(), version="1")
        client = FakeClient()
        recorder = Recorder(client, LoopClock(0.0), "test", rng=random.Random(1))
        metrics.watch_events(recorder)
        client.fail_next("create", Forbidden("namespace is going away"))
        for message in ("refused", "written"):
            recorder.record(CONFIG_MAPS, ObjectMeta(name="a"), EventKind.NORMAL,
                            reason="Tried", message=message)  # fmt: skip
        await recorder.flush()
        assert samples(metrics)["fairlead_events_dropped_total{}"] == 1

    run(main())


def test_what_teams_have_and_use_is_reported_and_which_jobs_wait_although_there_is_room() -> None:
    metrics = Metrics(CollectorRegistry(), version="1")
    use = TeamUse(jobs_placed=2, jobs_waiting=1, gpus=24, nodes_used=2, nodes_lent=1, gpu_hours=7.5)
    status = TeamStatus(nodes=4, nodes_missing=1, use=use)
    team = make_team("vision", limits=JobLimits(running=3, waiting=0), budget=Budget(gpu_hours=100))
    metrics.watch_teams(lambda: [replace(team, status=status)])
    reasons = ("BorrowLimit", "BehindEarlierJob", "InsufficientCapacity")
    metrics.watch_jobs(lambda: [
        make_job(each, status={"state": "Waiting"}, verdict=VerdictStatus("Waiting", each))
        for each in reasons
    ])  # fmt: skip
    seen = samples(metrics)
    assert seen["fairlead_jobs_waiting_with_room{}"] == 2
    nodes = {kind: seen[f"fairlead_team_nodes{{{kind},vision}}"]
             for kind in ("owned", "missing", "used", "lent", "borrowed")}  # fmt: skip
    assert nodes == {"owned": 4, "missing": 1, "used": 2, "lent": 1, "borrowed": 0}
    assert seen["fairlead_team_gpus{vision}"] == 24
    assert seen["fairlead_team_gpu_hours{vision}"] == 7.5
    limits = {name: value for name, value in seen.items() if name.startswith("fairlead_team_limit")}
    assert limits == {
        "fairlead_team_limit{running,vision}": 3, "fairlead_team_limit{waiting,vision}": 0,
        "fairlead_team_limit{gpu_hours,vision}": 100,
    }  # fmt: skip
    assert seen["fairlead_team_jobs{waiting,vision}"] == 1
    metrics.watch_teams(None)
    assert not [name for name in samples(metrics) if name.startswith("fairlead_team_")]


def test_a_pool_is_invalid_only_once_it_was_judged_so_and_held_also_at_no_node() -> None:
    def pool(name: str, *conditions: Condition, hold: int | None = None) -> NodePool:
        spec = NodePoolSpec(Provider(ProviderType.SIMULATED), NodeTemplate({}), max=1, hold=hold)
        return NodePool(ObjectMeta(name), spec, NodePoolStatus(conditions=conditions))

    metrics = Metrics(CollectorRegistry(), version="1")
    pools = (
        pool("new"), pool("bad", Condition(VALID, "False")),
        pool("good", Condition(VALID, "True"), hold=0),
    )  # fmt: skip
    metrics.fleet.watch(FleetSource(lambda: pools, lambda: None, lambda: (), lambda: None))
    shown = samples(metrics)
    assert [shown[f"fairlead_pool_invalid{{{name}}}"] for name in ("new", "bad", "good")] == [
        0, 1, 0,
    ]  # fmt: skip
    assert [shown[f"fairlead_pool_limit_nodes{{{name}}}"] for name in ("new", "good")] == [1, 0]


def test_series_of_idle_gpus_are_bounded_by_teams() -> None:
    amounts = {f"team-{n:04}": 1 for n in range(TEAMS_MAX + 7)}
    kept = bounded(amounts)
    assert len(kept) == TEAMS_MAX + 1
    assert kept["-"] == 7
    registry = CollectorRegistry()
    metrics = UseMetrics(registry)
    assert registry.get_sample_value("fairlead_idle_gpus", {"team": "lab"}) is None
    metrics.watch(lambda: IdleReport({"lab": 1}, {"lab": 8}))
    assert registry.get_sample_value("fairlead_idle_gpus", {"team": "lab"}) == 8
    assert registry.get_sample_value("fairlead_idle_jobs", {"team": "lab"}) == 1
