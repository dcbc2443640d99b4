"""A run as MLflow stores one: parameters, points of metrics, tags, status and times (pure).

Names and limits are those of MLflow's REST API (mlflow/mlflow,
docs/api_reference/source/rest-api.rst: Log Batch, Log Param, Set Tag), which refuses a whole
request over one value. MLflow needs an instant for each point and a run records none, so all points
have that of the begin: a run that is exported again repeats its points exactly. Steps are as they
were recorded.
"""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.run_facts import RunMetric
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.runs import details
from fairlead.decide.attempts.usage import account_of
from fairlead.decide.words import plural

OWN_TAGS = "fairlead."
UID_TAG = "fairlead.uid"
#: Written last: of what it is the digest, all has been written.
DIGEST_TAG = "fairlead.export"
#: In one request: parameters, tags, and points, at most 1,000 together and 1 MB.
TEXTS_MAX, POINTS_MAX = 100, 800
#: Bytes that every MLflow server accepts.
KEY_BYTES_MAX, PARAM_BYTES_MAX, TAG_BYTES_MAX = 250, 6_000, 5_000
#: What MLflow refuses in the name of a parameter or a metric.
_REFUSED = re.compile(r"[^A-Za-z0-9_./\- :]")
_ENDED = {JobState.SUCCEEDED.value: "FINISHED", JobState.CANCELLED.value: "KILLED"}
T = TypeVar("T")


class Point(NamedTuple):
    """One value of a metric."""

    key: str
    value: float
    step: int

    @property
    def identity(self) -> tuple[int, str]:
        """What two points of a metric share that are the same: a series rounds to six digits."""
        return self.step, f"{self.value:.6g}"


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """One run. Times are in milliseconds since the epoch."""

    uid: str
    name: str
    status: str
    start_ms: int
    end_ms: int | None
    params: Mapping[str, str]
    points: Sequence[Point]
    tags: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Return a text that differs where anything of the run does."""
        raw = msgspec.json.encode(self, order="sorted")
        return hashlib.sha256(raw).hexdigest()[:32]

    def metric_keys(self) -> set[str]:
        """Return the names of the metrics."""
        return {point.key for point in self.points}


def mlflow_run(job: Job) -> MlflowRun:
    """Return a job as MLflow stores it."""
    found, ended = details(job), job.status.finished_at if job.is_finished else None
    params, run = found.get("params", {}), job.status.run
    metrics: Mapping[str, RunMetric] = run.metrics if run is not None else {}
    points = _points(metrics)
    status = "RUNNING" if job.status.started_at else "SCHEDULED"
    if job.is_finished:
        status = _ENDED.get(job.status.state, "FAILED")
    if ended is not None:
        hours, cost = account_of(job, parse_time(ended))
        own = (("fairlead.gpu-hours", hours or None), ("fairlead.cost", cost))
        known = {point.key for point in points}
        points += [Point(key, round(value, 4), 0) for key, value in own
                   if value is not None and key not in known]  # fmt: skip
    names = mlflow_keys(params)
    return MlflowRun(
        uid=job.metadata.uid,
        name=job.metadata.name,
        status=status,
        start_ms=_milliseconds(job.status.started_at or job.metadata.creation_timestamp or ended),
        end_ms=None if ended is None else _milliseconds(ended),
        params={names[name]: _cut(value, PARAM_BYTES_MAX) for name, value in params.items()},
        points=points,
        tags=_tags(job, found),
    )


def _milliseconds(text: str | None) -> int:
    return round(parse_time(text) * 1000) if text else 0


def _tags(job: Job, found: Mapping[str, Any]) -> dict[str, str]:
    """Return what describes the run: MLflow's own tags where it has one, else ours."""
    note = "\n\n".join(found[key] for key in ("note", "programNote") if found.get(key))
    texts = {
        UID_TAG: job.metadata.uid,
        "fairlead.namespace": job.metadata.namespace,
        "fairlead.state": job.status.state or "",
        "fairlead.tags": ",".join(found.get("tags", ())),
        "fairlead.image": found.get("image", ""),
        "fairlead.partial": "true" if found.get("isPartial") else "",
        "mlflow.note.content": note,
        "mlflow.user": job.metadata.annotations.get(SUBMITTED_BY, ""),
        "mlflow.source.name": " ".join(found.get("command", ())),
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": found.get("commit", ""),
        "mlflow.source.git.branch": found.get("branch", ""),
    }
    return {key: _cut(text, TAG_BYTES_MAX) for key, text in texts.items() if text}


def _cut(text: str, bytes_max: int) -> str:
    raw = text.encode(errors="replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    return raw[: bytes_max - 3].decode(errors="ignore") + "..."


def _points(metrics: Mapping[str, RunMetric]) -> list[Point]:
    """Return the course of each metric with its exact last value, and its extremes as metrics of
    their own, NAME.min and NAME.max, as columns of lists are called.
    """
    extremes = {f"{name}.{which}": (name, which) for name in metrics for which in ("min", "max")}
    keys = mlflow_keys([*metrics, *(name for name in extremes if name not in metrics)])
    found: list[Point] = []
    for name, metric in metrics.items():
        at = metric.count if metric.step is None else metric.step
        course: dict[int, float | None] = dict(zip(metric.steps, metric.values, strict=False))
        if metric.last is not None:
            course[at] = metric.last
        found += _finite(keys[name], course)
        for which in ("min", "max"):
            if f"{name}.{which}" not in metrics and metric.count > 1:
                found += _finite(keys[f"{name}.{which}"], {at: getattr(metric, which)})
    return found


def _finite(key: str, course: Mapping[int, float | None]) -> Iterator[Point]:
    for step, value in sorted(course.items()):
        if value is not None and math.isfinite(value):
            yield Point(key, value, step)


def mlflow_keys(names: Iterable[str]) -> dict[str, str]:
    """Return a name that MLflow accepts for each of ours, no two alike.

    What it refuses becomes "_"; so does "/" where the name is no plain path. Where two names become
    one, those that were changed end in a part of their digest.
    """
    found = {name: _key(name) for name in names}
    owned = {name for name, key in found.items() if name == key}
    users = dict[str, list[str]]()
    for name, key in found.items():
        users.setdefault(key, []).append(name)
    for name, key in found.items():
        if name not in owned and len(users[key]) > 1:
            mark = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
            found[name] = f"{key[: KEY_BYTES_MAX - 9]}-{mark}"
    return found


def _key(name: str) -> str:
    key = _REFUSED.sub("_", name)[:KEY_BYTES_MAX] or "_"
    if posixpath.normpath(key) != key or key.startswith(("/", ".")):
        key = key.replace("/", "_")
        key = f"_{key[1:]}" if key.startswith(".") else key
    return key


def batches(
    params: Mapping[str, str], points: Sequence[Point], tags: Mapping[str, str], at_ms: int
) -> Iterator[dict[str, Any]]:
    """Yield the bodies of requests that log all of it, without the run, each within the limits."""
    parts = zip_longest(
        _pairs(params, TEXTS_MAX),
        _parts([
            {"key": key, "value": value, "timestamp": at_ms, "step": step}
            for key, value, step in points
        ], POINTS_MAX),
        _pairs(tags, TEXTS_MAX),
        fillvalue=(),
    )  # fmt: skip
    for own in parts:
        named = zip(("params", "metrics", "tags"), own, strict=True)
        yield {name: part for name, part in named if part}


def _pairs(texts: Mapping[str, str], most: int) -> Iterator[list[dict[str, str]]]:
    return _parts([{"key": key, "value": value} for key, value in texts.items()], most)


def _parts(items: Sequence[T], most: int) -> Iterator[list[T]]:
    for begin in range(0, len(items), most):
        yield list(items[begin : begin + most])


@dataclass(frozen=True, slots=True)
class RunExport:
    """What was written of one run, or would be. `action`: create, update or none."""

    run: MlflowRun
    action: str
    #: MLflow's; "" for a run that is not made yet.
    run_id: str = ""
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    points: Sequence[Point] = ()
    #: Parameters that have another value in MLflow, which changes none.
    kept: Sequence[str] = ()

    @property
    def metrics(self) -> int:
        """How many metrics have points among these."""
        return len({point.key for point in self.points})


EXPORT_COLUMNS = (
    Column("NAME"), Column("ACTION"), Column("PARAMS", Align.RIGHT), Column("METRICS", Align.RIGHT),
    Column("POINTS", Align.RIGHT), Column("MLFLOW RUN"),
)  # fmt: skip


def export_rows(done: Iterable[RunExport]) -> list[Row]:
    """Return a row per run, with what was new in it."""
    return [
        (each.run.name, each.action, str(len(each.params)), str(each.metrics),
         str(len(each.points)), each.run_id or "-")
        for each in done
    ]  # fmt: skip


def export_facts(each: RunExport) -> dict[str, Any]:
    """Return what was written of a run, for programs."""
    return {
        "name": each.run.name, "uid": each.run.uid, "action": each.action,
        "params": len(each.params), "metrics": each.metrics, "points": len(each.points),
        "mlflowRun": each.run_id or None, "keptParams": list(each.kept),
    }  # fmt: skip


def export_summary(done: Sequence[RunExport], place: str, *, is_dry: bool) -> str:
    """Return how many runs were written, in one line."""
    created, updated = (sum(each.action == word for each in done) for word in ("create", "update"))
    counts = (
        f"{created:,} created, {updated:,} updated, {len(done) - created - updated:,} unchanged"
    )
    dry = " if this were no dry run" if is_dry else ""
    return f"{plural(len(done), 'run')}: {counts}{dry}; {place}"


def kept_text(each: RunExport) -> str:
    """Return the note on parameters that MLflow does not change."""
    named = ", ".join(each.kept)
    return f"run {each.run.name}: MLflow keeps the first value of a parameter: {named}"
