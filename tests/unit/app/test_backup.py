"""A backup is the store of one instant, and what is no whole backup leaves nothing behind."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import sqlite3
import stat
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead.app.local.backup import BackupError, restore, save
from fairlead.embedded.builtins import CONFIG_MAPS
from fairlead.embedded.storage.records import record_typed
from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.storage.wal import StoreError, WalOptions

NAMES = ("a", "b", "c")
#: A log that is compacted again and again while a backup is made.
OPTIONS = StoreOptions(log=WalOptions(compact_bytes_min=1 << 12))


def write(store: Store, number: int) -> None:
    """Write the number to one of three objects, in turns."""
    name = NAMES[number % len(NAMES)]
    value: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "data": {"number": str(number), "padding": "x" * 400},
    }
    version = store.next_version
    assert version == number
    store.put(CONFIG_MAPS, record_typed(CONFIG_MAPS, ("default", name), version, value))


async def numbers_in(directory: Path) -> dict[str, int]:
    store = Store.open(directory)
    found = {
        record.key[1]: int(record.plain()["data"]["number"])
        for record in store.records(CONFIG_MAPS.name)
    }
    await store.close()
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with 300 writes, a history of two jobs, and a log."""
    path = tmp_path / "data"
    (path / "logs" / "default" / "j").mkdir(parents=True)
    (path / "logs" / "default" / "j" / "worker-0.log").write_bytes(bytes(range(256)) * 20)
    (path / "local" / "pods").mkdir(parents=True)
    (path / "local" / "pods" / "pod.json").write_text("{}")
    for name in ("token", "tls.json", "cluster.json"):
        (path / name).write_text(name)

    async def fill() -> None:
        store = Store.open(path / "store", OPTIONS)
        for number in range(1, 301):
            write(store, number)
            await store.committed(number)
        await store.close()

    asyncio.run(fill())
    connection = sqlite3.connect(path / "history.db")
    connection.executescript(
        "PRAGMA journal_mode=WAL; CREATE TABLE jobs (name); INSERT INTO jobs VALUES ('j'), ('k');"
    )
    connection.close()
    return path


def saved(data: Path) -> Path:
    file = data.parent / "backup.tar.gz"
    save(data, file, version="1.2.3", now=1e9)
    return file


def test_what_is_restored_is_what_was_there_and_private(data: Path) -> None:
    file = saved(data)
    to = data.parent / "other"
    done = restore(file, to)
    assert (done.about.version, done.about.made_at, done.objects) == ("1.2.3", 1e9, 3)
    assert asyncio.run(numbers_in(to / "store")) == {"a": 300, "b": 298, "c": 299}
    assert sqlite3.connect(to / "history.db").execute("SELECT name FROM jobs").fetchall() == [
        ("j",), ("k",),
    ]  # fmt: skip
    log = Path("logs", "default", "j", "worker-0.log")
    assert (to / log).read_bytes() == (data / log).read_bytes()
    assert [(to / name).read_text() for name in ("token", "tls.json", "cluster.json")] == [
        "token", "tls.json", "cluster.json",
    ]  # fmt: skip
    assert not (to / "local").exists(), "what ran on the machine is not in it"
    for path in (file, to, *(path for path in to.rglob("*") if path.is_file())):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_backup_beside_writes_and_compactions_is_the_store_of_one_instant(data: Path) -> None:
    """The object that was written last tells which instant; the two others must be of it, too."""
    found: list[tuple[int, dict[str, int]]] = []

    async def main() -> None:
        store = Store.open(data / "store", OPTIONS)
        compactions: list[object] = []
        store.on_compaction(compactions.append)
        file, number = data.parent / "hot.tar.gz", 300

        async def write_on() -> None:
            nonlocal number
            while True:
                number += 1
                write(store, number)
                await store.committed(number)

        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write_on())
            for turn in range(12):
                least = number - 1
                await asyncio.to_thread(save, data, file, version="", now=0.0)
                to = data.parent / f"turn-{turn}"
                await asyncio.to_thread(restore, file, to)
                found.append((least, await numbers_in(to / "store")))
            writing.cancel()
        await store.close()
        assert len(compactions) > 12
        assert compactions == [None] * len(compactions)

    asyncio.run(main())
    for least, numbers in found:
        last = max(numbers.values())
        assert last >= least, "what was acknowledged before is in it"
        assert sorted(numbers.values()) == [last - 2, last - 1, last]


def test_a_file_that_is_cut_or_changed_anywhere_is_refused_and_leaves_nothing(data: Path) -> None:
    whole = saved(data).read_bytes()
    file, to = data.parent / "damaged.tar.gz", data.parent / "to"
    beside = sorted(data.parent.iterdir())
    steps = range(0, len(whole), max(1, len(whole) // 40))
    damaged = [whole[:at] for at in (*steps, len(whole) - 1)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in steps if at > 9]
    for content in damaged:
        with suppress(EOFError, zlib.error, gzip.BadGzipFile):
            if gzip.decompress(content) == gzip.decompress(whole):
                continue  # another way to pack the same
        file.write_bytes(content)
        with pytest.raises((BackupError, StoreError)):
            restore(file, to)
        file.unlink()
        assert sorted(data.parent.iterdir()) == beside


def packed(*entries: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    target = io.BytesIO()
    with gzip.open(target, "wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def about(layout: int = 1) -> tuple[str, bytes]:
    return "backup.json", json.dumps({"layout": layout, "version": "9", "madeAt": 0.0}).encode()


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("store/log-1")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


#: By what is wrong: the content of a file, and what is said of it.
_FOREIGN: dict[str, tuple[bytes, str]] = {
    "not packed": (b"not packed at all", "no whole backup"),
    "no beginning": (packed(("store/log-1", b"")), "does not begin with backup.json"),
    "no JSON": (packed(("backup.json", b"{")), "backup.json"),
    "other layout": (packed(about(2)), "layout 2.*use Fairlead 9"),
    "no store": (packed(about()), "no store"),
    "parent": (packed(about(), ("../evil", b"x")), "'../evil'"),
    "parents below": (packed(about(), ("store/../../evil", b"x")), "evil"),
    "absolute": (packed(about(), ("/tmp/evil", b"x")), "'/tmp/evil'"),
    "other part": (packed(about(), ("local/pods/pod.json", b"x")), "'local/pods/pod.json'"),
    "link": (packed(about(), (link(tarfile.SYMTYPE), b"")), "'store/log-1'"),
    "hard link": (packed(about(), (link(tarfile.LNKTYPE), b"")), "'store/log-1'"),
    "device": (packed(about(), (link(tarfile.CHRTYPE), b"")), "'store/log-1'"),
}


@pytest.mark.parametrize("wrong", _FOREIGN)
def test_a_file_of_others_makes_nothing_outside_of_the_directory(
    wrong: str, tmp_path: Path
) -> None:
    content, said = _FOREIGN[wrong]
    file, to = tmp_path / "file", tmp_path / "below" / "to"
    file.write_bytes(content)
    with pytest.raises(BackupError, match=said):
        restore(file, to)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert not to.exists()


def test_a_directory_that_holds_something_is_left_alone_and_an_empty_one_is_used(
    data: Path,
) -> None:
    file = saved(data)
    with pytest.raises(BackupError, match="not empty"):
        restore(file, data)
    empty = data.parent / "empty"
    empty.mkdir()
    restore(file, empty)
    assert (empty / "store").is_dir()


def test_a_directory_of_no_cluster_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="not the data directory of a cluster"):
        save(tmp_path, tmp_path / "file", version="", now=0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_backup_that_fails_leaves_the_earlier_one(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(data)
    before = file.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(OSError, match="No space"):
        save(data, file, version="", now=0.0)
    assert file.read_bytes() == before
    assert sorted(path.name for path in data.parent.iterdir()) == ["backup.tar.gz", "data"]


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(data: Path) -> None:
    """As another user may leave one in a directory for all: what it leads to stays as it is."""
    other = data.parent / "of-others"
    other.write_text("theirs")
    other.chmod(0o666)
    file = data.parent / "backup.tar.gz"
    file.symlink_to(other)
    saved(data)
    assert other.read_text() == "theirs"
    assert not file.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
