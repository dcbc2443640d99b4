"""Runs as rows and words: lists, one run, and what differs between several (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.run_facts import (
    RunFacts,
    RunMetric,
    note_of,
    parameters_of,
    source_of,
    tags_of,
)
from fairlead.api.values.times import parse_time
from fairlead.app.queries.messages import RunLine
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.formats.text import natural
from fairlead.decide.attempts.run_facts import run_summary
from fairlead.decide.words import duration, plural

NONE = "-"
#: Columns of a list that always have the same meaning; others are parameters and metrics.
FIXED = ("namespace", "name", "state", "user", "time", "ended", "tags", "note", "commit")
#: Columns of what a run that has ended held; a parameter or metric of the name comes first.
ACCOUNTS = ("gpu-hours", "cost")
#: Parameters, and metrics, that a list shows unless --columns says which.
SHOWN_MAX = 6
_BARS = "▁▂▃▄▅▆▇█"
Value = str | float | None


def run_line(job: Job) -> RunLine | None:
    """Return a job as a run of a list; None where nothing was recorded of one."""
    summary, meta = run_summary(job), job.metadata
    if summary is None:
        return None
    began, ended = (
        None if text is None else round(parse_time(text) * 1000)
        for text in (job.status.started_at, job.status.finished_at if job.is_finished else None)
    )
    user = meta.annotations.get(names.SUBMITTED_BY, "")
    return RunLine(meta.uid, *meta.key, job.status.state, user, began, ended, summary)


def value_of(line: RunLine, key: str, now: float) -> Value:
    """Return what a run has under a column's name, None for nothing: a fixed column, else a
    parameter, else a metric's last value, or its least or largest one as NAME.min and NAME.max.
    """
    run = line.run
    if key in FIXED:
        return _fixed(line, key, now)
    if key in run.params:
        return run.params[key]
    if key in run.metrics:
        return run.metrics[key].last
    if key in ACCOUNTS:
        return run.gpu_hours if key == "gpu-hours" else run.cost
    name, _, which = key.rpartition(".")
    metric = run.metrics.get(name)
    if metric is None or which not in ("min", "max"):
        return None
    return metric.min if which == "min" else metric.max


def _fixed(line: RunLine, key: str, now: float) -> Value:
    ended_ms = line.finished_at_ms
    if key == "time":
        until = now if ended_ms is None else ended_ms / 1000
        return None if line.started_at_ms is None else until - line.started_at_ms / 1000
    if key == "ended":
        return None if ended_ms is None else ended_ms / 1000
    texts = {
        "namespace": line.namespace, "name": line.name, "state": line.state, "user": line.user,
        "tags": ",".join(line.run.tags), "note": line.run.note, "commit": line.run.commit,
    }  # fmt: skip
    return texts[key] or None


def sorted_runs(lines: Sequence[RunLine], key: str, now: float) -> list[RunLine]:
    """Return the runs by a column, ascending, or descending for -KEY; those without it come last.

    Numbers, also those of parameters, are compared as numbers, and come before other texts.
    """
    name, is_down = key.removeprefix("-"), key.startswith("-")
    valued = [(value_of(line, name, now), line) for line in lines]
    known = [(_order(value), line) for value, line in valued if value is not None]
    known.sort(key=lambda each: each[0], reverse=is_down)
    return [line for _, line in known] + [line for value, line in valued if value is None]


def _order(value: str | float) -> tuple[int, float, list[Any]]:
    number = number_of(value)
    return (1, 0.0, natural(str(value))) if number is None else (0, number, [])


def number_of(value: Value) -> float | None:
    """Return a value as a number, also that of a parameter; None for what is none."""
    if isinstance(value, float | int) or value is None:
        return value
    return float(value) if re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?", value) else None


def keys_of(lines: Iterable[RunLine]) -> tuple[list[str], list[str]]:
    """Return the names of all parameters and of all metrics, those of most runs first."""
    counts: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for line in lines:
        for own, count in zip((line.run.params, line.run.metrics), counts, strict=True):
            for name in own:
                count[name] = count.get(name, 0) + 1
    params, metrics = (sorted(count, key=partial(_rarity, count)) for count in counts)
    return params, metrics


def _rarity(counts: Mapping[str, int], name: str) -> tuple[int, list[Any]]:
    return -counts[name], natural(name)


def default_columns(lines: Sequence[RunLine], *, with_namespace: bool) -> list[str]:
    """Return the columns of a list: parameters that differ, and metrics, `SHOWN_MAX` of each."""
    params, metrics = keys_of(lines)
    differing = [
        name for name in params if len({line.run.params.get(name) for line in lines}) > 1
    ] or params
    first = ["namespace"] if with_namespace else []
    return [*first, "name", "state", "time", *differing[:SHOWN_MAX], *metrics[:SHOWN_MAX], "tags"]


def known_columns(params: Iterable[str], metrics: Sequence[str]) -> frozenset[str]:
    """Return the names of all columns that runs with these names can have."""
    extremes = (f"{name}.{which}" for name in metrics for which in ("min", "max"))
    return frozenset((*FIXED, *ACCOUNTS, *params, *metrics, *extremes))


def run_columns(keys: Sequence[str]) -> list[Column]:
    """Return the columns of a list."""
    right = [key not in FIXED for key in keys]
    return [
        Column(key.upper() if key in FIXED else key, Align.RIGHT if is_right else Align.LEFT,
               may_cut=key in ("note", "tags"))
        for key, is_right in zip(keys, right, strict=True)
    ]  # fmt: skip


def run_rows(lines: Iterable[RunLine], keys: Sequence[str], now: float) -> list[Row]:
    """Return a row per run, as people read it."""
    return [tuple(_cell(key, value_of(line, key, now), now) for key in keys) for line in lines]


def _cell(key: str, value: Value, now: float) -> str:
    if value is None:
        return NONE
    if isinstance(value, str):
        return value[:12] if key == "commit" else value
    if key == "time":
        return duration(value)
    return f"{duration(now - value)} ago" if key == "ended" else number_text(value)


def number_text(value: float) -> str:
    """Return a number with at most six digits that count."""
    return f"{value:.6g}"


def run_facts(line: RunLine) -> dict[str, Any]:
    """Return a run of a list for programs."""
    return msgspec.to_builtins(line)


# One run


def details(job: Job) -> dict[str, Any]:
    """Return all that is known of a job as a run, for programs; what is not known is left out."""
    facts, source = job.status.run or RunFacts(), source_of(job.metadata)
    containers = [each for role in job.spec.roles for each in role.template.spec.containers]
    first = containers[0] if containers else None
    out: dict[str, Any] = {
        "name": job.metadata.name, "namespace": job.metadata.namespace, "uid": job.metadata.uid,
        "state": job.status.state, "attempts": job.status.attempt,
        "startedAt": job.status.started_at, "finishedAt": job.status.finished_at,
        "command": [*first.command, *first.args] if first else None,
        "image": first.image if first else None,
        "tags": list(tags_of(job.metadata)), "note": note_of(job.metadata),
        "programNote": facts.note,
        **({} if source is None else {
            "commit": source.commit, "branch": source.branch, "files": list(source.files),
            "diff": source.diff,
        }),
        "params": {**parameters_of(containers), **facts.params},
        "metrics": {name: msgspec.to_builtins(each) for name, each in facts.metrics.items()},
        "isPartial": facts.is_partial,
    }  # fmt: skip
    return {key: value for key, value in out.items() if value not in (None, "", [], {}, False)}


def run_text(job: Job, now: float) -> list[str]:
    """Return the lines of `runs show`."""
    found, facts = details(job), job.status.run or RunFacts()
    began, ended = job.status.started_at, job.status.finished_at
    ran = ""
    if began:
        ran = f", ran {duration((parse_time(ended) if ended else now) - parse_time(began))}"
    attempts = f", {plural(job.status.attempt, 'attempt')}" if job.status.attempt > 1 else ""
    lines = [f"{found['namespace']}/{found['name']}  {found.get('state', NONE)}{ran}{attempts}"]
    texts = (
        ("tags", ", ".join(found.get("tags", ()))), ("note", found.get("note", "")),
        ("its note", found.get("programNote", "")), ("commit", _commit(found)),
        ("changed", ", ".join(found.get("files", ()))),
        ("command", " ".join(found.get("command", ()))), ("image", found.get("image", "")),
    )  # fmt: skip
    lines += [f"{word:<9} {text}" for word, text in texts if text]
    lines += _block("parameters", [f"{k} = {v}" for k, v in found.get("params", {}).items()])
    lines += _block("metrics", [_metric(name, each) for name, each in facts.metrics.items()])
    if facts.is_partial:
        lines.append("not all of what the program reported is known")
    if found.get("diff"):
        lines += _block("changes to the commit", found["diff"].splitlines())
    return lines


def _commit(found: Mapping[str, Any]) -> str:
    branch = f" ({found['branch']})" if found.get("branch") else ""
    return f"{found['commit']}{branch}" if found.get("commit") else ""


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []


def _metric(name: str, metric: RunMetric) -> str:
    last = "no number" if metric.last is None else number_text(metric.last)
    step = f" at step {metric.step}" if metric.step is not None else ""
    spread = ""
    if metric.count > 1 and metric.min is not None and metric.max is not None:
        spread = f", {number_text(metric.min)} to {number_text(metric.max)}"
        spread += f" in {plural(metric.count, 'value')}"
    course = f"  {sparkline(metric.values)}" if len(metric.values) > 1 else ""
    return f"{name} = {last}{step}{spread}{course}"


def sparkline(values: Sequence[float]) -> str:
    """Return a character for each value, from the least to the largest."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


# Several


def differences(jobs: Sequence[Job], *, everything: bool) -> list[tuple[str, list[Any]]]:
    """Return what differs between runs, or with `everything` all: what, and the value of each run,
    None where it has none.
    """
    flat = [_flat(details(job)) for job in jobs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, [each.get(key) for each in flat]) for key in keys]
    return [row for row in rows if everything or any(value != row[1][0] for value in row[1])]


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of a run as rows; identities and instants are not compared."""
    out: dict[str, Any] = {}
    began, ended = found.get("startedAt"), found.get("finishedAt")
    for key in ("state", "attempts", "commit", "branch", "image"):
        out[key] = found.get(key)
    out["seconds"] = round(parse_time(ended) - parse_time(began)) if began and ended else None
    for key in ("command", "files", "tags"):
        out[key] = (" " if key == "command" else ", ").join(found[key]) if key in found else None
    for key in ("note", "programNote", "diff"):
        out[key] = found.get(key)
    out |= {f"params.{name}": value for name, value in found.get("params", {}).items()}
    for name, metric in found.get("metrics", {}).items():
        out |= {f"metrics.{name}.{key}": metric.get(key) for key in ("last", "min", "max", "count")}
    return {key: value for key, value in out.items() if value is not None}


def difference_rows(found: Sequence[tuple[str, list[Any]]]) -> list[Row]:
    """Return a row for each difference."""
    return [(what, *(_short(value) for value in values)) for what, values in found]


def _short(value: Any) -> str:
    if value is None:
        return NONE
    text = number_text(value) if isinstance(value, float) else str(value)
    first, more, _ = text.partition("\n")
    return f"{first} ..." if more else text
