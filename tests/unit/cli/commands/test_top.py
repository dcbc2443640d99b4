"""What `top` shows of a cluster whose nodes say less than those of `fairlead up`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.cli.fake_api import FakeApi

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.use import MemberUse, encode_use
from fairlead.api.kubernetes.metrics import ContainerMetrics, PodMetrics
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.resources import POD_METRICS, PODS
from fairlead.cli.cluster.archive import URL_VARIABLE
from fairlead.cli.commands import top
from fairlead.cli.commands.top import KEPT_SECONDS_MAX, KeptUse, use_lines
from fairlead.cli.connection.common import Common, Format
from fairlead.decide.attempts.logged_members import logged_member
from fairlead.history.sqlite import SqliteHistory
from fairlead.runtime.kept.history import use_record
from fairlead.testing.builders import EPOCH, make_job, make_member_pod, make_placement

SAMPLED = MemberUse(3_600_000, cpu_milliseconds=1, is_partial=True, step_seconds=60,
                    gpu=(90, 30, 50), gpu_milliseconds=28_800_000,
                    gpu_busy_milliseconds=14_400_000)  # fmt: skip


def running(name: str, gpus: int = 8) -> Job:
    return make_job(
        name, gpus=gpus, cpu="8", memory="16Gi", placement=make_placement({"worker": ["node-1"]}),
        status={"state": JobState.RUNNING.value},
    )  # fmt: skip


def measured(*jobs: Job, **annotations: str) -> FakeApi:
    """Return a cluster on which metrics-server says what the members of these jobs use."""
    api = FakeApi(*jobs)
    for job in jobs:
        pod = make_member_pod(job)
        api.create(PODS.raw, to_wire(pod), namespace=pod.metadata.namespace)
        usage = {"cpu": "4", "memory": "1Gi"}
        meta = ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace,
                          labels=pod.metadata.labels, annotations=annotations)  # fmt: skip
        metrics = PodMetrics(meta, "", "15s", (ContainerMetrics("c", usage),))
        api.create(POD_METRICS.raw, to_wire(metrics), namespace=pod.metadata.namespace)
    return api


def test_gpus_that_were_sampled_are_shown_beside_what_metrics_server_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(top, "now", lambda: EPOCH + 3_600)
    train, sampled, processors = running("train"), running("small", 2), running("cpus", 0)
    asked = list[str]()

    def kept(job: Job) -> Mapping[str, MemberUse]:
        asked.append(job.metadata.name)
        return {"worker-0": SAMPLED} if job is sampled else {}

    jobs = (train, sampled, processors)
    lines, why = use_lines(measured(*jobs), jobs, namespace="", kept=kept)
    assert why == ""
    found = {line.name: line for line in lines}
    assert (found["small"].gpu_milli, found["small"].cpu_milli) == (1_133, 4_000)
    assert (found["train"].gpu_share, found["cpus"].gpu_share) == (None, None)
    assert asked == ["train", "small"], "those with most GPUs first, and none without"
    monkeypatch.setattr(top, "KEPT_MAX", 1)
    asked.clear()
    use_lines(measured(*jobs), jobs, namespace="", kept=kept)
    assert asked == ["train"]


def test_what_a_node_says_itself_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "now", lambda: EPOCH + 3_600)
    job = running("train")
    api = measured(job, **{names.USE: encode_use(SAMPLED)})

    def kept(job: Job) -> Mapping[str, MemberUse]:
        raise AssertionError(f"{job.metadata.name} was asked for")

    (line,), _ = use_lines(api, (job,), namespace="", kept=kept)
    assert round(line.gpu_share or 0, 2) == 0.57


def test_what_was_sampled_of_late_is_read_from_the_history_and_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, at = running("train"), EPOCH + 3_600
    store = tmp_path / "history.db"
    monkeypatch.setenv(URL_VARIABLE, str(store))

    def kept_at(seconds: float) -> None:
        async def write() -> None:
            history = SqliteHistory.open(store, runner=asyncio.to_thread)
            pod = make_member_pod(job)
            member = logged_member(pod, job)
            assert member is not None
            await history.record_use([use_record(pod, member, SAMPLED, seconds)])
            await history.close()

        asyncio.run(write())

    kept_at(at - KEPT_SECONDS_MAX - 1)
    monkeypatch.setattr(top, "now", lambda: at)
    common = Common(Format.TABLE, "", True, "", "", True, False, True, 0)
    use = KeptUse(common)
    assert use.of_members(job) == {}, "of a sampler that has stopped"
    kept_at(at - 800)
    assert use.of_members(job) == {}, "it was asked a moment ago"
    monkeypatch.setattr(top, "now", lambda: at + 61)
    assert use.of_members(job) == {"worker-0": SAMPLED}
    monkeypatch.setenv(URL_VARIABLE, str(tmp_path / "none" / "such.db"))
    assert KeptUse(common).of_members(job) == {}, "no archive: it is unknown"
