"""Runs as MLflow stores them: names, states, limits."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.jobs.job import Attempt
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.jobs.run_facts import RunFacts, RunMetric
from fairlead.api.meta import Condition
from fairlead.cli.views.mlflow_run import Point, batches, mlflow_keys, mlflow_run
from fairlead.testing.builders import make_job


@given(st.sets(st.text("ab_./@+: \N{SNOWMAN}", max_size=6) | st.text(max_size=300)))
def test_every_name_becomes_one_that_mlflow_accepts_and_no_two_the_same(names: set[str]) -> None:
    found = mlflow_keys(names)
    assert len(set(found.values())) == len(names)
    for name, key in found.items():
        assert re.fullmatch(r"[/A-Za-z0-9_.\- :]{1,250}", key)
        assert posixpath.normpath(key) == key
        assert not key.startswith(("/", ".."))
        if re.fullmatch(r"[a-z]+(/[a-z]+)*", name):
            assert key == name, "what MLflow accepts stays as it is"


@pytest.mark.parametrize(("conditions", "status", "expected"), [
    (("Succeeded",), {"state": "Succeeded"}, "FINISHED"),
    (("Failed",), {"state": "Failed"}, "FAILED"),
    (("Failed",), {"state": "Cancelled"}, "KILLED"),
    ((), {"state": "Restarting", "started_at": "2026-11-29T10:00:00Z"}, "RUNNING"),
    ((), {"state": "Waiting"}, "SCHEDULED"),
])  # fmt: skip
def test_states(conditions: tuple[str, ...], status: dict[str, Any], expected: str) -> None:
    made = make_job("a", status=status, conditions=[Condition(each, "True") for each in conditions])
    assert mlflow_run(made).status == expected


def test_what_a_run_held_is_a_metric_once_it_has_ended() -> None:
    begin, end = "2026-11-29T10:00:00Z", "2026-11-29T11:00:00Z"
    attempt = Attempt(
        1, begun_at=begin, finished_at=end, held=(HeldNodes("h100", "", 8, 12_290_000),)
    )
    status = {"state": "Succeeded", "started_at": begin, "finished_at": end, "attempts": (attempt,)}
    found = mlflow_run(make_job("a", status=status, conditions=[Condition("Succeeded", "True")]))
    assert found.points == [Point("fairlead.gpu-hours", 8, 0), Point("fairlead.cost", 98.32, 0)]
    assert found.end_ms is not None
    assert found.end_ms - found.start_ms == 3_600_000


def test_points_that_are_no_numbers_are_left_out_and_names_of_the_program_win() -> None:
    none = RunMetric(last=None, count=3, min=1.0, max=2.0)
    metrics = {"loss": none, "loss.min": RunMetric(last=7.0, count=1), "x": RunMetric(last=1e308)}
    found = mlflow_run(make_job("a", status={"run": RunFacts(metrics=metrics)}))
    assert found.points == [
        Point("loss.max", 2.0, 3), Point("loss.min", 7.0, 1), Point("x", 1e308, 0),
    ]  # fmt: skip


def test_a_digest_follows_every_part_and_texts_are_cut_to_bytes() -> None:
    facts = RunFacts(params={"p": "\N{SNOWMAN}" * 5_000})
    found = mlflow_run(make_job("a", status={"run": facts}))
    assert 5_990 < len(found.params["p"].encode()) <= 6_000
    for change in ({"params": {}}, {"tags": {}}, {"name": "b"}, {"end_ms": 1}, {"status": "FAILED"},
                   {"points": [Point("x", 1.0, 1)]}):  # fmt: skip
        assert replace(found, **change).digest != found.digest
    assert replace(found).digest == found.digest


def test_requests_are_within_the_limits() -> None:
    texts = {f"k{at}": "v" for at in range(250)}
    points = [Point("x", 1.0, at) for at in range(2_000)]
    bodies = list(batches(texts, points, {}, 7))
    assert [len(each.get("params", ())) for each in bodies] == [100, 100, 50]
    assert [len(each["metrics"]) for each in bodies] == [800, 800, 400]
    assert [each["key"] for body in bodies for each in body["params"]] == list(texts)
    assert bodies[0]["metrics"][3] == {"key": "x", "value": 1.0, "timestamp": 7, "step": 3}
    assert list(batches({}, [], {}, 7)) == []
