"""What a submission says of a run, from flags to the job that is stored."""

from __future__ import annotations

from dataclasses import replace as with_fields

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.cli.job_request.test_request import ORIGIN, parse

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.run_facts import RunSource, parameters_of, source_of, tags_of
from fairlead.cli.job_request.flag_groups.array_flag import ArrayRequest
from fairlead.cli.job_request.flag_groups.run_flags import GitRecord
from fairlead.cli.job_request.jobspec import Program, build_array, build_job
from fairlead.cli.job_request.request import JobRequest


def built(request: JobRequest, *words: str, source: RunSource | None = None) -> Job:
    return build_job("train-1", request, Program(words), with_fields(ORIGIN, source=source))


def test_a_parameter_is_a_variable_of_the_members_and_is_recorded() -> None:
    request, problems = parse(param=["lr=0.1", "text=a=$(b) c", "lr=0.2"], tag=["x", "y", "x"])
    assert problems == []
    job = built(request, "python", "--lr={lr}", "${lr}", "{other}", "{text}")
    [container] = job.spec.roles[0].template.spec.containers
    assert container.command == (
        "python", "--lr=$(FAIRLEAD_PARAM_lr)", "${lr}", "{other}", "$(FAIRLEAD_PARAM_text)",
    )  # fmt: skip
    assert {each.name: each.value for each in container.env}["FAIRLEAD_PARAM_lr"] == "0.2"
    assert parameters_of([container]) == {"lr": "0.2", "text": "a=$(b) c"}
    assert tags_of(job.metadata) == ("x", "y")


def test_the_commit_is_recorded_with_what_else_is_and_never_by_itself() -> None:
    assert parse()[0].run.git is GitRecord.OFF
    assert parse(tag="x")[0].run.git is GitRecord.COMMIT
    assert parse(note="x", git="off")[0].run.git is GitRecord.OFF
    assert parse(git="diff")[0].run.git is GitRecord.DIFF
    request, _ = parse(tag="x", note="by hand")
    source = RunSource("c" * 40, "main", ("a.py",), "+x")
    job = built(request, "true", source=source)
    assert source_of(job.metadata) == source
    assert job.metadata.annotations[names.RUN_NOTE] == "by hand"
    assert built(parse()[0], "true").metadata.annotations == {names.SUBMITTED_BY: "ana"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"param": "lr"}, "--param: 'lr' must be NAME=VALUE, the name of letters, digits and "
         "underscores, at most 63"),
        ({"param": "a-b=1"}, "--param: 'a-b=1' must be NAME=VALUE, the name of letters, digits and "
         "underscores, at most 63"),
        ({"param": "a=" + "x" * 1_001}, "--param: the value of 'a' must have at most 1000 "
         "characters, and no NUL"),
        ({"param": [f"p{i}=1" for i in range(65)]}, "--param: there may be at most 64 parameters"),
        ({"tag": "two words"}, "--tag: 'two words' must consist of letters, digits, dots, dashes "
         "and underscores, at most 63, no mark at its ends"),
        ({"tag": [f"t{i}" for i in range(17)]}, "--tag: there may be at most 16 tags"),
        ({"note": "x" * 1_001}, "--note: a note has at most 1000 characters"),
        ({"git": "dif"}, "--git: 'dif' must be commit, diff or off"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_what_is_accepted(
    flags: dict[str, str | list[str]], message: str
) -> None:
    assert parse(**flags)[1] == [message]


def test_a_sweep_is_in_the_array_and_its_words_name_the_variables() -> None:
    request, _ = parse(tag="s")
    array = ArrayRequest("0-1", None, (("lr", ("0.1", "0.2")),))
    request = with_fields(request, array=array)
    found = build_array(built(request, "train", "{lr}"), array)
    assert found.spec.parameters == {"lr": ("0.1", "0.2")}
    [container] = found.spec.template.roles[0].template.spec.containers
    assert container.command == ("train", "$(FAIRLEAD_PARAM_lr)")
    assert tags_of(found.metadata) == ("s",)


def test_annotations_that_are_none_are_passed_over() -> None:
    job = built(parse()[0], "true")
    for text in ("{", "[]", '{"commit": 5}', "[" * 70_000, "\ud800"):
        annotations = {names.RUN_SOURCE: text, names.RUN_TAGS: f"a,{text},,b"}
        metadata = replace(job.metadata, annotations=annotations)
        assert source_of(metadata) is None
        assert "a" in tags_of(metadata)
    assert msgspec.json.encode(job)
