"""Asks a Prometheus server for its status and rules, and reads files of dashboards and rules."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fairlead.doctor.prometheus.api import BadPrometheusAnswer, PrometheusApi
from fairlead.doctor.prometheus.drops import TsdbSeries
from fairlead.doctor.prometheus.scrape_jobs import ScrapeJob, parse_scrape_jobs
from fairlead.input.plain import json_document, yaml_documents
from fairlead.runtime.exported.metrics_page import parse_page

METRICS_MAX = 10_000
#: Metrics whose jobs are asked for, in so many requests.
EMITTERS_MAX = 500
NAMES_PER_QUERY = 50
_WAL = "prometheus_tsdb_wal_storage_size_bytes"
_REPLAY = "prometheus_tsdb_data_replay_duration_seconds"
_MEMORY = "process_resident_memory_bytes"


class PrometheusReader:
    """Reads one server; BadAnswer, OSError."""

    def __init__(self, api: PrometheusApi) -> None:
        self._api = api

    def series(self) -> TsdbSeries:
        """Return the status of the TSDB, and of its write-ahead log from the page of metrics."""
        status = self._api.data(f"/api/v1/status/tsdb?limit={METRICS_MAX}")
        page = parse_page(self._api.page("/metrics"), (_WAL, _REPLAY, _MEMORY))
        one = {name: next(iter(samples.values())) for name, samples in page.items() if samples}
        head: Any = status.get("headStats") or {}
        return TsdbSeries(
            int(head.get("numSeries") or 0), _counts(status.get("seriesCountByMetricName")),
            _counts(status.get("labelValueCountByLabelName")),
            int(one[_WAL]) if _WAL in one else None, one.get(_REPLAY),
            int(one[_MEMORY]) if _MEMORY in one else None, self._samples_max(),
        )  # fmt: skip

    def _samples_max(self) -> int | None:
        """Return how many samples a query may hold; None where the server does not say."""
        try:
            limit = str(self._api.data("/api/v1/status/flags").get("query.max-samples"))
        except (OSError, BadPrometheusAnswer):  # a proxy, or a server with the same interface
            return None
        return int(limit) if limit.isdecimal() else None

    def scrape_jobs(self) -> tuple[ScrapeJob, ...]:
        """Return what the server is configured to scrape; ValueError."""
        return parse_scrape_jobs(str(self._api.data("/api/v1/status/config").get("yaml")))

    def rules(self) -> list[str]:
        """Return the expressions of all rules that the server evaluates."""
        groups: Any = self._api.data("/api/v1/rules").get("groups") or []
        return [str(rule.get("query") or "") for group in groups
                for rule in group.get("rules") or ()]  # fmt: skip

    def jobs(self, metrics: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return series by metric and job, of the first metrics that the bound allows."""
        names = list(metrics)[:EMITTERS_MAX]
        found: dict[str, dict[str, int]] = {}
        for start in range(0, len(names), NAMES_PER_QUERY):
            regex = "|".join(names[start : start + NAMES_PER_QUERY])
            query = f'count by (__name__, job) ({{__name__=~"{regex}"}})'
            path = f"/api/v1/query?query={urllib.parse.quote(query)}"
            for each in self._api.data(path).get("result") or ():
                labels: Any = each.get("metric") or {}
                count = int(float(each["value"][1]))
                found.setdefault(labels.get("__name__", ""), {})[labels.get("job", "")] = count
        return found


def _counts(entries: Any) -> dict[str, int]:
    return {str(each["name"]): int(each["value"]) for each in entries or ()}


def expressions_of(path: Path) -> list[str]:
    """Return the expressions of a file or directory; OSError, ValueError.

    Read are Grafana dashboards (JSON), rule files, PrometheusRule objects and objects with metric
    names such as HorizontalPodAutoscaler (YAML), and lists of queries (other names, one a line).
    """
    if path.is_dir():
        return [each for file in sorted(path.rglob("*")) if file.is_file()
                for each in expressions_of(file)]  # fmt: skip
    text = path.read_text(errors="replace")
    if path.suffix == ".json":
        return list(_expressions(json_document(text)))
    if path.suffix in (".yaml", ".yml"):
        return [each for document in yaml_documents(text) for each in _expressions(document)]
    return [line for line in text.splitlines() if line.strip()]


def _expressions(value: Any) -> Iterator[str]:
    """Yield every expression in a tree: `expr`, `query`, `definition`, names of metrics."""
    if isinstance(value, list):
        for each in value:
            yield from _expressions(each)
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        if isinstance(each, str) and key in ("expr", "query", "definition", "metricName"):
            yield each
        elif key == "metric" and isinstance(each, dict) and isinstance(each.get("name"), str):
            yield each["name"]
        yield from _expressions(each)
