"""Reads the files that a person keeps: suppressions and baselines; all mistakes at once."""

from __future__ import annotations

import re
from typing import Any

from fairlead.doctor.examine import Suppression
from fairlead.input.plain import UnreadableText, json_document, yaml_document

DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
FIELDS = ("check", "reason", "until")


class ConfigurationError(ValueError):
    """A file that cannot be used; `mistakes` name the entry and the field."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = mistakes
        super().__init__("; ".join(mistakes))


def parse_suppressions(text: str) -> tuple[Suppression, ...]:
    """Return the suppressions of a YAML file; ConfigurationError.

    suppressions:
    - check: ETCD-16
      subject: "*"          # optional
      reason: one etcd until the migration in March
      until: 2027-03-31
    """
    try:
        value: Any = yaml_document(text)
    except UnreadableText as error:
        raise ConfigurationError(str(error)) from error
    entries = value.get("suppressions") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise ConfigurationError("the file needs a list `suppressions`")
    mistakes: list[str] = []
    found: list[Suppression] = []
    for number, entry in enumerate(entries):
        where = f"suppressions[{number}]"
        fields = {str(k): str(v) for k, v in entry.items()} if isinstance(entry, dict) else {}
        mistakes += [f"{where}.{name} is missing" for name in FIELDS if not fields.get(name)]
        unknown = sorted(set(fields) - {*FIELDS, "subject"})
        mistakes += [f"{where}.{name} is not known" for name in unknown]
        until = fields.get("until", "")
        if until and not DAY.fullmatch(until):
            mistakes.append(f"{where}.until: '{until}' is not YYYY-MM-DD")
        found.append(Suppression(fields.get("check", "").upper(), fields.get("subject", "*"),
                                 fields.get("reason", ""), until))  # fmt: skip
    if mistakes:
        raise ConfigurationError(*mistakes)
    return tuple(found)


def parse_baseline(text: str) -> frozenset[str]:
    """Return the finding keys of an earlier `-o json` report; ConfigurationError."""
    try:
        value: Any = json_document(text)
    except UnreadableText as error:
        raise ConfigurationError(str(error)) from error
    findings = value.get("findings") if isinstance(value, dict) else None
    if not isinstance(findings, list):
        raise ConfigurationError("the file has no list `findings`; write it with -o json")
    return frozenset(
        f"{each.get('id')}/{each.get('subject')}" for each in findings if isinstance(each, dict)
    )
