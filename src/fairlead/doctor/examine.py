"""Evaluates checks over facts and takes out what is suppressed or already known (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fairlead.doctor.check import Check, Finding, Harm, Passed, Unknown, evaluate
from fairlead.doctor.facts import ClusterFacts

FINDINGS_PER_CHECK_MAX = 20


@dataclass(frozen=True, slots=True)
class Suppression:
    """Takes a check's findings out, or only those of subjects that match, until a day.

    `check` and `subject` are patterns with `*`; `until` is YYYY-MM-DD, the last day.
    """

    check: str
    subject: str
    reason: str
    until: str

    def covers(self, check_id: str, subject: str) -> bool:
        """True when the finding or the unknown check (subject `""`) is meant."""
        return fnmatchcase(check_id, self.check) and fnmatchcase(subject, self.subject)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A result that was taken out, and why."""

    check_id: str
    subject: str
    suppression: Suppression


@dataclass(frozen=True, slots=True)
class ExaminationReport:
    """The results of one run.

    `findings` are in order of harm; at most `FINDINGS_PER_CHECK_MAX` per check, `left_out` counts
    the others by check. `known` is the number of findings that the baseline has. `expired` are
    suppressions that no longer act.
    """

    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    passed: tuple[Passed, ...]
    suppressed: tuple[Suppressed, ...] = ()
    expired: tuple[Suppression, ...] = ()
    known: int = 0
    left_out: Mapping[str, int] | None = None
    nodes: int | None = None
    requests: int = 0

    def exit_code(self, *, allows_unknown: bool = False) -> int:
        """Return 2 for critical findings, 1 for warnings, 3 for unknown checks, else 0."""
        worst = max((finding.severity for finding in self.findings), default=Harm.INFO)
        if worst >= Harm.WARNING:
            return 2 if worst is Harm.CRITICAL else 1
        return 3 if self.unknown and not allows_unknown else 0


@dataclass(frozen=True, slots=True)
class ExamineOptions:
    """What to take out: suppressions as of `today` (YYYY-MM-DD), and keys of known findings."""

    suppressions: Sequence[Suppression] = ()
    today: str = ""
    baseline: Collection[str] = ()
    project_to: int = 0
    requests: int = 0


def select(
    checks: Sequence[Check], only: Collection[str], skip: Collection[str]
) -> tuple[Check, ...]:
    """Return the checks whose ids match a pattern of `only` (all when empty) and none of `skip`."""

    def matches(check: Check, patterns: Collection[str]) -> bool:
        return any(fnmatchcase(check.id, pattern.upper()) for pattern in patterns)

    return tuple(each for each in checks if (not only or matches(each, only)) and not
                 matches(each, skip))  # fmt: skip


def examine(
    checks: Sequence[Check], facts: ClusterFacts, options: ExamineOptions | None = None
) -> ExaminationReport:
    """Return the report of these checks, which are in order of harm."""
    options = options or ExamineOptions()
    findings: list[Finding] = []
    unknown: list[Unknown] = []
    passed: list[Passed] = []
    for check in checks:
        for result in evaluate(check, facts, project_to=options.project_to):
            match result:
                case Finding():
                    findings.append(result)
                case Unknown():
                    unknown.append(result)
                case Passed():
                    passed.append(result)
    active = [each for each in options.suppressions if each.until >= options.today]
    suppressed: list[Suppressed] = []

    def is_suppressed(check_id: str, subject: str) -> bool:
        for each in active:
            if each.covers(check_id, subject):
                suppressed.append(Suppressed(check_id, subject, each))
                return True
        return False

    kept = [each for each in findings if not is_suppressed(each.check.id, each.subject)]
    unseen = [each for each in unknown if not is_suppressed(each.check.id, "")]
    new = [each for each in kept if each.key not in options.baseline]
    shown, left_out = _bounded(new)
    order = {check.id: number for number, check in enumerate(checks)}
    shown.sort(key=lambda each: (-each.severity, order[each.check.id]))
    return ExaminationReport(
        tuple(shown), tuple(unseen), tuple(passed), tuple(suppressed),
        tuple(each for each in options.suppressions if each.until < options.today),
        known=len(kept) - len(new), left_out=left_out, nodes=facts.nodes,
        requests=options.requests,
    )  # fmt: skip


def _bounded(findings: Sequence[Finding]) -> tuple[list[Finding], dict[str, int]]:
    """Return the first findings of each check, and how many of each were left out."""
    counts: Counter[str] = Counter()
    shown: list[Finding] = []
    for finding in findings:
        counts[finding.check.id] += 1
        if counts[finding.check.id] <= FINDINGS_PER_CHECK_MAX:
            shown.append(finding)
    left = {key: count - FINDINGS_PER_CHECK_MAX for key, count in counts.items()}
    return shown, {key: count for key, count in left.items() if count > 0}
