"""What the commands say of defaults and maxima."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_defaults import JobDefaults, JobMaxima
from fairlead.api.jobs.job_mounts import JobMount
from fairlead.api.meta import to_wire
from fairlead.api.names import DEFAULTS
from fairlead.api.resources import JOBS, NODES
from fairlead.api.status import Invalid, StatusCause, StatusDetails
from fairlead.cli.app import run
from fairlead.cli.views.defaults import defaults_words
from fairlead.cli.views.teams import quota_text
from fairlead.cli.views.why import why_text
from fairlead.runtime.client import Request, RequestVerb
from fairlead.testing.builders import make_job, make_nodes, make_placement, make_team

NOTE = "image=team/vision,mounts=team/vision,env=cluster,timeLimitSeconds=cluster"
WORDS = "image, mounts by team vision; variables, time limit by the cluster"
MANIFEST = """
apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata: {name: fit}
spec:
  roles:
  - {name: worker, template: {spec: {containers: [{name: main, command: [sleep, "9"]}]}}}
"""


def noted(job: Job, note: str = NOTE) -> Job:
    return replace(job, metadata=replace(job.metadata, annotations={DEFAULTS: note}))


class Defaulting(FakeApi):
    """A Kubernetes cluster whose webhook fills in an image."""

    def call(self, request: Request[Any]) -> Any:
        body: Any = request.body
        if request.verb is RequestVerb.CREATE and request.resource.name == JOBS.name:
            body["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = "torch:1"
            body["metadata"]["annotations"] = {DEFAULTS: "image=team/vision"}
        return super().call(request)


def test_submit_says_what_came_from_where_and_asks_for_no_image_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = Defaulting()
    for node in make_nodes(2):
        api.create(NODES.raw, to_wire(node))
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("#!/bin/sh\ntrue\n")
    Path("fit.yaml").write_text(MANIFEST)
    for words in (["train.sh"], ["-f", "fit.yaml"]):
        assert run(["submit", *words]) == 0
        assert "Defaults image by team vision\n" in capsys.readouterr().err


def test_a_limit_beyond_the_maximum_is_reported_by_its_flag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi(is_embedded=True)
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("#!/bin/sh\ntrue\n")
    why = "Invalid value: 259200: team vision allows at most 1d (86,400 s): ask for less"
    cause = StatusCause("FieldValueInvalid", why, "spec.timeLimitSeconds")
    api.client.fail_next("create", Invalid("no", details=StatusDetails(causes=(cause,))))
    assert run(["submit", "train.sh", "--time", "3d"]) == 5
    assert (
        "--time: 259200: team vision allows at most 1d (86,400 s): ask for less"
        in capsys.readouterr().err
    )


def test_why_and_quota_say_it_too() -> None:
    job = noted(make_job("train", placement=make_placement(["n1"])))
    assert f"  defaults   {WORDS}\n" in why_text(job, None, 0.0)
    team = make_team(
        "vision", job_maxima=JobMaxima(86_400),
        job_defaults=JobDefaults(
            image="torch:1", env={"TOKEN": "abc"}, node_selector={"gpu": "a100"},
            mounts=(JobMount(path="/data", claim="data"),), time_limit_seconds=3600,
        ),
    )  # fmt: skip
    text = quota_text(team, [], None)
    assert (
        "  defaults    image torch:1; variables TOKEN; node selector gpu=a100; "
        "claim data at /data; time limit 1h\n" in text
    )
    assert "  maxima      time limit 1d\n" in text
    assert "abc" not in text


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (NOTE, WORDS), ("", ""), ("x", ""), ("image", ""), ("=,=,,", ""),
        ("image=", "image by the cluster"), ("," * 100_000 + NOTE, ""),
    ],
)  # fmt: skip
def test_a_note_of_any_text_is_read(note: str, words: str) -> None:
    assert defaults_words(noted(make_job("train"), note)) == words
