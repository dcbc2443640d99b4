"""`docs/operations/boundaries.md` lists what the code reads of a tenant's objects, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.tidy.reads import fields, fields_of_tools, keys
from tests.tidy.sources import ROOT

from fairlead.sim.tenants.moves.mutations import FOREIGN_KEYS, OWN_KEYS

PAGE = ROOT / "docs" / "operations" / "boundaries.md"
_CODE = re.compile(r"`([^`]+)`")
#: Nobody of a namespace writes them, or not on what he may write.
_NOT_DRAWN = "administrators"


class Row(NamedTuple):
    section: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    writer: str
    tests: tuple[str, ...]


@cache
def rows() -> tuple[Row, ...]:
    return tuple(_rows())


def _rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        names, tests = tuple(_CODE.findall(cells[0])), tuple(_CODE.findall(cells[-1]))
        kinds = tuple(each.split()[0] for each in cells[1].split(",")) if len(cells) == 5 else ()
        yield Row(section, names, kinds, cells[2] if len(cells) == 5 else "", tests)


def _of(section: str) -> list[Row]:
    return [row for row in rows() if row.section == section]


def test_every_key_that_the_code_reads_has_a_row_and_every_row_is_of_one() -> None:
    listed = [name for row in _of("Keys") for name in row.names]
    read = {*keys(), "pod-template-hash"}
    assert sorted(listed) == sorted(set(listed)), "a key has two rows"
    assert {key: keys()[key] for key in read - set(listed)} == {}, "read, and not in the table"
    assert set(listed) - read == set(), "in the table, and not read"


def test_every_field_that_the_code_decodes_has_a_row_and_every_row_is_of_one() -> None:
    listed = {(kind, name) for row in _of("Fields") for kind in row.kinds for name in row.names}
    used: set[tuple[str, str]] = set()
    missing: list[str] = []
    for kind, paths in fields().items():
        for path in paths:
            steps = path.split(".")
            starts = [".".join(steps[:n]) for n in range(len(steps), 0, -1)]
            found = next(
                ((kind, start) for start in (*starts, "*") if (kind, start) in listed), None
            )
            if found is None:
                missing.append(f"{kind} {path}")
            else:
                used.add(found)
    assert missing == [], "decoded, and not in the table"
    assert listed - used == set(), "in the table, and not decoded"


def test_every_field_of_a_tools_object_that_the_code_reads_has_a_row() -> None:
    listed = [name for row in _of("Objects of tools") for name in row.names]
    assert sorted(listed) == list(fields_of_tools())


def test_every_row_names_a_test() -> None:
    assert [row.names for row in rows() if not row.tests] == []


def test_the_simulated_tenant_draws_every_key_that_he_may_write() -> None:
    written = {
        name
        for row in _of("Keys") if not row.writer.startswith((_NOT_DRAWN, "nobody"))
        for name in row.names if not {"objects", "jobs (a finalizer)"} & set(row.kinds)
    }  # fmt: skip
    apart = {"fairlead.dev/gang", "fairlead.dev/job", "app.kubernetes.io/managed-by"}
    assert written - {*OWN_KEYS, *FOREIGN_KEYS} - apart == set()
