"""Exports of runs to a tracking server: once, again, changed, and ended at any request."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.e2e.mlflow_server import FakeMlflow, serving

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.run_facts import RunFacts, RunMetric
from fairlead.cli.records.mlflow_server import MlflowServer, mlflow_target
from fairlead.cli.views.mlflow_run import DIGEST_TAG, RunExport, mlflow_run
from fairlead.input.errors import CliError
from fairlead.testing.builders import make_job

pytestmark = pytest.mark.e2e

#: A series has six digits of a value.
COURSE = {**{step: 1 / (1 + step) for step in range(0, 40, 2)}, 40: 0.123457}
LOSS = RunMetric(0.123456789, 40, 41, 0.1, 2.0, tuple(COURSE), tuple(COURSE.values()))
FACTS = RunFacts(params={"lr": "0.1", "beta(1)": "0.9"}, metrics={"loss": LOSS, "acc@5": LOSS})


@pytest.fixture
def fake() -> Iterator[FakeMlflow]:
    with serving() as found:
        yield found


def run(facts: RunFacts = FACTS, tags: str = "a,b", uid: str = "u-1") -> Job:
    made = make_job("train-1", status={"run": facts, "started_at": "2026-11-29T10:00:00Z"})
    annotations = {names.RUN_TAGS: tags, names.RUN_NOTE: "by hand"}
    return replace(made, metadata=replace(made.metadata, uid=uid, annotations=annotations))


def export(fake: FakeMlflow, job: Job, *, is_dry: bool = False) -> RunExport:
    server = MlflowServer(mlflow_target(f"mlflow:{fake.address}", {}), "mine")
    try:
        server.check()
        return server.export(mlflow_run(job), is_dry=is_dry)
    finally:
        server.close()


def points(fake: FakeMlflow) -> Counter[tuple[str, int, float]]:
    [found] = fake.runs.values()
    return Counter((each["key"], each["step"], each["value"]) for each in found["points"])


def test_a_run_is_written_once_and_then_brought_up_to_date(fake: FakeMlflow) -> None:
    assert export(fake, run(), is_dry=True).action == "create"
    assert not fake.runs
    assert not fake.experiments
    done = export(fake, run())
    [found] = fake.runs.values()
    assert (done.action, found["status"], found["name"]) == ("create", "RUNNING", "train-1")
    assert found["params"] == {"lr": "0.1", "beta_1_": "0.9"}
    assert found["tags"]["fairlead.tags"] == "a,b"
    assert found["tags"]["mlflow.note.content"] == "by hand"
    written = points(fake)
    assert ("loss", 40, 0.123456789) in written, "the last value is exact"
    assert ("acc_5.min", 40, 0.1) in written
    assert set(written.values()) == {1}
    sent = len(fake.requests)
    assert export(fake, run()).action == "none"
    assert fake.requests[sent:] == ["experiments/get-by-name", "runs/search"]
    later = replace(LOSS, last=0.5, step=60, steps=(*LOSS.steps, 60), values=(*LOSS.values, 0.5))
    changed = run(RunFacts(params={"lr": "0.2", "new": "1"}, metrics={"loss": later}), tags="")
    assert export(fake, changed, is_dry=True).points == export(fake, changed).points
    assert "fairlead.tags" not in found["tags"]
    assert found["params"] == {"lr": "0.1", "beta_1_": "0.9", "new": "1"}, "MLflow changes none"
    new = points(fake) - written
    assert set(new) == {("loss", 60, 0.5), ("loss.min", 60, 0.1), ("loss.max", 60, 2.0)}
    assert set(points(fake).values()) == {1}


def test_parameters_that_differ_are_named(fake: FakeMlflow) -> None:
    export(fake, run())
    assert export(fake, run(replace(FACTS, params={"lr": "0.2"}))).kept == ("lr",)


def test_an_export_that_ends_at_any_request_goes_on_and_writes_nothing_twice() -> None:
    def state(fake: FakeMlflow) -> Any:
        [found] = fake.runs.values()
        shown = sorted(points(fake).items()), found["params"], found["tags"], found["status"]
        return *shown, found.get("end")

    with serving() as fake:
        export(fake, run())
        expected, count = state(fake), len(fake.requests)
    assert expected[2][DIGEST_TAG]
    for number in range(count):
        for where in ("lost_at", "answer_lost_at"):
            with serving() as fake:
                setattr(fake, where, number)
                with pytest.raises(CliError) as caught:
                    export(fake, run())
                assert caught.value.problems[0].code.value == "E604"
                export(fake, run())
                assert state(fake) == expected, (where, number)


def test_many_names_and_points_are_sent_in_parts(fake: FakeMlflow) -> None:
    metrics = {f"m{at}": LOSS for at in range(64)}
    params = {f"p{at}": "\N{SNOWMAN}" * 4_000 for at in range(120)}
    export(fake, run(RunFacts(params=params, metrics=metrics)))
    [found] = fake.runs.values()
    assert len(found["params"]) == 120
    assert fake.requests.count("runs/log-batch") == 2
    assert len(found["points"]) == 64 * 23


def test_credentials_are_sent_and_never_shown(fake: FakeMlflow) -> None:
    fake.login = f"Basic {base64.b64encode(b'ann:s3cr@t').decode()}"
    host = fake.address.removeprefix("http://")
    target = mlflow_target(f"mlflow:http://ann:s3cr%40t@{host}", {})
    assert "s3cr" not in repr(target)
    assert MlflowServer(target, "mine").export(mlflow_run(run()), is_dry=False).run_id
    for wrong in (f"http://ann:s3cret@{host}", f"http://{host}", "http://ann:s3cret@127.0.0.1:1"):
        with pytest.raises(CliError) as caught:
            MlflowServer(mlflow_target(f"mlflow:{wrong}", {}), "mine").check()
        assert "s3cr" not in str(caught.value.problems)
    variables = {"MLFLOW_TRACKING_URI": fake.address, "MLFLOW_TRACKING_USERNAME": "ann",
                 "MLFLOW_TRACKING_PASSWORD": "s3cr@t"}  # fmt: skip
    MlflowServer(mlflow_target("mlflow", variables), "mine").check()


@pytest.mark.parametrize("text", [
    "wandb:x", "mlflow", "mlflow:", "mlflow:file:///tmp/s3cret", "mlflow:sqlite:///s3cret.db",
    "mlflow:http://u:s3cret@h:99999999", "mlflow:http://u:s3cret@[::1", "mlflow:http:///s3cret",
    "mlflow:http://h/?token=s3cret", "mlflow:http://h/\r\nX: s3cret", "mlflow:http://u:s3cret@",
])  # fmt: skip
def test_targets_that_are_none(text: str) -> None:
    with pytest.raises(CliError) as caught:
        mlflow_target(text, {})
    assert "s3cret" not in str(caught.value.problems)


def test_an_experiment_that_was_deleted_is_named(fake: FakeMlflow) -> None:
    export(fake, run())
    fake.experiments["mine"]["lifecycle_stage"] = "deleted"
    with pytest.raises(CliError, match="was deleted"):
        export(fake, run())
