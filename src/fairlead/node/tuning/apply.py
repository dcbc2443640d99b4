"""Sets what a profile wants, and restores what it no longer does.

What to write is decided by `plan`, which reads nothing. Then the record of all writes is saved, the
writes are done, and what they made is saved. A process that is killed between any two lines leaves
a record from which the next run goes on: each target then has a value that the record knows, or one
that somebody else has written.

What a person set is not overwritten: a value that is not the one that was left there, and a value
that stands in the administrator's own files, unless the line says `overwrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fairlead.api.cluster.node_report import SettingState
from fairlead.node.running.host import Absent, Host
from fairlead.node.tuning.drop_ins import NextStart
from fairlead.node.tuning.profile import NO_PROFILE, ReadyProfile
from fairlead.node.tuning.record import TargetEntry, open_record
from fairlead.node.tuning.values import read_target, set_by_administrator, write_value
from fairlead.node.tuning.verify import TuningFinding, verify

_JUDGED = (SettingState.AS_WANTED, SettingState.DIFFERS)
#: These say nothing of whether the target is wanted, so what was set stays.
_UNDECIDED = (SettingState.NOT_JUDGED, SettingState.UNREADABLE)


@dataclass(frozen=True, slots=True)
class Restored:
    """A target that no line wants any more.

    `why` is empty when its old value is back. One that `is_left` somebody has changed since: it is
    theirs, and stays.
    """

    setting: str
    target: str
    value: str
    why: str = ""
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """What a machine is like after a run. `changed` counts the targets that were set.

    `starts` are the drop-ins, which a run does not write.
    """

    findings: tuple[TuningFinding, ...] = ()
    restored: tuple[Restored, ...] = ()
    changed: int = 0
    starts: tuple[NextStart, ...] = ()


@dataclass(slots=True)
class TuningPlan:
    """What to write, by target, and what is left as it is.

    `entries` is the record before the writes: with the intent of each. `left` are targets that no
    line wants and that are not what was set.
    """

    entries: dict[str, TargetEntry]
    sets: dict[str, TargetEntry] = field(default_factory=dict[str, TargetEntry])
    restores: dict[str, TargetEntry] = field(default_factory=dict[str, TargetEntry])
    by_hand: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    left: dict[str, tuple[TargetEntry, str]] = field(
        default_factory=dict[str, tuple[TargetEntry, str]]
    )


def plan(
    findings: Sequence[TuningFinding], entries: Mapping[str, TargetEntry],
    unwanted: Mapping[str, str], administrator: Callable[[], Mapping[str, tuple[str, str]]],
) -> TuningPlan:  # fmt: skip
    """Return what follows from the findings and the record.

    `unwanted` are the values of recorded targets that no line wants; one that cannot be read is
    left out of it, and stays in the record. `administrator` is asked only when a setting would be
    written for the first time: (value, file) by target.
    """
    made = TuningPlan(dict(entries))
    for finding in findings:
        if finding.state is SettingState.DIFFERS and finding.write is not None:
            _plan_set(made, finding, administrator)
    for target, actual in unwanted.items():
        entry = entries[target]
        if entry.is_ours(actual):
            intent = TargetEntry(entry.setting, entry.original, actual, entry.original)
            made.restores[target] = made.entries[target] = intent
        else:
            made.left[target] = entry, actual
            del made.entries[target]
    return made


def _plan_set(
    made: TuningPlan, finding: TuningFinding,
    administrator: Callable[[], Mapping[str, tuple[str, str]]],
) -> None:  # fmt: skip
    target, actual, write = finding.target, finding.actual, finding.write or ""
    entry = made.entries.get(target)
    if entry is not None and entry.is_ours(actual):
        if entry.made == actual and entry.asked == write:
            made.refused[target] = _kernel_makes(finding)
            return
        original = entry.original
    else:
        original = actual
        why = ""
        if entry is not None:
            why = f"changed since it was set to {entry.made or entry.asked}"
        elif (found := administrator().get(target)) and found[0] == actual:
            why = f"set in {found[1]}"
        if why and not finding.overwrite:
            made.by_hand[target] = f"{why}; overwrite: true in the profile sets it all the same"
            return
    made.sets[target] = made.entries[target] = TargetEntry(finding.setting, original, actual, write)


def tune(
    host: Host, profile: ReadyProfile, facts: Mapping[str, int], *, record: Path,
    accepted: Mapping[str, str] | None = None,
) -> TuningOutcome:  # fmt: skip
    """Set what differs, restore what no line wants any more; RecordError, NotAHost.

    With `accepted`, by setting, no other values are set; None: all are.
    """
    with open_record(record, host.boot_id()) as held:
        findings = _accepted(verify(host, profile, facts), accepted)
        before = held.entries
        planned = plan(
            findings, before, _unwanted(host, findings, before), lambda: set_by_administrator(host)
        )
        held.save(planned.entries)
        failed = _write(host, planned, before)
        held.save(planned.entries)
        after = findings
        if planned.sets:
            after = _accepted(verify(host, profile, facts), accepted)
    return TuningOutcome(
        tuple(_explained(each, planned, failed) for each in after),
        tuple(_restored(planned, failed)), len(planned.sets.keys() - failed.keys()),
    )  # fmt: skip


def _accepted(
    findings: Sequence[TuningFinding], accepted: Mapping[str, str] | None
) -> tuple[TuningFinding, ...]:  # fmt: skip
    """Return the findings, of which nothing is written but the value that is accepted."""
    if accepted is None:
        return tuple(findings)
    values = (accepted.get(each.setting) for each in findings)
    return tuple(
        each if each.write in (None, value)
        else msgspec.structs.replace(each, write=value if value != each.actual else None)
        for each, value in zip(findings, values, strict=True)
    )  # fmt: skip


def restore(host: Host, *, record: Path) -> TuningOutcome:
    """Restore all that was set on this machine since it started; RecordError, NotAHost."""
    return tune(host, NO_PROFILE, {}, record=record)


def _unwanted(
    host: Host, findings: Sequence[TuningFinding], entries: Mapping[str, TargetEntry]
) -> dict[str, str]:  # fmt: skip
    """Return the values of the recorded targets that no line wants and that can be read."""
    wanted = {each.target for each in findings if each.state in _JUDGED}
    undecided = {each.setting for each in findings if each.state in _UNDECIDED}
    found: dict[str, str] = {}
    for target, entry in entries.items():
        if target not in wanted and entry.setting not in undecided:
            with suppress(Absent, OSError):
                found[target] = read_target(host, target)
    return found


def _write(host: Host, planned: TuningPlan, before: Mapping[str, TargetEntry]) -> dict[str, str]:
    """Do the writes and bring the entries up to date; return why each that failed did."""
    failed: dict[str, str] = {}
    for target, entry in (planned.sets | planned.restores).items():
        try:
            write_value(host, target, entry.asked)
        except OSError as error:
            failed[target] = f"{entry.asked} cannot be written: {error.strerror or error}"
            planned.entries.pop(target)
            if target in before:
                planned.entries[target] = before[target]
            continue
        if target in planned.restores:
            del planned.entries[target]
            continue
        with suppress(Absent, OSError):
            made = read_target(host, target)
            planned.entries[target] = msgspec.structs.replace(entry, made=made)
    return failed


def _explained(
    finding: TuningFinding, planned: TuningPlan, failed: Mapping[str, str]
) -> TuningFinding:
    """Return a finding that says why its target still differs."""
    if finding.state is not SettingState.DIFFERS or finding.write is None:
        return finding
    target = finding.target
    if target in planned.by_hand:
        return _changed(finding, SettingState.SET_BY_HAND, planned.by_hand[target])
    why = failed.get(target) or planned.refused.get(target) or _kernel_makes(finding)
    return _changed(finding, SettingState.REFUSED, why)


def _changed(finding: TuningFinding, state: SettingState, why: str) -> TuningFinding:
    return msgspec.structs.replace(finding, state=state, why=why)


def _kernel_makes(finding: TuningFinding) -> str:
    return f"the kernel makes {finding.actual} of {finding.write}"


def _restored(planned: TuningPlan, failed: Mapping[str, str]) -> Iterator[Restored]:
    for target, entry in planned.restores.items():
        yield Restored(entry.setting, target, entry.asked, failed.get(target, ""))
    for target, (entry, actual) in planned.left.items():
        why = f"it is {actual} now: somebody changed it since"
        yield Restored(entry.setting, target, entry.original, why, is_left=True)
