"""The table of the kernel's lines that are faults (`kernel_lines.toml`), beside Xids and SXids."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from fairlead.model.health.faults import Action, FaultVerdict, Recovery, Severity

_MACHINE = "machine"


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    check: str
    word: str
    pattern: str
    meaning: str
    severity: Severity
    action: Action


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    line: tuple[_Row, ...]


@dataclass(frozen=True, slots=True)
class KernelLine:
    """What a line of the table is: check, component, meaning and verdict."""

    check: str
    component: str
    meaning: str
    verdict: FaultVerdict


class KernelLines:
    """Verdicts on lines; one that asks for nothing is over after `stable_seconds`."""

    def __init__(self, stable_seconds: int) -> None:
        self._stable_seconds = stable_seconds
        self._rows = [(row.word, re.compile(row.pattern), row) for row in _file().line]
        self.checks = tuple(dict.fromkeys(row.check for row in _file().line))

    def line(self, text: str) -> KernelLine | None:
        """Return what a line is; None for one that the table does not have."""
        for word, pattern, row in self._rows:
            if word in text and (match := pattern.match(text)):
                part = match.groupdict().get("part", _MACHINE).rstrip(".:")
                return KernelLine(row.check, part, row.meaning, self._verdict(row))
        return None

    def _verdict(self, row: _Row) -> FaultVerdict:
        is_steady = row.action.recovery is Recovery.STABLE_TIME
        seconds = self._stable_seconds if is_steady else 0
        return FaultVerdict(row.severity, row.action, row.action.recovery, seconds)


@cache
def _file() -> _File:
    text = Path(__file__).with_name("kernel_lines.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)
