"""What a new job asks for far beyond what past jobs of its name needed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.use import MemberUse
from fairlead.api.values.times import format_time
from fairlead.cli.views.plan import past_lines
from fairlead.decide.use.overasked import RUNS_MAX, OverAsk, PastRun, over_asks
from fairlead.testing.builders import EPOCH, make_job

GIB = 1 << 30
HOUR = 3_600_000
USE = MemberUse(
    HOUR, cpu_milliseconds=HOUR, memory_peak_bytes=3 * GIB, step_seconds=60, cpu=(1_500,),
    memory=(3_072,), gpu_milliseconds=8 * HOUR, gpu_busy_milliseconds=HOUR,
)  # fmt: skip
NEW = make_job("train-9", count=2, cpu="16", memory="64Gi", gpus=8)


def run(name: str, *, seconds: float = 600, state: str = "Succeeded", **changes: Any) -> PastRun:
    """A job of two members that took so long; `changes` are of the use of the second one."""
    job = make_job(name, count=2, cpu="16", memory="64Gi", gpus=8)
    times = {"started_at": format_time(EPOCH), "finished_at": format_time(EPOCH + seconds)}
    status = replace(job.status, state=state, attempt=1, attempts=(Attempt(1, **times),))
    uses = {"worker-0": USE, "worker-1": replace(USE, **changes)}
    return PastRun(replace(job, status=status), uses)


def limited(seconds: int) -> Job:
    return replace(NEW, spec=replace(NEW.spec, time_limit_seconds=seconds))


def resources(found: tuple[OverAsk, ...]) -> list[str]:
    return [each.resource for each in found]


def test_the_largest_use_of_the_latest_runs_is_the_evidence() -> None:
    runs = [run("train-4", memory_peak_bytes=10 * GIB), run("train-3"), run("train-2")]
    older = [run("train-1", memory_peak_bytes=60 * GIB, cpu=(15_900,))]
    assert len(runs) == RUNS_MAX
    names = ("train-4", "train-3", "train-2")
    assert over_asks(NEW, [*runs, *older]) == (
        OverAsk("cpu", 16_000, 2_000, names),
        OverAsk("memory", 64 * GIB, 12 * GIB, names),
        OverAsk("gpu-time", 100, 12, names),
    )


def test_one_run_says_nothing_as_it_may_have_been_a_trial() -> None:
    assert over_asks(limited(86_400), [run("train-1")]) == ()
    assert over_asks(limited(86_400), []) == ()


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"is_partial": True}, ["gpu-time"]),  # what was not measured may have been more
        ({"milliseconds": 59_999}, ["gpu-time"]),
        ({"memory_peak_bytes": None}, ["cpu", "gpu-time"]),
        ({"cpu": (7_000,)}, ["memory", "gpu-time"]),  # with a fifth more: above half
        ({"memory_peak_bytes": 27 * GIB}, ["cpu", "gpu-time"]),
        ({"gpu_busy_milliseconds": 3 * HOUR}, ["cpu", "memory"]),
        ({"gpu_milliseconds": None, "gpu_busy_milliseconds": None}, ["cpu", "memory", "gpu-time"]),
    ],
)
def test_what_is_near_or_not_known_is_left_out(changes: dict[str, Any], left: list[str]) -> None:
    assert resources(over_asks(NEW, [run("a-2", **changes), run("a-1", **changes)])) == left


def test_a_run_that_says_nothing_makes_room_for_an_older_one() -> None:
    runs = [run("a-3", is_partial=True), run("a-2"), run("a-1")]
    found = {each.resource: each.jobs for each in over_asks(NEW, runs)}
    assert found["memory"] == ("a-2", "a-1")


def test_a_member_of_every_role_asks_for_that_much() -> None:
    small = make_job("b", count=1, cpu="1", memory="1Gi").spec.roles[0]
    roles = (*NEW.spec.roles, replace(small, name="driver"))
    job = replace(NEW, spec=replace(NEW.spec, roles=roles))
    assert resources(over_asks(job, [run("a-2"), run("a-1")])) == ["gpu-time"]


def test_the_time_of_runs_that_succeeded_is_compared_with_the_limit() -> None:
    took = [run("a-2", seconds=900), run("a-1", seconds=600)]
    assert over_asks(limited(14_400), took)[-1] == OverAsk("time", 14_400, 900, ("a-2", "a-1"))
    for limit in (14_399, 900, 0):
        assert "time" not in resources(over_asks(limited(limit), took))
    failed = [run("a-2", state="Failed"), run("a-1", state="Failed")]
    assert "time" not in resources(over_asks(limited(86_400), failed))


def test_a_job_without_gpus_hears_nothing_of_them() -> None:
    plain = make_job("a-3", count=2, cpu="16", memory="64Gi", gpus=0)
    assert resources(over_asks(plain, [run("a-2"), run("a-1")])) == ["cpu", "memory"]


def test_the_lines_name_the_jobs_and_the_flags() -> None:
    assert past_lines(over_asks(limited(86_400), [run("a-2"), run("a-1")])) == [
        "Past     a-2, a-1: --cpus 2 would do for a member, this asks for 16",
        "         a-2, a-1: --memory 3840Mi would do for a member, this asks for 64Gi",
        "         a-2, a-1: the GPUs computed for at most 12% of the time",
        "         a-2, a-1: took at most 10m, this may take 1d; a shorter --time starts in smaller "
        "gaps",
    ]
    assert past_lines(()) == []
