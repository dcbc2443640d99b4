"""Settings of the machine that are not as its profile says: one fault, with the differences.

In mode `apply` the read also sets what differs and takes effect at once. Without a profile it
restores what an earlier one had set. What counts from the next start of the kubelet, of containerd
or of the kernel is a fault of its own, which asks for a reboot; `restart_setter` is called before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from fairlead.api.cluster.node_report import TUNING_RESTART, SettingState, TuningMode
from fairlead.input.errors import CliError
from fairlead.input.sections import read_text
from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.files import read_file
from fairlead.node.repairs import RepairRequest
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings, TuningSettings
from fairlead.node.source import Judged, SignalSource
from fairlead.node.tuning import (
    NO_PROFILE,
    PROFILE_NAME,
    DropIns,
    NextStart,
    ReadyProfile,
    TuningFinding,
    TuningOutcome,
    accept_on_new,
    accepted_values,
    explained,
    parse_profile,
    profile_path,
    read_facts,
    restore,
    tune,
    verify,
    with_gpus,
)

SOURCE, DRIFT, RESTART = "tuning", "tuning-drift", TUNING_RESTART
_EARLIER = "earlier profile"
_FAILED = "the node was not healthy with it"
_NAME_BYTES_MAX = 256
#: Differences that are kept for the report.
DIFFERENCES_MAX = 64


@dataclass(frozen=True, slots=True)
class TuningFacts:
    """The profile's name, what the machine is like, and the facts that are known."""

    profile: str
    outcome: TuningOutcome
    facts: dict[str, int]
    #: The drop-ins that the agent has.
    starts: tuple[NextStart, ...] = ()


class TuningMemory(msgspec.Struct, frozen=True, rename="camel"):
    """What the last look found: the report says it.

    `facts` and `values`, by setting, are what it was judged by. `left_out` differences had no room.
    """

    profile: str = ""
    mode: TuningMode = TuningMode.VERIFY
    facts: dict[str, int] = {}
    values: dict[str, str] = {}
    differences: tuple[TuningFinding, ...] = ()
    left_out: int = 0
    not_judged: tuple[str, ...] = ()


class TuningReader:
    """Reads the profile again when its file has changed, and the machine."""

    def __init__(self, host: Host, settings: TuningSettings) -> None:
        """Read the profile; CliError."""
        self._host = host = with_gpus(host)
        self._settings = settings
        self._record = Path(settings.record)
        self._text = ""
        self._profile: ReadyProfile | None = None
        self._drop_ins = DropIns(host, settings)
        if settings.profile:
            self._load(settings.profile)

    def _name(self) -> str:
        """Return the profile in effect, "" for none; OSError while the collector has said nothing.

        A node's label names a profile of this machine, and never a path.
        """
        chosen = self._settings.chosen_file
        if not chosen:
            return self._settings.profile
        name = read_file(Path(chosen), _NAME_BYTES_MAX).decode("utf-8", "replace").strip()
        if not name:
            return self._settings.profile
        if not PROFILE_NAME.fullmatch(name):
            raise OSError(f"the node's label names no profile: {name[:64]!r}")
        own = Path(self._settings.profiles, f"{name}.yaml")
        return str(own) if self._settings.profiles and own.is_file() else name

    def _load(self, name: str) -> ReadyProfile:
        """Return a profile; CliError when it is wrong, or not there."""
        path = profile_path(name)
        text = read_text(path)
        if self._profile is None or text != self._text:
            self._profile = parse_profile(text, str(path))
            self._text = text
        return self._profile

    def read(self) -> TuningFacts:
        """Compare, and set or restore where that is asked for; Absent, OSError.

        A profile that is wrong or not there is no reason to restore anything: nothing is changed.
        """
        name = self._name()
        if not name:
            restored = restore(self._host, record=self._record)
            kept = self._starts(NO_PROFILE, {})
            has_kept = any(each.needs_restart for each in kept)
            if not has_kept and all(each.is_left or not each.why for each in restored.restored):
                raise Absent("tuning.profile is not set")
            return TuningFacts("", restored, {}, kept)
        try:
            profile = self._load(name)
        except CliError as error:
            problem = error.problems[0]
            raise OSError(f"the profile: {problem.where} {problem.message}") from error
        facts = read_facts(self._host, self._settings.facts)
        if self._settings.mode is TuningMode.APPLY:
            if self._settings.accepted_file:
                accept_on_new(self._host, self._settings.accepted_file, profile, facts)
            outcome = self._tune(profile, facts)
        else:
            outcome = TuningOutcome(verify(self._host, profile, facts))
        starts = self._starts(profile, facts)
        outcome = replace(outcome, findings=explained(outcome.findings, starts))
        return TuningFacts(profile.profile.name, outcome, facts, starts)

    def _tune(self, profile: ReadyProfile, facts: Mapping[str, int]) -> TuningOutcome:
        accepted = accepted_values(self._host, self._settings.accepted_file)
        return tune(self._host, profile, facts, record=self._record, accepted=accepted)

    def _starts(self, profile: ReadyProfile, facts: Mapping[str, int]) -> tuple[NextStart, ...]:
        """Return how the drop-ins are; take one back with which its daemon does not run."""
        why = ""
        try:
            self._drop_ins.take_back()
        except OSError as error:
            why = f"cannot be taken back: {error}"
        found = self._drop_ins.look(profile, facts)
        return tuple(replace(each, drop_in=None, why=why) for each in found) if why else found

    def set_for_restart(self, request: RepairRequest) -> tuple[str, str]:
        """Make the drop-ins what the profile wants, right before a reboot; OSError.

        Return what was done in place of the reboot, "" where it goes on, and what went wrong.
        """
        if request.takes_back:
            return "", self._drop_ins.refuse(_FAILED)
        try:
            name = self._name()
            profile = self._load(name) if name else NO_PROFILE
        except CliError as error:
            raise OSError(f"the profile: {error.problems[0].message}") from error
        facts = read_facts(self._host, self._settings.facts)
        done = self._drop_ins.set(profile, facts, request.components)
        if self._settings.mode is TuningMode.APPLY and self._settings.accepted_file:
            self._tune(profile, facts)
        return done


def judge(
    facts: TuningFacts, memory: TuningMemory, at: Moment, *, settings: AgentSettings
) -> Judged[TuningMemory]:
    """Give one fault for all that differs, or could not be restored."""
    del memory
    found = facts.outcome.findings
    differences = tuple(each for each in found if each.state.is_drift)
    not_restored = tuple(each for each in facts.outcome.restored if each.why and not each.is_left)
    observations: list[Observation] = []
    refused = [each.words for each in facts.starts if each.drop_in and each.drop_in.is_refused]
    if differences or not_restored or refused:
        parts = [*refused, *(each.words for each in differences)]
        parts += [f"{each.setting} is not restored: {each.why}" for each in not_restored]
        number = len(differences) + len(not_restored)
        text = f"{number} of {len(found) + len(not_restored)}: {'; '.join(parts)}"
        verdict = steady(settings.tuning.severity, Action.NONE, settings.stable_seconds)
        of = identity(DRIFT, facts.profile or _EARLIER)
        observations.append(observed(of, verdict, text, at))
    observations += _of_restart(facts, settings, at)
    unreadable = tuple(f"{each.setting}: {each.why}" for each in found
                       if each.state is SettingState.UNREADABLE)  # fmt: skip
    is_blind = bool(found) and len(unreadable) == len(found)
    seen = frozenset[str]() if is_blind else None
    unknown = tuple(f"{RESTART}: {each.words}" for each in facts.starts if each.drop_in is None)
    if unknown:  # a fault that asks for a restart of these is neither there nor over
        unreadable = (*unreadable, *unknown)
        known = {each.part.value for each in facts.starts if each.drop_in is not None}
        seen = frozenset(known if is_blind else {facts.profile or _EARLIER, *known})
    return Judged(
        TuningMemory(
            facts.profile, settings.tuning.mode, facts.facts, _values(found),
            differences[:DIFFERENCES_MAX], max(0, len(differences) - DIFFERENCES_MAX),
            tuple(f"{each.setting}: {each.why}" for each in found
                  if each.state is SettingState.NOT_JUDGED)[:DIFFERENCES_MAX],
        ),
        tuple(observations), seen, unreadable=unreadable,
    )  # fmt: skip


def _of_restart(facts: TuningFacts, settings: AgentSettings, at: Moment) -> list[Observation]:
    """Return a fault that asks for a reboot for each drop-in that changes by it."""
    verdict = steady(Severity.INFO, Action.REBOOT, settings.stable_seconds)
    return [
        observed(identity(RESTART, each.part.value), verdict, each.words, at)
        for each in facts.starts if each.needs_restart
    ]  # fmt: skip


def _values(findings: Sequence[TuningFinding]) -> dict[str, str]:
    """Return a value for each setting that has one: of several targets, one that differs."""
    found = {each.setting: each.actual for each in findings if each.actual}
    return found | {each.setting: each.actual for each in findings if each.state.is_drift}


def source(host: Host, settings: AgentSettings) -> SignalSource[TuningFacts, TuningMemory] | None:
    """Return the source; None without a profile and with nothing that was set. CliError."""
    tuned = settings.tuning
    has_drop_ins = (
        tuned.kubelet_directory or tuned.containerd_directory or tuned.kernel_arguments
        or tuned.accepted_file or tuned.ecc_file
    )  # fmt: skip
    if not (tuned.profile or tuned.chosen_file or has_drop_ins or Path(tuned.record).exists()):
        return None
    return SignalSource(
        SOURCE, (DRIFT, RESTART), TuningMemory, TuningReader(host, tuned).read,
        partial(judge, settings=settings), period_seconds=tuned.period_seconds,
    )  # fmt: skip


def restart_setter(
    host: Host, settings: AgentSettings
) -> Callable[[RepairRequest], tuple[str, str]]:  # fmt: skip
    """Return what is called right before a reboot, `TuningReader.set_for_restart`; CliError."""
    return TuningReader(host, settings.tuning).set_for_restart
