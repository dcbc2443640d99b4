"""Past jobs of a name, as the archive answers about them, beside a job that is submitted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.use import MemberUse
from fairlead.api.status import ApiError, Forbidden, Unavailable
from fairlead.api.values.times import format_time
from fairlead.app.queries.archive_query import record_lines
from fairlead.app.queries.messages import Book
from fairlead.cli.submitting.past_use import past_over_asks
from fairlead.history.memory import MemoryHistory
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.http1 import HttpResponse
from fairlead.runtime.kept.history import UseRecord, record_of
from fairlead.testing.builders import EPOCH, make_job

GIB = 1 << 30
HOUR = 3_600_000
USE = MemberUse(HOUR, memory_peak_bytes=2 * GIB, step_seconds=60, cpu=(500,), memory=(2_048,))
NOW = EPOCH + 86_400


class Archived(FakeApi):
    """A cluster whose history answers as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.history = MemoryHistory()
        self.asked: list[str] = []
        self.error: Exception | None = None

    def request(self, method: str, path: str, **more: Any) -> HttpResponse:
        """Answer from the history."""
        if self.error is not None:
            raise self.error
        assert method == "GET"
        book = Book(path.removeprefix("/fairlead/v1/"))
        self.asked.append(book.value)

        async def read() -> bytes:
            lines = record_lines(self.history, book, more["query"], runner=asyncio.to_thread)
            return b"".join([each async for each in lines])

        return HttpResponse(200, "OK", {}, asyncio.run(read()))

    def keep(self, job: Job, use: MemberUse = USE, *, ended: float = EPOCH) -> None:
        """Keep a job that has ended, and what its one member used in its latest attempt."""
        meta, at = job.metadata, format_time(ended)
        attempt = Attempt(1, started_at=format_time(ended - 600), finished_at=at)
        status = replace(job.status, state="Succeeded", attempt=1, attempts=(attempt,),
                         finished_at=at)  # fmt: skip
        record = record_of(replace(job, status=status))
        row = UseRecord(
            f"{meta.uid}-pod", meta.namespace, meta.name, meta.uid, 1, "worker-0",
            int(ended * 1000), use.milliseconds, use.cpu_milliseconds, use.memory_peak_bytes,
            use.memory_mean_bytes, is_partial=False, document=msgspec.json.encode(use).decode(),
        )  # fmt: skip
        asyncio.run(self.history.record(record))
        asyncio.run(self.history.record_use([row]))


def named(name: str, *, user: str = "ada") -> Job:
    job = make_job(name, count=1, cpu="1", memory="64Gi", gpus=0)
    meta = replace(job.metadata, uid=f"uid-{name}", annotations={names.SUBMITTED_BY: user})
    return replace(job, metadata=meta)


def found(api: Archived, name: str = "train-9") -> list[tuple[str, ...]]:
    return [each.jobs for each in past_over_asks(api, named(name), "train", NOW)]


def test_jobs_of_the_name_and_of_the_user_count() -> None:
    api = Archived()
    for count, name in enumerate(("train", "train-1", "train-big-2", "trainer-1", "x-train-3")):
        api.keep(named(name), ended=EPOCH + count)
    api.keep(named("train-7", user="bob"), ended=EPOCH + 9)
    assert found(api) == [("train-1", "train")]
    assert api.asked == ["history", "use", "use"]


def test_the_latest_three_are_asked_about_and_old_ones_are_not() -> None:
    api = Archived()
    for count in range(6):
        api.keep(named(f"train-{count}"), ended=EPOCH + count)
    assert found(api) == [("train-5", "train-4", "train-3")]
    assert api.asked.count("use") == 3
    old = Archived()
    for count in range(2):
        old.keep(named(f"train-{count}"), ended=NOW - 91 * 86_400)
    assert found(old) == []


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("no"), Unavailable("away"), TimeoutError("10 s"),
        fail(Code.UNREACHABLE, "the cluster does not answer"),
    ],
    ids=["forbidden", "unavailable", "slow", "unreachable"],
)  # fmt: skip
def test_an_archive_that_does_not_answer_is_no_reason_not_to_submit(
    error: ApiError | CliError | TimeoutError,
) -> None:
    api = Archived()
    api.error = error
    assert found(api) == []


def test_an_answer_that_is_none_is_left_out() -> None:
    api = Archived()
    api.keep(named("train-1"))
    for body in (b"<html>", b'{"uid": 3}\n', b'{"cut": "too long"}\n', b"\xff\n"):
        with pytest.MonkeyPatch.context() as patch:
            answer = HttpResponse(200, "OK", {}, body)
            patch.setattr(api, "request", lambda *_, answer=answer, **__: answer)
            assert found(api) == []
