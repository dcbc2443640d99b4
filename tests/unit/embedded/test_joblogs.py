"""The log archive: what it finds, cuts, follows and refuses. Files are real, time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.status import BadRequest, NotFound
from fairlead.embedded.http.streams.logs import LogOptions
from fairlead.embedded.local import logfiles
from fairlead.embedded.logs import archive as log_archive
from fairlead.embedded.logs.archive import JobLogQuery, LogArchive, parse_query
from fairlead.embedded.logs.tail import Tail
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient


class Shelf:
    """Writes logs as the local node does."""

    def __init__(self, data: Path) -> None:
        self.logs = data / "logs"
        self.client = FakeClient()
        self.archive = LogArchive(data, self.client)

    def member(self, attempt: int, index: int, text: str, *, uid: str = "u1") -> Path:
        labels = {
            names.JOB_NAME: "train",
            names.JOB_UID: uid,
            names.ROLE: "worker",
            names.INDEX: str(index),
            names.ATTEMPT: str(attempt),
        }
        return self.open(f"train-{attempt}-worker-{index}", text, labels)

    def open(self, name: str, text: str, labels: dict[str, str] | None = None) -> Path:
        body: dict[str, Any] = {
            "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": {"containers": [{"name": "main"}]},
        }
        path = Path(logfiles.open_logs(self.logs, msgspec.convert(body, Pod))["main"])
        path.write_text(text)
        return path

    def close(self, *paths: Path) -> None:
        logfiles.close_logs({str(path): str(path) for path in paths})

    async def job(self, attempt: int = 1, **status: Any) -> None:
        template = {"spec": {"containers": [{"name": "main"}]}}
        role = {"name": "worker", "count": 2, "template": template}
        body = {"metadata": {"name": "train"}, "spec": {"roles": [role]}}
        await self.client.create(
            JOBS, {**body, "status": {"attempt": attempt, **status}}, namespace="default"
        )

    async def text(self, **query: Any) -> str:
        return await joined(await self.archive.read_job("default", "train", JobLogQuery(**query)))

    async def pod_text(self, name: str, **options: Any) -> str:
        read = self.archive.read("default", name, "main", LogOptions(**options))
        return await joined(await read)


async def joined(pieces: AsyncIterator[bytes]) -> str:
    return b"".join([piece async for piece in pieces]).decode()


class _EndsBetweenLooks(Tail):
    """A log whose writer adds a line and closes it when its reader has just found nothing new."""

    def read(self) -> bytes:
        chunk = super().read()
        if not chunk and self.is_live():
            with self.path.open("ab") as file:
                file.write(b"last\n")
            logfiles.close_logs({"main": str(self.path)})
        return chunk


@pytest.mark.parametrize("reads_job", [False, True])
def test_followers_see_what_is_written_just_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reads_job: bool
) -> None:
    monkeypatch.setattr(log_archive, "Tail", _EndsBetweenLooks)

    async def scenario(shelf: Shelf) -> None:
        shelf.member(1, 0, "first\n")
        if reads_job:
            text = await shelf.text(attempt=1, task="0", follow=True)
        else:
            text = await shelf.pod_text("train-1-worker-0", follow=True)
        assert text == "first\nlast\n"

    on_shelf(tmp_path, scenario)


def on_shelf(tmp_path: Path, scenario: Callable[[Shelf], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Shelf(tmp_path))

    run(main())


def test_tasks_stand_side_by_side_in_order_and_alone_without_prefix(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        for index in (10, 2):
            shelf.close(shelf.member(1, index, f"a{index}\nb{index}\nlast{index}"))
        shelf.close(shelf.member(2, 2, "again\n"))
        assert await shelf.text() == "[worker-2] again\n"
        lines = (await shelf.text(attempt=1)).splitlines()
        assert lines == [
            *("[worker-2] a2", "[worker-2] b2", "[worker-2] last2"),
            *("[worker-10] a10", "[worker-10] b10", "[worker-10] last10"),
        ]
        assert await shelf.text(previous=True, task="10") == "a10\nb10\nlast10"
        assert await shelf.text(attempt=1, task="worker-2", tail_lines=1) == "last2"
        found = await shelf.archive.describe_job("default", "train")
        assert [(a.attempt, [t.task for t in a.tasks]) for a in found.attempts] == [
            (1, ["worker-2", "worker-10"]),
            (2, ["worker-2"]),
        ]

    on_shelf(tmp_path, scenario)


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("lines", [0, 1, 3, 40_000, 40_001, 50_000])
def test_tail_gives_exactly_the_last_lines_over_many_blocks(
    tmp_path: Path, lines: int, ending: str
) -> None:
    async def scenario(shelf: Shelf) -> None:
        text = "\n".join(f"line {i}" for i in range(40_001)) + ending
        shelf.open("p", text)
        shelf.close(shelf.logs / "default/pods/p.log")
        got = await shelf.pod_text("p", tail_lines=lines)
        assert got.splitlines() == text.splitlines()[max(40_001 - lines, 0) :]

    on_shelf(tmp_path, scenario)


def test_following_shows_what_comes_until_the_container_has_ended(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        path = shelf.open("p", "one\n")
        reading = asyncio.create_task(shelf.pod_text("p", follow=True))
        await asyncio.sleep(5)
        with path.open("a") as file:
            file.write("two\n")
        logfiles.put_aside(path)  # a restart of the container
        path.write_text("three, in a new file\n")
        await asyncio.sleep(5)
        assert not reading.done()
        shelf.close(path)
        await asyncio.sleep(1)
        assert reading.done()
        assert await reading == "one\nthree, in a new file\n"
        assert await shelf.pod_text("p", previous=True) == "one\ntwo\n"
        assert await shelf.pod_text("p", limit_bytes=5) == "three"

    on_shelf(tmp_path, scenario)


def test_following_a_job_takes_in_late_tasks_and_later_attempts_and_ends_with_the_job(
    tmp_path: Path,
) -> None:
    async def scenario(shelf: Shelf) -> None:
        await shelf.job()
        reading = asyncio.create_task(shelf.text(follow=True))
        await asyncio.sleep(3)
        first = shelf.member(1, 0, "a\nhal")
        await asyncio.sleep(3)
        second = shelf.member(1, 1, "b\n")
        await asyncio.sleep(3)
        with first.open("a") as file:
            file.write("f\n")
        shelf.close(first, second)
        await asyncio.sleep(3)
        await shelf.client.patch(
            JOBS, "train", {"status": {"attempt": 2}}, namespace="default", subresource="status"
        )
        third = shelf.member(2, 0, "c")
        await asyncio.sleep(3)
        assert not reading.done()
        shelf.close(third)
        over = {"conditions": [{"type": "Succeeded", "status": "True"}]}
        await shelf.client.patch(
            JOBS, "train", {"status": over}, namespace="default", subresource="status"
        )
        await asyncio.sleep(3)
        assert reading.done()
        lines = ["[worker-0] a", "[worker-1] b", "[worker-0] half", "[worker-0] c"]
        assert (await reading).splitlines() == lines
        assert await shelf.text(follow=True, attempt=1, task="1") == "b\n"

    on_shelf(tmp_path, scenario)


def test_simulated_pods_and_jobs_say_that_they_are_simulated(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        labels = {names.NODE_TYPE: "virtual"}
        await shelf.client.create(NODES, {"metadata": {"name": "v1", "labels": labels}})
        await shelf.client.create(
            PODS, {"metadata": {"name": "p"}, "spec": {"nodeName": "v1"}}, namespace="default"
        )
        placement = {"attempt": 1, "roles": [{"role": "worker", "nodes": ["v1", "v1"]}]}
        await shelf.job(placement=placement)
        assert await shelf.pod_text("p") == "pod p is simulated on virtual node v1: it has no log\n"
        assert "job train is simulated" in await shelf.text(follow=True)

    on_shelf(tmp_path, scenario)


def test_what_is_not_there_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        with pytest.raises(NotFound, match='no job "train"'):
            await shelf.text()
        shelf.close(shelf.member(1, 0, "x\n"))
        with pytest.raises(NotFound, match="did you mean train"):
            await shelf.archive.read_job("default", "trian", JobLogQuery())
        with pytest.raises(NotFound, match="no logs of attempt 7; there are: 1"):
            await shelf.text(attempt=7)
        with pytest.raises(NotFound, match="did you mean worker-0"):
            await shelf.text(task="wroker-0")
        with pytest.raises(NotFound):
            await shelf.archive.read_job("..", "../../etc", JobLogQuery())
        await shelf.client.create(PODS, {"metadata": {"name": "new"}}, namespace="default")
        with pytest.raises(BadRequest, match="waiting to start"):
            await shelf.pod_text("new")
        with pytest.raises(BadRequest, match="leave out timestamps"):
            await shelf.pod_text("new", timestamps=True)

    on_shelf(tmp_path, scenario)


def test_a_later_job_of_the_same_name_begins_with_empty_logs_and_the_old_ones_stay(
    tmp_path: Path,
) -> None:
    async def scenario(shelf: Shelf) -> None:
        shelf.close(shelf.member(1, 0, "old\n"), shelf.member(2, 0, "old\n"))
        shelf.close(shelf.member(1, 0, "new\n", uid="u2"))
        assert await shelf.text() == "new\n", "of a single member there is no prefix"
        old = shelf.logs / "default/train+u1/2/worker-0.log"
        assert old.read_text() == "old\n"

    on_shelf(tmp_path, scenario)


def test_a_query_is_read_strictly_with_all_mistakes() -> None:
    assert parse_query({"attempt": "2", "task": "w-1", "tail": "5", "follow": "1"}) == JobLogQuery(
        attempt=2, task="w-1", tail_lines=5, follow=True
    )
    with pytest.raises(BadRequest) as caught:
        parse_query({"attempt": "-1", "follow": "maybe", "tial": "3"})
    assert all(word in caught.value.message for word in ("attempt='-1'", "maybe", "tial: unknown"))
    for name in ("attempt", "tail"):
        with pytest.raises(BadRequest) as caught:
            parse_query({name: "9" * 5_000})  # more digits than Python reads
        assert len(caught.value.message) < 200


def test_each_of_two_jobs_of_one_name_is_read_by_its_uid(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        shelf.close(shelf.member(1, 0, "older\n", uid="u1"))
        shelf.close(shelf.member(1, 0, "newer\n", uid="u2"))
        stopped = LogArchive(tmp_path, None)
        for archive in (shelf.archive, stopped):
            for uid, text in ((None, "newer\n"), ("u1", "older\n"), ("u2", "newer\n")):
                query = JobLogQuery(uid=uid)
                assert await joined(await archive.read_job("default", "train", query)) == text
            for uid in ("u3", "../train", "u1/../../train"):
                with pytest.raises(NotFound, match="no logs of a job train with uid"):
                    await archive.read_job("default", "train", JobLogQuery(uid=uid))
            with pytest.raises(NotFound, match=r"did you mean train\?$"):
                await archive.read_job("default", "trains", JobLogQuery())

    on_shelf(tmp_path, scenario)


def test_following_an_older_job_of_the_name_ends_although_the_newer_one_runs(
    tmp_path: Path,
) -> None:
    async def scenario(shelf: Shelf) -> None:
        shelf.close(shelf.member(1, 0, "older\n", uid="u1"))
        shelf.member(1, 0, "newer\n", uid="u2")
        await shelf.job(1)
        assert await shelf.text(uid="u1", follow=True) == "older\n"

    on_shelf(tmp_path, scenario)
