"""Following one job through watches that end, grow too old, or show its deletion."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.status import Expired, NotFound, Unavailable
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.watching import Gone, job_changes
from fairlead.input.errors import CliError, Code, fail
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


class Clock:
    """Steady time, which passes with each sleep and with each break of a watch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_quiet_watches_that_a_proxy_cuts_go_on_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Cut(Unavailable):
        def __init__(self) -> None:
            super().__init__("the stream broke")
            clock.pass_by(40.0)

    class Proxied(ScriptedApi):
        def watch_one(self, *_: Any, **__: Any) -> Iterator[WatchEvent[Any]]:
            raise Cut

    assert versions(Proxied([job(i) for i in range(100)], []), 100) == list(range(100))
    assert clock.now > 100 + 99 * 40


def test_a_cluster_that_stays_away_ends_the_following_after_a_while_and_at_first_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    away = fail(Code.UNREACHABLE, "nothing listens there")
    with pytest.raises(CliError):
        versions(ScriptedApi([away], []), 1)
    assert clock.now == 100.0
    back = ScriptedApi([job(5), *[away] * 20, job(6), *[away] * 99], [[Unavailable("broke")]] * 2)
    changes = job_changes(back, KEY)
    assert [next(changes).metadata.version for _ in range(2)] == [5, 6]
    clock.now = 200.0
    with pytest.raises(CliError):
        next(changes)
    assert 230.0 < clock.now < 235.0


def test_a_deletion_ends_the_following() -> None:
    api = ScriptedApi([job(5)], [[("DELETED", job(6))]])
    with pytest.raises(Gone):
        versions(api, 9)


def test_a_job_that_vanished_between_two_watches_is_gone_and_an_unknown_one_not_found() -> None:
    with pytest.raises(Gone):
        versions(ScriptedApi([job(5), NotFound("gone")], [[Expired("too old")]]), 9)
    with pytest.raises(NotFound):
        versions(ScriptedApi([NotFound("unknown")], []), 1)
