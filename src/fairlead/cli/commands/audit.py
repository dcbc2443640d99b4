"""`audit`: records of what was taken from jobs and the fleet; shown, exported and verified."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from fairlead.app.queries.messages import AuditLine
from fairlead.cli.connection.common import Common, common, now, seconds_of
from fairlead.cli.connection.completers import words
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.records.ended_jobs import past_audit, whole_audit
from fairlead.decide.takings import TakingKind
from fairlead.decide.words import plural
from fairlead.input.errors import Code, Exit, fail
from fairlead.runtime.kept.audit import (
    NOT_DONE,
    PRUNED,
    AuditRecord,
    ChainCheck,
    Head,
    audit_line,
    record_of_line,
)

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000
#: A line of an export; longer ones are none.
_LINE_BYTES_MAX = 64 << 10
_HEAD = re.compile(r"(\d{1,15}):([0-9a-f]{64})")
_KINDS = (*(each.value for each in TakingKind), NOT_DONE, PRUNED)
_COLUMNS = (
    Column("NUMBER", Align.RIGHT),
    Column("AT"),
    Column("KIND"),
    Column("OBJECT"),
    Column("REASON"),
    Column("WRITER", wide_only=True),
    Column("DIGEST", wide_only=True),
    Column("MESSAGE", may_cut=True),
)
_store = click.option("--history", "store", metavar="URL|FILE", default="",
                      help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip


@click.group(
    invoke_without_command=True,
    epilog="""Examples:

    \b
      fairlead audit --since 1d
      fairlead audit --kind Preempt -o json
      fairlead audit export > audit.jsonl
      fairlead audit verify
      fairlead audit verify --against audit.jsonl
    """,
)
@click.option("--since", metavar="DURATION", help="Only records of this long ago or later.")
@click.option("--kind", metavar="KIND", default="", type=click.Choice(["", *_KINDS]),
              shell_complete=words(*_KINDS),
              help="Only these: Preempt, Move, Drain, Replace, Shape, End, NotDone or Pruned."
              )  # fmt: skip
@click.option("--limit", metavar="N", default=LIMIT_DEFAULT, show_default=True,
              type=click.IntRange(1, LIMIT_MAX), help="At most so many, the latest.")  # fmt: skip
@_store
@common()
def audit(common_: Common, *, since: str | None, kind: str, limit: int, store: str) -> None:
    """Show what was taken from jobs and the fleet, and verify its records.

    A record is kept before the act. Each has the digest of the one before it, so that a record that
    was changed, removed or put elsewhere is found. For users who may list the jobs and node pools
    of the whole cluster.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    query = {"limit": str(limit), "order": "latest", **({"kind": kind} if kind else {})}
    if since is not None:
        query["since"] = f"{now() - seconds_of(since, '--since'):.3f}"
    lines = past_audit(common_, store, query)
    if common_.is_structured:
        common_.structured([msgspec.to_builtins(line) for line in lines])
    else:
        rows = [_row(line) for line in lines]
        common_.table(_COLUMNS, rows, empty="nothing was taken that matches")


@audit.command()
@click.option("--after", metavar="N", default=0, type=click.IntRange(0),
              help="Only records behind this number.")  # fmt: skip
@_store
@common(output=False)
def export(common_: Common, *, after: int, store: str) -> None:
    """Print all records as JSON lines, in the order of the chain."""
    for line in whole_audit(common_, store, after):
        common_.emit(audit_line(_record(line)).decode() + "\n")


@audit.command()
@click.option("--against", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="An earlier export: each of its records must still be there, unchanged."
              )  # fmt: skip
@click.option("--head", metavar="NUMBER:DIGEST", default="",
              help="A record that must be there, as an earlier verification printed it."
              )  # fmt: skip
@_store
@common(output=False)
def verify(common_: Common, *, against: str | None, head: str, store: str) -> int:
    """Check that no record was changed, removed or put elsewhere.

    Records that were cut off at the end leave a chain that is whole: they are found only by
    --against or --head.
    """
    wanted = dict(_copies(Path(against))) if against else {}
    wanted |= _wanted(head) if head else {}
    check, first = ChainCheck(), 0
    for line in whole_audit(common_, store):
        record = _record(line)
        check.add(record)
        first = first or record.number
        digest = wanted.pop(record.number, record.digest)
        if digest != record.digest:
            check.faults.append(f"record {record.number} is another one than the copy has")
    missing = sorted(number for number in wanted if number >= first)
    faults = check.end()
    if missing:
        faults.append(f"record {missing[0]} is missing, which the copy has; {len(missing)} in all")
    if faults:
        raise fail(Code.AUDIT_DAMAGED, "the audit records are not as they were written",
                   detail=tuple(faults), help=("keep this store, and compare it with an export",)
                   )  # fmt: skip
    common_.emit(f"{plural(check.count, 'record')}, whole; the head is {check.head}\n")
    return Exit.OK


def _copies(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbers and digests of an export, without lines that a kill cut off."""
    others, is_empty = 0, True
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(_LINE_BYTES_MAX), b""):
            try:
                record = record_of_line(line)
            except ValueError:
                others += 1
                continue
            is_empty = False
            yield record.number, record.digest
    if is_empty and others:
        raise fail(Code.BAD_VALUE, f"{path} has no audit record",
                   help=("fairlead audit export > FILE writes one",))  # fmt: skip


def _wanted(head: str) -> dict[int, str]:
    found = _HEAD.fullmatch(head)
    if found is None:
        raise fail(
            Code.BAD_VALUE, f"--head {head}: not a number, a colon and 64 hexadecimal digits"
        )
    wanted = Head(int(found[1]), found[2])
    return {wanted.number: wanted.digest} if wanted.number else {}


def _record(line: AuditLine) -> AuditRecord:
    return record_of_line(msgspec.json.encode(line))


def _row(line: AuditLine) -> Row:
    return (
        str(line.number), line.at, line.kind, line.object or "-", line.reason, line.writer,
        line.digest[:12], line.message,
    )  # fmt: skip
