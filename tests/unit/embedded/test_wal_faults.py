"""The durable log when what it stands on fails: descriptors, memory, the directory, the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.unit.embedded.test_wal import SMALL, churn, contents, reopen, write

from fairlead.api.status import InternalError
from fairlead.embedded.storage import wal
from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.storage.wal import DiskFile, WalOptions, sync_directory


def options(
    open_file: Callable[[Path], DiskFile] = DiskFile,
    sync: Callable[[Path], None] = sync_directory,
) -> StoreOptions:
    return StoreOptions(
        log=WalOptions(compact_bytes_min=2_000, open_file=open_file, sync_directory=sync)
    )


def churned(
    directory: Path,
    given: StoreOptions,
    rounds: int = 200,
    *,
    reported: list[OSError | MemoryError | None] | None = None,
) -> dict[str, bytes]:
    """Return what was acknowledged; the store must not fail on the way.

    `reported` is filled with the outcomes of compactions.
    """

    async def main() -> dict[str, bytes]:
        store = Store.open(directory, given)
        store.on_compaction([].append if reported is None else reported.append)
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await churn(store, rounds)
        assert store.failure is None
        await store.close()
        return found

    return asyncio.run(main())


def test_a_log_that_cannot_be_opened_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """And no descriptor that somebody else has by now is truncated or closed."""
    (tmp_path / "foreign").write_bytes(b"x" * 100_000)
    foreign: list[int] = []

    def open_file(path: Path) -> DiskFile:
        if path.name not in ("log-1", "snapshot-2.tmp") and len(foreign) < 3:
            foreign.append(os.open(tmp_path / "foreign", os.O_RDWR))
            raise OSError(errno.EMFILE, "Too many open files")
        return DiskFile(path)

    data = tmp_path / "data"
    wanted = churned(data, options(open_file))
    assert len(foreign) == 3
    for descriptor in foreign:
        assert os.fstat(descriptor).st_size == 100_000
        os.close(descriptor)
    assert sorted(path.name for path in data.glob("log-*")) != ["log-1"]  # it worked in the end
    assert reopen(data)[0] == wanted


def test_a_directory_that_cannot_be_synced_leaves_the_old_log_in_use(tmp_path: Path) -> None:
    refused = 0

    def sync(directory: Path) -> None:
        nonlocal refused
        if (directory / "log-2").exists():
            refused += 1
            raise OSError(errno.EIO, "Input/output error")
        sync_directory(directory)

    reported: list[OSError | MemoryError | None] = []
    wanted = churned(tmp_path, options(sync=sync), reported=reported)
    assert refused > 3
    assert [str(error) for error in reported] == ["[Errno 5] Input/output error"] * refused
    with (tmp_path / "log-1").open("ab") as file:
        file.write(b"half a frame")  # which only the last log may have
    assert reopen(tmp_path)[0] == wanted


class Directory:
    """Keeps the names of a directory at each sync; refuses from the first with a snapshot on."""

    def __init__(self, *, refuses: bool) -> None:
        self.synced: list[set[str]] = []
        self._refuses = refuses

    def sync(self, directory: Path) -> None:
        names = {path.name for path in directory.iterdir()}
        self.synced.append(names)
        if self._refuses and any(n.startswith("snapshot-") and n[-1] != "p" for n in names):
            raise OSError(errno.EIO, "Input/output error")
        sync_directory(directory)


def test_what_a_snapshot_replaces_is_deleted_only_once_its_name_is_on_disk(tmp_path: Path) -> None:
    directory = Directory(refuses=False)
    churned(tmp_path, options(sync=directory.sync))
    snapshots = {n for names in directory.synced for n in names if n.startswith("snapshot-")}
    finished = {name for name in snapshots if not name.endswith(".tmp")}
    assert finished
    for name in finished:
        first = next(names for names in directory.synced if name in names)
        assert f"log-{int(name.partition('-')[2]) - 1}" in first


def test_a_snapshot_whose_name_may_be_lost_replaces_nothing(tmp_path: Path) -> None:
    directory = Directory(refuses=True)
    wanted = churned(tmp_path, options(sync=directory.sync))
    assert any("snapshot-2" in names for names in directory.synced)
    (tmp_path / "snapshot-2").unlink()  # as after a loss of power
    assert (tmp_path / "log-1").exists()
    assert reopen(tmp_path)[0] == wanted


def test_a_start_deletes_what_a_snapshot_replaced_only_once_its_name_is_on_disk(
    tmp_path: Path,
) -> None:
    directory = Directory(refuses=True)
    wanted = churned(tmp_path, options(sync=directory.sync))
    with pytest.raises(OSError, match="Input/output error"):
        Store.open(tmp_path, options(sync=directory.sync))
    assert (tmp_path / "log-1").exists()
    assert reopen(tmp_path)[0] == wanted
    assert not (tmp_path / "log-1").exists()


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "Input/output error")])
def test_a_fault_of_the_writer_wakes_all_writers(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> dict[str, bytes]:
        store = Store.open(tmp_path)
        await store.committed(write(store, "before").version)
        acknowledged = contents(store)

        def fail(_: object) -> bytes:
            raise error

        monkeypatch.setattr(wal, "encode_batch", fail)
        failures: list[Exception] = []
        store.on_failure(failures.append)
        records = [write(store, f"m{i}") for i in range(3)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            results = await asyncio.gather(
                *(store.committed(record.version) for record in records), return_exceptions=True
            )
        assert [type(result) for result in results] == [InternalError] * 3
        assert len(failures) == 1
        assert type(error).__name__ in repr(failures[0])
        with pytest.raises(InternalError, match="not stored"):
            write(store, "late")
        await store.close()
        return acknowledged

    acknowledged = asyncio.run(main())
    monkeypatch.undo()
    assert reopen(tmp_path)[0] == acknowledged


def test_a_compaction_without_memory_is_not_the_end_and_leaves_nothing(tmp_path: Path) -> None:
    begun: list[Path] = []

    class NoMemoryForSnapshots(DiskFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self._refuses = path.suffix == ".tmp"
            if self._refuses:
                begun.append(path)

        def write(self, data: bytes) -> None:
            if self._refuses:
                raise MemoryError
            super().write(data)

    wanted = churned(tmp_path, options(NoMemoryForSnapshots))
    assert begun
    assert reopen(tmp_path)[0] == wanted
    assert not any(path.exists() for path in begun)


def test_a_file_is_closed_once(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "log-1")
    file.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)  # has the number now
    os.write(other, b"theirs")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.truncate(0)
    assert os.fstat(other).st_size == len(b"theirs")
    os.close(other)


def test_small_options_do_compact(tmp_path: Path) -> None:
    """The other tests here stand on it."""
    churned(tmp_path, SMALL)
    assert list(tmp_path.glob("snapshot-*"))
