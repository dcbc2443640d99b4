"""Removing finalizers while another client still writes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairlead.api import names
from fairlead.api.status import Conflict
from fairlead.input.errors import CliError
from fairlead.install import remover
from fairlead.kube.blocking import BlockingClient


class Written:
    """An API with one job, which somebody else writes first, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.version = 1
        self.finalizers: list[str] | None = ["other", names.JOB_FINALIZER]

    def list(self, *_: Any) -> list[dict[str, Any]]:
        metadata = {
            "name": "train", "namespace": "default", "uid": "u", "finalizers": self.finalizers,
            "resourceVersion": str(self.version),
        }  # fmt: skip
        return [{"metadata": metadata, "spec": {}}]

    def request(self, verb: str, path: str, *, body: dict[str, Any], content_type: str) -> None:
        assert (verb, content_type) == ("PATCH", remover.MERGE)
        assert path.endswith("/namespaces/default/jobs/train")
        if self.times:
            self.times -= 1
            self.version += 1
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("the object has been modified")
        self.finalizers = body["metadata"]["finalizers"]


def test_a_job_that_somebody_else_writes_is_freed_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remover, "RETRY_SECONDS", 0.0)
    said: list[str] = []
    api = Written(3)
    remover._free_jobs(cast("BlockingClient", api), said.append)
    assert api.finalizers == ["other"]
    assert said == ["Job default/train: finalizer removed"]


def test_a_job_that_is_written_all_the_time_ends_in_an_error_that_says_to_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remover, "RETRY_SECONDS", 0.0)
    with pytest.raises(CliError, match="default/train is written by another client"):
        remover._free_jobs(cast("BlockingClient", Written(1000)), print)
