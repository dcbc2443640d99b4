"""Records of jobs that outlive their objects."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace as with_
from tests.unit.history.contract import (
    FAIR_BYTES_MAX,
    check_decisions,
    check_fair_decisions,
    check_fair_records,
    check_numbers,
    check_queries,
    check_replacing,
    check_runs,
    check_traffic,
    check_use,
    decision,
    decisions_of,
    ran,
    records_of,
    traffic,
    use,
    uses_of,
)
from tests.unit.history.contract import record as _record

from fairlead.api import names
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, JobSpec, JobStatus, Role
from fairlead.api.jobs.use import USE_BYTES_MAX
from fairlead.api.kubernetes.core import Container, EnvVar, PodSpec, PodTemplate, Volume
from fairlead.history import sqlite
from fairlead.history.memory import MemoryHistory
from fairlead.history.sql import RUNS_PAGE_MAX
from fairlead.history.sqlite import SqliteHistory
from fairlead.runtime.kept.history import (
    FleetQuery,
    History,
    HistoryError,
    HistoryQuery,
    OtherSchema,
    RunQuery,
    UseQuery,
    record_of,
)
from fairlead.runtime.kept.record_document import DOCUMENT_BYTES_MAX, document_of
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job

T = TypeVar("T")


async def _at_once(call: Callable[[], T]) -> T:
    return call()


def _open(path: Path, **kwargs: int) -> SqliteHistory:
    return SqliteHistory.open(path, runner=_at_once, **kwargs)


@pytest.fixture(params=["memory", "sqlite"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> History:
    return MemoryHistory() if request.param == "memory" else _open(tmp_path / "history.db")


def test_a_record_holds_what_people_ask_for_and_the_whole_job() -> None:
    record = _record("train", ended=5, state="Failed")
    assert (record.namespace, record.name, record.user) == ("default", "train", "ana")
    assert (record.state, record.reason, record.message) == ("Failed", "Why", "because")
    assert (record.member_count, record.attempt_count) == (1, 1)
    assert record.finished_at_ms == 1_767_225_605_250
    assert msgspec.json.decode(record.document, type=Job).metadata.name == "train"
    assert '"kind":"Job"' in record.document


def test_queries_select_and_give_the_latest_end_first(history: History) -> None:
    run(check_queries(history))


def test_a_number_finds_its_job_and_of_an_array_all_elements(history: History) -> None:
    run(check_numbers(history))


def test_a_file_of_a_version_without_numbers_is_used_on_and_that_version_still_writes_to_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    run(_open(path).close())
    later = ("number", "array_number")
    with sqlite3.connect(path) as connection:
        for name in later:
            connection.execute(f"DROP INDEX jobs_by_{name}")
            connection.execute(f"ALTER TABLE jobs DROP COLUMN {name}")
    run(check_numbers(_open(path)))
    before = asdict(_record("by-an-earlier-version", ended=9))
    names_ = [name for name in before if name not in later]
    with sqlite3.connect(path) as connection:
        columns, marks = ", ".join(f'"{name}"' for name in names_), ", ".join("?" * len(names_))
        values = [before[name] for name in names_]
        connection.execute(f"INSERT INTO jobs ({columns}) VALUES ({marks})", values)
    [latest] = run(records_of(_open(path), HistoryQuery(limit=1)))
    assert (latest.name, latest.number) == ("by-an-earlier-version", None)


def _upgrade_and_die(path: Path, statements: int) -> bool:
    """Open the file in a process that is killed at a statement; False if there are not so many."""
    child = os.fork()
    if child == 0:
        left, connect = [statements], sqlite3.connect

        def count(_statement: str) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        def traced(*arguments: Any, **more: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **more)
            connection.set_trace_callback(count)
            return connection

        sqlite3.connect = traced  # type: ignore[assignment] # in this process alone
        _open(path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def test_an_upgrade_of_the_file_that_is_killed_at_any_statement_is_made_by_the_next_start(
    tmp_path: Path,
) -> None:
    """From nothing, and from a file without what came later."""
    earlier = tmp_path / "earlier.db"
    history = _open(earlier)
    run(history.record(_record("kept", ended=9)))
    run(history.close())
    with sqlite3.connect(earlier) as connection:
        for name in ("number", "array_number"):
            connection.execute(f"DROP INDEX jobs_by_{name}")
            connection.execute(f"ALTER TABLE jobs DROP COLUMN {name}")
        connection.execute("DROP TABLE fleet")
    for path, kept in ((tmp_path / "new.db", []), (earlier, ["kept"])):
        statements = 0
        while _upgrade_and_die(path, statements):
            with sqlite3.connect(path) as connection:
                found = connection.execute("SELECT name FROM sqlite_master WHERE name = 'fleet'")
                assert found.fetchall() == [], statements
            statements += 1
        assert statements > 8
        upgraded = _open(path)
        assert [each.name for each in run(records_of(upgraded, HistoryQuery(limit=9)))] == kept
        run(check_numbers(upgraded))
        run(check_decisions(upgraded))


def test_decisions_about_the_fleet_are_kept_once_and_given_the_latest_first(
    history: History,
) -> None:
    run(check_decisions(history))


def test_only_so_many_decisions_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        for history in (MemoryHistory(records_max=10), _open(tmp_path / "h.db", records_max=10)):
            for first in range(0, 1_000, 50):
                await history.record_fleet([decision(first + i) for i in range(50)])
            found = await decisions_of(history, FleetQuery(limit=100))
            assert [each.at_ms // 1000 for each in found] == list(range(999, 989, -1))

    run(main())


def test_a_namespace_that_records_without_end_drops_nothing_of_another(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    for history in (MemoryHistory(bytes_max=FAIR_BYTES_MAX), _open(path, bytes_max=FAIR_BYTES_MAX)):
        run(check_fair_records(history))
    assert path.stat().st_size < 3 * FAIR_BYTES_MAX


def test_a_pool_that_is_decided_about_without_end_drops_no_decision_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(check_fair_decisions(MemoryHistory(fleet_bytes_max=FAIR_BYTES_MAX)))
    monkeypatch.setattr(sqlite, "FLEET_BYTES_MAX", FAIR_BYTES_MAX)
    run(check_fair_decisions(_open(tmp_path / "h.db")))


def test_memory_counts_what_texts_take_up_there() -> None:
    """One character that is not of Latin-1 makes four bytes of each one of a text."""

    async def main() -> None:
        history = MemoryHistory(bytes_max=FAIR_BYTES_MAX)
        wide = "\U0001f600" + "x" * (FAIR_BYTES_MAX // 8)
        for name in ("a", "b", "c"):
            await history.record(replace(_record(name, ended=1), document=wide))
        assert len(await records_of(history, HistoryQuery())) == 1

    run(main())


@pytest.mark.parametrize(
    "where", ["values", "annotations", "labels", "arguments", "names", "volumes", "attempts"]
)
def test_a_document_is_bounded_and_says_what_was_left_out(where: str) -> None:
    text, many = "x" * 1_000, range(900)
    container = Container("main", image="i", env=(EnvVar("A", "1"),), args=("train",))
    metadata, status, volumes = make_job("train").metadata, JobStatus(state="Succeeded"), ()
    match where:
        case "values":
            env = tuple(EnvVar(f"A{i}", text) for i in many)
            container = with_(container, env=env)
        case "names":
            container = with_(container, env=tuple(EnvVar(text + str(i)) for i in many))
        case "arguments":
            container = with_(container, args=(text,) * 900)
        case "annotations":
            kept = {names.SUBMITTED_BY: "ana" + text * 20}
            metadata = with_(metadata, annotations=kept | {f"a{i}": text for i in many})
        case "labels":
            metadata = with_(metadata, labels={f"a{i}": text for i in many})
        case "volumes":
            volumes = tuple(Volume(f"{text}{i}") for i in many)
        case _:
            lost = tuple(f"{text}{i}" for i in many)
            status = with_(status, attempts=(Attempt(1, message=text, nodes_lost=lost),))
    pod = PodSpec(containers=(container,), volumes=volumes)
    spec = JobSpec(roles=(Role("worker", PodTemplate(spec=pod), 3),), team="vision")
    record = record_of(Job(metadata, spec, status))
    assert len(record.document) < DOCUMENT_BYTES_MAX
    assert len(record.user) <= 1_024
    job = msgspec.json.decode(record.document, type=Job)
    assert (job.metadata.name, job.spec.team, job.status.state) == ("train", "vision", "Succeeded")
    assert job.member_count == 3
    cut = job.metadata.annotations[names.RECORD_CUT]
    expected = {
        "values": "env[].value", "annotations": "metadata.annotations", "labels": "labels",
        "arguments": "containers[].args", "names": "containers[].env", "volumes": "spec.volumes",
        "attempts": "status.attempts[].nodesLost",
    }  # fmt: skip
    assert cut.endswith(expected[where]), cut


def test_a_document_that_fits_is_the_whole_job() -> None:
    job = make_job("train")
    document = msgspec.json.decode(document_of(job), type=Job)
    assert document == job
    small = document_of(job, bytes_max=10)
    assert msgspec.json.decode(small, type=Job).metadata.uid == job.metadata.uid
    assert "spec, status" in small


def test_a_file_from_before_decisions_were_recorded_takes_them(tmp_path: Path) -> None:
    async def main() -> None:
        first = _open(tmp_path / "history.db")
        await first.record(_record("a", ended=1))
        await first.close()
        with sqlite3.connect(tmp_path / "history.db") as connection:
            connection.execute("DROP TABLE fleet")
        second = _open(tmp_path / "history.db")
        await second.record_fleet([decision(1)])
        assert await decisions_of(second, FleetQuery()) == (decision(1),)
        assert len(await records_of(second, HistoryQuery())) == 1
        await second.close()

    run(main())


def test_use_is_kept_once_for_each_member_and_summed_up_by_attempt(history: History) -> None:
    run(check_use(history))


def test_a_file_from_before_use_was_recorded_takes_it(tmp_path: Path) -> None:
    async def main() -> None:
        first = _open(tmp_path / "history.db")
        await first.record(_record("a", ended=1))
        await first.close()
        with sqlite3.connect(tmp_path / "history.db") as connection:
            connection.execute("DROP TABLE use")
        second = _open(tmp_path / "history.db")
        await check_use(second)
        assert len(await records_of(second, HistoryQuery())) == 1
        await second.close()

    run(main())


def test_traffic_is_kept_once_for_each_pod_and_class_and_summed_up_exactly(
    history: History,
) -> None:
    run(check_traffic(history))


def test_a_file_from_before_traffic_was_recorded_takes_it(tmp_path: Path) -> None:
    async def main() -> None:
        first = _open(tmp_path / "history.db")
        await first.record(_record("a", ended=1))
        await first.close()
        with sqlite3.connect(tmp_path / "history.db") as connection:
            connection.execute("DROP TABLE traffic")
        second = _open(tmp_path / "history.db")
        await check_traffic(second)
        assert len(await records_of(second, HistoryQuery())) == 1
        await second.close()

    run(main())


def test_traffic_of_one_namespace_without_end_drops_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(sqlite, "TRAFFIC_BYTES_MAX", 512 * 1_000)
        file = _open(tmp_path / "history.db")
        await file.record_traffic([traffic("own", "internal", 7, job_uid="own")])
        for n in range(30):
            await file.record_traffic([
                traffic(f"{n}-{i}", "internal", 1, job_uid="evil", namespace="evil", ended=n)
                for i in range(100)
            ])  # fmt: skip
        found = await file.traffic_of(["own", "evil"])
        assert found["own"].classes[0].sent == 7
        assert 0 < found["evil"].members < 2_100
        await file.close()

    run(main())


def test_use_of_one_namespace_without_end_drops_nothing_of_another(tmp_path: Path) -> None:
    async def main() -> None:
        file = _open(tmp_path / "history.db", use_bytes_max=2 << 20)
        for history in (MemoryHistory(use_bytes_max=2 << 20), file):
            text = "x" * 2_048
            few = use("worker-0", job_uid="few", document=text)
            await history.record_use([few])
            many = [
                use(f"worker-{n}", job_uid="many", namespace="greedy", ended=n, document=text)
                for n in range(3_000)
            ]
            await history.record_use(many)
            await history.record_use([use("worker-0", job_uid="last", document="x" * 200_000)])
            assert await uses_of(history, UseQuery(uid="few")) == (few,)
            left = await uses_of(history, UseQuery(uid="many"))
            assert 500 <= len(left) < 1_000
            latest = range(3_000 - len(left), 3_000)
            assert {each.task for each in left} == {f"worker-{n}" for n in latest}

    run(main())


def test_a_member_adds_at_most_3_kb_to_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "history.db"
        history = _open(path)
        count = 2_000
        for n in range(count):
            uid, text = f"{n:036}", "x" * USE_BYTES_MAX
            row = use("worker-1000", job_uid=uid, job="resnet-50", document=text)
            await history.record_use([row])
        await history.close()
        assert path.stat().st_size <= count * 3_000

    run(main())


def test_a_second_record_of_a_job_replaces_the_first(history: History) -> None:
    run(check_replacing(history))


def test_records_are_there_after_a_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        first = _open(tmp_path / "history.db")
        await first.record(_record("a", ended=1))
        await first.close()
        second = _open(tmp_path / "history.db")
        assert await records_of(second, HistoryQuery()) == (_record("a", ended=1),)
        await second.close()

    run(main())


def test_records_survive_a_kill_in_the_middle_of_things(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    script = (
        "import asyncio, sys, pathlib\n"
        "from fairlead.history.sqlite import SqliteHistory\n"
        "from tests.unit.history.test_records import _record, _at_once\n"
        "async def main():\n"
        "    h = SqliteHistory.open(pathlib.Path(sys.argv[1]), runner=_at_once)\n"
        "    for i in range(50):\n"
        "        await h.record(_record(f'job-{i}', ended=i))\n"
        "    print('done', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.send_signal(signal.SIGKILL)

    async def main() -> None:
        history = _open(path)
        assert len(await records_of(history, HistoryQuery(limit=100))) == 50
        await history.close()

    run(main())


def test_only_so_many_records_are_kept() -> None:
    async def main() -> None:
        history = MemoryHistory(records_max=2)
        for i in range(3):
            await history.record(_record(f"job-{i}", ended=i))
        assert [r.name for r in await records_of(history, HistoryQuery())] == ["job-2", "job-1"]
        await history.record(_record("job-1", ended=5))
        await history.record(_record("job-3", ended=4))
        assert [r.name for r in await records_of(history, HistoryQuery())] == ["job-1", "job-3"]

    run(main())


def test_the_file_drops_the_oldest_ends_now_and_then(tmp_path: Path) -> None:
    async def main() -> None:
        history = _open(tmp_path / "history.db", records_max=10)
        for i in range(1000):
            await history.record(_record(f"job-{i:04d}", ended=i % 60))
        found = await records_of(history, HistoryQuery(limit=100))
        assert len(found) == 10
        assert {r.finished_at_ms for r in found} == {1_767_225_659_250}
        await history.close()

    run(main())


def test_a_file_of_another_version_is_refused_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(OtherSchema, match=r"has schema version 7, this Fairlead reads version 1"):
        _open(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)


def test_a_file_that_is_no_database_is_refused_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_text("not a database, but long enough to be looked at" * 100)
    with pytest.raises(HistoryError, match=r"history\.db.*move the file away"):
        _open(path)


def test_a_record_that_cannot_be_written_leaves_the_file_usable(tmp_path: Path) -> None:
    async def main() -> None:
        history = _open(tmp_path / "history.db")
        with pytest.raises(UnicodeEncodeError):
            await history.record(replace(_record("a", ended=1), user="\ud800"))
        await history.record(_record("b", ended=1))
        assert [r.name for r in await records_of(history, HistoryQuery())] == ["b"]
        await history.close()

    run(main())


def test_records_that_come_together_share_a_commit_and_none_is_acknowledged_before_it(
    tmp_path: Path,
) -> None:
    path, calls = tmp_path / "history.db", 0

    async def counted(call: Callable[[], T]) -> T:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return call()

    async def main() -> None:
        history = SqliteHistory.open(path, runner=counted)
        reader = sqlite3.connect(path)

        async def keep(number: int) -> None:
            record = _record(f"job-{number}", ended=number % 60)
            await history.record(record)
            found = reader.execute("SELECT count(*) FROM jobs WHERE uid = ?", (record.uid,))
            assert found.fetchone() == (1,)

        async with asyncio.TaskGroup() as group:
            for number in range(600):
                group.create_task(keep(number))
        assert calls == 4, "the first alone, then as many as a commit may have"
        reader.close()
        await history.close()

    run(main())


def test_a_record_that_cannot_be_written_or_is_given_up_takes_no_other_along(
    tmp_path: Path,
) -> None:
    async def later(call: Callable[[], T]) -> T:
        await asyncio.sleep(0.01)
        return call()

    async def main() -> None:
        history = SqliteHistory.open(tmp_path / "history.db", runner=later)
        records = [_record(f"job-{number}", ended=number) for number in range(8)]
        records[3] = replace(records[3], user="\ud800")
        tasks = [asyncio.create_task(history.record(record)) for record in records]
        await asyncio.sleep(0.005)
        tasks[0].cancel()  # while it is written
        tasks[5].cancel()  # while it waits for its turn
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        expected = {0: "CancelledError", 3: "UnicodeEncodeError", 5: "CancelledError"}
        assert [type(each).__name__ for each in ended] == [
            expected.get(number, "NoneType") for number in range(8)
        ]
        found = {record.name for record in await records_of(history, HistoryQuery())}
        assert found == {f"job-{number}" for number in (1, 2, 4, 6, 7)}
        await history.record(records[0])
        assert len(await records_of(history, HistoryQuery())) == 6
        await history.close()

    run(main())


def test_a_record_is_on_the_disk_when_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    _open(tmp_path / "history.db")
    full = 2  # each commit is synced: https://www.sqlite.org/pragma.html#pragma_synchronous
    assert opened[0].execute("PRAGMA synchronous").fetchone() == (full,)
    opened[0].close()


def test_a_failing_disk_is_a_history_error(tmp_path: Path) -> None:
    async def main() -> None:
        history = _open(tmp_path / "history.db")
        await history.close()
        with pytest.raises(HistoryError):
            await history.record(_record("a", ended=1))

    run(main())


def test_runs_are_listed(history: History) -> None:
    run(check_runs(history))


def test_a_long_list_of_runs_is_read_in_pages_without_gaps(tmp_path: Path) -> None:
    history = _open(tmp_path / "history.db")
    count = 2 * RUNS_PAGE_MAX + 7

    async def listed() -> list[str]:
        for at in range(count):  # every third ends at the same instant as others
            one = ran(f"r{at:05}", ended=at % 3, run='{"tags":["x"]}')
            await history.record(replace(one, uid=f"u{at:05}"))
        found = [page async for page in history.query_runs(RunQuery(tag="x", limit=count - 1))]
        assert max(map(len, found)) <= RUNS_PAGE_MAX
        return [row.name for page in found for row in page]

    names_ = run(listed())
    assert len(names_) == len(set(names_)) == count - 1


def test_runs_are_listed_from_an_index_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    run(_open(path).close())
    with sqlite3.connect(path) as connection:
        for query in (RunQuery(), RunQuery(namespace="a", tag="x", since=1.0)):
            text, values = sqlite._SQL.find_runs(query, None)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
            assert "USING COVERING INDEX jobs_by_run" in plan[0][3], plan
            assert not [row for row in plan if "TEMP B-TREE" in row[3]], plan
