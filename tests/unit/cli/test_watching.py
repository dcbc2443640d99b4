"""Following one job through watches that end, grow too old, or show its deletion."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from fairlead.api.job import Job
from fairlead.api.status import Expired, NotFound
from fairlead.cli.transport import Api
from fairlead.cli.watching import Gone, job_changes
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import EventType, WatchEvent
from fairlead.testing.builders import make_job

KEY = ("default", "train-1")


def job(version: int) -> Job:
    """Return the job at a version."""
    return make_job("train-1", resource_version=version)


class ScriptedApi(Api):
    """Answers gets and watches from a script; notes the version each watch starts from."""

    def __init__(self, gets: list[Any], watches: list[list[Any]]) -> None:
        super().__init__(Connection(server="http://x", source="a test"))
        self.gets = gets
        self.watches = watches
        self.from_versions: list[str] = []

    def get(self, resource: Any, name: str, *, namespace: str = "") -> Any:
        answer = self.gets.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch_one(
        self, resource: Any, name: str, *, namespace: str, resource_version: str,
        timeout_seconds: float | None = None,
    ) -> Iterator[WatchEvent[Any]]:  # fmt: skip
        self.from_versions.append(resource_version)
        for item in self.watches.pop(0):
            if isinstance(item, Exception):
                raise item
            kind, changed = item
            version = changed.metadata.resource_version
            yield WatchEvent(EventType(kind), changed, version)


def versions(api: Api, count: int) -> list[int]:
    """Return the versions of the first changes."""
    return [found.metadata.version for found in islice(job_changes(api, KEY), count)]


def test_a_watch_that_ends_is_resumed_where_it_was() -> None:
    api = ScriptedApi([job(5)], [[("MODIFIED", job(6))], [("MODIFIED", job(7))]])
    assert versions(api, 3) == [5, 6, 7]
    assert api.from_versions == ["5", "6"]


def test_a_version_that_is_too_old_leads_to_a_fresh_read() -> None:
    api = ScriptedApi([job(5), job(90)], [[Expired("too old")], [("MODIFIED", job(91))]])
    assert versions(api, 3) == [5, 90, 91]
    assert api.from_versions == ["5", "90"]


def test_a_deletion_ends_the_following() -> None:
    api = ScriptedApi([job(5)], [[("DELETED", job(6))]])
    with pytest.raises(Gone):
        versions(api, 9)


def test_a_job_that_vanished_between_two_watches_is_gone_and_an_unknown_one_not_found() -> None:
    with pytest.raises(Gone):
        versions(ScriptedApi([job(5), NotFound("gone")], [[Expired("too old")]]), 9)
    with pytest.raises(NotFound):
        versions(ScriptedApi([NotFound("unknown")], []), 1)
