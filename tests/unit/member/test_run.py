"""`fairlead.run`: what a program records of its run, and what is made of the lines in its file."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import run
from fairlead.api.jobs.run_facts import FACTS_BYTES_MAX
from fairlead.run import NAMES_MAX, POINTS_MAX, SUMMARY_BYTES_MAX, RunFold

#: As long as the imports of a program take at most.
PATIENCE_SECONDS = 60


def folded(*lines: object) -> RunFold:
    fold = RunFold()
    for line in lines:
        raw = line if isinstance(line, bytes) else json.dumps(line).encode()
        assert fold.take(raw) is not None, raw
    return fold


def program(path: Path | None, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has a copy of the one file, and nothing else of Fairlead."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ""}
    if path is not None:
        environment["FAIRLEAD_RUN_FILE"] = str(path)
    return subprocess.run(
        [sys.executable, *options, "-c", text], env=environment, capture_output=True, text=True,
        check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


def copied(tmp_path: Path) -> str:
    shutil.copy(run.__file__, tmp_path / "recorder.py")
    return f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import recorder as run; "


def summaries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["run"] for line in path.read_bytes().splitlines()]


def test_the_one_file_works_alone_and_without_site_packages(tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = "run.param('lr', 0.1); run.param('name', 'x'); run.metric('loss', 2, 7); run.note('so')"
    done = program(path, copied(tmp_path) + text, "-I", "-S")
    assert (done.returncode, done.stderr) == (0, "")
    [found] = summaries(path)
    assert found["params"] == {"lr": "0.1", "name": "x"}
    assert found["metrics"]["loss"] == {"last": 2.0, "step": 7, "count": 1, "min": 2.0, "max": 2.0}
    assert found["note"] == "so"


def test_outside_of_a_job_nothing_happens_but_mistakes_show(tmp_path: Path) -> None:
    text = "run.param('lr', 0.1); run.metric('loss', 1.0); run.note('x')"
    before = sorted(tmp_path.iterdir())
    done = program(None, copied(tmp_path) + text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [p.name for p in tmp_path.iterdir() if p not in before] != []  # the copy alone
    assert not (tmp_path / "file").exists()
    wrong = program(None, copied(tmp_path) + "run.metric('no name?', 1.0)")
    assert "ValueError: metric: 'no name?', 1.0, None cannot be recorded" in wrong.stderr


@pytest.mark.parametrize("place", ["missing/file", ".", "/dev/full"])
def test_a_file_that_cannot_be_written_ends_no_program(tmp_path: Path, place: str) -> None:
    text = copied(tmp_path) + "run.metric('loss', 1.0); print('trained')"
    done = program(tmp_path / place, text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_program_that_is_killed_loses_no_more_than_its_last_seconds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = (
        "import os, signal\nrun.metric('loss', 3.0, 1)\nrun._recorder.due = 0\n"
        "run.metric('loss', 2.0, 2)\nrun.metric('loss', 1.0, 3)\nos.kill(os.getpid(), 9)"
    )
    done = program(path, copied(tmp_path) + text)
    assert done.returncode == -signal.SIGKILL
    [found] = summaries(path)
    assert (found["metrics"]["loss"]["last"], found["metrics"]["loss"]["count"]) == (2.0, 2)


def test_a_line_whose_writer_was_killed_spoils_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"step": 5, "checkpoint": true}\n{"run":{"par')
    assert program(path, copied(tmp_path) + "run.param('lr', 1)").returncode == 0
    *_, last = path.read_bytes().splitlines()
    assert json.loads(last) == {"step": 5, "checkpointStep": 5, "run": {"params": {"lr": "1"}}}


def test_a_child_records_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = (
        "import os\nrun.param('parent', 1)\nif os.fork() == 0:\n"
        "    run.param('child', 1); sys.exit()\nos.wait()"
    )
    assert program(path, copied(tmp_path) + text).returncode == 0
    assert [each["params"] for each in summaries(path)] == [{"child": "1"}, {"parent": "1"}]


def test_summaries_are_far_apart_and_fit_into_what_a_kubelet_keeps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = copied(tmp_path) + (
        "\nfor i in range(200_000): run.metric(f'metric-{i % 60}', i / 7, i)"
    )
    assert program(path, text).returncode == 0
    lines = path.read_bytes().splitlines()
    assert 1 <= len(lines) <= 40
    assert max(map(len, lines)) <= SUMMARY_BYTES_MAX + 100


# What is made of lines


def test_values_are_summed_up() -> None:
    fold = folded(*({"metric": "loss", "value": 10 - i, "step": i} for i in range(10)))
    found = fold.facts(FACTS_BYTES_MAX)["metrics"]["loss"]
    assert {k: found[k] for k in ("last", "step", "count", "min", "max")} == {
        "last": 1.0, "step": 9, "count": 10, "min": 1.0, "max": 10.0,
    }  # fmt: skip
    assert found["steps"] == list(range(10))
    assert found["values"] == [float(10 - i) for i in range(10)]


def test_a_series_of_any_length_has_a_bounded_number_of_points_from_first_to_last() -> None:
    fold = RunFold()
    for i in range(100_000):
        fold.add_metric("loss", 1 / (i + 1), i)
    found = fold.facts(FACTS_BYTES_MAX)["metrics"]["loss"]
    assert found["count"] == 100_000
    assert len(found["steps"]) == POINTS_MAX
    assert (found["steps"][0], found["steps"][-1]) == (0, 99_999)
    assert found["steps"] == sorted(found["steps"])


@pytest.mark.parametrize("value", [math.nan, math.inf, "nan", "-inf"])
def test_a_value_that_is_no_finite_number_is_said_and_spoils_no_extremes(value: object) -> None:
    fold = folded({"metric": "loss", "value": 1.0}, {"metric": "loss", "value": value})
    found = fold.facts(FACTS_BYTES_MAX)["metrics"]["loss"]
    assert "last" not in found
    assert (found["count"], found["min"], found["max"]) == (2, 1.0, 1.0)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b'"metric"', b'{"metric": "x"', b'{"metric": {}, "value": 1}',
        b'{"metric": "x", "value": "high"}', b'{"metric": "x", "value": true}',
        b'{"metric": "x", "value": ' + b"9" * 3_000 + b"}", b'{"metric": "", "value": 1}',
        b'{"metric": "\\u001b[31m", "value": 1}', b'{"metric": "</script>", "value": 1}',
        b'{"param": ["a"], "value": 1}', b'{"param": "a", "value": {}}', b'{"note": 5}',
        b'{"run": []}', b'{"note": ' + b"[" * 4_000, b'{"note": "\xff\xfe"}',
        b'{"metric": "x", "value": 1, "y": "' + b"z" * 5_000 + b'"}',
    ],
    ids=lambda raw: raw[:24].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_fact_is_passed_over(raw: bytes) -> None:
    fold = folded({"param": "lr", "value": 1})
    assert fold.take(raw) is None
    assert fold.facts(FACTS_BYTES_MAX)["params"] == {"lr": "1"}
    assert set(fold.facts(FACTS_BYTES_MAX)) <= {"params", "isPartial"}


def test_texts_lose_what_a_terminal_obeys() -> None:
    fold = folded({"note": "a\x1b]0;title\x07\nb\u202e"}, {"param": "p", "value": "\x9b31m"})
    found = fold.facts(FACTS_BYTES_MAX)
    assert (found["note"], found["params"]) == ("a\ufffd]0;title\ufffd b\ufffd", {"p": "\ufffd31m"})


def test_too_many_names_are_left_out_and_that_is_said() -> None:
    lines = ({"metric": f"m{i}", "value": i} for i in range(NAMES_MAX + 1))
    fold = folded(*lines, {"metric": "m0", "value": 5})
    assert len(fold.metrics) == NAMES_MAX
    assert fold.metrics["m0"].last == 5
    assert fold.is_partial


def test_a_summary_takes_the_place_of_what_is_known_by_the_same_names() -> None:
    summary = folded(*({"metric": "a", "value": i} for i in range(5))).facts(FACTS_BYTES_MAX)
    fold = folded({"metric": "a", "value": 9}, {"metric": "b", "value": 1}, {"run": summary})
    fold.take(json.dumps({"run": summary}).encode())
    assert (fold.metrics["a"].count, fold.metrics["b"].count) == (5, 1)


NAME = st.text("abcé\x1b/.", max_size=66)
VALUE = st.one_of(
    st.floats(), st.integers(), st.text(max_size=300), st.none(), st.booleans(),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip
LINE = st.one_of(
    st.fixed_dictionaries({"metric": NAME, "value": VALUE}, optional={"step": VALUE}),
    st.fixed_dictionaries({"param": NAME, "value": VALUE}),
    st.fixed_dictionaries({"note": st.one_of(VALUE, st.text(max_size=2_000))}),
)


@given(st.lists(LINE, max_size=150), st.integers(200, FACTS_BYTES_MAX))
def test_facts_are_bounded_and_a_summary_of_a_summary_is_the_same(
    lines: list[dict[str, Any]], bytes_max: int
) -> None:
    fold = RunFold()
    for line in lines:
        fold.take(json.dumps(line).encode())
    found = fold.facts(bytes_max)
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    assert len(text) <= bytes_max
    again = RunFold()
    again.take_facts(json.loads(text))
    assert again.facts(bytes_max) == found
