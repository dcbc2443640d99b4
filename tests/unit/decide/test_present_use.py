"""What running jobs use of what they hold, and which of them use almost nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse
from fairlead.cli.views.top import columns, csv_text, facts, in_order, job_line, rows, sums
from fairlead.decide.use.present_use import MemberNow, PresentUse, present_use
from fairlead.testing.builders import make_job

GIB = 1 << 30
HOUR = 3_600.0
JOB = make_job("train", count=2, cpu="8", memory="16Gi", gpus=4)


def member(*series: int | None, milli: int = 0, **more: Any) -> MemberNow:
    """A member of steps of a minute, which holds 2 GiB and held 3."""
    so_far = MemberUse(3_600_000, cpu_milliseconds=7_200_000, memory_peak_bytes=3 * GIB,
                       step_seconds=60, cpu=series, **more)  # fmt: skip
    return MemberNow(milli, 2 * GIB, 15.0, so_far)


def of_both(one: MemberNow, seconds: float = HOUR, idle: float = 600.0) -> PresentUse:
    return present_use(JOB, {"worker-0": one, "worker-1": one}, seconds, idle)


def of_user(job: Job, user: str) -> Job:
    return replace(job, metadata=replace(job.metadata, annotations={names.SUBMITTED_BY: user}))


def test_amounts_are_sums_of_all_members_beside_what_all_asked_for() -> None:
    use = of_both(member(4_000, milli=4_000))
    assert (use.cpu_milli, use.cpu_asked_milli) == (8_000, 16_000)
    assert job_line(JOB, use).cpu_share == 0.5
    assert (use.memory_bytes, use.memory_peak_bytes) == (4 * GIB, 6 * GIB)
    assert (use.memory_asked_bytes, use.gpus) == (32 * GIB, 8)
    assert use.is_idle is False


def test_a_job_that_worked_before_is_idle_by_its_latest_minutes_alone() -> None:
    use = of_both(member(*[8_000] * 50, *[5] * 10))
    assert (use.is_idle, use.judged_seconds) == (True, 600.0)
    assert of_both(member(*[8_000] * 50, *[5] * 10), idle=1_200.0).is_idle is False


@pytest.mark.parametrize(("milli", "is_idle"), [(400, True), (401, False)])
def test_a_tenth_of_a_processor_for_each_gpu_is_almost_nothing(
    milli: int, *, is_idle: bool
) -> None:
    assert of_both(member(*[milli] * 10)).is_idle is is_idle


@pytest.mark.parametrize(("milli", "is_idle"), [(400, True), (401, False)])
def test_without_gpus_a_twentieth_of_what_was_asked_for_is_almost_nothing(
    milli: int, *, is_idle: bool
) -> None:
    job = make_job("prepare", count=1, cpu="8", memory="16Gi", gpus=0)
    assert present_use(job, {"worker-0": member(*[milli] * 10)}, HOUR).is_idle is is_idle


def test_without_a_series_the_use_from_the_start_is_judged_and_without_that_the_window() -> None:
    whole = MemberUse(1_000_000, cpu_milliseconds=1_000)
    assert of_both(MemberNow(9_000, GIB, 15.0, whole)).is_idle is True
    use = of_both(MemberNow(0, GIB, 15.0))
    assert (use.is_idle, use.judged_seconds, use.memory_peak_bytes) == (True, 15.0, None)


def test_what_is_not_measured_or_has_just_begun_is_unknown_and_not_idle() -> None:
    nothing = present_use(JOB, {}, HOUR)
    assert (nothing.cpu_milli, nothing.memory_bytes, nothing.is_idle) == (None, None, None)
    half = present_use(JOB, {"worker-0": member(*[0] * 10)}, HOUR)
    assert (half.measured, half.is_idle, job_line(JOB, half).cpu_share) == (1, None, None)
    assert of_both(member(*[0] * 10), seconds=599.0).is_idle is None


def test_the_table_says_unknown_and_never_zero_for_what_is_not_known() -> None:
    line = job_line(of_user(JOB, "ana"), present_use(JOB, {}, HOUR))
    titles = [each.title for each in columns("", spread=False)]
    cells = dict(zip(titles, rows([line], "", spread=False)[0], strict=True))
    assert cells == {
        "NAME": "train", "USER": "ana", "GPUS": "8", "GPU USE": "unknown",
        "CPU": "unknown of 16", "MEMORY": "unknown", "PEAK": "unknown", "ASKED": "32Gi",
        "MEASURED": "0/2", "TIME": "1h", "IDLE": "unknown",
    }  # fmt: skip
    assert not {"cpuMilli", "memoryBytes", "memoryPeakBytes"} & facts(line, "").keys()
    header, row = csv_text([line], "").splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["cpuMilli"] == ""


def test_jobs_with_the_most_idle_gpus_come_first_and_add_up_by_user_and_team() -> None:
    small = make_job("small", count=1, cpu="1", memory="1Gi", gpus=1)
    busy, idle = of_both(member(*[7_000] * 10, milli=7_000)), member(*[0] * 10)
    lines = in_order([
        job_line(of_user(JOB, "ana"), busy),
        job_line(of_user(small, "ana"), present_use(small, {"worker-0": idle}, HOUR)),
        job_line(of_user(JOB, "ben"), present_use(JOB, {}, HOUR)),
    ])  # fmt: skip
    assert [(each.name, each.user) for each in lines] == [
        ("small", "ana"), ("train", "ana"), ("train", "ben"),
    ]  # fmt: skip
    assert rows(lines, "", spread=True)[0][-1] == "for 10m"
    assert [row[:8] for row in rows(sums(lines, "user"), "user", spread=False)] == [
        ("ana", "2", "9", "unknown", "1", "1", "0", "14.0 of 17 (82%)"),
        ("ben", "1", "8", "unknown", "0", "0", "1", "unknown of 16"),
    ]  # fmt: skip
    assert json.dumps(facts(sums(lines, "team")[0], "team")).count('"jobs": 3') == 1


def gpus(*series: int | None, milli: int = 0) -> MemberNow:
    """A busy processor beside GPUs of these steps of a minute."""
    return member(*[8_000] * 10, milli=milli, gpu=series, gpu_milliseconds=14_400_000,
                  gpu_busy_milliseconds=7_200_000)  # fmt: skip


@pytest.mark.parametrize(("percent", "is_idle"), [(5, True), (6, False)])
def test_where_gpus_are_measured_they_are_judged_and_not_the_processors_beside_them(
    percent: int, *, is_idle: bool
) -> None:
    use = of_both(gpus(*[90] * 20, *[percent] * 10))
    assert (use.is_idle, use.judged_seconds, use.gpu_milli) == (is_idle, 600.0, percent * 80)
    assert rows([job_line(JOB, use)], "", spread=False)[0][3] == f"{percent}%"
    assert facts(job_line(JOB, use), "")["gpuShare"] == percent / 100


def test_gpus_count_by_how_many_a_member_has_and_only_where_all_say_it() -> None:
    both = {"worker-0": gpus(*[100] * 10), "worker-1": gpus(None, 50)}
    use = present_use(JOB, both, HOUR)
    assert (use.gpu_milli, use.judged_seconds) == (6_000, 60.0)
    whole = {**both, "worker-1": gpus()}
    assert present_use(JOB, whole, HOUR).gpu_milli == 6_000, "without a series, from the start on"
    lacking = {**both, "worker-1": member(*[8_000] * 10)}
    assert present_use(JOB, lacking, HOUR).gpu_milli is None
    assert present_use(JOB, {"worker-0": gpus(5)}, HOUR).gpu_milli is None
    none = make_job("prepare", count=1, cpu="8", memory="16Gi", gpus=0)
    assert present_use(none, {"worker-0": gpus(5)}, HOUR).gpu_milli is None
    assert rows([job_line(none, present_use(none, {}, HOUR))], "", spread=False)[0][3] == "-"


def test_jobs_of_which_most_gpus_do_not_compute_come_first() -> None:
    busy, half = of_both(gpus(*[95] * 10)), of_both(gpus(*[50] * 10))
    small = make_job("small", count=1, cpu="1", memory="1Gi", gpus=1)
    idle = present_use(small, {"worker-0": gpus(*[0] * 10)}, HOUR)
    lines = in_order([
        job_line(of_user(JOB, "a"), present_use(JOB, {}, HOUR)), job_line(of_user(JOB, "b"), busy),
        job_line(of_user(JOB, "c"), half), job_line(of_user(small, "d"), idle),
    ])  # fmt: skip
    assert [each.user for each in lines] == ["d", "c", "b", "a"]
    (total,) = sums(lines[:3], "team")
    assert total.gpu_milli == 4_000 + 7_600
    assert sums(lines, "team")[0].gpu_milli is None, "one of them is not known"


def test_a_user_whose_name_is_a_formula_is_none_to_a_spreadsheet() -> None:
    line = job_line(of_user(JOB, "=cmd|' /c calc'!A0"), present_use(JOB, {}, HOUR))
    assert ",'=cmd|" in csv_text([line], "")
    assert csv_text([line], "user").splitlines()[1].startswith("'=cmd|")
