"""Accounts, qualities of service and reservations of Slurm, from its tools' output (pure).

Associations are the lines that `sacctmgr dump CLUSTER` writes; qualities of service the table of
`sacctmgr -P show qos`; reservations the records of `scontrol show reservation`.

Source: sacctmgr(1), FLAT FILE DUMP AND LOAD; `src/sacctmgr/file_functions.c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.cli.slurm_import.conf import Findings
from fairlead.cli.slurm_import.fleet import whole

_HEAD = re.compile(r"\s*(Cluster|Parent|Account|User|Project)\s*-\s*(.*)", re.IGNORECASE)
_PART = re.compile(r"(?:[^:'\"]|'[^']*'|\"[^\"]*\")+")
_RECORD_PAIR = re.compile(r"([A-Za-z/_]+)=(\S*)")


@dataclass(slots=True)
class SlurmAccount:
    """An account: its place in the tree, options and users by lower-case key, coordinators."""

    name: str
    where: str
    parent: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    users: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    coordinators: set[str] = field(default_factory=set[str])


@dataclass(frozen=True, slots=True)
class SlurmQos:
    """A quality of service: its priority, and what else it says."""

    name: str
    where: str
    priority: int
    others: tuple[str, ...] = ()


def read_associations(
    file: str, text: str, found: Findings
) -> tuple[dict[str, SlurmAccount], list[SlurmQos]]:
    """Return the accounts by name, and the qualities of service that they name, of priority 0."""
    accounts: dict[str, SlurmAccount] = {}
    qos: dict[str, SlurmQos] = {}
    parent = "root"
    for where, kind, name, options in _lines(file, text, found):
        for each in re.split(r"[,+]", options.get("qos", "")):
            if each.strip(" -="):
                called = each.strip(" -=")
                qos.setdefault(called, SlurmQos(called, where, 0))
        match kind:
            case "parent":
                parent = name
                if name != "root" and name not in accounts:
                    found.wrong(where, f"no Account line before this one has the name '{name}'")
            case "user":
                _user(where, name, options, account=accounts.get(parent), found=found)
            case "account" | "project":
                if name in accounts:
                    found.wrong(where, f"account '{name}' is that of {accounts[name].where}, too")
                accounts.setdefault(name, SlurmAccount(name, where, parent, options))
            case _:  # of the cluster
                _note_others(
                    where, f"cluster {name}", options, known=("fairshare", "qos"), found=found
                )
    _coordinators(accounts, found)
    return accounts, list(qos.values())


def _user(
    where: str, name: str, options: Mapping[str, str], *, account: SlurmAccount | None,
    found: Findings,
) -> None:  # fmt: skip
    known = ("defaultaccount", "coordinator", "fairshare", "qos", "wckeys", "defaultwckey")
    _note_others(where, f"user {name}", options, known=known, found=found)
    if account is None:
        if name != "root":
            found.note(where, f"user {name} is in the account root, which is no Team")
        return
    account.users[name] = options


def _coordinators(accounts: Mapping[str, SlurmAccount], found: Findings) -> None:
    for account in accounts.values():
        for user, options in account.users.items():
            for each in filter(None, options.get("coordinator", "").split(",")):
                if each in accounts:
                    accounts[each].coordinators.add(user)
                else:
                    found.note(account.where, f"user {user} coordinates '{each}', which is no "
                               "account")  # fmt: skip


def _note_others(
    where: str, of: str, options: Mapping[str, str], *, known: tuple[str, ...], found: Findings
) -> None:
    others = sorted(key for key in options if key not in known)
    if others:
        found.note(where, f"{of}: without a counterpart: {', '.join(others)}")


def _lines(file: str, text: str, found: Findings) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Yield (place, kind, name, options by lower-case key) of each line."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{file}:{number}"
        match = _HEAD.fullmatch(line)
        if match is None:
            found.wrong(where, f"'{line.strip()[:60]}' is no line of sacctmgr dump",
                        "sacctmgr dump CLUSTER file=FILE")  # fmt: skip
            continue
        first, *rest = _PART.findall(match[2]) or [""]
        options: dict[str, str] = {}
        for part in rest:
            key, equals, value = part.partition("=")
            if equals:
                options[key.strip().lower()] = value.strip().strip("'\"")
        name = first.strip().strip("'\"")
        if not name:
            found.wrong(where, f"{match[1]} has no name")
            continue
        yield where, match[1].lower(), name, options


def read_qos(file: str, text: str, found: Findings) -> list[SlurmQos]:
    """Return the qualities of service of a table with `|` between columns."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        return []
    titles = [title.strip().lower() for title in lines[0][1].split("|")]
    if not {"name", "priority"} <= set(titles):
        found.wrong(f"{file}:{lines[0][0]}", "the first line has no columns Name and Priority",
                    "sacctmgr -P show qos")  # fmt: skip
        return []
    out: dict[str, SlurmQos] = {}
    for number, line in lines[1:]:
        where, cells = f"{file}:{number}", line.split("|")
        row = {title: cell.strip() for title, cell in zip(titles, cells, strict=False)}
        priority = whole(row.get("priority", ""))
        if not row.get("name") or priority is None:
            found.wrong(where, "a quality of service has a name and a priority of 0 or more")
            continue
        quiet = ("name", "priority", "gracetime", "preemptmode", "usagefactor")
        others = tuple(title for title in titles if title not in quiet and row.get(title))
        out[row["name"]] = SlurmQos(row["name"], where, priority, others)
    return list(out.values())


def read_records(file: str, text: str, key: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (place, values by lower-case key) of each record of `scontrol show`.

    A record begins at `key` and may be one line or several.
    """
    place, values = "", dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        for name, value in _RECORD_PAIR.findall(line):
            if name.lower() == key:
                if place:
                    yield place, values
                place, values = f"{file}:{number}", {}
            if place:
                values.setdefault(name.lower(), value)
    if place:
        yield place, values
