"""Expressions over metrics: data that says how readings follow from scrapes (pure).

Each form is one class: what it reads, how, how a Prometheus is asked for it, and what is said of
the value. Values of several instances are never averaged: each gives readings of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import ClassVar

from fairlead.doctor.facts import ClusterFacts, Measure, MeasuredValue, Source
from fairlead.doctor.metrics import Family, quantile
from fairlead.doctor.query import LONG, RATE, Match, PromQuery, any_rate, selected, summed

NO_LABELS: tuple[str, ...] = ()
MEDIAN = 0.5
#: Observations of which at least the median says something.
FEW_MIN = 20


def _matches(labels: dict[str, str], match: Match) -> bool:
    return all(labels.get(key, "") in values for key, values in match)


def subject_of(instance: str, labels: Mapping[str, str], by: tuple[str, ...]) -> str:
    """Return what a reading is about: the instance, and the labels that it has of `by`."""
    parts = [f"{key}={labels[key]}" for key in by if labels.get(key)]
    return " ".join([instance, *parts])


def _sums(
    instance: str, samples: Iterable[tuple[dict[str, str], float]], by: tuple[str, ...]
) -> dict[str, float]:
    """Return the sums of the samples of an instance by what the readings are about."""
    sums: dict[str, float] = {}
    for labels, value in samples:
        subject = subject_of(instance, labels, by)
        sums[subject] = sums.get(subject, 0.0) + value
    return sums


def _window(family: Family) -> str:
    if family.seconds is None:
        return "since the process started"
    if not family.before:
        return f"over the {family.seconds:,.0f} s since the process started"
    return f"over {family.seconds:,.1f} s"


class Expression(ABC):
    """A measure over samples of pages of metrics."""

    __slots__ = ()
    #: It measures what happens so rarely that two scrapes in ten seconds see nothing of it.
    is_rare: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, facts: ClusterFacts) -> Iterable[MeasuredValue]:
        """Return the readings in what was seen; NotSeen."""

    @abstractmethod
    def samples(self) -> tuple[tuple[Source, str], ...]:
        """Return the (source, sample name) pairs that are read."""

    @abstractmethod
    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return it as PromQL; None for what Prometheus does not know."""

    @abstractmethod
    def said(self, value: float, count: float) -> str:
        """Return the sentence for a value of the query over `count` observations."""

    def completed(self, values: dict[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a query by subject, with those that the absence of series means."""
        del counts
        return values


@dataclass(frozen=True, slots=True)
class _OfMetric(Expression):
    """An expression over one metric of a source."""

    source: Source
    name: str

    def samples(self) -> tuple[tuple[Source, str], ...]:
        """Return its metric."""
        return ((self.source, self.name),)


@dataclass(frozen=True, slots=True)
class Gauge(_OfMetric):
    """The latest value of a gauge, summed by the labels `by`."""

    by: tuple[str, ...] = NO_LABELS

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per instance and group."""
        for instance, family in facts.family(self.source, self.name):
            for subject, value in _sums(instance, family.values(), self.by).items():
                yield MeasuredValue(subject, value, f"{self.name} = {value:,.4g}")

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the sum now."""
        return PromQuery(summed(self.by, selected(self.name, jobs[self.source])), self.by)

    def said(self, value: float, count: float) -> str:
        """Return name and value."""
        return f"{self.name} = {value:,.4g}"


@dataclass(frozen=True, slots=True)
class OwnGauge(Gauge):
    """A gauge that a reader of ours adds to the page of a source."""

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return None: no Prometheus has it."""


@dataclass(frozen=True, slots=True)
class Ratio(_OfMetric):
    """One gauge over another of the same instance and group; groups without a divisor are left."""

    over: str
    by: tuple[str, ...] = NO_LABELS

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per instance and group."""
        divisors: dict[str, float] = {}
        for instance, family in facts.family(self.source, self.over):
            divisors |= _sums(instance, family.values(), self.by)
        for reading in Gauge(self.source, self.name, self.by)(facts):
            divisor = divisors.get(reading.subject, 0.0)
            if divisor > 0:
                text = f"{self.name} {reading.value:,.4g} of {self.over} {divisor:,.4g}"
                yield MeasuredValue(reading.subject, reading.value / divisor, text)

    def samples(self) -> tuple[tuple[Source, str], ...]:
        """Return both metrics."""
        return ((self.source, self.name), (self.source, self.over))

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the quotient of the sums, where there is a divisor."""
        part, over = (
            summed(self.by, selected(name, jobs[self.source])) for name in (self.name, self.over)
        )
        return PromQuery(f"{part} / ({over} > 0)", self.by)

    def said(self, value: float, count: float) -> str:
        """Return the quotient."""
        return f"{self.name} / {self.over} = {value:,.4g}"


@dataclass(frozen=True, slots=True)
class PerSecond(_OfMetric):
    """The rate per second of a counter, summed by the labels `by`."""

    by: tuple[str, ...] = NO_LABELS
    match: Match = ()
    is_lazy: bool = False

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per instance and group; NotSeen without two scrapes or a start time."""
        for instance, family in facts.family(self.source, self.name, is_lazy=self.is_lazy):
            if not family.seconds:
                raise facts.missing(self.source, f"{self.name}: one scrape gives no rate")
            rises = (
                (labels, increase / family.seconds)
                for labels, increase in family.increases()
                if _matches(labels, self.match)
            )
            for subject, rate in _sums(instance, rises, self.by).items():
                yield MeasuredValue(subject, rate, f"{self.name}: {rate:,.4g} /s {_window(family)}")

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the sum of the rates."""
        job = jobs[self.source]
        rate = f"rate({selected(self.name, job, self.match)}[{RATE}])"
        seen = any_rate(self.name, job) if self.match else ""
        return PromQuery(summed(self.by, rate), self.by, seen=seen)

    def said(self, value: float, count: float) -> str:
        """Return the rate and its window."""
        return f"{self.name}: {value:,.4g} /s over {RATE}"


@dataclass(frozen=True, slots=True)
class Increase(_OfMetric):
    """How much a counter rose, summed by the labels `by`, with the largest possible window."""

    is_rare = True
    by: tuple[str, ...] = NO_LABELS

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per instance and group."""
        for instance, family in facts.family(self.source, self.name):
            for subject, rise in _sums(instance, family.increases(), self.by).items():
                yield MeasuredValue(subject, rise, f"{self.name}: +{rise:,.4g} {_window(family)}")

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the sum of the increases in a long window."""
        rise = f"increase({selected(self.name, jobs[self.source])}[{LONG}])"
        return PromQuery(summed(self.by, rise), self.by)

    def said(self, value: float, count: float) -> str:
        """Return the increase and its window."""
        return f"{self.name}: +{value:,.4g} over {LONG}"


@dataclass(frozen=True, slots=True)
class CodeShare(_OfMetric):
    """The share of a counter's samples whose label `label` begins with `prefix`, by `by`.

    Groups with fewer than `count_min` events are too small to give a share.
    """

    label: str
    prefix: str
    by: tuple[str, ...] = NO_LABELS
    count_min: float = 50.0

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per instance and group."""
        for instance, family in facts.family(self.source, self.name):
            rises = list(family.increases())
            is_bad = [labels.get(self.label, "").startswith(self.prefix) for labels, _ in rises]
            bad = _sums(instance, compress(rises, is_bad), self.by)
            for subject, total in _sums(instance, rises, self.by).items():
                if total >= self.count_min:
                    count = bad.get(subject, 0.0)
                    text = (f"{count:,.0f} of {total:,.0f} in {self.name} have {self.label} "
                            f"{self.prefix}, {_window(family)}")  # fmt: skip
                    yield MeasuredValue(subject, count / total, text)

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the share of the rates, and how many events there were."""
        bad = f"{self.label}=~{json.dumps(self.prefix + '.*')}"
        job = jobs[self.source]
        every = selected(self.name, job)
        part = summed(self.by, f"rate({selected(self.name, job, (), bad)}[{RATE}])")
        whole = summed(self.by, f"rate({every}[{RATE}])")
        count = summed(self.by, f"increase({every}[{RATE}])")
        return PromQuery(f"{part} / {whole}", self.by, count, self.count_min)

    def said(self, value: float, count: float) -> str:
        """Return the share, of how many, and the window."""
        return (f"{value * 100:.3g} % of {count:,.0f} in {self.name} have {self.label} "
                f"{self.prefix}, over {RATE}")  # fmt: skip

    def completed(self, values: dict[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Return 0 where no series has a bad code: none was counted."""
        return dict.fromkeys(counts, 0.0) | values


@dataclass(frozen=True, slots=True)
class Quantile(_OfMetric):
    """A quantile of a histogram `name` (without `_bucket`), by the labels `by`.

    One slow request is no p99: of fewer than `count_min` observations a high quantile is taken as
    the median, which it cannot be below, and groups of very few are left out. What is slow does
    little, so a slow disk has few observations.
    """

    q: float = 0.99
    by: tuple[str, ...] = NO_LABELS
    match: Match = ()
    count_min: float = 100.0
    is_lazy: bool = False

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Yield a reading per instance and group that has enough observations."""
        for instance, family in facts.family(
            self.source, f"{self.name}_bucket", is_lazy=self.is_lazy
        ):
            groups: dict[str, dict[float, float]] = {}
            for labels, increase in family.increases():
                if "le" in labels and _matches(labels, self.match):
                    bound = float(labels["le"])
                    group = groups.setdefault(subject_of(instance, labels, self.by), {})
                    group[bound] = group.get(bound, 0.0) + increase
            for subject, buckets in groups.items():
                count = max(buckets.values(), default=0.0)
                is_few = self.q > MEDIAN and FEW_MIN <= count < self.count_min
                q = MEDIAN if is_few else self.q
                value = quantile(buckets.items(), q)
                if value is not None and (is_few or count >= self.count_min):
                    text = (f"p{q * 100:g} of {self.name} is {value:.4g} s in {count:,.0f} "
                            f"observations {_window(family)}")  # fmt: skip
                    yield MeasuredValue(subject, value, text)

    def samples(self) -> tuple[tuple[Source, str], ...]:
        """Return the buckets."""
        return ((self.source, f"{self.name}_bucket"),)

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the quantile, and how many observations there were."""
        name, job, whole = f"{self.name}_bucket", jobs[self.source], 'le="+Inf"'
        rates = f"rate({selected(name, job, self.match)}[{RATE}])"
        count = f"increase({selected(name, job, self.match, whole)}[{RATE}])"
        return PromQuery(
            f"histogram_quantile({self.q:g}, {summed((*self.by, 'le'), rates)})", self.by,
            summed(self.by, count), self.count_min,
            any_rate(name, job, whole) if self.match else "",
        )  # fmt: skip

    def said(self, value: float, count: float) -> str:
        """Return the quantile, of how many, and the window."""
        return (f"p{self.q * 100:g} of {self.name} is {value:.4g} s in {count:,.0f} "
                f"observations over {RATE}")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded(Expression):
    """What only a Prometheus knows that has scraped `source` for a while: PromQL, evaluated now.

    `$job` in it stands for the regular expression over the label `job` of the source. The query
    compares with no limit: where it has no samples, its metrics are not scraped.
    """

    source: Source
    text: str
    by: tuple[str, ...] = NO_LABELS

    def __call__(self, facts: ClusterFacts) -> Iterator[MeasuredValue]:
        """Raise NotSeen: two scrapes are no history."""
        raise facts.missing(Source.RECORDED, "only its records of hours show this")

    def samples(self) -> tuple[tuple[Source, str], ...]:
        """Return none: no page is read."""
        return ()

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return the query over the source's job."""
        job = json.dumps(jobs[self.source])[1:-1]
        return PromQuery(self.text.replace("$job", job), self.by)

    def said(self, value: float, count: float) -> str:
        """Return the value."""
        return f"{value:,.4g}"


def over_the_others(
    rates: Mapping[str, float], what: str, *, least: float
) -> Iterator[MeasuredValue]:
    """Yield each instance's rate over the mean of the others; 0 for a rate below `least`."""
    for instance, rate in rates.items():
        others = (sum(rates.values()) - rate) / max(len(rates) - 1, 1)
        is_busy = len(rates) > 1 and rate >= least
        text = f"{rate:,.0f} {what} a second, the others {others:,.0f} on average"
        yield MeasuredValue(instance, rate / max(others, 1.0) if is_busy else 0.0, text)


@dataclass(frozen=True, slots=True)
class Function(Expression):
    """A measure that is a function, with the samples that it reads: of gauges the latest value, of
    counters two scrapes. It sees no others: what no check reads is not kept of a page.
    """

    function: Measure
    gauges: tuple[tuple[Source, str], ...]
    counters: tuple[tuple[Source, str], ...]

    def __call__(self, facts: ClusterFacts) -> Iterable[MeasuredValue]:
        """Return what the function reads."""
        readable = frozenset((*self.gauges, *self.counters))
        return self.function(replace(facts, readable=readable))

    def samples(self) -> tuple[tuple[Source, str], ...]:
        """Return what it said that it reads."""
        return (*self.gauges, *self.counters)

    def query(self, jobs: Mapping[Source, str]) -> PromQuery | None:
        """Return None: it is evaluated over the series themselves."""

    def said(self, value: float, count: float) -> str:
        """Return the value; no query asks for it."""
        return f"{value:,.4g}"


def reads(
    source: Source, *, gauges: Sequence[str] = (), counters: Sequence[str] = ()
) -> Callable[[Measure], Function]:
    """Say which samples of a source a function reads."""

    def of(measure: Measure) -> Function:
        before = measure if isinstance(measure, Function) else Function(measure, (), ())
        return replace(
            before,
            gauges=(*before.gauges, *((source, name) for name in gauges)),
            counters=(*before.counters, *((source, name) for name in counters)),
        )

    return of
