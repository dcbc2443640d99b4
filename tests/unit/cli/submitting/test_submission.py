"""Storing what was submitted: all of it or nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_api import FakeApi

from fairlead.api.meta import to_wire
from fairlead.api.resources import CONFIG_MAPS, JOBS
from fairlead.api.status import Forbidden
from fairlead.cli.job_request.jobspec import SCRIPT_BYTES_MAX, Script, build_script_map, to_manifest
from fairlead.cli.submitting.manifest import parse_manifest
from fairlead.cli.submitting.standard_input import read_input
from fairlead.cli.submitting.submission import (
    SCRIPT_ALONE_SECONDS,
    Naming,
    Submission,
    check_documents,
    store,
    store_documents,
)
from fairlead.input.errors import CliError
from fairlead.testing.builders import make_job
from fairlead.testing.fake_client import FakeClient


def manifest_of(name: str) -> dict[str, Any]:
    return to_manifest(make_job(name))


SUBMISSION = Submission("default", Naming(None, "train"), manifest_of, Script("train.sh", "true\n"))
MANIFEST = b"""
{apiVersion: v1, kind: ConfigMap, metadata: {name: first, namespace: a}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: second, namespace: b}}
"""


def scripts(api: FakeApi) -> dict[str, str]:
    """Return the texts of the stored ConfigMaps by their names."""
    return {
        each.metadata.name: "".join(each.data.values()) for each in api.client.stored(CONFIG_MAPS)
    }


def test_a_refused_job_leaves_no_script() -> None:
    api = FakeApi()
    api.client.fail_next("create", None, Forbidden("exceeded quota"))
    with pytest.raises(CliError):
        store(api, SUBMISSION, "train-1")
    assert api.client.count("create") == 2
    assert scripts(api) == {}


def test_of_two_submissions_at_the_same_time_each_keeps_its_script() -> None:
    """Both have picked the same number."""
    api = FakeApi()
    store(api, SUBMISSION, "train-1")
    store(api, replace(SUBMISSION, script=Script("train.sh", "false\n")), "train-1")
    assert [job.metadata.name for job in api.client.stored(JOBS)] == ["train-1", "train-2"]
    assert scripts(api) == {"train-1-script": "true\n", "train-2-script": "false\n"}


def stored_script(api: FakeApi, name: str) -> None:
    """Store the script of a submission that has not stored its job."""
    body = to_wire(build_script_map(name, Script("train.sh", "another\n")))
    api.create(CONFIG_MAPS.raw, {"apiVersion": "v1", "kind": "ConfigMap", **body},
               namespace="default")  # fmt: skip


def test_a_submission_under_way_keeps_its_name_and_its_script() -> None:
    """The other one has stored its script, and not yet its job."""
    api = FakeApi()
    api.client = FakeClient(now=time.time)
    stored_script(api, "train-1")
    store(api, SUBMISSION, "train-1")
    assert [job.metadata.name for job in api.client.stored(JOBS)] == ["train-2"]
    assert scripts(api) == {"train-1-script": "another\n", "train-2-script": "true\n"}


def test_a_script_that_a_killed_submission_has_left_is_replaced() -> None:
    api = FakeApi()
    api.client = FakeClient(now=lambda: time.time() - SCRIPT_ALONE_SECONDS)
    stored_script(api, "train-1")
    store(api, SUBMISSION, "train-1")
    assert scripts(api) == {"train-1-script": "true\n"}


def test_when_a_document_is_refused_those_before_it_are_removed_where_they_are() -> None:
    api, (documents, _) = FakeApi(), parse_manifest(MANIFEST, "stdin")
    api.client.fail_next("create", None, Forbidden("no"))
    with pytest.raises(CliError):
        store_documents(api, documents, "default")
    assert api.client.count("create") == 2
    assert scripts(api) == {}


def test_every_document_that_is_refused_is_reported_at_once() -> None:
    api, (documents, _) = FakeApi(), parse_manifest(MANIFEST, "stdin")
    api.client.fail_next("create", Forbidden("no"), Forbidden("no"))
    with pytest.raises(CliError) as caught:
        check_documents(api, documents, "default")
    assert [problem.where for problem in caught.value.problems] == ["stdin:2:35", "stdin:4:35"]


def test_an_input_of_exactly_the_bound_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "input"
    for size in (SCRIPT_BYTES_MAX, SCRIPT_BYTES_MAX + 1):
        file.write_text("x" * size)
        with file.open() as opened:
            if size > SCRIPT_BYTES_MAX:
                with pytest.raises(CliError):
                    read_input(opened.fileno(), print)
            else:
                found = read_input(opened.fileno(), print)
                assert found is not None
                assert len(found.text) == size
