"""The chain of audit records in a table, and in memory.

Writing is a conversation of statements and rows, so that both databases have it alike: `AuditTable`
yields statements and is sent their rows. It runs in one transaction, with no other writer beside
it: the record that is last is still last when the next one is inserted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeAlias

from fairlead.runtime.kept.audit import (
    Appended,
    AuditQuery,
    AuditRecord,
    Draft,
    Head,
    continued,
    first_kept,
    is_broken_off,
    linked,
    pruned,
)

#: Records that a file has room for, of at most 4 KiB, and most of them of less than 1.
AUDIT_RECORDS_MAX = 20_000
MEMORY_RECORDS_MAX = 5_000
#: Of an answer.
_PAGE_ROWS = 256
_COLUMNS = tuple(each.name for each in fields(AuditRecord))
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
_INTEGERS = ("number", "at_ms")

Statement: TypeAlias = tuple[str, tuple[object, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class AuditTable:
    """Statements on the table of records, and on that of what targets of the export have."""

    table: str
    sent: str
    mark: str
    integer: str
    records_max: int = AUDIT_RECORDS_MAX

    def create(self) -> tuple[str, ...]:
        """Return the statements that make the tables where there are none.

        They came after the others, into databases that earlier versions still read.
        """
        columns = ", ".join(
            f'"{name}" {self.integer if name in _INTEGERS else "TEXT"} '
            + ("PRIMARY KEY" if name == "number" else "NOT NULL")
            for name in _COLUMNS
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} ({columns})",
            f"CREATE TABLE IF NOT EXISTS {self.sent} (target TEXT PRIMARY KEY,"
            f" number {self.integer} NOT NULL)",
        )

    def append(self, drafts: Sequence[Draft], own: Head) -> Generator[Statement, Rows, Appended]:
        """Add records after the last one; `own` is what this process added last.

        Of a full table the oldest are dropped, and a record says so.
        """
        last = yield f"SELECT number, digest FROM {self.table} ORDER BY number DESC LIMIT 1", ()  # noqa: S608
        stored = Head(*last[0]) if last else Head()
        [(first,)] = yield f"SELECT coalesce(min(number), 1) FROM {self.table}", ()  # noqa: S608
        found = yield (
            f"SELECT digest FROM {self.table} WHERE number = {self.mark}", (own.number,),  # noqa: S608
        )  # fmt: skip
        is_broken = is_broken_off(own, found[0][0] if found else None, first)
        records = linked(continued(own, stored) if is_broken else stored, drafts)
        kept = first_kept(first, records[-1].number, self.records_max)
        if kept > first:
            oldest = yield (
                f"SELECT {_NAMES} FROM {self.table} WHERE number < {self.mark}"  # noqa: S608
                " ORDER BY number DESC LIMIT 1", (kept,),
            )  # fmt: skip
            end = records[-1]
            said = pruned(AuditRecord(*oldest[0]), writer=end.writer, now=end.at_ms / 1000)
            records += linked(Head(end.number, end.digest), [said])
            yield f"DELETE FROM {self.table} WHERE number < {self.mark}", (kept,)  # noqa: S608
        marks = ", ".join([self.mark] * len(_COLUMNS))
        for record in records:
            yield f"INSERT INTO {self.table} ({_NAMES}) VALUES ({marks})", astuple(record)  # noqa: S608
        return Appended(tuple(records), is_broken)

    def find(self, query: AuditQuery, columns: str = _NAMES) -> Statement:
        """Return the statement for the records that match, in order, or the latest ones first."""
        where, values = f"number > {self.mark}", [query.after, query.limit]
        for term, value in (("kind =", query.kind), ("at_ms >=", query.since)):
            if value not in ("", None):
                where = f"{where} AND {term} {self.mark}"
                values.insert(-1, value * 1000 if isinstance(value, float) else value)  # pyright: ignore[reportArgumentType] - of any type
        order = "number DESC" if query.last else "number"
        return (
            f"SELECT {columns} FROM {self.table} WHERE {where}"  # noqa: S608
            f" ORDER BY {order} LIMIT {self.mark}", tuple(values),
        )  # fmt: skip

    def find_sent(self, target: str) -> Statement:
        """Return the statement for the number that a target has, and its values."""
        return f"SELECT number FROM {self.sent} WHERE target = {self.mark}", (target,)  # noqa: S608

    def note_sent(self, target: str, number: int) -> Statement:
        """Return the statement that keeps the number that a target has, and its values."""
        text = (
            f"INSERT INTO {self.sent} VALUES ({self.mark}, {self.mark})"  # noqa: S608
            " ON CONFLICT (target) DO UPDATE SET number = EXCLUDED.number"
        )
        return text, (target, number)


async def audit_pages(
    table: AuditTable, query: AuditQuery, select: Callable[[Statement], Awaitable[Rows]]
) -> AsyncIterator[tuple[AuditRecord, ...]]:
    """Yield what a query finds in a table, in order; `select` returns the rows of a statement."""
    after = query.after
    if query.last:
        numbers = [number for (number,) in await select(table.find(query, "number"))]
        after = min(numbers, default=after + 1) - 1
    left = query.limit
    while left > 0:
        page = AuditQuery(after, query.kind, query.since, min(left, _PAGE_ROWS))
        records = tuple(AuditRecord(*row) for row in await select(table.find(page)))
        if records:
            yield records
        if len(records) < page.limit:
            return
        left, after = left - len(records), records[-1].number


class AuditMemory:
    """A chain that ends with the process."""

    def __init__(self, records_max: int = MEMORY_RECORDS_MAX) -> None:
        self._records_max = records_max
        self._records: list[AuditRecord] = []
        self._head = Head()
        self.sent: dict[str, int] = {}

    def append(self, drafts: Sequence[Draft]) -> Appended:
        """Add records to the end of the chain; of a full one the oldest are dropped."""
        records = linked(self._head, drafts)
        first = self._records[0].number if self._records else 1
        count = first_kept(first, records[-1].number, self._records_max) - first
        if count > 0:
            end, oldest = records[-1], self._records[count - 1]
            said = pruned(oldest, writer=end.writer, now=end.at_ms / 1000)
            records += linked(Head(end.number, end.digest), [said])
            del self._records[:count]
        self._records += records
        self._head = Head(records[-1].number, records[-1].digest)
        return Appended(tuple(records), is_broken=False)

    def find(self, query: AuditQuery) -> list[AuditRecord]:
        """Return the records that match, in order."""
        found = [
            each for each in self._records
            if each.number > query.after and query.kind in ("", each.kind)
            and (query.since is None or each.at_ms >= query.since * 1000)
        ]  # fmt: skip
        return found[-query.limit :] if query.last else found[: query.limit]
