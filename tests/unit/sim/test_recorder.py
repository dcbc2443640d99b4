"""What a run's record says of jobs and nodes that change, and percentiles of its figures."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.values.times import format_time
from fairlead.sim.scenarios.recorder import ClusterSample, RunRecorder
from fairlead.sim.scenarios.summary import percentile
from fairlead.testing.builders import make_job, make_node

KEY = ("default", "j")


def last(recorder: RunRecorder) -> ClusterSample:
    recorder.finish(10.0)
    return recorder.samples[-1]


def new() -> RunRecorder:
    return RunRecorder(0.0, sample_seconds=10.0, tenants={})


def test_an_elastic_job_that_waits_counts_with_its_present_size() -> None:
    recorder = new()
    for members in (2, 1):
        recorder.job(make_job("j", count=members, gpus=8), KEY, 0.0)
    assert last(recorder).waiting_gpus == 8


def test_an_attempt_has_lost_what_its_own_members_held() -> None:
    recorder, job = new(), make_job("j", count=1, gpus=8)
    ended = Attempt(
        number=1, begun_at=format_time(0.0), finished_at=format_time(100.0), reason="NodeLost",
        sizes={job.spec.roles[0].name: 2},
    )  # fmt: skip
    status = msgspec.structs.replace(job.status, attempts=(ended,))
    after: Job = msgspec.structs.replace(job, status=status)
    recorder.job(after, KEY, 100.0)
    assert recorder.jobs["j"].lost_gpu_seconds == 1_600.0


def test_a_cordoned_node_is_out() -> None:
    recorder = new()
    recorder.node(make_node("a"), "a", 0.0)
    recorder.node(make_node("b", unschedulable=True), "b", 0.0)
    assert last(recorder).nodes_out == 1


@pytest.mark.parametrize(("share", "expected"), [(0.5, 10), (0.95, 19), (0.951, 20), (1.0, 20)])
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(
    share: float, expected: int
) -> None:
    assert percentile(range(20, 0, -1), share) == expected
