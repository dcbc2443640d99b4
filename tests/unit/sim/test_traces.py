"""Trace readers: each format, what is left out, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fairlead.sim.traces.readers import gang_of, read_trace, write_csv
from fairlead.sim.traces.trace import TraceError, TraceJob

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,12,2951.0,6214e9
"""
SWF = """; Version: 2.2
; a comment
  1  100 -1  50  16 -1 -1 -1 -1
2 160 -1 7 -1 -1 -1 4 900 -1 -1 3 -1 -1 -1 -1 -1 -1
"""
_COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase"
OPENB = f"""{_COLUMNS},creation_time,deletion_time,scheduled_time
p-0,12000,16384,1,460,,LS,Running,10,110,20
p-1,500,16,0,0,,BE,Pending,5,35,
"""


def written(tmp_path: Path, text: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_philly_jobs_are_sorted_and_cut_into_members_of_at_most_eight_gpus(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PHILLY))
    assert trace.format == "philly"
    first, second = trace.jobs
    assert (first.at_seconds, first.members, first.gpus, first.tenant) == (0.0, 2, 6, "6214e9")
    assert (second.at_seconds, second.members, second.gpus) == (2932.0, 1, 1)


@pytest.mark.parametrize(
    ("gpus", "gang"), [(1, (1, 1)), (8, (1, 8)), (12, (2, 6)), (17, (3, 6)), (64, (8, 8))]
)
def test_a_gang_has_the_fewest_members_that_hold_its_gpus(gpus: int, gang: tuple[int, int]) -> None:
    assert gang_of(gpus) == gang


def test_swf_tolerates_short_lines_and_takes_requested_processors_and_time(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SWF))
    assert trace.format == "swf"
    assert [(job.members, job.run_seconds) for job in trace.jobs] == [(16, 50.0), (4, 7.0)]
    assert [job.limit_seconds for job in trace.jobs] == [None, 900.0]
    assert trace.jobs[1].tenant == "3"


def test_a_time_with_an_offset_and_a_time_limit_of_zero_are_understood(tmp_path: Path) -> None:
    abroad = read_trace(written(tmp_path, PHILLY + "2017-10-09 09:01:55+02:00,5,1,5,x\n"))
    assert [job.at_seconds for job in abroad.jobs] == [0.0, 2932.0, 2932.0]
    (unlimited,) = read_trace(written(tmp_path, "1 0 -1 5 1 -1 -1 1 0\n")).jobs
    assert unlimited.limit_seconds is None


def test_openb_pods_run_from_their_scheduling_to_their_deletion(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, OPENB))
    assert trace.format == "openb"
    assert [(job.at_seconds, job.run_seconds, job.gpus) for job in trace.jobs] == [
        (0.0, 30.0, 0), (5.0, 90.0, 1),
    ]  # fmt: skip
    assert trace.jobs[1].memory_bytes == 16384 << 20


def test_a_gzipped_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = read_trace(written(tmp_path, PHILLY))
    packed = read_trace(written(tmp_path, gzip.compress(PHILLY.encode()), "trace.gz"))
    assert packed.jobs == plain.jobs


def test_json_lines_and_csv_say_the_same(tmp_path: Path) -> None:
    row = '{"submit_seconds": 3, "run_seconds": 2.5, "members": 2, "gpus": 4, "tenant": "a"}\n'
    line = "submit_seconds,run_seconds,members,gpus,tenant\n3,2.5,2,4,a\n"
    (from_json,) = read_trace(written(tmp_path, row)).jobs
    (from_csv,) = read_trace(written(tmp_path, line)).jobs
    assert (from_json.members, from_json.gpus, from_json.run_seconds) == (2, 4, 2.5)
    assert from_json.tenant == from_csv.tenant == "a"


def test_the_generic_form_reads_back_as_what_was_written(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SWF))
    write_csv(trace, tmp_path / "out.csv")
    assert read_trace(tmp_path / "out.csv").jobs == trace.jobs


def test_lines_that_are_no_jobs_are_counted_and_named_by_line(tmp_path: Path) -> None:
    bad = (
        PHILLY + "\nnot a date,5,1,5,x\n2017-10-09 07:01:55,-4,1,1,x\n2017-10-10 01:00:00,9,0,1,x\n"
    )
    trace = read_trace(written(tmp_path, bad))
    assert len(trace.jobs) == 2
    assert trace.problem_count == 3
    assert [problem.line for problem in trace.problems] == [5, 6, 7]
    assert "no date" in trace.problems[0].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a known trace"),
        ("a,b\n1,2\n", "accepted: Philly CSV"),
        ("submit_seconds,run_seconds,members,gpus\nx,1,1,1\n", ":2: no line is a job"),
        (b"\x1f\x8b\x08\x00garbage", "gzip data are damaged"),
        ('{"submit_seconds": ' + "[" * 5000, "no line is a job"),
        ("submit_seconds,run_seconds,members,gpus\n1,1,1e99,1\n", "whole number from 1"),
        ("submit_seconds,run_seconds,members,gpus\nnan,1,1,1\n", "must be 0 or more"),
        ('submit_seconds,run_seconds,members,gpus\n"' + "1,1,1,1\n" * 20_000, "left open"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_place(
    text: str | bytes, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=expected):
        read_trace(written(tmp_path, text))


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none")
    with pytest.raises(TraceError, match="no trace format 'xls'"):
        read_trace(written(tmp_path, PHILLY), "xls")


def test_a_trace_job_has_the_defaults_of_one_small_member() -> None:
    job = TraceJob(0.0, "a", 1, 1, 5.0)
    assert (job.cpu_milli, job.memory_bytes, job.limit_seconds) == (1000, 1 << 30, None)
