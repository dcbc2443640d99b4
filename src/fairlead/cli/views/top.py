"""Running jobs by what they use of what they hold, as a table, as CSV and as plain data (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.values import quantity
from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.words import amount_text
from fairlead.decide.use.present_use import PresentUse
from fairlead.decide.words import duration

UNKNOWN = "unknown"
_NONE = "-"


#: What jobs can be summed by: fields of `TopLine`.
KEYS = ("user", "team")


@dataclass(frozen=True, slots=True)
class TopLine:
    """A running job, or the jobs of one user or team together; None is what is not known.

    `idle_jobs` and `idle_gpus` are those of jobs that use almost nothing, `unknown_jobs` those of
    which it is not known. Amounts used are sums of what was measured: `measured` of `members`.
    """

    namespace: str
    name: str
    user: str
    team: str
    jobs: int
    members: int
    measured: int
    gpus: int
    cpu_asked_milli: int
    memory_asked_bytes: int
    cpu_milli: int | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    seconds: float
    idle_jobs: int
    idle_gpus: int
    unknown_jobs: int
    judged_seconds: float | None
    gpu_milli: int | None = None

    @property
    def gpu_share(self) -> float | None:
        """Return the part of the GPUs that computed; None where it is not known, or has none."""
        return None if self.gpu_milli is None or not self.gpus else (
            self.gpu_milli / (1_000 * self.gpus)
        )  # fmt: skip

    @property
    def cpu_share(self) -> float | None:
        """Return the used part of the processors; None unless all members were measured."""
        is_known = self.cpu_milli is not None and self.measured >= self.members
        return self.cpu_milli / self.cpu_asked_milli if (
            is_known and self.cpu_milli is not None and self.cpu_asked_milli
        ) else None  # fmt: skip


def job_line(job: Job, use: PresentUse) -> TopLine:
    """Return the line of one job."""
    is_idle = use.is_idle is True
    user = job.metadata.annotations.get(names.SUBMITTED_BY, "")
    team = (job.status.placement.team if job.status.placement else "") or job.spec.team
    return TopLine(
        job.metadata.namespace, job.metadata.name, user, team, 1, use.members,
        use.measured, use.gpus, use.cpu_asked_milli, use.memory_asked_bytes, use.cpu_milli,
        use.memory_bytes, use.memory_peak_bytes, use.seconds, int(is_idle),
        use.gpus if is_idle else 0, int(use.is_idle is None), use.judged_seconds, use.gpu_milli,
    )  # fmt: skip


def in_order(lines: Iterable[TopLine]) -> list[TopLine]:
    """Return the lines: those that hold most idle GPUs, then most that did not compute as far as
    that is known, then most GPUs, then most processors.
    """
    return sorted(lines, key=lambda each: (
        -each.idle_gpus, 0 if each.gpu_milli is None else each.gpu_milli - 1_000 * each.gpus,
        -each.gpus, -each.cpu_asked_milli, each.namespace, each.name, each.user,
        each.team,
    ))  # fmt: skip


def sums(lines: Iterable[TopLine], key: str) -> list[TopLine]:
    """Return a line for each value of the key; what is unknown of all jobs stays unknown."""
    groups: dict[str, list[TopLine]] = {}
    for line in lines:
        groups.setdefault(getattr(line, key), []).append(line)
    return in_order(_sum(value, group, key) for value, group in groups.items())


def _sum(value: str, group: Sequence[TopLine], key: str) -> TopLine:
    def known(amounts: Iterable[int | None]) -> int | None:
        found = [each for each in amounts if each is not None]
        return sum(found) if found else None

    return TopLine(
        "", "", value if key == "user" else "", value if key == "team" else "", len(group),
        sum(each.members for each in group), sum(each.measured for each in group),
        sum(each.gpus for each in group), sum(each.cpu_asked_milli for each in group),
        sum(each.memory_asked_bytes for each in group), known(each.cpu_milli for each in group),
        known(each.memory_bytes for each in group),
        known(each.memory_peak_bytes for each in group), max(each.seconds for each in group),
        sum(each.idle_jobs for each in group), sum(each.idle_gpus for each in group),
        sum(each.unknown_jobs for each in group), None,
        known(None if any(each.gpus and each.gpu_milli is None for each in group)
              else each.gpu_milli for each in group),
    )  # fmt: skip


def _cpu(line: TopLine) -> str:
    asked = amount_text(quantity.CPU, line.cpu_asked_milli)
    if line.cpu_milli is None:
        return f"{UNKNOWN} of {asked}"
    share = "" if line.cpu_share is None else f" ({line.cpu_share:.0%})"
    return f"{line.cpu_milli / 1000:.1f} of {asked}{share}"


def _gpu(line: TopLine) -> str:
    if not line.gpus:
        return _NONE
    return UNKNOWN if line.gpu_share is None else f"{line.gpu_share:.0%}"


def _memory(amount: int | None) -> str:
    return UNKNOWN if amount is None else amount_text(quantity.MEMORY, amount)


def _idle(line: TopLine) -> str:
    if line.unknown_jobs:
        return UNKNOWN
    if not line.idle_jobs:
        return "no"
    return f"for {duration(line.judged_seconds or 0)}"


def columns(key: str, *, spread: bool) -> tuple[Column, ...]:
    """Return the columns: of jobs, with their namespace where `spread`; of sums where key."""
    used = (
        Column("CPU"), Column("MEMORY", Align.RIGHT), Column("PEAK", Align.RIGHT),
        Column("ASKED", Align.RIGHT),
    )  # fmt: skip
    if key:
        counts = ("JOBS", "GPUS", "GPU USE", "IDLE JOBS", "IDLE GPUS", "UNKNOWN")
        return (Column(key.upper()), *(Column(each, Align.RIGHT) for each in counts), *used)
    return (
        *((Column("NAMESPACE"),) if spread else ()), Column("NAME"), Column("USER"),
        Column("GPUS", Align.RIGHT), Column("GPU USE", Align.RIGHT), *used,
        Column("MEASURED"), Column("TIME"), Column("IDLE"),
    )  # fmt: skip


def rows(lines: Iterable[TopLine], key: str, *, spread: bool) -> list[Row]:
    """Return the cells of `columns`; what is not known is called so."""
    out: list[Row] = []
    for line in lines:
        used = (_cpu(line), _memory(line.memory_bytes), _memory(line.memory_peak_bytes),
                amount_text(quantity.MEMORY, line.memory_asked_bytes))  # fmt: skip
        if key:
            value = line.user or line.team or _NONE
            held = (f"{line.jobs:,}", f"{line.gpus:,}", _gpu(line))
            counts = (line.idle_jobs, line.idle_gpus, line.unknown_jobs)
            out.append((value, *held, *(f"{each:,}" for each in counts), *used))
            continue
        out.append((
            *((line.namespace,) if spread else ()), line.name, line.user or _NONE,
            str(line.gpus), _gpu(line),
            *used, f"{line.measured}/{line.members}", duration(line.seconds), _idle(line),
        ))  # fmt: skip
    return out


def facts(line: TopLine, key: str) -> dict[str, Any]:
    """Return a line for programs: amounts in base units; what is not known is left out."""
    whose = {key: line.user or line.team} if key else {
        "namespace": line.namespace, "job": line.name, "user": line.user, "team": line.team,
    }  # fmt: skip
    found: dict[str, Any] = {
        **whose, "jobs": line.jobs, "members": line.members, "measuredMembers": line.measured,
        "gpus": line.gpus, "gpuShare": None if line.gpu_share is None else round(line.gpu_share, 4),
        "cpuAskedMilli": line.cpu_asked_milli, "cpuMilli": line.cpu_milli,
        "cpuShare": None if line.cpu_share is None else round(line.cpu_share, 4),
        "memoryAskedBytes": line.memory_asked_bytes, "memoryBytes": line.memory_bytes,
        "memoryPeakBytes": line.memory_peak_bytes, "seconds": round(line.seconds),
        "idleJobs": line.idle_jobs, "idleGpus": line.idle_gpus, "unknownJobs": line.unknown_jobs,
        "judgedSeconds": line.judged_seconds,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def csv_text(lines: Sequence[TopLine], key: str) -> str:
    """Return the lines as CSV with a header; what is not known is empty."""
    whose = [key] if key else ["namespace", "job", "user", "team"]
    fields = [
        *whose, "jobs", "members", "measuredMembers", "gpus", "gpuShare", "cpuAskedMilli",
        "cpuMilli", "cpuShare", "memoryAskedBytes", "memoryBytes", "memoryPeakBytes", "seconds",
        "idleJobs", "idleGpus", "unknownJobs", "judgedSeconds",
    ]  # fmt: skip
    found = (facts(line, key) for line in lines)
    return as_csv(fields, ([each.get(name, "") for name in fields] for each in found))
