"""What the agent keeps over restarts and reboots: one small SQLite file.

Faults and the memories of judges are written in one transaction: what was read of a log, and the
faults that this gave, are kept together or not at all. So an agent that is killed at any line reads
again what it had not kept, and counts nothing twice.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from fairlead.api.cluster.node_report import Action, AgentAnswer
from fairlead.model.health.faults import EndedFault, Fault, Identity
from fairlead.node.reports.watch import Kept, Memory

SCHEMA_VERSION = 1
_BUSY_TIMEOUT_MS = 2_000
_TABLES = (
    "CREATE TABLE kept (name TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE memories (source TEXT PRIMARY KEY, boot_id TEXT NOT NULL,"
    " document BLOB NOT NULL, lost INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE cleared (number INTEGER PRIMARY KEY, identity BLOB NOT NULL)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


#: Also in files of earlier agents, which leave it alone.
_LATER_TABLES = (
    "CREATE TABLE IF NOT EXISTS repairs (number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " id TEXT UNIQUE NOT NULL, document BLOB NOT NULL)",
)


class KeptRepair(msgspec.Struct, frozen=True):
    """A request to the agent, and its answer. `at` and `uptime_seconds` are when it was ruled on.

    Action.NONE: what was done before then is not known.
    """

    id: str
    action: Action
    answer: AgentAnswer
    at: float
    boot_id: str
    uptime_seconds: float = 0.0
    message: str = ""

    @property
    def counts(self) -> bool:
        """True for one that was carried out, or begun."""
        return self.answer not in (AgentAnswer.REFUSED, AgentAnswer.FORBIDDEN)


class _Document(msgspec.Struct, frozen=True):
    faults: tuple[Fault, ...]
    ended: tuple[EndedFault, ...]
    dropped: int


class StateError(Exception):
    """The file cannot be used; the message says which, and why."""


class State:
    """The open file. One process uses it, and `request_clear` may come from others."""

    def __init__(self, path: Path, *, replaced: str = "") -> None:
        """Open the file, or make it; StateError."""
        self.replaced = replaced
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None)
            try:
                self._prepare(path)
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise StateError(f"{path}: {error}") from error
        self._written: dict[str, Any] = {}

    def _prepare(self, path: Path) -> None:
        run = self._database.execute
        run(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        (version,) = run("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise StateError(f"{path} was written by another version (schema {version})")
        for statement in (*(_TABLES if version == 0 else ()), *_LATER_TABLES):
            run(statement)

    def load(self) -> Kept:
        """Return what was kept; StateError."""
        try:
            rows = self._database.execute("SELECT * FROM memories").fetchall()
            found = self._database.execute("SELECT document FROM kept").fetchone()
            memories = {name: Memory(boot, text, lost) for name, boot, text, lost in rows}
            if found is None:
                return Kept(memories=memories)
            document = msgspec.json.decode(found[0], type=_Document)
        except (sqlite3.Error, ValueError) as error:
            raise StateError(str(error)) from error
        return Kept(document.faults, document.ended, memories, document.dropped)

    def save(self, kept: Kept) -> None:
        """Write what has changed since the last time, all or nothing; StateError."""
        document = msgspec.json.encode(_Document(kept.faults, kept.ended, kept.dropped))
        changed = {name: memory for name, memory in kept.memories.items()
                   if self._written.get(name) != memory}  # fmt: skip
        if not changed and self._written.get("") == document:
            return
        rows = [(name, each.boot_id, each.document, each.lost) for name, each in changed.items()]
        try:
            run = self._database.execute
            run("BEGIN IMMEDIATE")
            try:
                run("INSERT OR REPLACE INTO kept VALUES ('book', ?)", (document,))
                self._database.executemany(
                    "INSERT OR REPLACE INTO memories VALUES (?, ?, ?, ?)", rows
                )
            except BaseException:
                run("ROLLBACK")
                raise
            run("COMMIT")
        except sqlite3.Error as error:
            self._written = {}
            raise StateError(str(error)) from error
        self._written.update(changed)
        self._written[""] = document

    def request_clear(self, of: Identity) -> None:
        """Ask the agent to end a fault; StateError."""
        try:
            self._database.execute(
                "INSERT INTO cleared (identity) VALUES (?)", (msgspec.json.encode(of),)
            )
        except sqlite3.Error as error:
            raise StateError(str(error)) from error

    def requested_clears(self) -> tuple[int, tuple[Identity, ...]]:
        """Return the faults that a person has ended, and a mark for `forget_clears`; StateError."""
        try:
            rows = self._database.execute("SELECT number, identity FROM cleared").fetchall()
        except sqlite3.Error as error:
            raise StateError(str(error)) from error
        found = tuple(msgspec.json.decode(text, type=Identity) for _, text in rows)
        return max((number for number, _ in rows), default=0), found

    def forget_clears(self, mark: int) -> None:
        """Drop the requests up to a mark: they are done and kept; StateError."""
        try:
            self._database.execute("DELETE FROM cleared WHERE number <= ?", (mark,))
        except sqlite3.Error as error:
            raise StateError(str(error)) from error

    def repairs(self) -> tuple[KeptRepair, ...]:
        """Return the requests that were ruled on, the oldest first; StateError."""
        try:
            rows = self._database.execute("SELECT document FROM repairs ORDER BY number").fetchall()
            return tuple(msgspec.json.decode(text, type=KeptRepair) for (text,) in rows)
        except (sqlite3.Error, ValueError) as error:
            raise StateError(str(error)) from error

    def keep_repair(self, repair: KeptRepair) -> None:
        """Write the answer to a request; it is on the disk when this returns. StateError."""
        run = self._database.execute
        try:
            run("PRAGMA synchronous = FULL")
            try:
                run(
                    "INSERT INTO repairs (id, document) VALUES (?, ?)"
                    " ON CONFLICT (id) DO UPDATE SET document = excluded.document",
                    (repair.id, msgspec.json.encode(repair)),
                )
            finally:
                run("PRAGMA synchronous = NORMAL")
        except sqlite3.Error as error:
            raise StateError(str(error)) from error

    def forget_repairs(self, ids: Sequence[str]) -> None:
        """Drop what is kept of requests; StateError."""
        try:
            self._database.executemany("DELETE FROM repairs WHERE id = ?", [(id_,) for id_ in ids])
        except sqlite3.Error as error:
            raise StateError(str(error)) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def open_state(path: Path) -> State:
    """Open the file; one that is damaged is moved aside and replaced. StateError."""
    try:
        return _checked(path)
    except StateError as error:
        if not isinstance(error.__cause__, sqlite3.DatabaseError | ValueError):
            raise
        if isinstance(error.__cause__, sqlite3.OperationalError):
            raise
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return State(path, replaced=f"{error}; it was moved to {aside}")


def _checked(path: Path) -> State:
    state = State(path)
    try:
        state.load()
        state.repairs()
    except StateError:
        state.close()
        raise
    return state


def clear(path: Path, of: Identity) -> bool:
    """Ask the agent of a state file to end a fault; False when none is open. StateError."""
    with closing(State(path)) as state:
        is_open = any(fault.identity == of for fault in state.load().faults)
        if is_open:
            state.request_clear(of)
        return is_open
