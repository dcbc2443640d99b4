"""What every history and every log store promises, whatever keeps it."""

from __future__ import annotations

import random
from dataclasses import replace as with_fields

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.use import AttemptUse, ClassTraffic, JobTraffic
from fairlead.api.meta import Condition
from fairlead.runtime.kept.history import (
    FleetQuery,
    FleetRecord,
    History,
    HistoryQuery,
    JobRecord,
    LogQuery,
    LogStore,
    MemberLog,
    RunQuery,
    TrafficRecord,
    UseQuery,
    UseRecord,
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


async def records_of(history: History, query: HistoryQuery) -> tuple[JobRecord, ...]:
    """All records that a query yields."""
    return tuple([each async for page in history.query(query) for each in page])


async def decisions_of(history: History, query: FleetQuery) -> tuple[FleetRecord, ...]:
    """All decisions that a query yields."""
    return tuple([each async for page in history.query_fleet(query) for each in page])


async def logs_of(store: LogStore, query: LogQuery) -> tuple[MemberLog, ...]:
    """All logs that a query yields."""
    return tuple([log async for log in store.logs(query)])


def use(
    task: str, *, attempt: int = 1, job_uid: str = "j1", job: str = "train",
    cpu: int | None = 1_000, peak: int | None = 100, mean: int | None = 50, ended: int = 0,
    is_partial: int = 0, document: str = "{}", namespace: str = "default",
) -> UseRecord:  # fmt: skip
    """What a member used; `ended` counts milliseconds on from that of its attempt."""
    return UseRecord(
        pod_uid=f"{job_uid}-{attempt}-{task}", namespace=namespace, job=job, job_uid=job_uid,
        attempt=attempt, task=task, ended_at_ms=1_000 * attempt + ended, milliseconds=10_000,
        cpu_milliseconds=cpu, memory_peak_bytes=peak, memory_mean_bytes=mean,
        is_partial=is_partial, document=document,
    )  # fmt: skip


async def uses_of(history: History, query: UseQuery) -> tuple[UseRecord, ...]:
    """All records that a query yields."""
    return tuple([each async for page in history.query_use(query) for each in page])


async def check_use(history: History) -> None:
    """Members' use is found by job, kept once for each pod, and summed up by attempt."""
    first = [use(f"worker-{n}", peak=100 + n) for n in (10, 2, 0)]
    unknown = use("worker-0", attempt=2, cpu=None, peak=None, mean=None, is_partial=1)
    more = use("worker-1", attempt=2, cpu=500, peak=2**50, mean=2**50)
    await history.record_use([*first, unknown, more])
    await history.record_use([use("worker-2", peak=102)])
    other = use("worker-0", job_uid="j0", cpu=7, document="x" * 2_048)
    await history.record_use([other, use("worker-0", job_uid="j2", namespace="elsewhere")])
    by_name = await uses_of(history, UseQuery(namespace="default", job="train"))
    assert [(each.attempt, each.task) for each in by_name] == [
        (1, "worker-0"), (1, "worker-2"), (1, "worker-10"), (2, "worker-0"), (2, "worker-1"),
    ]  # fmt: skip
    assert by_name[3] == unknown
    assert await uses_of(history, UseQuery(uid="j0")) == (other,)
    assert await uses_of(history, UseQuery(namespace="default", uid="j2")) == ()
    last = await uses_of(history, UseQuery(uid="j1", attempt=2, limit=1))
    assert [each.attempt for each in last] == [2]
    assert await history.use_of(["j1", "j0", "none"]) == {
        "j0": (AttemptUse(1, 1, 10_000, 1, 7, 1, 100, 100, 50),),
        "j1": (
            AttemptUse(1, 3, 30_000, 3, 3_000, 3, 110, 312, 50),
            AttemptUse(2, 2, 20_000, 1, 500, 1, 2**50, 2**50, 2**50, is_partial=True),
        ),
    }
    largest = 2**53
    await history.record_use(
        [use(f"worker-{n}", job_uid="j9", cpu=largest, peak=largest) for n in range(1_100)]
    )
    found = (await history.use_of(["j9"]))["j9"][0]
    assert found.cpu_milliseconds is not None, "a tenant's largest numbers have a sum"
    assert found.cpu_milliseconds > 2**63


def traffic(
    pod: str, name: str, sent: int, received: int = 0, *, job_uid: str = "j1",
    namespace: str = "default", ended: int = 0,
) -> TrafficRecord:  # fmt: skip
    """What a member had exchanged with a class of addresses."""
    return TrafficRecord(f"{pod}/{name}", pod, namespace, job_uid, name, ended, sent, received)


async def check_traffic(history: History) -> None:
    """Traffic is kept once for each pod and class, and its sums are exact, however large."""
    most = (1 << 63) - 1
    await history.record_traffic([
        traffic("a", "internet", 3, 5), traffic("a", "internal", most, most),
        traffic("b", "internal", most, 1), traffic("c", "internal", 0, 0),
        traffic("d", "storage", 2**53 + 1, job_uid="j2", namespace="elsewhere"),
    ])  # fmt: skip
    await history.record_traffic([traffic("a", "internet", 4, 6), traffic("b", "internal", most)])
    assert await history.traffic_of(["j1", "j2", "none"]) == {
        "j1": JobTraffic(3, (
            ClassTraffic("internal", 3, 2 * most, most), ClassTraffic("internet", 1, 4, 6),
        )),
        "j2": JobTraffic(1, (ClassTraffic("storage", 1, 2**53 + 1, 0),)),
    }  # fmt: skip
    assert await history.traffic_of(["none"]) == {}


async def check_numbers(history: History) -> None:
    """A number finds its job, and of an array all of its elements."""
    alone = with_fields(record("alone", ended=1), number=3)
    elements = [
        with_fields(record(f"sweep-{i}", ended=i), number=10 + i, array_number=7) for i in range(3)
    ]
    for each in (alone, *elements, record("earlier", ended=2)):
        await history.record(each)
    assert [each.name for each in await records_of(history, HistoryQuery(number=3))] == ["alone"]
    assert [each.name for each in await records_of(history, HistoryQuery(number=11))] == ["sweep-1"]
    found = await records_of(history, HistoryQuery(number=7, namespace="default"))
    assert [each.name for each in found] == ["sweep-2", "sweep-1", "sweep-0"]
    assert await records_of(history, HistoryQuery(number=7, namespace="other")) == ()


def ran(name: str, *, ended: int, run: str, namespace: str = "default") -> JobRecord:
    """A record of a run; `run` is the JSON of its summary."""
    return with_fields(record(name, ended=ended), run=run, namespace=namespace)


async def check_runs(history: History) -> None:
    """Runs are found by namespace, tag and end, the latest first; jobs without facts are none."""
    for each in (
        ran("a", ended=1, run='{"tags":["x","y"]}'),
        ran("b", ended=3, run='{"tags":["y"],"params":{"lr":"x"}}'),
        ran("c", ended=2, run='{"note":"tags"}'),
        ran("d", ended=4, run='{"tags":["x"]}', namespace="other"),
        record("plain", ended=5),
    ):
        await history.record(each)

    async def found(**query: object) -> list[str]:
        wanted = RunQuery(**query)  # type: ignore[arg-type] # passed on
        return [row.name async for page in history.query_runs(wanted) for row in page]

    assert await found() == ["d", "b", "c", "a"]
    assert await found(namespace="default") == ["b", "c", "a"]
    assert await found(namespace="default", tag="x") == ["a"]
    assert await found(tag="y", limit=1) == ["b"]
    assert await found(limit=3) == ["d", "b", "c"]
    assert await found(since=1_767_225_602.25) == ["d", "b", "c"]
    assert await found(tag='x"') == []
    await history.record(ran("b", ended=3, run='{"tags":["z"]}'))
    assert await found(tag="y") == ["a"]
    [row] = [row async for page in history.query_runs(RunQuery(tag="z")) for row in page]
    assert (row.namespace, row.user, row.state, row.finished_at_ms) == (
        "default", "ana", "Succeeded", 1_767_225_603_250,
    )  # fmt: skip
    await history.record(record("b", ended=3))
    assert await found(tag="z") == []


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
        return [r.name for r in await records_of(history, HistoryQuery(**query))]  # type: ignore[arg-type] # passed on

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
    [found] = await records_of(history, HistoryQuery())
    assert found == record("a", ended=2)


async def check_logs(store: LogStore) -> None:
    """Logs are found by attempt, in order; a shorter text never replaces a longer one."""
    for index in (10, 2):
        await store.keep(log(f"worker-{index}", attempt=2, text=b"\x00\xff raw\n" * 1000))
    await store.keep(log("worker-0"))
    await store.keep(log("worker-0", attempt=3, job_uid="j2", text=b"another job of that name"))
    await store.keep(log("worker-0", text=b"hello\nworld\n"))
    await store.keep(log("worker-0", text=b"hello\nwor"))
    [first] = await logs_of(store, LogQuery("default", "train", attempt=1))
    assert first == log("worker-0", text=b"hello\nworld\n")
    second = await logs_of(store, LogQuery("default", "train", attempt=2))
    assert [each.task for each in second] == ["worker-2", "worker-10"]
    assert second[0].text == b"\x00\xff raw\n" * 1000
    [latest] = await logs_of(store, LogQuery("default", "train"))
    assert latest.job_uid == "j2"
    older = await logs_of(store, LogQuery("default", "train", uid=first.job_uid))
    assert {(each.job_uid, each.attempt) for each in older} == {(first.job_uid, 2)}
    of_first = LogQuery("default", "train", attempt=1, uid=first.job_uid)
    assert await logs_of(store, of_first) == (first,)
    assert await logs_of(store, LogQuery("default", "train", attempt=1, uid="j2")) == ()
    newest = with_fields(log("worker-0", job_uid="j3"), kept_at_ms=9_000)
    await store.keep(newest)
    assert await logs_of(store, LogQuery("default", "train")) == (newest,), "of fewer attempts"
    assert await logs_of(store, LogQuery("default", "other")) == ()
    uid = first.pod_uid
    assert await store.known([uid, "none"]) == frozenset({uid})
    await store.keep(with_fields(first, pod_uid="elsewhere", namespace="other", text=b""))
    [empty] = await logs_of(store, LogQuery("other", "train"))
    assert empty.text == b""


def decision(number: int, *, pool: str = "h100", action: str = "Launch") -> FleetRecord:
    """A decision of `number` seconds after the epoch."""
    return FleetRecord(f"uid/{number:09}", number * 1000, pool, action, "Demand", "why", "{}")


async def check_decisions(history: History) -> None:
    """Decisions are kept once, selected, and given the latest first."""
    await history.record_fleet([decision(1), decision(2, pool="a100"), decision(3, action="Mark")])
    await history.record_fleet([decision(3, action="Remove"), decision(4)])

    async def found(**query: object) -> list[int]:
        records = await decisions_of(history, FleetQuery(**query))  # type: ignore[arg-type] # passed on
        return [each.at_ms // 1000 for each in records]

    assert await found() == [4, 3, 2, 1]
    assert await found(limit=2) == [4, 3]
    assert await found(pool="a100") == [2]
    assert await found(action="Mark") == [3], "what is recorded stays as it was"
    assert await found(action="Remove") == []
    assert await found(since=3) == [4, 3]
    assert await decisions_of(history, FleetQuery(limit=1)) == (decision(4),)


#: Of a store that is filled.
FAIR_BYTES_MAX = 400_000
_NOISE = random.Random(1)


def _noise() -> str:
    return _NOISE.randbytes(5_000).hex()


async def check_fair_records(history: History) -> None:
    """A namespace that records without end loses its own oldest records, and no other's."""
    for number in range(20):
        await history.record(record(f"mine-{number}", ended=0))
    for number in range(500):
        flood = record(f"flood-{number}", ended=number * 59 // 500 + 1)
        await history.record(with_fields(flood, namespace="loud", document=f'"{_noise()}"'))
    mine = await records_of(history, HistoryQuery(namespace="default"))
    assert {each.name for each in mine} == {f"mine-{number}" for number in range(20)}
    loud = await records_of(history, HistoryQuery(namespace="loud"))
    assert 20 <= len(loud) <= FAIR_BYTES_MAX // 10_000
    assert loud[0].name.rpartition("-")[2] > "470", "the latest are kept"
    assert {each.finished_at_ms for each in loud} <= {
        record("", ended=second).finished_at_ms for second in range(50, 60)
    }


async def check_fair_decisions(history: History) -> None:
    """A pool that is decided about without end loses its own oldest decisions."""
    await history.record_fleet([decision(number) for number in range(20)])
    for number in range(20, 520):
        flood = decision(number, pool="loud")
        await history.record_fleet([with_fields(flood, document=f'"{_noise()}"')])
    assert len(await decisions_of(history, FleetQuery(pool="h100"))) == 20
    loud = await decisions_of(history, FleetQuery(pool="loud"))
    assert 20 <= len(loud) <= FAIR_BYTES_MAX // 10_000
    assert loud[0].at_ms == 519_000


async def check_fair_logs(store: LogStore) -> None:
    """A namespace that logs without end loses its own oldest logs, and no other's."""
    for number in range(20):
        await store.keep(log(f"worker-{number}", job_uid="mine"))
    for attempt in range(1, 501):
        flood = log("worker-0", attempt=attempt, job_uid="loud", text=_NOISE.randbytes(10_000))
        await store.keep(with_fields(flood, namespace="loud"))
    assert len(await logs_of(store, LogQuery("default", "train"))) == 20
    sizes = [len(await logs_of(store, LogQuery("loud", "train", each))) for each in range(1, 501)]
    assert 20 <= sum(sizes) <= FAIR_BYTES_MAX // 10_000
    assert sizes == sorted(sizes), "the latest are kept"
