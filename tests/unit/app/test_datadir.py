"""The data directory: nothing in it may come from another user."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.app.local import datadir
from fairlead.app.local.datadir import TOKEN_FILE, prepare, read_token, size_bytes
from fairlead.app.run_file import RunningCluster, open_log
from fairlead.history.sqlite import SqliteHistory, SqliteLogs
from fairlead.input.errors import CliError, Code

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def refusal(data: Path) -> str:
    with pytest.raises(CliError) as caught:
        prepare(data)
    problem = caught.value.problems[0]
    assert problem.code is Code.DATA_UNSAFE
    return problem.message


def test_a_new_directory_and_one_of_our_own_are_fine(tmp_path: Path) -> None:
    data = tmp_path / "data"
    prepare(data)
    assert data.stat().st_mode & 0o777 == 0o700
    (data / "own-link").symlink_to(data / "store")
    (data / "broken-link").symlink_to(data / "absent")
    prepare(data)
    through = tmp_path / "link"
    through.symlink_to(data)
    prepare(through)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    assert refusal(data) == f"other users can write to {data} (mode {mode:04o})"
    data.chmod(0o755)
    prepare(data)


@pytest.mark.parametrize("part", ["store", "token", "store/1.log"])
def test_a_part_that_others_can_write_to_is_refused(tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    prepare(data)
    place = data / part
    if not place.exists():
        place.write_text("planted")
    place.chmod(0o777)
    assert refusal(data) == f"other users can write to {place} (mode 0777)"


def test_a_directory_whose_parent_anybody_can_rename_it_in_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    assert refusal(parent / "data") == f"other users can write to {parent} (mode 0777)"
    parent.chmod(0o1777)  # as /tmp: only the owner renames
    prepare(parent / "data")


@as_root
@pytest.mark.parametrize("part", ["", "token", "store/1.log"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    prepare(data)
    place = data / part if part else data
    if not place.exists():
        place.write_text("planted")
    os.chown(place, NOBODY, NOBODY)
    assert refusal(data).startswith(f"{place} belongs to user ")


@as_root
def test_a_link_that_another_user_planted_or_that_leads_to_one_is_refused(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    prepare(data)
    elsewhere.mkdir()
    link = data / "logs"
    link.symlink_to(elsewhere)
    prepare(data)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert refusal(data).startswith(f"{link} belongs to user ")
    link.unlink()
    link.symlink_to(elsewhere)
    os.chown(elsewhere, NOBODY, NOBODY)
    assert refusal(data).startswith(f"{link} belongs to user ")


def test_a_token_is_drawn_once_and_always_kept_from_others(tmp_path: Path) -> None:
    token = read_token(tmp_path)
    file = tmp_path / TOKEN_FILE
    assert len(token) >= 32
    for mode in (0o600, 0o644, 0o660):
        file.chmod(mode)
        assert read_token(tmp_path) == token
        assert file.stat().st_mode & 0o777 == 0o600


def test_the_size_counts_what_is_in_the_directory_and_nothing_behind_links(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data / "store", other):
        folder.mkdir(parents=True)
    before = size_bytes(data)
    (data / "store/log-1").write_bytes(b"x" * 100_000)
    own = size_bytes(data)
    assert own - before >= 100_000
    (other / "large").write_bytes(b"x" * 1_000_000)
    (data / "link").symlink_to(other)
    (data / "circle").symlink_to(data)
    assert size_bytes(data) - own < 100_000


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that all users can reach; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


LOOK = """
import fcntl, os, sys
data, uid = sys.argv[1], int(sys.argv[2])
os.setgid(uid); os.setuid(uid)
for name in sys.argv[3:]:
    try:
        with open(os.path.join(data, name), "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH, 1, 120)
            print("reads and locks", name)
    except OSError as error:
        print(type(error).__name__, name)
"""


@as_root
def test_a_directory_that_others_could_read_is_made_private_with_all_in_it(
    open_path: Path,
) -> None:
    data = open_path / "data"
    names = ("history.db", "history.db-wal", "history.db-shm", "local/pods/u/pod.json")
    for name in names:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(b"x" * 200)
        (data / name).chmod(0o644)
    (data / "link").symlink_to(open_path)

    def look() -> set[str]:
        command = [sys.executable, "-c", LOOK, str(data), str(NOBODY), *names]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(found.stdout.splitlines())

    assert look() == {f"reads and locks {name}" for name in names}, "the attacker is none"
    prepare(data)
    assert look() == {f"PermissionError {name}" for name in names}
    data.chmod(0o755)
    found = look()
    data.chmod(0o700)
    gone = {"FileNotFoundError history.db-shm"}
    assert found == gone | {f"PermissionError {name}" for name in names if "-shm" not in name}
    assert open_path.stat().st_mode & 0o777 == 0o755, "links are not followed"


def test_the_index_of_a_history_that_a_cluster_uses_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = RunningCluster(os.getpid(), 0, "", "https://127.0.0.1:1", "", 0.0)
    monkeypatch.setattr(datadir, "read_running", lambda _: running)
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "history.db-shm").touch(0o644)
    prepare(data)
    assert (data / "history.db-shm").stat().st_mode & 0o777 == 0o600


def test_what_a_cluster_writes_is_for_its_user_alone(tmp_path: Path) -> None:
    def modes() -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.*")}

    async def write() -> None:
        history = SqliteHistory.open(tmp_path / "history.db", runner=asyncio.to_thread)
        logs = SqliteLogs.open(tmp_path / "logs.db", runner=asyncio.to_thread)
        os.close(open_log(tmp_path))
        made = modes()
        parts = [
            f"{name}{end}" for name in ("history.db", "logs.db") for end in ("", "-wal", "-shm")
        ]
        assert made == dict.fromkeys([*parts, "fairlead.log"], 0o600)
        await history.close()
        await logs.close()

    (tmp_path / "log").mkdir()
    before = os.umask(0o022)
    try:
        asyncio.run(write())
    finally:
        os.umask(before)
