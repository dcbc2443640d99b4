"""Compares a machine with a profile: a finding for each target of each line. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Self

import msgspec

from fairlead.node.host import Absent, Host, whole_number
from fairlead.node.tuning.formula import FormulaError
from fairlead.node.tuning.profile import Line, ReadyProfile, Want
from fairlead.node.tuning.values import read_value, targets, why_absent

_UNLIMITED = "unlimited"


class State(Enum):
    """How a setting does, `is_drift`: it is not as the profile says."""

    _value_: str
    is_drift: bool

    def __new__(cls, value: str, is_drift: bool) -> Self:  # noqa: FBT001
        """Make a member."""
        state = object.__new__(cls)
        state._value_, state.is_drift = value, is_drift
        return state

    AS_WANTED = "AsWanted", False
    DIFFERS = "Differs", True
    SET_BY_HAND = "SetByHand", True  # it differs, and a person set it
    REFUSED = "Refused", True  # the write failed, or the kernel made another value of it
    MISSING = "Missing", True  # the machine lacks what is required
    ABSENT = "Absent", False  # the machine lacks it, and need not have it
    NOT_JUDGED = "NotJudged", False  # a fact is not known
    NOT_FOR_THIS = "NotForThisMachine", False  # `when` is 0
    UNREADABLE = "Unreadable", False


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of one target of a line.

    `wanted` is what it should have; `formula` how that came about, with its inputs. `write` is the
    value that would be written, None where nothing can be.
    """

    setting: str
    state: State
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
        if self.state is State.MISSING:
            return f"{self.setting} is missing"
        return f"{self.setting} is {self.actual}, not {self.wanted}"


def verify(
    host: Host, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[Finding, ...]:  # fmt: skip
    """Return the findings in the order of the lines. `facts` are those that are known."""
    known = dict(profile.profile.facts) | dict(facts)
    return tuple(each for want in profile.wants for each in _of_line(host, want, known))


def _of_line(host: Host, want: Want, facts: Mapping[str, int]) -> Sequence[Finding]:
    line = want.line
    formulas = [each for each in (want.when, want.at_least) if each]
    needed = sorted({name for each in formulas for name in each.names} - facts.keys())
    if needed:
        return [_of(line, State.NOT_JUDGED, why=f"not known: {', '.join(needed)}")]
    try:
        if want.when and not want.when.value(facts):
            return [_of(line, State.NOT_FOR_THIS, why=f"{want.when.inputs(facts)}")]
        least = want.at_least.value(facts) if want.at_least else None
    except FormulaError as error:
        return [_of(line, State.NOT_JUDGED, why=str(error))]
    inputs = want.at_least.inputs(facts) if want.at_least else ""
    formula = f"{want.at_least.text} with {inputs}" if want.at_least and inputs else ""
    try:
        return [
            _of_target(host, line, target, least=least, formula=formula)
            for target in targets(host, line)
        ]
    except Absent as error:
        return [_absent(line, str(error))]
    except OSError as error:
        return [_of(line, State.UNREADABLE, why=_said(error))]


def _of_target(
    host: Host, line: Line, target: str, *, least: int | None, formula: str
) -> Finding:  # fmt: skip
    try:
        actual = read_value(host, line, target)
    except Absent:
        return _absent(line, why_absent(line), target)
    except OSError as error:
        return _of(line, State.UNREADABLE, target=target, why=_said(error))
    wanted = f"at least {least}" if least is not None else " or ".join(line.accepted)
    write = str(least) if least is not None else line.accepted[0]
    is_good = is_at_least(actual, least) if least is not None else actual in line.accepted
    if is_good is None:
        return _of(line, State.UNREADABLE, target=target, why=f"'{actual[:40]}' is no number")
    at_once = line.kind.is_set_at_once
    return _of(
        line, State.AS_WANTED if is_good else State.DIFFERS, target=target, actual=actual,
        wanted=wanted, formula=formula, write=write if at_once else None,
        why="" if is_good or at_once else line.kind.remedy.format(line.name.upper()),
    )  # fmt: skip


def is_at_least(actual: str, least: int) -> bool | None:
    """Return whether a value is large enough; None when it is no number."""
    if actual == _UNLIMITED:
        return True
    number = whole_number(actual)
    return None if number is None else number >= least


def _absent(line: Line, why: str, target: str = "") -> Finding:
    return _of(line, State.MISSING if line.required else State.ABSENT, target=target, why=why)


def _of(
    line: Line, state: State, *, target: str = "", actual: str = "", wanted: str = "",
    formula: str = "", why: str = "", write: str | None = None,
) -> Finding:  # fmt: skip
    return Finding(
        line.title, state, target, actual, wanted, formula, why, line.reason, line.source, write,
        line.overwrite,
    )  # fmt: skip


def _said(error: OSError) -> str:
    return error.strerror or str(error)
