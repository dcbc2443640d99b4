"""Asks Prometheus what the pages of metrics did not tell; an instant query for each check.

The number of requests is bounded by the checks, their size by what each answer may have, and the
time by one deadline for all of them; a check that is not asked in time is unknown.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fairlead.doctor.check import Check, MeasuredValue
from fairlead.doctor.facts import ClusterFacts, NotSeen, Source
from fairlead.doctor.metrics import Scrapes
from fairlead.doctor.prometheus.answers import (
    PromSample,
    gauges,
    is_to_answer,
    measured,
    promql,
    readings,
    seen_directly,
    vector,
)
from fairlead.doctor.prometheus.api import BadPrometheusAnswer, PrometheusApi, server_get
from fairlead.doctor.prometheus.reader import PrometheusReader
from fairlead.doctor.query import JOBS, selected
from fairlead.doctor.registry import gauges_of_functions
from fairlead.doctor.sources import METRIC_SOURCES
from fairlead.runtime.outside.fetch import TooMuch, Web
from fairlead.terminal import printable

SECONDS_MAX, QUERY_SECONDS_MAX = 60.0, 15.0
Answers = dict[str, "tuple[MeasuredValue, ...] | NotSeen"]


def parse_jobs(given: Sequence[str]) -> dict[Source, str]:
    """Return the pattern of the label `job` by source, from SOURCE=REGEX; ValueError."""
    jobs = dict(JOBS)
    for text in given:
        name, _, pattern = text.partition("=")
        if name not in METRIC_SOURCES or not pattern:
            raise ValueError(f"'{text}' is not SOURCE=REGEX")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is no pattern: {error}") from error
        jobs[METRIC_SOURCES[name]] = pattern
    return jobs


class PrometheusAnswers:
    """Reads one server. `jobs` are patterns of the label `job` by source."""

    def __init__(
        self, url: str, web: Web, clock: Callable[[], float], jobs: Mapping[Source, str] = JOBS
    ) -> None:
        """`clock` gives seconds, for the deadline."""
        self._origin = f"Prometheus at {url}"
        self._clock = clock
        self._jobs = jobs
        self._gauges: dict[Source, tuple[Scrapes, ...]] = {}
        self._ends = clock() + SECONDS_MAX
        self._api = PrometheusApi(server_get(url, web, seconds_left=self._seconds_left))

    @property
    def requests(self) -> int:
        """How many were sent."""
        return self._api.requests

    def with_status(self, checks: Sequence[Check], facts: ClusterFacts) -> ClusterFacts:
        """Return the facts with the server's status and configuration, if one of the checks asks.

        What the server does not give is absent.
        """
        if not any(Source.RECORDED in check.needs for check in checks):
            return facts
        reader = PrometheusReader(self._api)
        try:
            facts = replace(facts, series=reader.series())
            return replace(facts, scrape_jobs=reader.scrape_jobs())
        except (
            BadPrometheusAnswer, OSError, ValueError, KeyError, TypeError, AttributeError,
        ) as error:  # fmt: skip
            reason = f"{Source.RECORDED.value}: {self._origin}: {str(error)[:300]}"
            return replace(facts, absent={**facts.absent, Source.RECORDED: reason})

    def read(self, checks: Sequence[Check], facts: ClusterFacts) -> Answers:
        """Return the answers to those checks that Prometheus is to answer."""
        over_metrics = [(check, source) for check in checks
                        for source in check.needs[:1] if source in self._jobs]  # fmt: skip
        if not over_metrics:
            return {}
        failure, instances = "", dict[Source, int]()
        try:
            instances = self._instances()
        except (BadPrometheusAnswer, OSError) as error:
            failure = printable(str(error), 300)
        found: Answers = {}
        for check, source in over_metrics:
            direct = seen_directly(check, facts)
            pages, count = len(facts.scrapes.get(source, ())), instances.get(source, 0)
            if not is_to_answer(check, direct, pages=pages, instances=count):
                continue
            job = self._jobs[source]
            refusal = "" if count else failure or f"no job that is up matches {job}; see --job"
            try:
                answer = self._answer(check, source, facts, refusal)
            except (BadPrometheusAnswer, OSError) as error:
                if isinstance(direct, NotSeen):
                    reason = f"{direct.reason}; {self._origin}: {printable(str(error), 300)}"
                    found[check.id] = NotSeen(source, reason)
                continue
            if answer or isinstance(direct, NotSeen):
                found[check.id] = answer
        return found

    def _instances(self) -> dict[Source, int]:
        """Return how many instances of each source are up."""
        pattern = "|".join(sorted({f"({each})" for each in self._jobs.values()}))
        up = selected("up", pattern)
        counted = self._ask(f"count by (job) (count by (job, instance) ({up} == 1))")
        counts = [(each.metric.get("job", ""), each.number) for each in counted]
        if not all(math.isfinite(count) for _, count in counts):
            raise BadPrometheusAnswer("the number of instances is not a number")
        return {
            source: int(sum(count for name, count in counts if re.fullmatch(job, name)))
            for source, job in self._jobs.items()
        }

    def _answer(
        self, check: Check, source: Source, facts: ClusterFacts, refusal: str
    ) -> tuple[MeasuredValue, ...]:
        """Return the readings of a check; BadAnswer, which a refusal is from the start, OSError."""
        if refusal:
            raise BadPrometheusAnswer(refusal)
        query, expression = check.query(self._jobs), check.expression
        if query is None or expression is None:
            answer = measured(check, facts, self._more(source), self._origin)
        else:
            answer = readings(expression, query, self._ask(promql(query)), self._origin)
        if answer is None:
            raise BadPrometheusAnswer("it has no such series")
        return answer

    def _more(self, source: Source) -> tuple[Scrapes, ...]:
        """Return the series that checks read whose measure is a function."""
        if source not in self._gauges:
            names = "|".join(sorted(gauges_of_functions(source)))
            job = json.dumps(self._jobs[source])
            samples = self._ask(f'{{__name__=~"{names}", job=~{job}}}') if names else []
            self._gauges[source] = gauges(samples)
        return self._gauges[source]

    def _ask(self, query: str) -> list[PromSample]:
        arguments = {"query": query, "timeout": f"{QUERY_SECONDS_MAX:g}s"}
        return vector(self._api.data(f"/api/v1/query?{urllib.parse.urlencode(arguments)}"))

    def _seconds_left(self) -> float:
        left = self._ends - self._clock()
        if left <= 0:
            raise TooMuch(f"the {SECONDS_MAX:g} s for its answers are over")
        return min(left, QUERY_SECONDS_MAX)
