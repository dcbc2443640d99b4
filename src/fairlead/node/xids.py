"""The table of Xid and SXid codes (`xids.toml`), with what a cluster's settings replace of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from fairlead.model.health.faults import Action, FaultVerdict, Recovery, Severity
from fairlead.node.settings import Architecture, CodeVerdict, GpuSettings

FELL_OFF = 79
RECOVERY_ACTION = 154


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verdict for lines that have the text."""

    text: str
    severity: Severity
    action: Action


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be thought of some codes."""

    meaning: str
    severity: Severity
    action: Action
    codes: tuple[int, ...] = ()
    architectures: tuple[Architecture, ...] = ()
    follows: bool = False
    when: tuple[Variant, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    source: str
    unlisted: Row
    unlisted_sxid: Row
    xid: tuple[Row, ...]
    sxid: tuple[Row, ...]


class XidCode(msgspec.Struct, frozen=True):
    """The verdict on one line."""

    meaning: str
    verdict: FaultVerdict
    follows: bool


class XidTable:
    """Verdicts on lines."""

    def __init__(self, settings: GpuSettings) -> None:
        file = _file()
        self.version = file.version
        self.source = file.source
        self._settings = settings
        self._xids = _by_code(file.xid)
        self._sxids = _by_code(file.sxid)
        self._unlisted, self._unlisted_sxid = file.unlisted, file.unlisted_sxid

    @property
    def xids(self) -> tuple[int, ...]:
        """The Xid codes that are listed."""
        return tuple(sorted(self._xids))

    def xid(self, code: int, text: str) -> XidCode:
        """Return the verdict on the line of an Xid."""
        row = self._xids.get(code, self._unlisted)
        ours = self._settings.architecture
        if ours and row.architectures and ours not in row.architectures:
            row = self._unlisted
        return self._code(row, text, self._settings.xid.get(str(code)))

    def sxid(self, code: int, text: str) -> XidCode:
        """Return the verdict on the line of an SXid."""
        row = self._sxids.get(code, self._unlisted_sxid)
        return self._code(row, text, self._settings.sxid.get(str(code)))

    def consequence(self) -> FaultVerdict:
        """Return the verdict on a code that follows another one."""
        return self._verdict(Severity.INFO, Action.NONE)

    def _code(self, row: Row, text: str, override: CodeVerdict | None) -> XidCode:
        chosen = override or next((each for each in row.when if each.text in text), row)
        verdict = self._verdict(chosen.severity, chosen.action)
        return XidCode(row.meaning, verdict, row.follows and not override)

    def _verdict(self, severity: Severity, action: Action) -> FaultVerdict:
        steady = action.recovery is Recovery.STABLE_TIME
        seconds = self._settings.stable_seconds if steady else 0
        return FaultVerdict(severity, action, action.recovery, seconds)


@cache
def _file() -> _File:
    text = Path(__file__).with_name("xids.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)


def _by_code(rows: tuple[Row, ...]) -> Mapping[int, Row]:
    return {code: row for row in rows for code in row.codes}
