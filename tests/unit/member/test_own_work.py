"""What a member reports of its own work in a step, and what of it stays in its file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead import run
from fairlead.api.kubernetes.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
)
from fairlead.decide.jobs.following.own_work import OwnWork, work_of
from fairlead.decide.jobs.following.progress import decode_line, is_fact, read_work
from fairlead.member import progress
from fairlead.member.progress import OwnWorkWindow, add_own_work, own_work, report
from fairlead.run import RunFold
from fairlead.testing.builders import make_pod

from .test_run import program


def _filled(steps: int, seconds: float) -> OwnWorkWindow:
    """Return a window of steps of one second each, of which so many are own work."""
    window = OwnWorkWindow(0.0)
    for step in range(steps):
        window.add(seconds, float(step + 1))
    return window


def test_the_median_of_the_latest_pieces_is_reported() -> None:
    assert _filled(9, 0.25).facts() is None, "no piece is whole"
    assert _filled(20, 0.25).facts() == {"seconds": 0.25, "steps": 20, "spanSeconds": 20.0}
    full = _filled(5_000, 0.25).facts()
    assert full == {"seconds": 0.25, "steps": 600, "spanSeconds": 600.0}


def test_a_pause_moves_no_median_and_a_machine_that_became_slow_does() -> None:
    window = _filled(100, 0.25)
    window.add(30.0, 130.0)
    found = window.facts()
    assert found is not None
    assert found["seconds"] == 0.25
    for step in range(400):
        window.add(0.5, 131.0 + step)
    found = window.facts()
    assert found is not None
    assert found["seconds"] == 0.5


def test_reports_have_the_own_work_and_a_summary_of_a_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "file", [100.0]
    monkeypatch.setenv("FAIRLEAD_PROGRESS_FILE", str(path))
    monkeypatch.setattr(progress, "_window", None)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for step in range(30):
        with own_work():
            now[0] += 0.25
        now[0] += 0.75
        report(step, checkpoint=step == 5)
    with pytest.raises(ZeroDivisionError), own_work():
        now[0] += 1000 / 0
    add_own_work(0.25)
    report(30)
    last = decode_line(path.read_bytes().splitlines()[-1])
    assert last is not None
    assert (last.step, last.checkpoint_step) == (30, 5)
    found = work_of(last.work)
    assert found is not None
    assert (found.seconds, found.steps) == (0.25, 21)
    monkeypatch.undo()
    copy = f"import sys; sys.path.insert(0, {str(Path(run.__file__).parent)!r}); import run; "
    assert program(path, copy + "run.param('lr', 1)").returncode == 0
    raw = path.read_bytes().splitlines()[-1]
    line = json.loads(raw)
    assert work_of(line["work"]) == found
    assert (line["step"], line["checkpointStep"]) == (30, 5)
    assert not is_fact(RunFold().take(raw)), "it is a report of progress as well"


def test_the_last_report_is_read_from_what_a_kubelet_keeps() -> None:
    lines = [
        f'{{"step":{i},"work":{{"seconds":{i},"steps":60,"spanSeconds":900}}}}' for i in (1, 2)
    ]
    message = "\n".join(['ut off","work"}', *lines, '{"step":3}', "the end of the work"])
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=0, message=message))
    pod = make_pod("p")
    status = replace(pod.status, container_statuses=(ContainerStatus("main", state=ended),))
    assert read_work(replace(pod, status=status)) == OwnWork(2.0, 60, 900.0)
