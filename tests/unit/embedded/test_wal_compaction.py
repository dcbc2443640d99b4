"""Compaction: when it begins, what its snapshot covers, and what can fail after it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.embedded.test_wal import SMALL, churn, contents, delete, filled, reopen, write

from fairlead.api.status import InternalError
from fairlead.embedded.storage.records import StoreEvent
from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.storage.wal import DiskFile, WalOptions


def test_a_log_that_grows_over_many_starts_is_compacted_too(tmp_path: Path) -> None:
    filled(tmp_path, options=SMALL)
    assert list(tmp_path.glob("snapshot-*")) == []
    wanted = {}
    for _ in range(20):
        wanted = filled(tmp_path, options=SMALL)
    assert len(list(tmp_path.glob("snapshot-*"))) == 1
    assert reopen(tmp_path)[0] == wanted


@pytest.mark.parametrize("is_deletion", [False, True])
def test_a_snapshot_counts_the_writes_that_are_on_their_way(
    tmp_path: Path, *, is_deletion: bool
) -> None:
    """Else the next start gives their versions to other writes."""

    async def main() -> int:
        store = Store.open(tmp_path, StoreOptions(log=WalOptions(compact_bytes_min=4_000)))
        await store.committed(write(store, "old").version)
        compacted = asyncio.get_running_loop().create_future()
        store.on_compaction(compacted.set_result)
        later: list[int] = []

        def note(events: Sequence[StoreEvent]) -> None:
            if any(event.record.name == "large" for event in events):
                # Between the write that is large enough and the compaction that it starts.
                later.append(delete(store, "old") if is_deletion else write(store, "late").version)

        store.subscribe(note)
        await store.committed(write(store, "large", "x" * 4_000).version)
        assert await compacted is None
        await store.committed(later[0])
        await store.close()
        return later[0]

    last = asyncio.run(main())
    found, store = reopen(tmp_path)
    assert (tmp_path / "snapshot-2").exists()
    assert sorted(found) == (["large"] if is_deletion else ["large", "late", "old"])
    assert store.version == last


def test_a_write_that_is_refused_after_a_compaction_does_not_come_back(tmp_path: Path) -> None:
    is_failing = False

    class FailingDisk(DiskFile):
        def sync(self) -> None:
            if is_failing:
                raise OSError(errno.EIO, "Input/output error")
            super().sync()

    async def main() -> dict[str, bytes]:
        nonlocal is_failing
        log = WalOptions(compact_bytes_min=2_000, open_file=FailingDisk)
        store = Store.open(tmp_path, StoreOptions(log=log))
        acknowledged = await churn(store, 400)
        is_failing = True
        with pytest.raises(InternalError, match="not stored"):
            await store.committed(write(store, "late").version)
        assert contents(store) == acknowledged
        await store.close()
        return acknowledged

    acknowledged = asyncio.run(main())
    assert not (tmp_path / "log-1").exists()
    assert reopen(tmp_path)[0] == acknowledged
