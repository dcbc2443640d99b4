"""`update`: what a job that is queued already may get, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.jobs.after import After, AfterState
from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.jobs.job_array import JobArray, JobArraySpec
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import Invalid, StatusCause, StatusDetails
from fairlead.api.validation.job_changes import CHANGES, ChangeRule
from fairlead.cli.app import run
from fairlead.cli.job_request.change_verbs import UPDATES, read_update, update_change
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue
from fairlead.testing.builders import make_job


def served(monkeypatch: pytest.MonkeyPatch, *jobs: Job) -> FakeApi:
    api = FakeApi(*jobs)
    serve(monkeypatch, api)
    return api


def spec_of(api: FakeApi, name: str) -> Any:
    return api.get(JOBS, name, namespace="default").spec


def test_each_flag_is_written_and_none_takes_it_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = served(monkeypatch, make_job("a", attempt=0), make_job("first"))
    flags = ["--time", "2h", "--after", "ok:first", "--begin", "2027-01-01T08:00:00",
             "--deadline", "2027-01-02T08:00:00", "--reservation", "workshop"]  # fmt: skip
    assert run(["update", "a", *flags]) == 0
    assert capsys.readouterr().out == f"a updated: {' '.join(flags)}\n"
    spec = spec_of(api, "a")
    assert spec.time_limit_seconds == 7200
    assert spec.after == (After("first", AfterState.SUCCEEDED),)
    assert spec.not_before.startswith("2027-01-01T")
    assert spec.deadline.startswith("2027-01-02T")
    assert spec.reservation == "workshop"
    assert run(["update", "a", *flags]) == 0
    assert "a has --time 2h" in capsys.readouterr().err
    nothing = [word for flag in UPDATES for word in (f"--{flag.value}", "none")]
    assert run(["update", "a", *nothing]) == 0
    assert spec_of(api, "a") == make_job("a").spec


def test_what_comes_too_late_to_count_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = make_job("began", status={"attempts": (Attempt(1),)})
    api = served(monkeypatch, make_job("queued"), began, make_job("first"))
    for job, flag, value, said in (
        ("queued", "--after", "ok:first", "--after counts before a job queues"),
        ("began", "--after", "none", "--after counts before a job queues"),
        ("began", "--begin", "now+1hour", "--begin counts before a job begins"),
        ("queued", "--begin", "now+1hour", ""),
        ("began", "--deadline", "now+1hour", ""),
    ):
        assert bool(run(["update", job, flag, value])) is bool(said)
        assert said in capsys.readouterr().err
    assert spec_of(api, "began").not_before is None
    assert spec_of(api, "queued").not_before is not None


def test_several_jobs_are_updated_and_ended_and_unknown_ones_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = make_job("group", spec={"adopts": Adopts("Job", "theirs", "batch/v1", "u")})
    ended = make_job("ended", status={"state": "Failed"})
    api = served(monkeypatch, make_job("a"), make_job("b"), ended, group)
    assert run(["update", "a", "nosuch", "group", "b", "--time", "1h"]) != 0
    said = capsys.readouterr()
    assert said.out == "a updated: --time 1h\nb updated: --time 1h\n"
    assert "job 'nosuch' does not exist" in said.err
    assert "represents the pods of Job 'theirs'" in said.err
    assert spec_of(api, "group").time_limit_seconds is None


def test_what_cannot_be_is_refused_before_anything_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = served(monkeypatch, make_job("a"))
    for flags, said in (
        ([], "fairlead update needs one of --time, --after, --begin, --deadline, --reservation"),
        (["--time", "30", "--begin", "soon"], "--begin"),
        (["--time", "30"], "--time"),
        (["--after", "first"], "help: --after ok:first"),
        (["--after", "ok:nosuch", "--time", "1h"], "job 'nosuch' does not exist"),
        (["--nodes", "2"], "no flag '--nodes'"),
    ):
        assert run(["update", "a", *flags]) != 0, flags
        assert said in capsys.readouterr().err
        assert spec_of(api, "a") == make_job("a").spec


def test_a_refusal_of_the_api_is_said_in_the_words_of_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = served(monkeypatch, make_job("a"))
    cause = StatusCause(
        "x", "Invalid value: 7200: may only become shorter", "spec.timeLimitSeconds"
    )
    api.client.fail_next("patch", Invalid("no", details=StatusDetails(causes=(cause,))))
    assert run(["update", "a", "--time", "2h"]) == 5
    assert "error[E422]: --time: 7200: may only become shorter\n" in capsys.readouterr().err


def test_an_array_is_updated_element_by_element(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = served(monkeypatch)
    array = JobArray(ObjectMeta(name="sweep", namespace="default"),
                     JobArraySpec(indices="3-9", template=make_job("x").spec))  # fmt: skip
    api.create(JOB_ARRAYS.raw, to_wire(array), namespace="default")
    assert run(["update", "sweep", "--time", "1h"]) == 2
    said = capsys.readouterr().err
    assert "'sweep' is an array, whose template stays as it is" in said
    assert "fairlead update 'sweep[3]'" in said


@given(st.sets(st.sampled_from(sorted(UPDATES, key=lambda flag: flag.value)), min_size=1))
def test_only_fields_of_given_flags_are_written_and_all_may_be_changed(flags: set[Flag]) -> None:
    values = {Flag.TIME: "1h", Flag.AFTER: "any:b", Flag.RESERVATION: "r"}
    givens = {flag: (FlagValue(values.get(flag, "now+2hours"), ""),) for flag in flags}
    request = read_update(givens, 0.0)
    change = update_change(givens, request, request.after)
    written = change.patch["spec"]
    assert set(written) == {UPDATES[flag] for flag in flags}
    assert all(CHANGES[field] is not ChangeRule.NEVER for field in written)
    job = make_job("a")
    assert not change.is_done(job)
    names = {"timeLimitSeconds": "time_limit_seconds", "notBefore": "not_before"}
    fields = {names.get(field, field): value for field, value in written.items()}
    if "after" in fields:
        fields["after"] = request.after
    assert change.is_done(replace(job, spec=replace(job.spec, **fields)))
