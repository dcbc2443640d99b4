"""`resubmit`: what has ended runs again under a new name, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve
from tests.unit.cli.job_request.test_arrays import array

from fairlead.api import names
from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.meta import Condition, to_wire
from fairlead.api.resources import CONFIG_MAPS, JOB_ARRAYS, JOBS
from fairlead.api.values.indices import format_indices, parse_indices
from fairlead.cli.app import run
from fairlead.cli.job_request.arrays import parse_reference, select
from fairlead.cli.submitting.resubmission import again, indices_of, retry_base
from fairlead.input.errors import CliError
from fairlead.testing.builders import make_job

OVER = (Condition("Failed", "True", "ElementsFailed"),)


def waiting(name: str, **spec: Any) -> Job:
    job = make_job(name)
    return replace(job, spec=replace(job.spec, **spec))


def ended(name: str, *, attempt: int = 1, **spec: Any) -> Job:
    job = waiting(name, **spec)
    failed = (Condition("Failed", "True", "MemberFailed"),)
    return replace(job, status=replace(job.status, attempt=attempt, conditions=failed))


@pytest.mark.parametrize("text", ["0-9", "1,3,5-7", "0-8:2", "4", "0-96:4"])
def test_indices_are_written_as_they_are_read(text: str) -> None:
    found = parse_indices(text)
    assert parse_indices(format_indices(list(found), step=found.step)) == found
    assert format_indices(list(found), step=found.step) == text


def test_elements_keep_their_numbers_also_those_of_an_array_with_a_step() -> None:
    indices = parse_indices("0-36:4")
    assert indices_of(0b1000111, indices) == "0-8:4,24"
    assert retry_base("sweep") == retry_base("sweep-retry-3") == "sweep-retry"


@pytest.mark.parametrize(
    ("status", "reference", "failed_only", "chosen"),
    [
        ({"finished": "0-4", "failed": "1,3"}, "sweep", True, 0b1010),
        ({"finished": "0-4", "failed": "1,3"}, "sweep[0-2]", True, 0b10),
        ({"finished": "0-4", "failed": "1,3"}, "sweep[0-2]", False, 0b111),
        # It was stopped: those that never started did not succeed.
        ({"finished": "0-4", "failed": "1,3", "conditions": OVER}, "sweep", True, 0b1111101010),
        ({"finished": "0-9", "conditions": OVER}, "sweep", False, 0b1111111111),
    ],
)
def test_what_did_not_succeed_is_chosen_or_all_that_was_named(
    status: dict[str, Any], reference: str, failed_only: bool, chosen: int
) -> None:
    named = parse_reference(reference)
    found = select(array(**status), named)
    assert again(found, named, failed_only=failed_only) == chosen


def test_an_element_that_has_not_ended_is_not_run_twice_at_a_time() -> None:
    named = parse_reference("sweep[3-6]")
    with pytest.raises(CliError) as refused:
        again(select(array(finished="0-4"), named), named, failed_only=False)
    [problem] = refused.value.problems
    assert problem.message == (
        "2 elements of 'sweep[3-6]', such as 'sweep[5]', have not ended, and would run twice at a "
        "time"
    )
    with pytest.raises(CliError) as none:
        again(select(array(finished="0-4"), named), named, failed_only=True)
    assert none.value.problems[0].message == "no element of 'sweep[3-6]' has failed"


def test_the_failed_elements_become_an_array_with_what_was_stored_and_a_script_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi()
    body = to_wire(array("0-9:2", finished="0-8", failed="2-4", conditions=OVER))
    template = json.loads(msgspec.json.encode(make_job("x").spec))
    pod = template["roles"][0]["template"]["spec"]
    pod["volumes"] = [{"name": "script", "configMap": {"name": "sweep-script"}}]
    pod["hostAliases"] = [{"ip": "10.0.0.1"}]  # unknown to the read model
    asked = {"parallelism": 2, "maxFailed": 3}
    body |= {"apiVersion": JOB_ARRAYS.api_version, "kind": JOB_ARRAYS.kind}
    body["spec"] = {
        "indices": "0-9:2", "template": template, "cancel": True, "cancelIndices": "8", **asked,
    }  # fmt: skip
    api.create(JOB_ARRAYS.raw, body, namespace="default")
    script = {"metadata": {"name": "sweep-script"}, "data": {"sweep.sh": "true\n"}}
    api.create(CONFIG_MAPS.raw, script, namespace="default")
    serve(monkeypatch, api)
    assert run(["resubmit", "sweep", "--failed"]) == 0
    assert capsys.readouterr().out == "sweep-retry-1\n"
    made = api.get(JOB_ARRAYS.raw, "sweep-retry-1", namespace="default")
    assert made["spec"] == {
        **asked, "indices": "2-4:2", "template": {
            **template, "roles": [{**template["roles"][0], "template": {
                **template["roles"][0]["template"], "spec": {**pod, "volumes": [
                    {"name": "script", "configMap": {"name": "sweep-retry-1-script"}}]}}}],
        },
    }  # fmt: skip
    copied = api.get(CONFIG_MAPS, "sweep-retry-1-script", namespace="default")
    assert copied.data == {"sweep.sh": "true\n"}
    assert [each.name for each in copied.metadata.owner_references] == ["sweep-retry-1"]
    first = api.get(JOB_ARRAYS.raw, "sweep", namespace="default")
    assert first["spec"]["cancel"] is True


def test_a_job_keeps_the_labels_of_its_owner_and_waits_for_what_is_still_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ended("train-1", after=(After("prep"), After("gone")))
    labels = {"project": "x", names.JOB_NUMBER: "7"}
    first = replace(first, metadata=replace(first.metadata, labels=labels))
    after = waiting("eval", after=(After("train-1"),))
    api = FakeApi(first, make_job("prep"), after)
    serve(monkeypatch, api)
    assert run(["resubmit", "train-1"]) == 0
    said = capsys.readouterr()
    assert said.out == "train-1-retry-1\n"
    assert "note: gone, which train-1 waited for, is gone; it is left out" in said.err
    assert "note: eval waits for train-1, not for train-1-retry-1" in said.err
    made = api.get(JOBS, "train-1-retry-1", namespace="default")
    assert made.metadata.labels == {"project": "x"}
    assert [each.job for each in made.spec.after] == ["prep"]
    assert made.status.attempt == 0


def test_what_cannot_run_again_is_said_of_each_and_the_others_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = make_job("done", conditions=(Condition("Succeeded", "True"),))
    theirs = ended("theirs", adopts=Adopts(kind="Job", name="theirs"))
    never = ended("never", attempt=0, after=(After("gone"),))
    api = FakeApi(ended("bad"), done, theirs, never, make_job("runs"))
    serve(monkeypatch, api)
    assert run(["resubmit", "bad", "done", "theirs", "never", "runs", "none", "--failed"]) != 0
    said = capsys.readouterr()
    assert said.out == "bad-retry-1\n"
    for words in (
        "job 'done' has not failed", "job 'theirs' represents the pods of Job 'theirs'",
        "job 'gone' does not exist", "job 'runs' has not ended", "job 'none' does not exist",
    ):  # fmt: skip
        assert words in said.err
    assert run(["resubmit", "bad", "done", "--name", "x"]) != 0
    assert "--name is for one job" in capsys.readouterr().err
