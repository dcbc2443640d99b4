"""When a job counts as idle, and what the policy does about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.use import IdleRecord, MemberUse
from fairlead.api.values.times import format_micro_time
from fairlead.decide.use.idle import (
    ClearIdle,
    EndIdle,
    IdleAction,
    IdleMode,
    IdlePolicy,
    IdleStreak,
    MemberLook,
    ReportIdle,
    WarnIdle,
    decide_idle,
    ends_in_hour,
    follow,
    is_watched,
)
from fairlead.testing.builders import EPOCH, make_job

MINUTE, HOUR = 60.0, 3_600.0
ON = IdlePolicy(IdleMode.ENFORCE)


def running(count: int = 2, *, user: str = "ada", **more: Any) -> Job:
    began = format_micro_time(EPOCH)
    record = Attempt(number=1, begun_at=began, started_at=began)
    status = {"state": "Running", "attempts": (record,), **more.pop("status", {})}
    job = make_job("train", count=count, gpus=4, cpu="8", status=status, **more)
    noted = {names.SUBMITTED_BY: user}
    return structs.replace(job, metadata=structs.replace(job.metadata, annotations=noted))


class Run:
    """A job whose members are looked at each minute; `step` is one look at all."""

    def __init__(
        self, job: Job | None = None, policy: IdlePolicy = ON, *, by: str = "gpus"
    ) -> None:
        self.job, self.policy, self.by = job or running(), policy, by
        self.now, self.streak = EPOCH, None
        self.counters = {f"uid-{i}": [0, 0, 0] for i in range(self.job.member_count)}
        self.actions: list[tuple[float, IdleAction]] = []
        self.ends_left = 1
        self.is_partial = False

    streak: IdleStreak | None

    def look(self, uid: str) -> MemberLook:
        gpu, busy, cpu = self.counters[uid]
        gpus = (gpu, busy) if self.by == "gpus" else (None, None)
        use = MemberUse(
            round((self.now - EPOCH) * 1000), cpu_milliseconds=cpu, is_partial=self.is_partial,
            gpu_milliseconds=gpus[0], gpu_busy_milliseconds=gpus[1],
        )  # fmt: skip
        return MemberLook(("default", uid), self.now, use)

    def minutes(self, count: float, percent: float = 0.0, milli: int = 0, *, of: str = "") -> Run:
        """Let time pass in which the GPUs of all members, or of one, compute so much of it."""
        for _ in range(round(count)):
            self.now += MINUTE
            for uid, counters in self.counters.items():
                is_meant = of in ("", uid)
                counters[0] += 4 * 60_000
                counters[1] += round(4 * 600 * percent) if is_meant else 0
                counters[2] += 60 * milli if is_meant else 0
            self.round({uid: self.look(uid) for uid in self.counters})
        return self

    def round(self, looks: dict[str, MemberLook]) -> None:
        self.streak = follow(self.job, looks, self.streak, policy=self.policy, now=self.now)
        for action in decide_idle(self.job, self.streak, self.policy, ends_left=self.ends_left):
            self.actions.append(((self.now - EPOCH) / MINUTE, action))
            if isinstance(action, WarnIdle | ReportIdle) and self.streak is not None:
                self.streak = self.streak.noted(action.after)

    @property
    def kinds(self) -> list[tuple[int, str]]:
        return [(round(at), type(each).__name__) for at, each in self.actions]


def test_an_owner_is_warned_twice_before_a_job_that_computes_nothing_ends() -> None:
    run = Run().minutes(125, percent=3)
    assert run.kinds[:3] == [(61, "WarnIdle"), (106, "WarnIdle"), (121, "EndIdle")]
    first, second, end = (each for _, each in run.actions[:3])
    assert isinstance(first, WarnIdle)
    assert first.record.warnings == 1
    assert first.record.message == (
        "GPU use at most 3% over 1h; the idle policy ends it in 1h unless it is used"
    )
    assert first.record.ends_at == format_micro_time(EPOCH + 121 * MINUTE)
    assert isinstance(second, WarnIdle)
    assert (second.record.warnings, second.record.ends_at) == (2, first.record.ends_at)
    assert isinstance(end, EndIdle)
    assert end.message == "ended by the idle policy: GPU use at most 3% over 2h"


def test_one_busy_step_begins_it_again_even_after_the_second_warning() -> None:
    run = Run().minutes(110).minutes(5, percent=50)
    assert run.kinds == [(61, "WarnIdle"), (106, "WarnIdle")]
    run.job = running(status={"idle": run.actions[-1][1].record})  # type: ignore[union-attr]
    run.minutes(1)
    assert run.streak is not None
    assert run.streak.warnings == 0
    assert isinstance(run.actions[-1][1], ClearIdle)
    run.job = running()
    run.minutes(118)
    assert not any(isinstance(each, EndIdle) for _, each in run.actions)
    assert run.kinds[-1][1] == "WarnIdle"


def test_one_busy_member_of_a_gang_keeps_all_of_it() -> None:
    assert Run().minutes(180, percent=11, of="uid-1").kinds == []
    assert Run().minutes(125, percent=10, of="uid-1").kinds[-1][1] == "EndIdle"


@pytest.mark.parametrize(("percent", "ends"), [(5.0, True), (5.1, False)])
def test_the_limit_is_what_each_step_may_have_at_most(percent: float, *, ends: bool) -> None:
    run = Run().minutes(125, percent=percent)
    assert any(isinstance(each, EndIdle) for _, each in run.actions) is ends


def test_without_figures_of_gpus_the_processors_are_judged() -> None:
    run = Run(by="cpu").minutes(125, milli=300)
    assert isinstance(run.actions[-1][1], EndIdle)
    assert run.actions[-1][1].message == (
        "ended by the idle policy: use of processors at most 0.6 of 16 CPUs over 2h "
        "(GPUs not measured)"
    )
    assert Run(by="cpu").minutes(180, milli=420).kinds == []


def test_sampled_use_warns_and_never_ends() -> None:
    run = Run()
    run.is_partial = True
    run.minutes(400)
    assert run.kinds == [(61, "WarnIdle"), (106, "WarnIdle"), (121, "ReportIdle")]
    first, last = run.actions[0][1], run.actions[-1][1]
    assert isinstance(first, WarnIdle)
    assert first.record.ends_at is None
    assert isinstance(last, ReportIdle)
    assert last.message == (
        "not ended by the idle policy, as its use was sampled and not counted by its node: "
        "GPU use at most 0% over 2h"
    )


def test_a_partial_step_makes_the_whole_streak_partial() -> None:
    run = Run().minutes(30)
    run.is_partial = True
    run.minutes(10)
    run.is_partial = False
    assert not any(isinstance(each, EndIdle) for _, each in run.minutes(100).actions)


def test_a_member_without_a_look_or_with_an_old_one_begins_it_again() -> None:
    for spoil in ("missing", "old", "other pod", "counter"):
        run = Run().minutes(119)
        run.now += MINUTE
        looks = {uid: run.look(uid) for uid in run.counters}
        if spoil == "missing":
            del looks["uid-1"]
        elif spoil == "old":
            looks["uid-1"] = replace(looks["uid-1"], at=run.now - 200)
        elif spoil == "other pod":
            looks["uid-9"] = looks.pop("uid-1")
        else:
            run.counters["uid-1"][0] = 0
            looks["uid-1"] = run.look("uid-1")
        run.now += 3 * MINUTE if spoil == "counter" else 0
        if spoil == "counter":
            looks = {uid: replace(each, at=run.now) for uid, each in looks.items()}
        run.round(looks)
        run.minutes(58)
        assert not any(isinstance(each, EndIdle) for _, each in run.actions), spoil


def test_figures_of_some_gpus_alone_are_no_evidence() -> None:
    run = Run()
    for _ in range(30):
        run.now += 5 * MINUTE
        for each in run.counters.values():
            each[0] += 300_000
        looks = {uid: run.look(uid) for uid in run.counters}
        bare = MemberUse(1, cpu_milliseconds=0)
        looks["uid-1"] = MemberLook(looks["uid-1"].pod, run.now, bare)
        run.round(looks)
    assert run.actions == []


def test_a_gap_between_looks_is_not_taken_for_idle_time() -> None:
    run = Run().minutes(100)
    run.now += 20 * MINUTE
    run.minutes(1)
    assert run.streak is not None
    assert run.streak.seconds == 0


def test_in_shadow_nobody_is_warned_and_nothing_ends() -> None:
    run = Run(policy=replace(ON, mode=IdleMode.SHADOW)).minutes(400)
    assert run.kinds == [(61, "ReportIdle"), (106, "ReportIdle"), (121, "ReportIdle")]
    assert [each.message for _, each in run.actions if isinstance(each, ReportIdle)] == [
        "in shadow, would warn for the first time: GPU use at most 0% over 1h",
        "in shadow, would warn for the second time: GPU use at most 0% over 1h45m",
        "in shadow, would be ended by the idle policy: GPU use at most 0% over 2h",
    ]


@pytest.mark.parametrize(
    "policy",
    [
        IdlePolicy(),
        replace(ON, except_users=("ada",)),
        replace(ON, except_teams=("lab",)),
        replace(ON, except_names=("tr*",)),
        replace(ON, except_names=("default/train",)),
    ],
)
def test_excepted_jobs_are_left_alone_and_so_are_all_while_it_is_off(policy: IdlePolicy) -> None:
    job = running(spec={"team": "lab"})
    assert Run(job, policy).minutes(200).actions == []
    assert Run(job, replace(policy, except_names=("other/*",), except_users=(), except_teams=(),
                            mode=IdleMode.ENFORCE)).minutes(125).kinds  # fmt: skip


def test_a_job_without_a_known_user_is_not_excepted_by_an_empty_name() -> None:
    assert not replace(ON, except_users=("",)).excepts(running(user=""))


def test_no_more_jobs_end_within_an_hour_than_is_set() -> None:
    run = Run()
    run.ends_left = 0
    assert not any(isinstance(each, EndIdle) for _, each in run.minutes(130).actions)
    run.ends_left = 1
    assert isinstance(run.minutes(1).actions[-1][1], EndIdle)
    assert ends_in_hour([0.0, 10.0, HOUR], HOUR + 5.0) == [10.0, HOUR]


def test_only_jobs_that_run_and_hold_gpus_are_watched() -> None:
    assert is_watched(running(), ON)
    assert not is_watched(running(), replace(ON, gpus_min=9))
    assert not is_watched(running(cancel=True), ON)
    assert not is_watched(running(suspend=True), ON)
    assert not is_watched(running(status={"state": "Starting"}), ON)
    assert not is_watched(make_job("train", gpus=8), ON)


def test_the_record_of_an_earlier_attempt_is_removed_once_the_next_one_is_watched() -> None:
    record = IdleRecord(1, format_micro_time(EPOCH), 2, "x")
    assert Run(running(status={"idle": record})).minutes(1).kinds == [(1, "ClearIdle")]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), min_size=1, max_size=12))
def test_a_job_ends_only_after_two_warnings_and_two_hours_without_a_busy_step(
    parts: list[tuple[int, int]],
) -> None:
    run, use = Run(running(1)), list[int]()
    for minutes, percent in parts:
        for _ in range(minutes):
            run.minutes(1, percent=percent)
            use.append(percent)
            for at, action in run.actions:
                if isinstance(action, EndIdle):
                    latest = use[int(at) - 119 : int(at)]
                    assert len(latest) >= 119
                    assert sum(latest) / len(latest) <= 5
                    warned = [when for when, each in run.actions if isinstance(each, WarnIdle)]
                    assert at - warned[-1] >= 15
                    assert at - warned[-2] >= 60
                    return
