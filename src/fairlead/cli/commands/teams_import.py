"""Teams from a table of (node selector, team, amount), as the platform of 2021 kept it (pure).

Each value of a ConfigMap's data is a YAML or JSON list. An entry is `[SELECTOR, TEAM, NODES]`, or a
mapping with `selector` (or `nodeSelector`), `team`, and `nodes` (or `amount`) or `gpus`. A selector
is a mapping of labels, or a text "key=value,key=value"; an empty one selects all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.api.names import POOL
from fairlead.api.validation.validate_team import validate_team
from fairlead.input.errors import CliError, Code, Problem
from fairlead.input.plain import UnreadableText, yaml_document

NAMESPACES_NOTE = (
    "Each Team has the namespace of its own name: write those that it has into spec.namespaces, "
    "then fairlead teams plan -f FILE"
)
_FORM = "[SELECTOR, TEAM, NODES], or a mapping with selector, team and nodes or gpus"

_Entry = tuple[str, Mapping[str, str], str, int]


def teams_of(data: Mapping[str, str], source: str) -> list[dict[str, Any]]:
    """Return the Teams as plain objects, by name; CliError with every entry that is wrong."""
    problems: list[Problem] = []
    shares: dict[str, dict[tuple[tuple[str, str], ...], dict[str, int]]] = {}
    for field in sorted(data):
        for entry in _entries(field, data[field], source, problems):
            team, selector, unit, amount = entry
            amounts = shares.setdefault(team, {}).setdefault(tuple(sorted(selector.items())), {})
            amounts[unit] = amounts.get(unit, 0) + amount
    teams = [_team(name, shares[name]) for name in sorted(shares)]
    for team in teams:
        problems += [
            Problem(Code.BAD_FIELD, cause.message, where=source, field=cause.field)
            for cause in validate_team(team)
        ]
    if not teams and not problems:
        message = "the ConfigMap has no entries"
        problems.append(Problem(Code.BAD_FIELD, message, where=source, help=(f"each is {_FORM}",)))
    if problems:
        raise CliError(tuple(problems))
    return teams


def _entries(field: str, text: str, source: str, problems: list[Problem]) -> Iterator[_Entry]:
    try:
        entries: Any = yaml_document(text)
    except UnreadableText as error:
        message = f"is neither YAML nor JSON: {error}"
        problems.append(Problem(Code.MANIFEST_SYNTAX, message, where=source, field=f"data.{field}"))
        return
    if not isinstance(entries, list):
        entries = [None]
    for number, entry in enumerate(entries):
        read = _entry(entry)
        if isinstance(read, str):
            where = f"data.{field}[{number}]"
            problems.append(
                Problem(Code.BAD_FIELD, read, where=source, field=where, help=(f"give {_FORM}",))
            )
        else:
            yield read


def _entry(entry: Any) -> _Entry | str:
    """Return an entry's team, selector, unit and amount; what is wrong with it otherwise."""
    unit = "nodes"
    if isinstance(entry, Mapping):
        unit = "gpus" if "gpus" in entry else "nodes"
        selector: Any = entry.get("selector", entry.get("nodeSelector", ""))
        team: Any = entry.get("team")
        amount: Any = entry.get("gpus", entry.get("nodes", entry.get("amount")))
    elif isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 3:
        selector, team, amount = entry
    else:
        return "is not a tuple of node selector, team and amount"
    if not isinstance(team, str) or not team:
        return "the team must be a name"
    if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
        return f"the amount '{amount}' must be a number of {unit}"
    labels = _labels(selector)
    return (team, labels, unit, amount) if labels is not None else "the selector is not of labels"


def _labels(selector: Any) -> Mapping[str, str] | None:
    if selector is None or selector == "":
        return {}
    if isinstance(selector, Mapping):
        return {str(key): str(value) for key, value in selector.items()}
    if not isinstance(selector, str):
        return None
    parts = [part.partition("=") for part in selector.split(",")]
    if not all(key.strip() and equals for key, equals, _ in parts):
        return None
    return {key.strip(): value.lstrip("=").strip() for key, _, value in parts}


def _team(
    name: str, shares: Mapping[tuple[tuple[str, str], ...], Mapping[str, int]]
) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "namespaces": [name],
            "shares": [
                {**_selected(dict(selector)), unit: amount}
                for selector, amounts in sorted(shares.items())
                for unit, amount in sorted(amounts.items())
            ],
        },
    }


def _selected(labels: dict[str, str]) -> dict[str, Any]:
    pool = labels.pop(POOL, "")
    selected: dict[str, Any] = {"pool": pool} if pool else {}
    return {**selected, **({"nodeSelector": labels} if labels else {})}
