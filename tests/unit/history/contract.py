"""What every history and every log store promises, whatever keeps it."""

from __future__ import annotations

from dataclasses import replace as with_fields

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.meta import Condition
from fairlead.runtime.history import (
    FleetQuery,
    FleetRecord,
    History,
    HistoryQuery,
    JobRecord,
    LogQuery,
    LogStore,
    MemberLog,
    record_of,
)
from fairlead.testing.builders import make_job


def record(name: str, *, ended: int, user: str = "ana", state: str = "Succeeded") -> JobRecord:
    """A record of a job that ended `ended` seconds after new year."""
    job = make_job(name)
    meta = replace(job.metadata, annotations={names.SUBMITTED_BY: user})
    finished_at = f"2026-01-01T00:00:{ended:02d}.250000Z"
    conditions = (Condition(state, "True", "Why", "because"),)
    status = replace(job.status, state=state, finished_at=finished_at, conditions=conditions)
    return record_of(replace(job, metadata=meta, status=status))


def log(task: str, *, attempt: int = 1, job_uid: str = "j1", text: bytes = b"hello\n") -> MemberLog:
    """A log of a member of job `train`."""
    return MemberLog(
        pod_uid=f"{job_uid}-{attempt}-{task}", namespace="default", job="train", job_uid=job_uid,
        attempt=attempt, task=task, is_cut=False, kept_at_ms=1_000 * attempt, text=text,
    )  # fmt: skip


async def check_queries(history: History) -> None:
    """Queries select, and give the latest end first."""
    records = [
        record("a", ended=1),
        record("b", ended=3, user="ben"),
        record("c", ended=2, state="Failed"),
    ]
    for each in records:
        await history.record(each)

    async def found(**query: object) -> list[str]:
        return [r.name for r in await history.query(HistoryQuery(**query))]  # type: ignore[arg-type] # passed on

    assert await found() == ["b", "c", "a"]
    assert await found(limit=1) == ["b"]
    assert await found(name="c") == ["c"]
    assert await found(user="ana") == ["c", "a"]
    assert await found(state="Failed") == ["c"]
    assert await found(since=1_767_225_602.25) == ["b", "c"]
    assert await found(since=1_767_225_602.26) == ["b"]
    assert await found(uid=records[0].uid) == ["a"]
    assert await found(namespace="other") == []


async def check_replacing(history: History) -> None:
    """A second record of a job replaces the first, whole."""
    await history.record(record("a", ended=1, state="Failed"))
    await history.record(record("a", ended=2))
    [found] = await history.query(HistoryQuery())
    assert found == record("a", ended=2)


async def check_logs(store: LogStore) -> None:
    """Logs are found by attempt, in order; a shorter text never replaces a longer one."""
    for index in (10, 2):
        await store.keep(log(f"worker-{index}", attempt=2, text=b"\x00\xff raw\n" * 1000))
    await store.keep(log("worker-0"))
    await store.keep(log("worker-0", attempt=3, job_uid="j2", text=b"another job of that name"))
    await store.keep(log("worker-0", text=b"hello\nworld\n"))
    await store.keep(log("worker-0", text=b"hello\nwor"))
    [first] = await store.logs(LogQuery("default", "train", attempt=1))
    assert first == log("worker-0", text=b"hello\nworld\n")
    second = await store.logs(LogQuery("default", "train", attempt=2))
    assert [each.task for each in second] == ["worker-2", "worker-10"]
    assert second[0].text == b"\x00\xff raw\n" * 1000
    [latest] = await store.logs(LogQuery("default", "train"))
    assert latest.job_uid == "j2"
    older = await store.logs(LogQuery("default", "train", uid=first.job_uid))
    assert {(each.job_uid, each.attempt) for each in older} == {(first.job_uid, 2)}
    of_first = LogQuery("default", "train", attempt=1, uid=first.job_uid)
    assert await store.logs(of_first) == (first,)
    assert await store.logs(LogQuery("default", "train", attempt=1, uid="j2")) == ()
    newest = with_fields(log("worker-0", job_uid="j3"), kept_at_ms=9_000)
    await store.keep(newest)
    assert await store.logs(LogQuery("default", "train")) == (newest,), "of fewer attempts"
    assert await store.logs(LogQuery("default", "other")) == ()
    uid = first.pod_uid
    assert await store.known([uid, "none"]) == frozenset({uid})
    await store.keep(with_fields(first, pod_uid="elsewhere", namespace="other", text=b""))
    [empty] = await store.logs(LogQuery("other", "train"))
    assert empty.text == b""


def decision(number: int, *, pool: str = "h100", action: str = "Launch") -> FleetRecord:
    """A decision of `number` seconds after the epoch."""
    return FleetRecord(f"uid/{number:09}", number * 1000, pool, action, "Demand", "why", "{}")


async def check_decisions(history: History) -> None:
    """Decisions are kept once, selected, and given the latest first."""
    await history.record_fleet([decision(1), decision(2, pool="a100"), decision(3, action="Mark")])
    await history.record_fleet([decision(3, action="Remove"), decision(4)])

    async def found(**query: object) -> list[int]:
        records = await history.query_fleet(FleetQuery(**query))  # type: ignore[arg-type] # passed on
        return [each.at_ms // 1000 for each in records]

    assert await found() == [4, 3, 2, 1]
    assert await found(limit=2) == [4, 3]
    assert await found(pool="a100") == [2]
    assert await found(action="Mark") == [3], "what is recorded stays as it was"
    assert await found(action="Remove") == []
    assert await found(since=3) == [4, 3]
    assert await history.query_fleet(FleetQuery(limit=1)) == (decision(4),)
