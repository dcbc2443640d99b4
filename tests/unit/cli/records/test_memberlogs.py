"""Logs of a job on a real cluster: of an earlier job of a name, by its uid."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS
from fairlead.api.status import NotFound, StatusDetails
from fairlead.app.queries.messages import ArchivedLog
from fairlead.cli.cluster.archive import NoArchive
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.records.memberlogs import MemberLogs
from fairlead.input.errors import CliError
from fairlead.testing.builders import make_job


class _Api:
    def __init__(self, job: Job | None) -> None:
        self.job = job

    def get(self, resource: Any, name: str, *, namespace: str) -> Job:
        assert (resource, namespace) == (JOBS, "default")
        if self.job is None:
            raise NotFound(name, details=StatusDetails(name=name))
        return self.job


class _Archive:
    def __init__(self, *logs: ArchivedLog) -> None:
        self.kept = list(logs)

    def logs(
        self, key: tuple[str, str], attempt: int | None, *, uid: str = ""
    ) -> list[ArchivedLog]:
        assert (key, uid) == (("default", "train"), "earlier")
        if not self.kept:
            raise NoArchive("no log of job train is kept in namespace default")
        return [log for log in self.kept if attempt in (None, log.attempt)]


def _read(job: Job | None, *logs: ArchivedLog, **query: Any) -> bytes:
    api: Any = _Api(job)
    archive: Any = _Archive(*logs)
    asked = LogPart(uid="earlier", **query)
    notes: list[str] = []
    found = MemberLogs(api, archive, ("default", "train"), asked, notes.append)
    return b"".join(found.stream())


def _log(task: str, text: bytes) -> ArchivedLog:
    return ArchivedLog(task, 1, False, text)


@pytest.mark.parametrize("job", [None, make_job("train", uid="now")], ids=["gone", "another"])
def test_an_earlier_job_of_a_name_is_read_from_the_archive_by_its_uid(job: Job | None) -> None:
    assert _read(job, _log("worker-0", b"a\nb\n")) == b"a\nb\n"
    both = (_log("worker-0", b"a\n"), _log("worker-1", b"b\n"))
    assert _read(job, *both) == b"[worker-0] a\n[worker-1] b\n"
    assert _read(job, *both, task="1") == b"b\n"


def test_progress_bars_of_several_members_are_kept_apart() -> None:
    bars = [_log(f"worker-{i}", b"\r 50%\r100%\nend\n") for i in range(2)]
    assert _read(None, *bars) == (
        b"[worker-0] 100%\n[worker-0] end\n[worker-1] 100%\n[worker-1] end\n"
    )
    assert _read(None, *bars, task="1") == b"\r 50%\r100%\nend\n"


def test_what_is_not_kept_of_it_is_said_with_where_to_look() -> None:
    with pytest.raises(CliError) as caught:
        _read(None)
    (problem,) = caught.value.problems
    assert problem.message == "no log of a job train with the uid earlier is kept"
    assert "fairlead history -o wide" in problem.help[0]
    with pytest.raises(CliError, match="--previous goes with a job that exists"):
        _read(None, previous=True)
