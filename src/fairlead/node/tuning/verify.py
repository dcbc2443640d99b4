"""Compares a machine with a profile: a finding for each target of each line. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fairlead.api.cluster.node_report import SettingState
from fairlead.node.running.host import Absent, Host, whole_number
from fairlead.node.tuning.formula import FormulaError
from fairlead.node.tuning.profile import ProfileLine, ReadyProfile, WantedLine
from fairlead.node.tuning.values import read_value, targets, why_absent

_UNLIMITED = "unlimited"


class TuningFinding(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of one target of a line.

    `wanted` is what it should have; `formula` how that came about, with its inputs. `write` is the
    value that would be written, None where nothing can be.
    """

    setting: str
    state: SettingState
    target: str = ""
    actual: str = ""
    wanted: str = ""
    formula: str = ""
    why: str = ""
    reason: str = ""
    source: str = ""
    write: str | None = None
    overwrite: bool = False

    @property
    def words(self) -> str:
        """The difference in a few words."""
        if self.state is SettingState.MISSING:
            return f"{self.setting} is missing"
        return f"{self.setting} is {self.actual}, not {self.wanted}"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A line that counts here: the least value, None for one of `accepted`, and its formula."""

    line: ProfileLine
    least: int | None
    formula: str

    @property
    def value(self) -> str:
        """The value that would be set."""
        return str(self.least) if self.least is not None else self.line.accepted[0]


def verify(
    host: Host, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[TuningFinding, ...]:  # fmt: skip
    """Return the findings in the order of the lines. `facts` are those that are known."""
    known = dict(profile.profile.facts) | dict(facts)
    found: list[TuningFinding] = []
    for want in profile.wants:
        counted = _counted(want, known)
        found += _on_host(host, counted) if isinstance(counted, _Wanted) else [counted]
    return tuple(found)


def compare(want: WantedLine, facts: Mapping[str, int], actual: str | None) -> TuningFinding:
    """Return the finding for a value that a machine has reported, None for one that it has not."""
    counted = _counted(want, facts)
    if not isinstance(counted, _Wanted):
        return counted
    if actual is None:
        return _of(want.line, SettingState.NOT_JUDGED, why="the value is not reported")
    return _compared(counted, actual)


def value_wanted(want: WantedLine, facts: Mapping[str, int]) -> str:
    """Return the value that would be set; "" where the line wants nothing."""
    counted = _counted(want, facts)
    return counted.value if isinstance(counted, _Wanted) else ""


def _counted(want: WantedLine, facts: Mapping[str, int]) -> _Wanted | TuningFinding:
    """Return what a line wants with these facts; a finding where it wants nothing."""
    line = want.line
    needed = [name for name in want.needed if name not in facts]
    if needed:
        return _of(line, SettingState.NOT_JUDGED, why=f"not known: {', '.join(needed)}")
    try:
        if want.when and not want.when.value(facts):
            return _of(line, SettingState.NOT_FOR_THIS, why=want.when.inputs(facts))
        least = want.at_least.value(facts) if want.at_least else None
    except FormulaError as error:
        return _of(line, SettingState.NOT_JUDGED, why=str(error))
    inputs = want.at_least.inputs(facts) if want.at_least else ""
    return _Wanted(line, least, f"{want.at_least.text} with {inputs}"
                   if want.at_least and inputs else "")  # fmt: skip


def _on_host(host: Host, wanted: _Wanted) -> Sequence[TuningFinding]:
    try:
        return [_of_target(host, wanted, target) for target in targets(host, wanted.line)]
    except Absent as error:
        return [_absent(wanted.line, str(error))]
    except OSError as error:
        return [_of(wanted.line, SettingState.UNREADABLE, why=_said(error))]


def _of_target(host: Host, wanted: _Wanted, target: str) -> TuningFinding:
    try:
        actual = read_value(host, wanted.line, target)
    except Absent as error:
        return _absent(wanted.line, why_absent(wanted.line, str(error)), target)
    except OSError as error:
        return _of(wanted.line, SettingState.UNREADABLE, target=target, why=_said(error))
    return _compared(wanted, actual, target)


def _compared(wanted: _Wanted, actual: str, target: str = "") -> TuningFinding:
    line, least = wanted.line, wanted.least
    shown = f"at least {least}" if least is not None else " or ".join(line.accepted)
    is_good = is_at_least(actual, least) if least is not None else actual in line.accepted
    if is_good is None:
        why = f"'{actual[:40]}' is no number"
        return _of(line, SettingState.UNREADABLE, target=target, why=why)
    at_once = line.is_set_at_once
    return _of(
        line, SettingState.AS_WANTED if is_good else SettingState.DIFFERS, target=target,
        actual=actual, wanted=shown, formula=wanted.formula,
        write=wanted.value if at_once else None,
        why="" if is_good or at_once else line.remedy,
    )  # fmt: skip


def is_at_least(actual: str, least: int) -> bool | None:
    """Return whether a value is large enough; None when it is no number."""
    if actual == _UNLIMITED:
        return True
    number = whole_number(actual)
    return None if number is None else number >= least


def _absent(line: ProfileLine, why: str, target: str = "") -> TuningFinding:
    return _of(
        line, SettingState.MISSING if line.required else SettingState.ABSENT, target=target, why=why
    )


def _of(
    line: ProfileLine, state: SettingState, *, target: str = "", actual: str = "", wanted: str = "",
    formula: str = "", why: str = "", write: str | None = None,
) -> TuningFinding:  # fmt: skip
    return TuningFinding(
        line.title, state, target, actual, wanted, formula, why, line.reason, line.source, write,
        line.overwrite,
    )  # fmt: skip


def _said(error: OSError) -> str:
    return error.strerror or str(error)
