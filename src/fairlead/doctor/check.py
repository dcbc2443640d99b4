"""A check as data, and the three results it can have: findings, unknown, or passed (pure).

A check measures readings (subject, value, evidence) in the facts and compares each value with
levels that may depend on the size of the cluster. Facts that are absent raise `NotSeen`: the result
is then `Unknown`, with the reason and the way to make the facts visible. Unknown is never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from fairlead.api.cluster.cluster_report import ReportCondition
from fairlead.doctor.expressions import Expression
from fairlead.doctor.facts import ClusterFacts, Measure, MeasuredValue, NotSeen, Source
from fairlead.doctor.query import PromQuery


class Harm(IntEnum):
    """How much harm a finding can do; larger is worse."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        """The name in reports."""
        return self.name.lower()


class Side(Enum):
    """On which side of a limit the harm lies."""

    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and its severity, for clusters of at least `nodes_from` nodes."""

    severity: Harm
    limit: float
    nodes_from: int = 0


def critical(limit: float, *, nodes_from: int = 0) -> Limit:
    """Return a critical level."""
    return Limit(Harm.CRITICAL, limit, nodes_from)


def warning(limit: float, *, nodes_from: int = 0) -> Limit:
    """Return a warning level."""
    return Limit(Harm.WARNING, limit, nodes_from)


def info(limit: float, *, nodes_from: int = 0) -> Limit:
    """Return an informational level."""
    return Limit(Harm.INFO, limit, nodes_from)


#: For measures that yield 1 where the fault is present and 0 where it is not.
IS_CRITICAL = (critical(0.5),)
IS_WARNING = (warning(0.5),)
IS_INFO = (info(0.5),)


@dataclass(frozen=True, slots=True)
class Check:
    """One check. The readings are in `unit`; `growth` is the exponent of the cost in the nodes.

    `fix` is a command, a flag or a manifest; `reference` names the rule's source.
    """

    id: str
    title: str
    needs: tuple[Source, ...]
    measure: Measure
    levels: tuple[Limit, ...]
    why: str
    fix: str
    reference: str
    side: Side = Side.ABOVE
    unit: str = ""
    growth: int = 0
    #: The condition of the ClusterReport that its critical findings make true.
    condition: ReportCondition | None = None

    def measured(self, facts: ClusterFacts) -> Iterable[MeasuredValue]:
        """Return the readings; NotSeen. A bare function has said of no sample that it reads it."""
        return self.measure(facts.without_samples if self.expression is None else facts)

    @property
    def expression(self) -> Expression | None:
        """The measure, where it is over samples of pages of metrics."""
        return self.measure if isinstance(self.measure, Expression) else None

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the measure as PromQL; None for what Prometheus does not know."""
        return self.expression.query(jobs) if self.expression else None

    @property
    def worst(self) -> Harm:
        """The severity that the check can reach."""
        return max(level.severity for level in self.levels)

    def level_of(self, value: float, nodes: int) -> Limit | None:
        """Return the most severe level that the value violates on a cluster of that size."""
        for severity in sorted(Harm, reverse=True):
            fitting = [each for each in self.levels
                       if each.severity is severity and each.nodes_from <= nodes]  # fmt: skip
            if not fitting:
                continue
            level = max(fitting, key=lambda each: each.nodes_from)
            if value > level.limit if self.side is Side.ABOVE else value < level.limit:
                return level
        return None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will hurt. `projected` is the value at another number of nodes, or None."""

    check: Check
    severity: Harm
    subject: str
    value: float
    limit: float
    evidence: str
    projected: float | None = None

    @property
    def key(self) -> str:
        """What identifies the finding from one run to the next."""
        return f"{self.check.id}/{self.subject}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A check that could not be evaluated: what was not seen, and how to show it."""

    check: Check
    reason: str
    show: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A check that was evaluated over `readings` values and found nothing."""

    check: Check
    readings: int


Result = Finding | Unknown | Passed


def evaluate(check: Check, facts: ClusterFacts, *, project_to: int = 0) -> tuple[Result, ...]:
    """Return the results of one check: findings in order of harm, or one Unknown or Passed.

    `project_to` is the number of nodes for which values that grow are computed; 0 for none.
    """
    needs_size = any(level.nodes_from for level in check.levels)
    try:
        nodes = facts.nodes_count() if needs_size else facts.nodes or 0
        readings = _readings(check, facts)
    except NotSeen as absent:
        return (Unknown(check, absent.reason, absent.show),)
    findings = [
        Finding(check, level.severity, reading.subject, reading.value, level.limit,
                reading.evidence, projected(check, reading.value, facts.nodes, project_to))
        for reading in readings
        if (level := check.level_of(reading.value, nodes)) is not None
    ]  # fmt: skip
    if not findings:
        return (Passed(check, len(readings)),)
    sign = -1 if check.side is Side.ABOVE else 1
    findings.sort(key=lambda each: (-each.severity, sign * each.value, each.subject))
    return tuple(findings)


def _readings(check: Check, facts: ClusterFacts) -> tuple[MeasuredValue, ...]:
    answer = facts.answers.get(check.id)
    if isinstance(answer, NotSeen):
        raise answer
    return tuple(check.measured(facts)) if answer is None else answer


def projected(check: Check, value: float, nodes: int | None, to: int) -> float | None:
    """Return a value that was measured on `nodes` nodes as it will be on `to`; None where it does
    not grow with them, or a number of nodes is not known.
    """
    if not (to and check.growth and nodes):
        return None
    return value * (to / nodes) ** check.growth
