"""The table of members' traffic, and the statements on it, for SQLite and PostgreSQL alike.

It came after the others, into databases that earlier versions still read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fairlead.api.jobs.use import ClassTraffic, JobTraffic
from fairlead.history.sql import Bound, Values
from fairlead.runtime.kept.history import TrafficRecord

_COLUMNS = tuple(each.name for each in fields(TrafficRecord))
_INTEGERS = ("ended_at_ms", "sent", "received")
#: What a row takes up with its parts of the two indexes.
_ROW_BYTES = 512
#: Sums are made of halves of numbers, so that none is too large for a database.
_HALF_BITS = 32
_SUMS = ", ".join(
    f"sum({name} >> {_HALF_BITS}), sum({name} & {(1 << _HALF_BITS) - 1})"
    for name in ("sent", "received")
)


@dataclass(frozen=True, slots=True)
class TrafficTable:
    """Statements on the table."""

    table: str
    mark: str
    integer: str

    def create(self) -> tuple[str, ...]:
        """Return the statements that make the table where there is none."""
        columns = ", ".join(
            f"{name} {self.integer if name in _INTEGERS else 'TEXT'} "
            + ("PRIMARY KEY" if name == "id" else "NOT NULL")
            for name in _COLUMNS
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} ({columns})",
            f"CREATE INDEX IF NOT EXISTS {self.table}_by_job ON {self.table} (job_uid)",
        )

    def upsert(self) -> str:
        """Insert or replace a row of all columns of `TrafficRecord`."""
        names, marks = ", ".join(_COLUMNS), ", ".join([self.mark] * len(_COLUMNS))
        assignments = ", ".join(f"{c} = EXCLUDED.{c}" for c in _COLUMNS if c != "id")
        return (
            f"INSERT INTO {self.table} ({names}) VALUES ({marks})"  # noqa: S608
            f" ON CONFLICT (id) DO UPDATE SET {assignments}"
        )

    def bounds(self, bytes_max: int) -> tuple[Bound, ...]:
        """Return the bound of all rows; the namespace that has most loses its oldest."""
        latest_first = "ended_at_ms DESC, id"
        return (Bound(self.table, "id", "namespace", str(_ROW_BYTES), latest_first, bytes_max),)

    def sum(self, job_uids: Sequence[str]) -> tuple[str, Values]:
        """Return the statement for the rows of `traffic_sums`, and its values."""
        where = f"FROM {self.table} WHERE job_uid IN ({', '.join([self.mark] * len(job_uids))})"
        text = (
            f"SELECT job_uid, '' AS class, count(DISTINCT pod_uid), 0, 0, 0, 0 {where}"
            f" GROUP BY job_uid UNION ALL SELECT job_uid, traffic_class, count(*), {_SUMS} {where}"
            " GROUP BY job_uid, traffic_class ORDER BY 1, 2"
        )
        return text, (*job_uids, *job_uids)


def traffic_sums(rows: Iterable[Sequence[Any]]) -> dict[str, JobTraffic]:
    """Return the sums of jobs, of rows of `TrafficTable.sum`: that of all classes comes first."""
    members: dict[str, int] = {}
    classes: dict[str, list[ClassTraffic]] = {}
    for uid, name, count, *halves in rows:
        if not name:
            members[uid] = count
            continue
        a, b, c, d = map(int, halves)
        found = ClassTraffic(name, count, (a << _HALF_BITS) + b, (c << _HALF_BITS) + d)
        classes.setdefault(uid, []).append(found)
    return {uid: JobTraffic(members[uid], tuple(found)) for uid, found in classes.items()}


def sum_records(records: Iterable[TrafficRecord]) -> dict[str, JobTraffic]:
    """Return the sums of jobs, of records, as the statement makes them."""
    pods: dict[str, set[str]] = {}
    sums: dict[tuple[str, str], list[int]] = {}
    for each in records:
        pods.setdefault(each.job_uid, set()).add(each.pod_uid)
        found = sums.setdefault((each.job_uid, each.traffic_class), [0, 0, 0])
        for n, figure in enumerate((1, each.sent, each.received)):
            found[n] += figure
    return {
        uid: JobTraffic(len(pods[uid]), tuple(
            ClassTraffic(name, *sums[of, name]) for of, name in sorted(sums) if of == uid
        ))
        for uid in sorted(pods)
    }  # fmt: skip
