"""Dumps of sacct as traces: what is read and assumed, and what was recorded beside a replay."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import ClusterSpec, LoadSpec, Scenario
from fairlead.sim.traces.readers import read_trace, write_csv
from fairlead.sim.traces.recorded import recorded_load
from fairlead.sim.traces.trace import AfterJob, TraceError, TraceJob

SAMPLE = Path(__file__).parents[3] / "examples" / "slurm" / "sacct.txt"
HEAD = (
    "JobID|Submit|Eligible|Start|End|State|Account|User|NNodes|NodeList|AllocTRES|Timelimit|"
    "SubmitLine\n"
)


def line(
    id_: str, submit: int, start: int | None, end: int | None, state: str = "COMPLETED",
    *, tres: str = "cpu=16,mem=8G,gres/gpu=4,node=2", limit: str = "01:00:00", did: str = "",
    eligible: int | None = None,
) -> str:  # fmt: skip
    def at(second: int | None) -> str:
        return "Unknown" if second is None else f"2026-10-01T00:{second // 60:02}:{second % 60:02}"

    times = "|".join(map(at, (submit, submit if eligible is None else eligible, start, end)))
    return f"{id_}|{times}|{state}|vision|ana|2|n[1-2]|{tres}|{limit}|{did}\n"


def jobs_of(tmp_path: Path, *lines: str) -> dict[str, TraceJob]:
    path = tmp_path / "dump"
    path.write_text(HEAD + "".join(lines))
    return {job.name.removeprefix("job-"): job for job in read_trace(path).jobs}


def test_a_job_has_the_shape_times_and_nodes_that_the_dump_shows(tmp_path: Path) -> None:
    found = jobs_of(tmp_path, line("7", 10, 30, 90), "7.batch" + line("x", 30, 30, 90)[1:])
    assert found == {
        "7": TraceJob(
            0.0, "job-7", 2, 2, 60.0, "vision", 3_600.0, 8_000, 4 << 30, fails=False,
            waited_seconds=20.0, nodes="n[1-2]",
        )
    }  # fmt: skip


def test_ends_that_cut_a_run_are_counted_and_what_never_ran_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_text(HEAD + "".join((
        line("1", 0, 0, 60, "CANCELLED by 1001"), line("2", 0, 0, 60, "PREEMPTED"),
        line("3", 0, 0, 3599, "TIMEOUT"), line("4", 0, 0, 60, "OUT_OF_MEMORY"),
        line("5", 0, None, None, "CANCELLED by 7"), line("6", 0, None, None, "PENDING"),
        line("7", 0, 0, 60, "FAILED"),
    )))  # fmt: skip
    trace = read_trace(path)
    assert [(job.name, job.run_seconds, job.fails) for job in trace.jobs] == [
        ("job-1", 60.0, False), ("job-2", 60.0, False), ("job-3", 3_660.0, False),
        ("job-4", 60.0, True), ("job-7", 60.0, True),
    ]  # fmt: skip
    assert trace.problem_count == 0
    assert "run as long as they did, and would have run longer: 1 CANCELLED, 1 PREEMPTED" in (
        trace.assumptions
    )
    assert "left out, since they have never run: 2 jobs" in trace.assumptions


def test_a_job_that_was_requeued_is_one_job_from_its_first_submission(tmp_path: Path) -> None:
    found = jobs_of(
        tmp_path, line("1", 100, 130, 190, "COMPLETED"), line("1", 0, 10, 60, "PREEMPTED"),
        line("2", 0, 0, 5),
    )  # fmt: skip
    job = found["1"]
    assert (job.at_seconds, job.waited_seconds, job.run_seconds) == (0.0, 10.0, 60.0)


def test_what_a_command_line_waits_for_is_kept_and_else_the_time_it_became_eligible(
    tmp_path: Path,
) -> None:
    found = jobs_of(
        tmp_path, line("1_0", 0, 0, 60), line("1_1", 0, 0, 90), line("2", 0, 0, 30),
        line("3", 1, 95, 99, did="sbatch -d afterany:1,afterok:2 x.sh", eligible=90),
        line("4", 1, 95, 99, did="sbatch --dependency=afterok:99 x.sh", eligible=91),
        line("5", 1, 95, 99, did="sbatch --begin=now+1minute x.sh | y", eligible=61),
    )  # fmt: skip
    assert found["3"].after == (
        AfterJob("Finished", "job-1_0"), AfterJob("Finished", "job-1_1"),
        AfterJob("Succeeded", "job-2"),
    )  # fmt: skip
    assert (found["3"].at_seconds, found["3"].waited_seconds) == (1.0, 94.0)
    assert [(found[n].at_seconds, found[n].after) for n in ("4", "5")] == [(91.0, ()), (61.0, ())]


def test_lines_that_are_wrong_are_left_out_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_text(
        HEAD + line("1", 0, 0, 60) + "2|short\n" + line("3", 0, 60, 0) + line("4", 0, 0, 9).replace(
            "01:00:00", "soon") + line("5", 0, 0, None, "RUNNING")
    )  # fmt: skip
    trace = read_trace(path)
    assert [(problem.line, problem.message.partition(":")[0]) for problem in trace.problems] == [
        (3, "2 columns; the titles are 13"), (4, "End 2026-10-01T00"), (5, "'soon' is no time such "
        "as 1-12"), (6, "End"),
    ]  # fmt: skip
    assert [job.name for job in trace.jobs] == ["job-1"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["1", "1_2", "1.batch", "|", "\n", "None", "Unknown", "COMPLETED",
                             "2026-10-01T00:00:00", "TIMEOUT", "gres/gpu=4", "mem=1.5T", "1-02:03",
                             "sbatch -d afterok:1", "9" * 20, HEAD]),
        ), max_size=60,
    ).map("".join)
)  # fmt: skip
def test_any_text_is_a_trace_or_an_error_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn"
    path.write_text(HEAD + text, encoding="utf-8", errors="replace")
    jobs: tuple[TraceJob, ...] = ()
    with suppress(TraceError):  # no line is a job
        jobs = read_trace(path).jobs
    assert all(job.run_seconds >= 0 and job.members >= 1 for job in jobs)


def test_the_csv_keeps_all_that_the_dump_said(tmp_path: Path) -> None:
    trace = read_trace(SAMPLE)
    write_csv(trace, tmp_path / "jobs.csv")
    assert read_trace(tmp_path / "jobs.csv").jobs == trace.jobs
    assert any(job.after for job in trace.jobs)


def test_nodes_on_which_jobs_overlap_count_once_as_used() -> None:
    base = TraceJob(0.0, "a", 1, 4, 100.0, waited_seconds=0.0, nodes="n1")
    load = recorded_load([
        base, replace(base, at_seconds=50.0, name="b"), replace(base, name="c", nodes="n[2-3]"),
        replace(base, name="d", gpus=0, nodes="n9"), replace(base, name="e", waited_seconds=None),
    ], 8)  # fmt: skip
    assert load is not None
    assert (load.busy, load.used, load.seconds) == (1_200.0, (150 + 100 + 100) * 8, 150.0)
    assert recorded_load([replace(base, waited_seconds=None)], 8) is None


def test_strict_order_replays_what_a_scheduler_of_strict_order_did_and_easy_waits_less() -> None:
    figures = {}
    for policy in ("fifo", "easy"):
        scenario = Scenario(
            cluster=ClusterSpec(nodes=4, gpus=8), load=LoadSpec(trace=str(SAMPLE)), policy=policy,
            ideal=True,
        )  # fmt: skip
        result = ScenarioRun(scenario).run()
        assert result.summary.violations == ()
        figures[policy] = result.summary
    recorded = figures["fifo"].recorded
    assert recorded is not None
    assert recorded == figures["easy"].recorded
    assert recorded.wait_mean_seconds is not None
    assert figures["fifo"].wait_mean_seconds == pytest.approx(recorded.wait_mean_seconds, rel=0.02)
    assert figures["fifo"].utilization == pytest.approx(recorded.utilization, rel=0.02)
    assert figures["fifo"].packing == pytest.approx(recorded.packing, rel=0.1)
    assert (figures["easy"].wait_mean_seconds or 0) < 0.6 * recorded.wait_mean_seconds
