"""What a profile would change on machines that have reported their settings (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from fairlead.api.cluster.node_report import ReportedTuning, SettingState
from fairlead.node.running.host import whole_number
from fairlead.node.tuning.profile import ReadyProfile
from fairlead.node.tuning.verify import TuningFinding, compare

_AT_ONCE = "at once"
#: More different values of a setting are one change, of a range: defaults that follow from the
#: memory differ a little between machines that are alike.
_VALUES_MAX = 3
_Seen = list[tuple[str, TuningFinding]]


class PlannedChange(msgspec.Struct, frozen=True, rename="camel"):
    """A setting that changes on some nodes; `how` says by what, or why it does not.

    `actual` and `wanted` are those of the nodes; several numbers are a range, LEAST..MOST.
    """

    setting: str
    state: SettingState
    actual: str
    wanted: str
    how: str
    formula: str
    nodes: tuple[str, ...]


class RollOut(msgspec.Struct, frozen=True, rename="camel"):
    """What a profile would change: nodes that are as wanted, and those that report nothing.

    `restarted` are those on which some of it counts from a start only, so they are emptied first.
    """

    changes: tuple[PlannedChange, ...]
    as_wanted: tuple[str, ...]
    unreported: tuple[str, ...]
    restarted: tuple[str, ...] = ()


def roll_out(
    profile: ReadyProfile, given: Mapping[str, int],
    reports: Mapping[str, ReportedTuning | None],
) -> RollOut:  # fmt: skip
    """Return what a profile would change, in its order and then by value.

    `reports` are the latest ones by node, None for a node without one; `given` replaces the facts
    that nodes have reported. What a node has not reported is a change that cannot be told.
    """
    known: dict[tuple[int, tuple[int | None, ...], str | None], TuningFinding] = {}
    groups: dict[tuple[int, SettingState, str], _Seen] = {}
    as_wanted, restarted = list[str](), list[str]()
    wants = [(i, want, want.needed, want.line.title) for i, want in enumerate(profile.wants)]
    for node, report in sorted(reports.items()):
        if report is None:
            continue
        facts = {**profile.profile.facts, **report.facts, **given}
        hands = {each.name for each in report.differences
                 if each.state is SettingState.SET_BY_HAND}  # fmt: skip
        is_open = starts_again = False
        for i, want, needed, title in wants:
            actual = report.values.get(title)
            key = i, tuple(map(facts.get, needed)), actual
            finding = known.get(key)
            if finding is None:
                finding = known[key] = compare(want, facts, actual)
            if finding.state.is_drift or finding.state is SettingState.NOT_JUDGED:
                is_open = True
                seen = _kept(finding) if title in hands else finding
                groups.setdefault((i, seen.state, seen.why), []).append((node, seen))
                if seen.state is SettingState.DIFFERS and want.line.counts_from_start:
                    starts_again = True
        if not is_open:
            as_wanted.append(node)
        if starts_again:
            restarted.append(node)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[0][1].value))
    return RollOut(
        tuple(change for _, seen in ordered for change in _changes(seen)), tuple(as_wanted),
        tuple(sorted(node for node, report in reports.items() if report is None)),
        tuple(restarted),
    )  # fmt: skip


def _kept(finding: TuningFinding) -> TuningFinding:
    """Return the finding for a setting that a person has set."""
    if finding.state is not SettingState.DIFFERS or finding.overwrite:
        return finding
    why = "stays: a person set it"
    return msgspec.structs.replace(finding, state=SettingState.SET_BY_HAND, why=why)


def _changes(seen: _Seen) -> Iterator[PlannedChange]:
    """Yield the changes of one line: one for each value, or one for a range of many."""
    by_value: dict[str, _Seen] = {}
    for node, finding in seen:
        by_value.setdefault(finding.actual, []).append((node, finding))
    if len(by_value) > _VALUES_MAX:
        yield _change(seen)
        return
    for value in sorted(by_value, key=_order):
        yield _change(by_value[value])


def _change(seen: _Seen) -> PlannedChange:
    findings = [finding for _, finding in seen]
    first = findings[0]
    is_set = first.state is SettingState.DIFFERS and first.write is not None
    formulas = {each.formula for each in findings}
    return PlannedChange(
        first.setting, first.state, _range(each.actual for each in findings),
        _range(each.wanted for each in findings), _AT_ONCE if is_set else first.why,
        first.formula if len(formulas) == 1 else first.formula.partition(" with ")[0],
        tuple(node for node, _ in seen),
    )  # fmt: skip


def _range(texts: Iterable[str]) -> str:
    """Return the one text that there is, or the least and the most of several."""
    found: Sequence[str] = sorted(set(texts), key=_order)
    if len(found) == 1:
        return found[0]
    return f"{found[0]}..{found[-1].rpartition(' ')[2]}"


def _order(text: str) -> tuple[int, str]:
    """Return what values are sorted by: the number at their end, else their text."""
    return whole_number(text.rpartition(" ")[2]) or 0, text
