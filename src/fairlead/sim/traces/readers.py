"""Readers of trace formats: Philly CSV, SWF, openb pods, dumps of sacct, and a generic form.

    philly    timestamp,duration,num_gpus,gpu_time,cluster          (Jeon et al., ATC'19)
    swf       `;` comments, then 5 to 18 whitespace-separated fields (Feitelson's archive)
    openb     name,cpu_milli,memory_mib,num_gpu,...,creation_time,deletion_time,scheduled_time
    sacct     the output of sacct -P (`slurm.py`)
    csv       submit_seconds,run_seconds,members,gpus, and if wanted
              name,tenant,limit_seconds,cpu_milli,memory_bytes,fails,waited_seconds,nodes,after
    jsonl     one object a line with the same names

Files may be gzipped. `auto` tells the format by the header. A line that is not a job is left out
and counted; a file of which no line is a job raises `TraceError`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fairlead.api.jobs.after import AfterState
from fairlead.sim.traces.slurm import (
    SacctRow,
    assumed,
    by_job,
    ids_by_number,
    is_sacct,
    sacct_job,
    sacct_rows,
)
from fairlead.sim.traces.trace import (
    PROBLEMS_SHOWN_MAX,
    AfterJob,
    BadLine,
    Trace,
    TraceError,
    TraceJob,
    TraceProblem,
)

#: Largest number of GPUs on one member: a DGX or HGX node.
GPUS_PER_MEMBER_MAX = 8
LINE_BYTES_MAX = 64 * 1024
BYTES_MAX = 1 << 30
MEMBERS_MAX = 100_000
_CSV_NEEDED = ("submit_seconds", "run_seconds", "members", "gpus")


@dataclass(slots=True)
class _Sink:
    """Collects jobs and problems of one file."""

    jobs: list[TraceJob] = field(default_factory=list)
    problems: list[TraceProblem] = field(default_factory=list)
    problem_count: int = 0

    def take(self, line: int, parse: Callable[[], TraceJob | None]) -> None:
        """Take the job of a line; None: it is none, and no mistake."""
        try:
            job = parse()
        except BadLine as error:
            self.leave_out(line, str(error))
            return
        if job is not None:
            self.jobs.append(job)

    def leave_out(self, line: int, message: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(TraceProblem(line, message))


def read_trace(path: Path, format_: str = "auto") -> Trace:
    """Return the trace in a file; `TraceError` when it cannot be read or has no job."""
    lines = _lines(path)
    name = _detect(path, lines) if format_ == "auto" else format_
    reader = FORMATS.get(name)
    if reader is None:
        known = ", ".join(sorted(FORMATS))
        raise TraceError(f"no trace format '{name}'; accepted: {known}, auto")
    sink = _Sink()
    try:
        assumptions = reader(lines, sink)
    except csv.Error as error:
        raise TraceError(f"{path}: not CSV, perhaps a quote is left open: {error}") from error
    if not sink.jobs:
        first = sink.problems[0] if sink.problems else TraceProblem(1, "there is no line of data")
        raise TraceError(
            f"{path}:{first.line}: no line is a job of the format {name}: {first.message}"
        )
    jobs = sorted(sink.jobs, key=lambda job: (job.at_seconds, job.name))
    start = jobs[0].at_seconds
    jobs = [replace(job, at_seconds=job.at_seconds - start) for job in jobs]
    return Trace(
        source=str(path), format=name, jobs=tuple(jobs), assumptions=tuple(assumptions),
        problems=tuple(sink.problems), problem_count=sink.problem_count,
    )  # fmt: skip


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error
    if len(data) > BYTES_MAX:
        raise TraceError(f"{path}: larger than {BYTES_MAX >> 30} GiB of text; split the trace")
    return data.decode("utf-8", errors="replace").splitlines()


def _detect(path: Path, lines: list[str]) -> str:
    head = next((line for line in lines if line.strip()), "")
    if head.startswith("{"):
        return "jsonl"
    columns = [column.strip() for column in head[:LINE_BYTES_MAX].split(",")]
    if {"timestamp", "duration", "num_gpus"} <= set(columns):
        return "philly"
    if {"cpu_milli", "num_gpu", "creation_time"} <= set(columns):
        return "openb"
    if set(_CSV_NEEDED) <= set(columns):
        return "csv"
    if is_sacct(head[:LINE_BYTES_MAX]):
        return "sacct"
    if head.startswith(";") or len(head.split()) >= _SWF_FIELDS_MIN:
        return "swf"
    raise TraceError(
        f"{path}:1: not a known trace: the header is '{head[:80]}'; accepted: Philly CSV, Standard "
        f"Workload Format, openb pods, sacct -P, JSON lines, or CSV with the columns "
        f"{', '.join(_CSV_NEEDED)}"
    )


# Numbers


def _number(text: str | None, what: str, *, low: float = 0.0) -> float:
    try:
        value = float((text or "").strip())
    except ValueError:
        raise BadLine(f"{what}: '{(text or '')[:40]}' is not a number") from None
    if not math.isfinite(value) or value < low:
        raise BadLine(f"{what}: {value:g} must be {low:g} or more")
    return value


def _count(text: str | None, what: str, *, low: int = 1, high: int = MEMBERS_MAX) -> int:
    value = _number(text, what, low=low)
    if value != int(value) or value > high:
        raise BadLine(f"{what}: {value:g} must be a whole number from {low} to {high:,}")
    return int(value)


def gang_of(gpus: int) -> tuple[int, int]:
    """Return (members, GPUs per member): the fewest members of at most 8 GPUs, rounded up."""
    members = max(1, math.ceil(gpus / GPUS_PER_MEMBER_MAX))
    return members, math.ceil(gpus / members)


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield (line number, row) of CSV text; the first line names the columns."""
    reader = csv.DictReader(line[:LINE_BYTES_MAX] for line in lines)
    for row in reader:
        yield reader.line_num, {str(key).strip(): value for key, value in row.items() if key}


# Formats


def _philly(lines: list[str], sink: _Sink) -> list[str]:
    for number, row in _rows(lines):
        sink.take(number, lambda row=row, number=number: _philly_job(number, row))
    return [
        "members = ceil(num_gpus / 8), GPUs divided evenly among them",
        "duration is the run time; users state no time limit; cluster is the tenant",
    ]


def _philly_job(number: int, row: dict[str, str | None]) -> TraceJob:
    try:
        at = datetime.fromisoformat((row.get("timestamp") or "").strip())
    except ValueError:
        raise BadLine(f"timestamp: '{(row.get('timestamp') or '')[:40]}' is no date") from None
    members, gpus = gang_of(_count(row.get("num_gpus"), "num_gpus"))
    return TraceJob(
        at_seconds=at.replace(tzinfo=at.tzinfo or UTC).timestamp(),
        name=f"job-{number:07d}", members=members, gpus=gpus,
        run_seconds=_number(row.get("duration"), "duration"),
        tenant=(row.get("cluster") or "default").strip(),
    )  # fmt: skip


_SWF_FIELDS_MIN = 5


def _swf(lines: list[str], sink: _Sink) -> list[str]:
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith(";"):
            sink.take(number, lambda line=line: _swf_job(line))
    return [
        "one processor is one member with one GPU",
        "a requested time (field 9) is the time limit; field 12 is the tenant",
    ]


def _swf_job(line: str) -> TraceJob:
    fields = line[:LINE_BYTES_MAX].split()
    if len(fields) < _SWF_FIELDS_MIN:
        raise BadLine(f"{len(fields)} fields; a job has at least {_SWF_FIELDS_MIN}")
    processors = fields[4] if fields[4] != "-1" else (fields[7] if len(fields) > 7 else "-1")
    asked = _number(fields[8], "requested time", low=-1) if len(fields) > 8 else -1
    user = fields[11] if len(fields) > 11 and fields[11] != "-1" else "default"
    return TraceJob(
        at_seconds=_number(fields[1], "submit time"),
        name=f"job-{_count(fields[0], 'job number', low=0, high=10**9):07d}",
        members=_count(processors, "processors"), gpus=1,
        run_seconds=_number(fields[3], "run time"),
        tenant=user, limit_seconds=asked if asked > 0 else None,
    )  # fmt: skip


def _openb(lines: list[str], sink: _Sink) -> list[str]:
    for number, row in _rows(lines):
        sink.take(number, lambda row=row: _openb_job(row))
    return [
        "each pod is a job of one member; a share of a GPU is rounded up to one GPU",
        "run time = deletion_time - scheduled_time, or - creation_time where none was scheduled",
    ]


def _openb_job(row: dict[str, str | None]) -> TraceJob:
    created = _number(row.get("creation_time"), "creation_time")
    deleted = _number(row.get("deletion_time"), "deletion_time")
    scheduled = (row.get("scheduled_time") or "").strip()
    begun = _number(scheduled, "scheduled_time") if scheduled else created
    if deleted < begun:
        raise BadLine(f"deletion_time {deleted:g} lies before the start, {begun:g}")
    return TraceJob(
        at_seconds=created, name=(row.get("name") or "").strip() or "pod", members=1,
        gpus=_count(row.get("num_gpu"), "num_gpu", low=0, high=1024), run_seconds=deleted - begun,
        tenant=(row.get("qos") or "default").strip().lower(),
        cpu_milli=_count(row.get("cpu_milli"), "cpu_milli", low=0, high=10**9),
        memory_bytes=_count(row.get("memory_mib"), "memory_mib", low=0, high=10**9) << 20,
    )  # fmt: skip


def _sacct(lines: list[str], sink: _Sink) -> list[str]:
    rows: list[SacctRow] = []
    for found in sacct_rows([line[:LINE_BYTES_MAX] for line in lines]):
        if isinstance(found, SacctRow):
            rows.append(found)
        else:
            sink.leave_out(*found)
    jobs = by_job(rows)
    known = ids_by_number(jobs)
    for runs in jobs.values():
        sink.take(runs[0].line, lambda runs=runs: sacct_job(runs, known))
    return assumed(jobs)


def _csv(lines: list[str], sink: _Sink) -> list[str]:
    for number, row in _rows(lines):
        sink.take(number, lambda row=row, number=number: _generic_job(number, row))
    return []


def _jsonl(lines: list[str], sink: _Sink) -> list[str]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            sink.take(number, lambda line=line, number=number: _json_job(number, line))
    return []


def _json_job(number: int, line: str) -> TraceJob:
    try:
        row = msgspec.json.decode(
            line[:LINE_BYTES_MAX].encode(), type=dict[str, str | float | None]
        )
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not an object of texts and numbers: {error}") from None
    texts = {key: None if value is None else f"{value}" for key, value in row.items()}
    return _generic_job(number, texts)


def _generic_job(number: int, row: dict[str, str | None]) -> TraceJob:
    def given(key: str) -> str | None:
        return row.get(key) if (row.get(key) or "").strip() else None

    limit, waited = given("limit_seconds"), given("waited_seconds")
    return TraceJob(
        at_seconds=_number(row.get("submit_seconds"), "submit_seconds"),
        name=(given("name") or f"job-{number:07d}").strip(),
        members=_count(row.get("members"), "members"),
        gpus=_count(row.get("gpus"), "gpus", low=0, high=1024),
        run_seconds=_number(row.get("run_seconds"), "run_seconds"),
        tenant=(given("tenant") or "default").strip(),
        limit_seconds=_number(limit, "limit_seconds", low=1) if limit else None,
        cpu_milli=_count(given("cpu_milli") or "1000", "cpu_milli", low=0, high=10**9),
        memory_bytes=_count(
            given("memory_bytes") or str(1 << 30), "memory_bytes", low=0, high=2**53
        ),
        fails=_count(given("fails") or "0", "fails", low=0, high=1) == 1,
        waited_seconds=_number(waited, "waited_seconds") if waited else None,
        nodes=(given("nodes") or "").strip(),
        after=tuple(_after(word) for word in (given("after") or "").split()),
    )


def _after(word: str) -> AfterJob:
    state, colon, name = word.partition(":")
    if not colon or state not in {each.value for each in AfterState}:
        states = ", ".join(each.value for each in AfterState)
        raise BadLine(f"after: '{word[:40]}' is not STATE:NAME, with a state of {states}")
    return AfterJob(state, name)


#: By name: reads all lines into the sink, returns what it assumed.
FORMATS: dict[str, Callable[[list[str], _Sink], list[str]]] = {
    "philly": _philly,
    "swf": _swf,
    "openb": _openb,
    "sacct": _sacct,
    "csv": _csv,
    "jsonl": _jsonl,
}


def write_csv(trace: Trace, path: Path) -> None:
    """Write a trace in the generic CSV form, which `read_trace` reads back unchanged."""
    columns = (
        *_CSV_NEEDED,
        "name",
        "tenant",
        "limit_seconds",
        "cpu_milli",
        "memory_bytes",
        "fails",
        "waited_seconds",
        "nodes",
        "after",
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for job in trace.jobs:
            limit = "" if job.limit_seconds is None else f"{job.limit_seconds!r}"
            waited = "" if job.waited_seconds is None else f"{job.waited_seconds!r}"
            after = " ".join(f"{each.state}:{each.name}" for each in job.after)
            writer.writerow((
                repr(job.at_seconds), repr(job.run_seconds), job.members, job.gpus, job.name,
                job.tenant, limit, job.cpu_milli, job.memory_bytes, int(job.fails),
                waited, job.nodes, after,
            ))  # fmt: skip
