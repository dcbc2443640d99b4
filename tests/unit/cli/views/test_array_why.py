"""`why` of an array: its counts, what failed and how, and why the next element waits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve
from tests.unit.cli.job_request.test_arrays import array

from fairlead.api.jobs.job import Attempt, Cause, Job, VerdictStatus
from fairlead.api.jobs.job_array import ElementCounts, JobArray
from fairlead.api.meta import Condition, OwnerReference, to_wire
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import HistoryLine
from fairlead.cli.app import run
from fairlead.cli.job_request.arrays import parse_reference, select
from fairlead.cli.records import ended_jobs
from fairlead.cli.views.array_why import array_facts, array_now, array_text, listed
from fairlead.testing.builders import EPOCH, make_job, make_placement


def element(index: int, uid: str = "uid-sweep", **parts: Any) -> Job:
    """Return the job of an element of `sweep`."""
    job = make_job(f"sweep-{index}", **parts)
    owner = OwnerReference("fairlead.dev/v1alpha1", "JobArray", "sweep", uid, True)
    return replace(job, metadata=replace(job.metadata, owner_references=(owner,)))


def failed(index: int, code: int = 3, uid: str = "uid-sweep") -> Job:
    attempt = Attempt(1, reason="ExitCode", cause=Cause.USER, exit_code=code)
    message = f"member main-0 of sweep-{index} exited with code {code}"
    condition = Condition("Failed", "True", "ExitCode", message)
    status = {"attempts": (attempt,), "state": "Failed"}
    return element(index, uid, conditions=(condition,), status=status)


def text_of(found: JobArray, jobs: list[Job], ended: list[Job], *, elements: str = "sweep") -> str:
    chosen = select(found, parse_reference(elements))
    return array_text(array_now(chosen, jobs, chosen.jobs_among(ended)), EPOCH + 70)


def test_it_counts_the_elements_and_lists_failures_by_how_they_ended() -> None:
    facts: dict[str, int | float | str | bool] = {
        "asked": 8, "free": 0, "total": 16, "short": 8, "resource": "nvidia.com/gpu",
    }  # fmt: skip
    found = array(
        state="Running", finished="0-6", failed="1-3,5-6", started_at=format_time(EPOCH + 10),
        verdict=VerdictStatus("Waiting", "InsufficientCapacity", facts),
    )  # fmt: skip
    runs = element(7, placement=make_placement(["node-0000"]))
    ended = [failed(1), failed(2), failed(3), failed(5, code=137)]
    assert text_of(found, [runs], ended) == (
        "Array sweep: Running    (for 1m)\n"
        "\n"
        "  elements   2 succeeded, 5 failed, 1 running, 2 waiting\n"
        "  failed     1-3  ExitCode: member main-0 of sweep-1 exited with code 3 [User]\n"
        "             5  ExitCode: member main-0 of sweep-5 exited with code 137 [User]\n"
        "             6  no record: they were cancelled before they started, or the history has "
        "none\n"
        "  waits      InsufficientCapacity: needs 8 GPUs, 0 of 16 are free: 8 short\n"
        "  more       fairlead logs 'sweep[1]'\n"
        "             fairlead why 'sweep[1]'\n"
        "             fairlead resubmit sweep --failed\n"
        "             fairlead ps sweep\n"
    )
    some = text_of(found, [runs], ended, elements="sweep[3-7]")
    assert some.startswith("5 elements of array sweep: Running")
    assert "  elements   1 succeeded, 3 failed, 1 running\n" in some
    assert "  failed     3  ExitCode" in some
    assert "waits" not in some


def test_elements_that_were_stopped_early_are_counted_apart_and_are_no_failures() -> None:
    found = array(state="Running", finished="0,2", stopped="1-2")
    now = array_now(select(found, parse_reference("sweep")), [failed(1)], [])
    assert (now.counts["succeeded"], now.counts["stopped"], now.counts["failed"]) == (1, 2, 0)
    assert array_facts(now)["failed"] == []


def test_an_end_that_the_array_does_not_record_yet_counts() -> None:
    found = array(state="Running", finished="0")
    now = array_now(select(found, parse_reference("sweep")), [failed(1)], [])
    counts = {"succeeded": 1, "failed": 1, "stopped": 0, "running": 0, "waiting": 8}
    assert now.counts == counts
    assert array_facts(now)["failed"] == [
        {"indices": "1", "state": "Failed", "cause": "User", "exitCode": 3,
         "ending": "ExitCode: member main-0 of sweep-1 exited with code 3"}
    ]  # fmt: skip


def test_what_waits_says_that_the_limit_is_reached_the_array_held_or_stopped() -> None:
    counts = ElementCounts(10, 8, 2, 0, 0)
    found = array(state="Running", elements=counts)
    limited = replace(found, spec=replace(found.spec, parallelism=2))
    runs = [element(n, placement=make_placement(["node-0000"])) for n in (0, 1)]
    assert "  waits      as many run as its parallelism allows: 2\n" in text_of(limited, runs, [])
    held = replace(
        array(state="Held", verdict=VerdictStatus("Blocked", "Held")),
        spec=replace(found.spec, suspend=True),
    )
    assert "fairlead release sweep\n" in text_of(held, [], [])
    why = Condition("Failed", "True", "TooManyFailed", "3 elements failed, of at most 2")
    stopped = text_of(array(state="Failed", conditions=(why,), finished="0-2", failed="0-2"),
                      [], [])  # fmt: skip
    assert "  stopped    3 elements failed, of at most 2\n" in stopped
    assert "waits" not in stopped


def test_many_failures_in_no_order_are_listed_up_to_a_bound() -> None:
    found = array("0-99999")
    every_second = int("01" * 50_000, 2)
    now = array_now(select(found, parse_reference("sweep")), [], [])
    shown = listed(every_second, now.indices)
    assert shown == "0,2,4,6,8,10,12,14,16,18,20,22,... (50,000 elements)"


def test_why_reads_causes_from_the_history_and_explains_the_next_element(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi()
    found = array(state="Running", number=7, finished="0-1", failed="1")
    found = replace(found, spec=replace(found.spec, template=failed(1).spec))
    stored = api.create(JOB_ARRAYS.raw, to_wire(found), namespace="default")
    uid = stored["metadata"]["uid"]
    api.create(JOBS.raw, to_wire(element(2, uid=uid, suspend=True)), namespace="default")
    serve(monkeypatch, api)
    asked: list[dict[str, str]] = []

    def lines(_common: object, _store: str, query: dict[str, str]) -> list[HistoryLine]:
        asked.append(query)
        is_failed = query["state"] == "Failed"
        document = to_wire(failed(1, uid=uid))
        return [HistoryLine("u", "default", "sweep-1", "Failed", document=document)] * is_failed

    monkeypatch.setattr(ended_jobs, "past_lines", lines)
    assert run(["why", "sweep"]) == 0
    out = capsys.readouterr().out
    assert "1 succeeded, 1 failed, 8 waiting" in out
    assert "  failed     1  ExitCode: member main-0 of sweep-1 exited with code 3 [User]" in out
    assert [query["number"] for query in asked] == ["7", "7"]
    assert "Job sweep-2" in out
    assert run(["why", "sweep", "--if", "gpus=1"]) != 0
    assert "--if: explains one job, and sweep is an array" in capsys.readouterr().err
    assert run(["why", "sweep[4]"]) == 0
    assert "1 element of array sweep" in capsys.readouterr().out
