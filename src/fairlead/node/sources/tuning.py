"""Settings of the machine that are not as its profile says: one fault, with the differences.

In mode `apply` the read also sets what differs and takes effect at once. Without a profile it
restores what an earlier one had set. Nothing else of the agent changes the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from fairlead.api.cluster.node_report import SettingState, TuningMode
from fairlead.input.errors import CliError
from fairlead.input.sections import read_text
from fairlead.model.health.faults import Action, Moment, Observation, identity, observed, steady
from fairlead.node.host import Absent, Host
from fairlead.node.settings import AgentSettings, TuningSettings
from fairlead.node.source import Judged, SignalSource
from fairlead.node.tuning import (
    ReadyProfile,
    TuningFinding,
    TuningOutcome,
    parse_profile,
    profile_path,
    read_facts,
    restore,
    tune,
    verify,
)

SOURCE, DRIFT = "tuning", "tuning-drift"
#: Differences that are kept for the report.
DIFFERENCES_MAX = 64


@dataclass(frozen=True, slots=True)
class TuningFacts:
    """The profile's name, what the machine is like, and the facts that are known."""

    profile: str
    outcome: TuningOutcome
    facts: dict[str, int]


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
        self._host = host
        self._settings = settings
        self._record = Path(settings.record)
        self._text = ""
        self._profile: ReadyProfile | None = None
        if settings.profile:
            self._path = profile_path(settings.profile)
            self._load()

    def _load(self) -> ReadyProfile:
        """Return the profile; CliError when it is wrong, or not there."""
        text = read_text(self._path)
        if self._profile is None or text != self._text:
            self._profile = parse_profile(text, str(self._path))
            self._text = text
        return self._profile

    def read(self) -> TuningFacts:
        """Compare, and set or restore where that is asked for; Absent, OSError.

        A profile that is wrong or not there is no reason to restore anything: nothing is changed.
        """
        if not self._settings.profile:
            restored = restore(self._host, record=self._record)
            if all(each.is_left or not each.why for each in restored.restored):
                raise Absent("tuning.profile is not set")
            return TuningFacts("", restored, {})
        try:
            profile = self._load()
        except CliError as error:
            problem = error.problems[0]
            raise OSError(f"the profile: {problem.where} {problem.message}") from error
        facts = read_facts(self._host, self._settings.facts)
        if self._settings.mode is TuningMode.APPLY:
            outcome = tune(self._host, profile, facts, record=self._record)
        else:
            outcome = TuningOutcome(verify(self._host, profile, facts))
        return TuningFacts(profile.profile.name, outcome, facts)


def judge(
    facts: TuningFacts, memory: TuningMemory, at: Moment, *, settings: AgentSettings
) -> Judged[TuningMemory]:
    """Give one fault for all that differs, or could not be restored."""
    del memory
    found = facts.outcome.findings
    differences = tuple(each for each in found if each.state.is_drift)
    not_restored = tuple(each for each in facts.outcome.restored if each.why and not each.is_left)
    observations: list[Observation] = []
    if differences or not_restored:
        parts = [each.words for each in differences]
        parts += [f"{each.setting} is not restored: {each.why}" for each in not_restored]
        number = len(differences) + len(not_restored)
        text = f"{number} of {len(found) + len(not_restored)}: {'; '.join(parts)}"
        verdict = steady(settings.tuning.severity, Action.NONE, settings.stable_seconds)
        of = identity(DRIFT, facts.profile or "earlier profile")
        observations.append(observed(of, verdict, text, at))
    unreadable = tuple(f"{each.setting}: {each.why}" for each in found
                       if each.state is SettingState.UNREADABLE)  # fmt: skip
    is_blind = bool(found) and len(unreadable) == len(found)
    return Judged(
        TuningMemory(
            facts.profile, settings.tuning.mode, facts.facts, _values(found),
            differences[:DIFFERENCES_MAX], max(0, len(differences) - DIFFERENCES_MAX),
            tuple(f"{each.setting}: {each.why}" for each in found
                  if each.state is SettingState.NOT_JUDGED)[:DIFFERENCES_MAX],
        ),
        tuple(observations), frozenset() if is_blind else None, unreadable=unreadable,
    )  # fmt: skip


def _values(findings: Sequence[TuningFinding]) -> dict[str, str]:
    """Return a value for each setting that has one: of several targets, one that differs."""
    found = {each.setting: each.actual for each in findings if each.actual}
    return found | {each.setting: each.actual for each in findings if each.state.is_drift}


def source(host: Host, settings: AgentSettings) -> SignalSource[TuningFacts, TuningMemory] | None:
    """Return the source; None without a profile and with nothing that was set. CliError."""
    tuned = settings.tuning
    if not tuned.profile and not Path(tuned.record).exists():
        return None
    return SignalSource(
        SOURCE, (DRIFT,), TuningMemory, TuningReader(host, tuned).read,
        partial(judge, settings=settings), period_seconds=tuned.period_seconds,
    )  # fmt: skip
