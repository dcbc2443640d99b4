"""The state file: what is kept, damage, and requests of people."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.unit.node.host_tree import HostTree, Looks

from fairlead.model.health.faults import Identity
from fairlead.node.reports.state import State, StateError, clear, open_state
from fairlead.node.reports.watch import Kept


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    tree = HostTree(tmp_path / "host")
    tree.xid(79)
    tree.xid(48)
    made = Looks(tree, "kernel-log")
    made.look()
    return made


def test_what_is_saved_is_loaded(tmp_path: Path, looks: Looks) -> None:
    path, kept = tmp_path / "state", looks.watch.kept()
    state = open_state(path)
    assert state.load() == Kept()
    state.save(kept)
    state.close()
    assert open_state(path).load() == kept
    assert path.stat().st_mode & 0o077 == 0


def test_what_has_not_changed_is_not_written_again(tmp_path: Path, looks: Looks) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.save(looks.watch.kept())
    before = path.with_name("state-wal").stat().st_size
    looks.look(1)
    state.save(looks.watch.kept())
    assert path.with_name("state-wal").stat().st_size == before
    looks.tree.xid(48)
    looks.look(1)
    state.save(looks.watch.kept())
    assert path.with_name("state-wal").stat().st_size > before


@pytest.mark.parametrize("damage", ["text", "tables"])
def test_a_damaged_file_is_moved_aside_and_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state"
    if damage == "text":
        path.write_text("no database" * 1000)
    else:
        State(path).close()
        with sqlite3.connect(path) as database:
            database.execute("INSERT INTO kept VALUES ('book', 'what')")
        database.close()
    state = open_state(path)
    assert state.load() == Kept()
    assert str(tmp_path / "state.damaged") in state.replaced
    assert (tmp_path / "state.damaged").exists()


def test_a_file_of_another_version_or_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StateError, match="another version"):
        open_state(path)
    with pytest.raises(StateError, match="directory"):
        open_state(tmp_path)


def test_a_person_ends_a_fault_that_is_open(tmp_path: Path, looks: Looks) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.save(looks.watch.kept())
    fell_off = Identity("gpu-xid", "0000:3b:00", ("79",))
    assert not clear(path, Identity("gpu-xid", "0000:3b:00", ("80",)))
    assert clear(path, fell_off)
    mark, asked = state.requested_clears()
    assert asked == (fell_off,)
    looks.watch.clear(asked, looks.host.now().time)
    assert [fault.identity.codes for fault in looks.watch.faults] == [("48",)]
    state.forget_clears(mark)
    assert state.requested_clears() == (0, ())
