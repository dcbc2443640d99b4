"""The durable log: what is acknowledged survives, torn ends are cut, damage is reported."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.status import InternalError
from fairlead.embedded.builtins import CONFIG_MAPS
from fairlead.embedded.storage.records import Record, record_typed
from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.storage.wal import (
    DamagedData,
    DirectoryInUse,
    DiskFile,
    WalOptions,
    WrongFormat,
    lock_directory,
)
from fairlead.runtime.outside.processes import is_ending

TABLE = CONFIG_MAPS.name


def write(store: Store, name: str, text: str = "") -> Record:
    metadata: dict[str, Any] = {"name": name, "namespace": "n", "uid": name}
    obj = {"metadata": metadata, "data": {"x": text}}
    record = record_typed(CONFIG_MAPS, ("n", name), store.next_version, obj)
    store.put(CONFIG_MAPS, record)
    return record


def delete(store: Store, name: str) -> int:
    current = store.latest(TABLE, ("n", name))
    assert current is not None
    last = record_typed(CONFIG_MAPS, current.key, store.next_version, current.plain())
    store.remove(CONFIG_MAPS, last)
    return last.version


def contents(store: Store) -> dict[str, bytes]:
    return {record.name: record.data for record in store.records(TABLE)}


def reopen(directory: Path) -> tuple[dict[str, bytes], Store]:
    async def main() -> tuple[dict[str, bytes], Store]:
        store = Store.open(directory)
        await store.close()
        return contents(store), store

    return asyncio.run(main())


def filled(
    directory: Path, count: int = 5, options: StoreOptions | None = None
) -> dict[str, bytes]:
    async def main() -> dict[str, bytes]:
        store = Store.open(directory, options)
        for i in range(count):
            version = write(store, f"m{i}", "x" * i).version
        await store.committed(version)
        found = contents(store)
        await store.close()
        return found

    return asyncio.run(main())


def test_everything_comes_back_with_the_version_it_had(tmp_path: Path) -> None:
    async def main() -> tuple[dict[str, bytes], int]:
        store = Store.open(tmp_path)
        for i in range(50):
            write(store, f"m{i}", str(i))
        write(store, "m1", "again")
        await store.committed(delete(store, "m2"))
        state = contents(store), store.version
        await store.close()
        return state

    wanted, version = asyncio.run(main())
    found, store = reopen(tmp_path)
    assert found == wanted
    assert (store.version, store.next_version) == (version, version + 1)
    assert store.count(TABLE, "n") == 49
    assert store.history(TABLE, version - 1) is None  # what was before must be listed again
    assert store.history(TABLE, version) == []


def test_a_write_is_seen_only_once_it_is_on_disk(tmp_path: Path) -> None:
    gate = threading.Event()

    class SlowDisk(DiskFile):
        def sync(self) -> None:
            gate.wait()
            super().sync()

    async def main() -> None:
        store = Store.open(tmp_path, StoreOptions(log=WalOptions(open_file=SlowDisk)))
        events: list[int] = []
        store.subscribe(lambda batch: events.extend(event.version for event in batch))
        record = write(store, "a")
        await asyncio.sleep(0)
        assert store.get(TABLE, ("n", "a")) is None
        assert store.latest(TABLE, ("n", "a")) is record
        assert (store.version, events) == (0, [])
        delete(store, "a")
        assert store.latest(TABLE, ("n", "a")) is None
        second = write(store, "a")
        gate.set()
        await store.committed(second.version)
        assert store.get(TABLE, ("n", "a")) is second
        assert (store.version, events) == (3, [1, 2, 3])
        await store.close()

    asyncio.run(main())


def test_a_tail_torn_at_any_byte_costs_only_the_last_write(tmp_path: Path) -> None:
    wanted = filled(tmp_path)
    log = tmp_path / "log-1"
    whole = log.read_bytes()
    before_last = len(whole) - _last_frame_bytes(whole)
    last = list(wanted)[-1]
    for size in range(before_last, len(whole)):
        log.write_bytes(whole[:size])
        found, store = reopen(tmp_path)
        assert found == {name: data for name, data in wanted.items() if name != last}
        assert store.recovery is not None
        assert store.recovery.bytes_cut == size - before_last
        assert log.stat().st_size == before_last


def _last_frame_bytes(log: bytes) -> int:
    offset = size = 0
    while offset < len(log):
        size = 8 + int.from_bytes(log[offset : offset + 4], "little")
        offset += size
    return size


def test_a_flipped_bit_in_the_last_record_is_noticed(tmp_path: Path) -> None:
    wanted = filled(tmp_path)
    log = tmp_path / "log-1"
    whole = log.read_bytes()
    for offset in range(len(whole) - _last_frame_bytes(whole), len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        log.write_bytes(damaged)
        found, _ = reopen(tmp_path)
        assert found == {name: data for name, data in wanted.items() if name != "m4"}, offset


def test_after_a_cut_the_log_goes_on(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with (tmp_path / "log-1").open("ab") as file:
        file.write(b"half a frame")
    wanted = filled(tmp_path, 2)
    found, store = reopen(tmp_path)
    assert found == wanted
    assert store.version == 5


SMALL = StoreOptions(log=WalOptions(compact_bytes_min=2_000))


async def churn(store: Store, rounds: int) -> dict[str, bytes]:
    """Many small commits, so that the log is compacted on the way."""
    for i in range(rounds):
        version = write(store, f"m{i % 7}", str(i)).version
        if i % 5 == 4:
            version = delete(store, f"m{i % 7}")
        await store.committed(version)
    return contents(store)


def test_compaction_keeps_the_live_objects_and_bounds_the_files(tmp_path: Path) -> None:
    async def main() -> dict[str, bytes]:
        store = Store.open(tmp_path, SMALL)
        found = await churn(store, 400)
        await store.close()
        return found

    wanted = asyncio.run(main())
    assert (tmp_path / "snapshot-1").exists() is False
    assert len(list(tmp_path.glob("snapshot-*"))) == 1
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 20_000
    found, store = reopen(tmp_path)
    assert found == wanted
    assert store.version == 480


def test_a_compaction_that_was_cut_short_loses_nothing(tmp_path: Path) -> None:
    wanted = filled(tmp_path)
    (tmp_path / "snapshot-2.tmp").write_bytes(b"half")
    (tmp_path / "log-2").touch()  # the new log was begun, the snapshot never finished
    found, _ = reopen(tmp_path)
    assert found == wanted
    assert not (tmp_path / "snapshot-2.tmp").exists()
    assert filled(tmp_path, 1) == reopen(tmp_path)[0]


def test_a_compaction_that_fails_is_not_the_end(tmp_path: Path) -> None:
    class FullForSnapshots(DiskFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self._refuses = path.suffix == ".tmp"

        def write(self, data: bytes) -> None:
            if self._refuses:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(data)

    async def main() -> dict[str, bytes]:
        log = WalOptions(compact_bytes_min=2_000, open_file=FullForSnapshots)
        store = Store.open(tmp_path, StoreOptions(log=log))
        found = await churn(store, 200)
        assert store.failure is None
        await store.close()
        return found

    assert asyncio.run(main()) == reopen(tmp_path)[0]
    assert list(tmp_path.glob("*.tmp")) == []


def test_damage_where_acknowledged_writes_were_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store.open(tmp_path, SMALL)
        await churn(store, 100)
        await store.close()

    asyncio.run(main())
    snapshot = next(tmp_path.glob("snapshot-*"))
    whole = snapshot.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", b"\0" + whole[1:]):
        snapshot.write_bytes(damaged)
        with pytest.raises(DamagedData, match="restore the data directory from a backup"):
            reopen(tmp_path)
    snapshot.write_bytes(whole)
    log = max(tmp_path.glob("log-*"))
    number = int(log.name.split("-")[1])
    (tmp_path / f"log-{number + 1}").touch()
    log.write_bytes(b"torn")
    with pytest.raises(DamagedData):  # only the last log may end in the middle
        reopen(tmp_path)


def batches(directory: Path, *sizes: int) -> list[int]:
    """Write that many objects per batch and return the log's size after each."""

    async def main() -> list[int]:
        store = Store.open(directory)
        found: list[int] = []
        for batch, size in enumerate(sizes):
            for i in range(size):
                version = write(store, f"b{batch}-{i}", "x" * 50).version
            await store.committed(version)
            found.append((directory / "log-1").stat().st_size)
        await store.close()
        return found

    return asyncio.run(main())


def test_damage_before_a_later_batch_is_an_error_wherever_it_is(tmp_path: Path) -> None:
    ends = batches(tmp_path, 2, 1, 3)
    log = tmp_path / "log-1"
    whole = log.read_bytes()
    for offset in range(ends[1]):
        log.write_bytes(whole[:offset] + bytes((whole[offset] ^ 0x20,)) + whole[offset + 1 :])
        with pytest.raises(DamagedData):
            reopen(tmp_path)
        assert log.stat().st_size == len(whole), "what is left is kept for a person to look at"


def test_damage_within_the_last_batch_cuts_it_off(tmp_path: Path) -> None:
    ends = batches(tmp_path, 2, 1, 3)
    log = tmp_path / "log-1"
    whole = log.read_bytes()
    for offset in range(ends[1], ends[1] + 40):  # of its first record; the other two are whole
        log.write_bytes(whole[:offset] + bytes((whole[offset] ^ 0x20,)) + whole[offset + 1 :])
        assert sorted(reopen(tmp_path)[0]) == ["b0-0", "b0-1", "b1-0"]


class FullDisk(DiskFile):
    """Takes `room` bytes, then half a write, then nothing."""

    room = 3_000

    def write(self, data: bytes) -> None:
        taken = data[: max(0, self.room)]
        self.room -= len(data)
        super().write(taken)
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_refuses_the_write_says_so_and_ends_the_store(tmp_path: Path) -> None:
    async def main() -> dict[str, bytes]:
        store = Store.open(tmp_path, StoreOptions(log=WalOptions(open_file=FullDisk)))
        failures: list[OSError] = []
        store.on_failure(failures.append)
        acknowledged: dict[str, bytes] = {}
        with pytest.raises(InternalError, match=r"not stored: .*No space left on device"):  # noqa: PT012 # one of them
            for i in range(100):
                record = write(store, f"m{i}", "x" * 100)
                await store.committed(record.version)
                acknowledged[record.name] = record.data
        assert store.failure is failures[0]
        assert contents(store) == acknowledged
        with pytest.raises(InternalError, match="not stored"):
            write(store, "late")
        await store.close()
        return acknowledged

    acknowledged = asyncio.run(main())
    found, store = reopen(tmp_path)
    assert len(found) > 3
    assert found == acknowledged
    assert store.recovery is not None
    assert store.recovery.bytes_cut == 0  # what was refused was cut off right away


def test_a_failed_sync_is_fatal_too(tmp_path: Path) -> None:
    class DyingDisk(DiskFile):
        def sync(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        store = Store.open(tmp_path, StoreOptions(log=WalOptions(open_file=DyingDisk)))
        records = [write(store, f"m{i}") for i in range(3)]
        results = await asyncio.gather(
            *(store.committed(r.version) for r in records), return_exceptions=True
        )
        assert [type(result) for result in results] == [InternalError] * 3
        assert contents(store) == {}
        await store.close()

    asyncio.run(main())


def test_a_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store.open(tmp_path)
        with pytest.raises(DirectoryInUse) as caught:
            Store.open(tmp_path)
        assert caught.value.pid == os.getpid()
        assert f"in use by process {os.getpid()}" in str(caught.value)
        await store.close()
        again = Store.open(tmp_path)
        await again.close()

    asyncio.run(main())


def test_the_directory_of_a_killed_process_is_free_once_that_has_left(tmp_path: Path) -> None:
    """It is locked until its last thread is gone, and that takes longer the larger it is."""
    hold = "import os; from pathlib import Path; from fairlead.embedded.storage.wal import *; "
    hold += f"lock_directory(Path({str(tmp_path)!r})); held = bytearray(1 << 28); "
    hold += "held[::4096] = b'x' * (1 << 16); print(flush=True); os.read(0, 1)"
    pipe = subprocess.PIPE
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", hold], stdin=pipe, stdout=pipe) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            with pytest.raises(DirectoryInUse) as caught:
                lock_directory(tmp_path)
            assert caught.value.pid == holder.pid
            assert not is_ending(holder.pid)
            holder.kill()
            assert is_ending(holder.pid)
            os.close(lock_directory(tmp_path))
            assert is_ending(holder.pid)


@pytest.mark.parametrize("text", ["fairlead store 99\n", "", "something else"])
def test_a_directory_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(WrongFormat, match="choose another directory"):
        Store.open(tmp_path)


def test_logs_without_a_format_are_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "log-1").write_bytes(b"?")
    with pytest.raises(WrongFormat):
        Store.open(tmp_path)


def test_many_writers_share_a_sync(tmp_path: Path) -> None:
    syncs: list[int] = []

    class Counting(DiskFile):
        def sync(self) -> None:
            syncs.append(1)
            super().sync()

    async def main() -> None:
        store = Store.open(tmp_path, StoreOptions(log=WalOptions(open_file=Counting)))

        async def writer(number: int) -> None:
            for i in range(20):
                await store.committed(write(store, f"w{number}-{i}").version)

        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(writer(number))
        await store.close()

    asyncio.run(main())
    assert len(syncs) < 500  # of 1,000 writes
    assert len(reopen(tmp_path)[0]) == 1_000
