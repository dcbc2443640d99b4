"""Which lines of a profile a drop-in gives, and why it does not give the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead.api.cluster.node_report import SettingState
from fairlead.node.running.host import Absent
from fairlead.node.tuning.profile import LineKind, ReadyProfile
from fairlead.node.tuning.verify import compare, value_wanted


@dataclass(frozen=True, slots=True)
class DropIn:
    """What a drop-in should have, and has; "" is no file. `settings` are those that it gives.

    `is_loaded`: what reads it has started since it was written. `is_refused`: it did not start with
    what the file should have, or would have been changed in other ways as well (`why`).
    """

    wanted: str
    has: str
    is_loaded: bool
    is_refused: bool
    settings: tuple[str, ...]
    why: str = ""

    @property
    def needs_restart(self) -> bool:
        """True when what reads it should start again for it."""
        return not self.is_refused and (self.wanted != self.has or not self.is_loaded)


@dataclass(frozen=True, slots=True)
class ChosenLines:
    """The values that a drop-in gives by name, and why others differ, by the title of the line."""

    values: dict[str, str] = field(default_factory=dict[str, str])
    left: dict[str, tuple[SettingState, str]] = field(
        default_factory=dict[str, tuple[SettingState, str]]
    )


def choose(
    profile: ReadyProfile, facts: Mapping[str, int], kind: LineKind, *,
    there: Callable[[str], str], refusal: Callable[[str, str], str],
    set_by: Callable[[str], str],
) -> ChosenLines:  # fmt: skip
    """Return what the lines of a kind that differ come to; OSError.

    `there` is the value of a name without the drop-in (Absent: the line is passed over), `refusal`
    why the agent gives no such value to a name, `set_by` who has set it; "" for none.
    """
    known = dict(profile.profile.facts) | dict(facts)
    chosen = ChosenLines()
    for want in profile.wants:
        line = want.line
        if line.kind is not kind:
            continue
        try:
            actual = there(line.name)
        except Absent:
            continue
        if compare(want, known, actual).state is not SettingState.DIFFERS:
            continue
        value = value_wanted(want, known)
        if why := refusal(line.name, value):
            chosen.left[line.title] = SettingState.DIFFERS, f"{why}; {line.kind.remedy}"
        elif not line.overwrite and (who := set_by(line.name)):
            why = f"{who}; overwrite: true in the profile sets it all the same"
            chosen.left[line.title] = SettingState.SET_BY_HAND, why
        else:
            chosen.values[line.name] = value
    return chosen
