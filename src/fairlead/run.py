"""Record what a run does: its parameters, its metrics, a note. Of the standard library alone.

    import fairlead.run
    fairlead.run.param("lr", 0.1)
    fairlead.run.metric("loss", 0.31, step=100)
    fairlead.run.note("warm-up of 500 steps")

Outside of a job the three functions do nothing. This file may be copied into an image by itself.

What was recorded is kept in memory, bounded, and appended to $FAIRLEAD_RUN_FILE as one JSON line,
the *summary*: after 1 s at first, later once a minute, and when the program ends. The file is the
container's termination message, of which a kubelet keeps the last 4 KiB, so each summary is whole
and repeats the latest progress (`fairlead.member.progress`). Programs in other languages append
single facts, from which the same summary is made where the file is read:

    {"param": "lr", "value": 0.1}
    {"metric": "loss", "value": 0.31, "step": 100}
    {"note": "warm-up of 500 steps"}

`RunFold` makes summaries, here and there. Members write these lines, so they prove nothing: what is
none is left out, texts lose what is not printable, and numbers of facts and bytes are bounded.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import threading
import time
from typing import Any

#: A name of a parameter or a metric: val/acc@5, lr.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:/@%+()=-]{0,63}")
NAMES_MAX = 64
VALUE_LENGTH_MAX = 200
NOTE_LENGTH_MAX = 1_000
#: Points of the series of a metric, oldest first.
POINTS_MAX = 32
LINE_BYTES_MAX = 4_096
#: Of a summary in the file: two fit into what a kubelet keeps.
SUMMARY_BYTES_MAX = 1_900
_KEPT_BYTES = 4_096
#: Of what a line of progress says of the own work in a step.
_WORK_BYTES_MAX = 100
_STEP_MAX = 2**53
#: Seconds between two summaries: a hundredth of the run's time, within these.
_SECONDS_MIN, _SECONDS_MAX = 1.0, 60.0
_KINDS = re.compile(rb'"(?:param|metric|note|run)"')


class MetricFold:
    """One metric: its last value and step, count, least and largest value, and a series.

    A value that is no finite number counts, and the last value is then None.
    """

    def __init__(self) -> None:
        self.last: float | None = None
        self.step: int | None = None
        self.count = 0
        self.min: float | None = None
        self.max: float | None = None
        #: (step, value), every `_stride`-th value: where they are twice too many, half of them go.
        self.points: list[tuple[int, float]] = []
        self._stride = 1

    def add(self, value: float, step: int | None) -> None:
        """Count a value."""
        self.count += 1
        self.step = step
        if not math.isfinite(value):
            self.last = None
            return
        self.last = value
        self.min = value if self.min is None or value < self.min else self.min
        self.max = value if self.max is None or value > self.max else self.max
        if (self.count - 1) % self._stride == 0:
            self.points.append((self.count if step is None else step, _short(value)))
            if len(self.points) >= 2 * POINTS_MAX:
                del self.points[1::2]
                self._stride *= 2

    def facts(self, points_max: int) -> dict[str, Any]:
        """Return it as JSON has it, with at most so many points, the first and the last kept."""
        out = {key: value for key in ("last", "step", "count", "min", "max")
               if (value := getattr(self, key)) is not None}  # fmt: skip
        points, at = self.points, self.count if self.step is None else self.step
        if self.last is not None and (not points or points[-1][0] != at):
            points = [*points, (at, _short(self.last))]
        if len(points) > points_max > 1:
            stretch = (len(points) - 1) / (points_max - 1)
            points = [points[round(at * stretch)] for at in range(points_max)]
        if points_max > 1 and len(points) > 1:
            out["steps"], out["values"] = ([point[at] for point in points] for at in (0, 1))
        return out


class RunFold:
    """What is known of one run; every fact may come from outside."""

    def __init__(self) -> None:
        self.params: dict[str, str] = {}
        self.metrics: dict[str, MetricFold] = {}
        self.note = ""
        #: Something was left out, or not seen.
        self.is_partial = False

    def take(self, raw: bytes) -> dict[str, Any] | None:
        """Take in a line; return what it says when it is one of ours, also one of another kind in
        part. None for any other line.
        """
        if _KINDS.search(raw) is None:
            return None
        if len(raw) > LINE_BYTES_MAX:
            self.is_partial = True
            return None
        try:
            line = json.loads(raw.decode())
        except (ValueError, RecursionError):
            return None
        return line if isinstance(line, dict) and self._take(line) else None

    def _take(self, line: dict[str, Any]) -> bool:
        if "metric" in line:
            return self.add_metric(line["metric"], line.get("value"), line.get("step"))
        if "param" in line:
            return self.add_param(line["param"], line.get("value"))
        if "note" in line:
            return self.add_note(line["note"])
        return "run" in line and self.take_facts(line["run"])

    def add_param(self, name: Any, value: object) -> bool:
        """Take in a parameter, in place of an earlier one of the name; False when it is none."""
        if not _is_name(name) or not isinstance(value, (str, int, float, bool, type(None))):
            return False
        if name in self.params or self._has_room(self.params):
            text = value if isinstance(value, str) else _json(value)
            self.params[name] = _printable(text, VALUE_LENGTH_MAX)
        return True

    def add_metric(self, name: Any, value: object, step: object = None) -> bool:
        """Take in a value of a metric; False when it is none."""
        metric = self.metrics.get(name) if isinstance(name, str) else None
        if metric is None and not _is_name(name):
            return False
        # Of text, only what Python and others write for what JSON has no number for.
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return False
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return False
        if metric is None:
            if not self._has_room(self.metrics):
                return True
            metric = self.metrics[name] = MetricFold()
        metric.add(number, _whole(step))
        return True

    def add_note(self, text: object) -> bool:
        """Take in a note, in place of an earlier one; False when it is none."""
        if not isinstance(text, str):
            return False
        self.note = _printable(text, NOTE_LENGTH_MAX)
        return True

    def take_facts(self, facts: object) -> bool:
        """Take in a summary: what it has goes in place of what is known by the same names."""
        if not isinstance(facts, dict):
            return False
        for name, value in _items(facts, "params"):
            self.add_param(name, value)
        for name, value in _items(facts, "metrics"):
            metric = _metric_of(value)
            if metric is None or not _is_name(name):
                continue
            if name in self.metrics or self._has_room(self.metrics):
                self.metrics[name] = metric
        if facts.get("note"):
            self.add_note(facts["note"])
        self.is_partial = self.is_partial or facts.get("isPartial") is True
        return True

    def facts(self, bytes_max: int) -> dict[str, Any]:
        """Return the summary, of at most `bytes_max` bytes as JSON; {} when nothing is known.

        Points of series go first, then the rest of a long note, then facts, the latest names first.
        """
        for points in (POINTS_MAX, 16, 8, 4, 0):
            out = self._facts(points, NOTE_LENGTH_MAX)
            if _size(out) <= bytes_max:
                return out
        out = self._facts(0, 100)
        out["isPartial"] = True
        while _size(out) > bytes_max:
            larger = max((out.get("metrics", {}), out.get("params", {})), key=_size)
            if not larger:
                return {"isPartial": True}
            larger.popitem()
        return out

    def _facts(self, points: int, note_length: int) -> dict[str, Any]:
        metrics = {name: metric.facts(points) for name, metric in self.metrics.items()}
        out: dict[str, Any] = {"params": dict(self.params)} if self.params else {}
        out.update({"metrics": metrics} if metrics else {})
        out.update({"note": self.note[:note_length]} if self.note else {})
        out.update({"isPartial": True} if self.is_partial else {})
        return out

    def _has_room(self, known: dict[str, Any]) -> bool:
        """True where one name more may be known; else it is noted that it is not."""
        if len(known) >= NAMES_MAX:
            self.is_partial = True
        return len(known) < NAMES_MAX


def _items(facts: dict[str, Any], key: str) -> list[tuple[Any, Any]]:
    found = facts.get(key)
    return list(found.items()) if isinstance(found, dict) else []


def _metric_of(facts: object) -> MetricFold | None:
    """Return the metric of a summary; None when it is none."""
    if not isinstance(facts, dict):
        return None
    metric, count = MetricFold(), _whole(facts.get("count"))
    if not count:
        return None
    metric.count = count
    metric.step = _whole(facts.get("step"))
    metric.last, metric.min, metric.max = (_finite(facts.get(k)) for k in ("last", "min", "max"))
    steps, values = facts.get("steps"), facts.get("values")
    if isinstance(steps, (list, tuple)) and isinstance(values, (list, tuple)):
        for each in list(zip(steps, values))[:POINTS_MAX]:  # noqa: B905 - of any lengths
            step, value = _whole(each[0]), _finite(each[1])
            if step is not None and value is not None:
                metric.points.append((step, _short(value)))
    return metric


def _short(value: float) -> float:
    """Return the value as a series has it: six digits show a course."""
    return float(f"{value:.6g}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _STEP_MAX else None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _printable(text: str, length_max: int) -> str:
    """Return the text on one line, without what a terminal obeys."""
    kept = text if len(text) <= length_max else text[: length_max - 3] + "..."
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in kept)


def _size(value: object) -> int:
    return len(_json(value))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class _Recorder:
    """What this process has recorded, and when its next summary is due."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fold = RunFold()
        self.pid = os.getpid()
        self.began = time.monotonic()
        self.due = self.began + _SECONDS_MIN
        self.is_new = False

    def recorded(self) -> None:
        """Write a summary when one is due."""
        self.is_new = True
        now = time.monotonic()
        if now >= self.due:
            self.write()
            seconds = (now - self.began) / 100
            self.due = now + min(max(seconds, _SECONDS_MIN), _SECONDS_MAX)

    def write(self) -> None:
        """Append the summary. A full disk must not end a program: it is then left out."""
        self.is_new = False
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                line = {**_progress(descriptor), "run": self.fold.facts(SUMMARY_BYTES_MAX)}
                os.write(descriptor, b"\n" * _is_cut(descriptor) + _json(line).encode() + b"\n")
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            return


def _is_cut(descriptor: int) -> bool:
    """True where the last line has no end: its writer was killed."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _progress(descriptor: int) -> dict[str, Any]:
    """Return the latest progress in what a kubelet would keep, so that it stays there."""
    size = os.fstat(descriptor).st_size
    last = os.pread(descriptor, _KEPT_BYTES, max(size - _KEPT_BYTES, 0))
    for raw in reversed(last.splitlines()):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and "metric" not in line and _whole(line.get("step")) is not None:
            saved = line["step"] if line.get("checkpoint") is True else line.get("checkpointStep")
            work = line.get("work")
            found = {
                "step": _whole(line["step"]), "checkpointStep": _whole(saved),
                "work": work if isinstance(work, dict) and _size(work) <= _WORK_BYTES_MAX else None,
            }  # fmt: skip
            return {key: value for key, value in found.items() if value is not None}
    return {}


_lock = threading.Lock()
_recorder: _Recorder | None = None


def _own() -> _Recorder | None:
    """Return the recorder of this process, not of its parent; None outside of a job."""
    global _recorder  # noqa: PLW0603 - one file, one process
    path = os.environ.get("FAIRLEAD_RUN_FILE")
    if not path:
        return None
    if _recorder is None or _recorder.path != path or _recorder.pid != os.getpid():
        _recorder = _Recorder(path)
    return _recorder


@atexit.register
def _end() -> None:
    recorder = _recorder
    if recorder is not None and recorder.is_new and recorder.pid == os.getpid():
        recorder.write()


def _unlock() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def param(name: str, value: str | float | bool | None) -> None:  # noqa: FBT001 - it is the fact
    """Record a parameter, such as ("lr", 0.1). A later value of the name replaces it.

    ValueError for a name that is none, outside of a job as well.
    """
    _record("param", name, value)


def metric(name: str, value: float, step: int | None = None) -> None:
    """Record a value of a metric, such as ("loss", 0.31, 100).

    Kept are the last value, the least, the largest, their count, and some points of the course.
    ValueError for what is no name or no number, outside of a job as well.
    """
    _record("metric", name, value, step)


def note(text: str) -> None:
    """Record a note on the run, in place of an earlier one."""
    _record("note", text)


def mark_partial() -> None:
    """Note that not all of what the run has recorded is known."""
    with _lock:
        recorder = _own()
        if recorder is not None:
            recorder.fold.is_partial = True
            recorder.recorded()


def _record(kind: str, *values: Any) -> None:
    name = values[0]
    with _lock:
        recorder = _own()
        fold = recorder.fold if recorder is not None else RunFold()
        if kind == "note":
            is_sound = fold.add_note(name)
        elif kind == "param":
            is_sound = fold.add_param(name, values[1])
        else:
            value, step = values[1:]
            # A scalar of numpy or torch is a number as well.
            is_scalar = hasattr(value, "__float__") and not isinstance(value, bool)
            at = None if step is None else int(step)
            is_sound = fold.add_metric(name, float(value) if is_scalar else None, at)
        if not is_sound:
            raise ValueError(f"{kind}: {', '.join(map(repr, values))[:200]} cannot be recorded")
        if recorder is not None:
            recorder.recorded()
