"""What a Prometheus server answers to the checks over metrics (pure).

A page of metrics goes first: it is fresh, and has all series. Prometheus answers where the page was
not read or says nothing, where it sees more instances of the component, and for what happens rarely
(`is_rare`), of which two scrapes in ten seconds see nothing.

Series that are absent are unknown, even of metrics that exist from their first event on: a relabel
rule may have dropped them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from fairlead.doctor.check import Check, MeasuredValue
from fairlead.doctor.expressions import Expression, subject_of
from fairlead.doctor.facts import ClusterFacts, NotSeen
from fairlead.doctor.metrics import Family, Scrapes
from fairlead.doctor.prometheus.api import BadPrometheusAnswer
from fairlead.doctor.query import PromQuery
from fairlead.runtime.exported.metrics_page import Labels
from fairlead.terminal import printable

SAMPLES_MAX = 50_000
#: The label that tells the parts of one answer apart.
_PART = "fairlead_part"
_VALUE, _COUNT, _SEEN = "value", "count", "seen"


class PromSample(msgspec.Struct, frozen=True):
    """One sample of an instant vector: labels, and (time, value as text)."""

    metric: dict[str, str]
    value: tuple[float, str]

    @property
    def number(self) -> float:
        """The value; BadAnswer."""
        try:
            return float(self.value[1])
        except ValueError as error:
            raise BadPrometheusAnswer(f"'{printable(self.value[1], 40)}' is not a value") from error


def vector(data: Mapping[str, Any]) -> list[PromSample]:
    """Return the samples of an answer to an instant query; BadAnswer."""
    if data.get("resultType") != "vector":
        raise BadPrometheusAnswer("the answer is not an instant vector")
    result: Any = data.get("result")
    if not isinstance(result, list) or len(result) > SAMPLES_MAX:  # pyright: ignore[reportUnknownArgumentType] # JSON
        raise BadPrometheusAnswer(f"the answer is no list of at most {SAMPLES_MAX:,} samples")
    try:
        return msgspec.convert(result, list[PromSample])
    except msgspec.ValidationError as error:
        raise BadPrometheusAnswer(f"the answer is not an instant vector: {error}") from error


def seen_directly(check: Check, facts: ClusterFacts) -> tuple[MeasuredValue, ...] | NotSeen:
    """Return what a check reads in the pages, or why it sees nothing there."""
    try:
        return tuple(check.measured(facts))
    except NotSeen as absent:
        return absent


def is_to_answer(
    check: Check, direct: tuple[MeasuredValue, ...] | NotSeen, *, pages: int, instances: int
) -> bool:
    """True when Prometheus is to answer: it scrapes `instances`, and `pages` were read."""
    has_few = isinstance(direct, NotSeen) or not direct or instances > pages
    return has_few or (check.expression is not None and check.expression.is_rare)


def promql(query: PromQuery) -> str:
    """Return the query with the number of observations and what is seen, each part labelled."""
    parts = {_VALUE: query.value, _COUNT: query.count, _SEEN: query.seen}
    return " or ".join(
        f'label_replace({text}, "{_PART}", "{part}", "", "")'
        for part, text in parts.items()
        if text
    )


def readings(
    measure: Expression, query: PromQuery, samples: Iterable[PromSample], origin: str
) -> tuple[MeasuredValue, ...] | None:
    """Return the readings of an answer to `promql(query)`; None: there are no such series."""
    parts: dict[str, dict[str, float]] = {_VALUE: {}, _COUNT: {}, _SEEN: {}}
    for sample in samples:
        part = parts.get(sample.metric.get(_PART, ""))
        if part is None:
            raise BadPrometheusAnswer("the answer has samples that were not asked for")
        subject = subject_of(sample.metric.get("instance", ""), sample.metric, query.by)
        part[printable(subject.strip() or "no instance")] = sample.number
    values, counts = parts[_VALUE], parts[_COUNT]
    if not any(parts.values()):
        return None
    return tuple(
        MeasuredValue(
            subject, value, f"{measure.said(value, counts.get(subject, 0.0))}, from {origin}"
        )
        for subject, value in measure.completed(values, counts).items()
        if not math.isnan(value) and counts.get(subject, 0.0) >= query.count_min
    )


def gauges(samples: Iterable[PromSample]) -> tuple[Scrapes, ...]:
    """Return series as scrapes of their instances; they give values and no rates."""
    found: dict[str, dict[str, dict[Labels, float]]] = {}
    for sample in samples:
        labels = {key: printable(value) for key, value in sample.metric.items()}
        name = labels.pop("__name__", "")
        families = found.setdefault(labels.get("instance", "no instance"), {})
        families.setdefault(name, {})[tuple(sorted(labels.items()))] = sample.number
    return tuple(
        Scrapes(instance, {name: Family(now) for name, now in families.items()})
        for instance, families in sorted(found.items())
    )


def measured(
    check: Check, facts: ClusterFacts, scrapes: tuple[Scrapes, ...], origin: str
) -> tuple[MeasuredValue, ...] | None:
    """Return the readings of a measure that is a function, over these scrapes; None: not seen."""
    found = seen_directly(check, replace(facts, scrapes={check.needs[0]: scrapes}))
    if isinstance(found, NotSeen):
        return None
    return tuple(replace(each, evidence=f"{each.evidence}, from {origin}") for each in found)
