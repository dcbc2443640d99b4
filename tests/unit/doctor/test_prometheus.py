"""Series that nothing uses are found, and the rules that drop them are replayed."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.main import guarded
from fairlead.doctor.prometheus.drops import (
    TsdbSeries,
    drop_rules,
    large,
    replay,
    unfinished,
    unused,
)
from fairlead.doctor.prometheus.promql import uses_of
from fairlead.doctor.prometheus.reader import expressions_of


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up", {"up"}),
        ('sum by (job, le) (rate(http_bucket{code=~"5.."}[5m])) / on(job) group_left(x) total',
         {"http_bucket", "total"}),
        ("histogram_quantile(0.99, sum(rate(a_bucket[5m])) by (le)) > 0.5 # b", {"a_bucket"}),
        ("node:cpu:rate5m offset 5m and ignoring(x) c", {"node:cpu:rate5m", "c"}),
        ('{__name__="d", job="x"}', {"d"}), ('{"e.f", job="x"}', {"e.f"}),
        ("label_values(g{a=\"b\"}, instance)", {"g", "instance"}),
        ("topk(5, h) unless bool_x", {"h", "bool_x"}), ("sum without(a, b) (i)", {"i"}),
        ('count_values("version", j) or absent(k{l="m"})', {"j", "k"}),
    ],
)  # fmt: skip
def test_the_metrics_of_an_expression_are_read(expression: str, names: set[str]) -> None:
    assert uses_of([expression]).names == names


def test_patterns_and_variables_count_as_use() -> None:
    uses = uses_of(['{__name__=~"node_.*"}', "rate(app_${metric}_total[5m])", '{__name__!="x"}'])
    assert uses.uses("node_load1")
    assert uses.uses("app_errors_total")
    assert uses_of(['{__name__=~"node_.*"}']).uses("app_total") is False
    assert uses_of(['{__name__=~"("}']).uses("anything"), "a pattern that is none may mean all"


def test_a_selector_without_a_name_is_reported() -> None:
    assert uses_of(['{job="x"}', 'a{job="x"}']).unnamed == ('{job="x"}',)


@given(st.text(max_size=60))
def test_no_text_is_a_mistake(text: str) -> None:
    uses_of([text])


names = st.sampled_from([f"m{n}" for n in range(12)] + ["up", "a:b", "scrape_samples_scraped"])


@given(st.dictionaries(names, st.integers(1, 10**6)), st.sets(names))
def test_rules_never_drop_what_is_used_and_the_saving_is_what_goes(
    counts: dict[str, int], used: set[str]
) -> None:
    series = TsdbSeries(sum(counts.values()), counts)
    uses = uses_of(sorted(used))
    candidates = unused(series, uses)
    jobs = {name: {"a": count - count // 3, "b": count // 3} for name, count in counts.items()}
    rules = drop_rules(candidates, jobs)
    plan = replay(series, jobs, rules, uses)
    assert plan.broken == ()
    assert plan.dropped == sum(candidates.values())
    assert plan.left == series.total - plan.dropped
    for rule in rules:
        assert all(not re.fullmatch(rule.regex, each) for each in used)


def test_a_rule_that_would_drop_a_used_metric_is_noticed() -> None:
    series = TsdbSeries(10, {"a": 4, "b": 6})
    jobs = {"a": {"x": 4}, "b": {"x": 6}}
    rules = drop_rules({"a": 4, "b": 6}, jobs)
    assert replay(series, jobs, rules, uses_of(["rate(b[5m])"])).broken == ("b",)


def test_large_metrics_and_labels_are_named() -> None:
    series = TsdbSeries(100_000, {"big": 50_000, "small": 10}, {"id": 20_000, "job": 5})
    assert [each[0] for each in large(series)] == ["big", "id"]


def test_queries_that_cannot_finish_are_named_with_their_samples() -> None:
    series = TsdbSeries(100, {"big": 60, "small": 9, "big_too": 31}, samples_max=50_000)
    expressions = ["sum(rate(small[5m]))", "big / small", '{__name__=~"big.*"}', "absent_total"]
    assert unfinished(series, expressions) == [
        ('{__name__=~"big.*"}', 91_000),
        ("big / small", 69_000),
    ]
    assert unfinished(TsdbSeries(100, {"big": 60}), expressions) == [], "the limit is not known"


def test_expressions_come_from_dashboards_rules_autoscalers_and_lists(tmp_path: Path) -> None:
    board = {"panels": [{"targets": [{"expr": "a"}]}, {"panels": [{"targets": [{"expr": "b"}]}]}],
             "templating": {"list": [{"query": {"query": "label_values(c, x)"}}]}}  # fmt: skip
    (tmp_path / "board.json").write_text(json.dumps(board))
    rules = {"groups": [{"rules": [{"alert": "A", "expr": "d > 1"}, {"record": "r", "expr": "e"}]}]}
    scaler = {"kind": "HorizontalPodAutoscaler", "spec": {"metrics": [
        {"type": "Pods", "pods": {"metric": {"name": "f"}}}]}}  # fmt: skip
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump_all([rules, scaler]))
    (tmp_path / "recent.txt").write_text("g\n\nrate(h[5m])\n")
    found = uses_of(expressions_of(tmp_path)).names
    assert found >= set("abcdefgh")


class _Server(BaseHTTPRequestHandler):
    counts = {"used_total": 10, "unused_total": 300, "both_total": 90}

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        entries = [{"name": name, "value": count} for name, count in self.counts.items()]
        data: dict[str, Any] = {
            "/api/v1/status/tsdb": {"headStats": {"numSeries": 400},
                                    "seriesCountByMetricName": entries},
            "/api/v1/status/flags": {"query.max-samples": "50000"},
            "/api/v1/rules": {"groups": [{"rules": [{"query": "rate(used_total[5m])"}]}]},
        }.get(path, {})  # fmt: skip
        if path == "/api/v1/query":
            regex = urllib.parse.parse_qs(query)["query"][0].partition('"')[2].partition('"')[0]
            data = {"result": [
                {"metric": {"__name__": name, "job": "app"}, "value": [0, str(n)]}
                for name, n in self.counts.items() if re.fullmatch(regex, name)
            ]}  # fmt: skip
        body = json.dumps({"status": "success", "data": data}).encode()
        if path == "/metrics":
            body = b"prometheus_tsdb_wal_storage_size_bytes 5e8\n"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_server_is_asked_and_the_rules_are_written(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.txt").write_text("both_total\n")
    code = guarded(["doctor", "metrics", server, "--uses", str(tmp_path), "-o", "json"])
    values = json.loads(capsys.readouterr().out)
    assert code == 1
    assert [each["metric"] for each in values["unused"]] == ["unused_total"]
    assert values["rules"] == [{"job": "app", "metric_relabel_configs": [
        {"source_labels": ["__name__"], "regex": "unused_total", "action": "drop"}]}]  # fmt: skip
    assert values["replay"]["dropped_series"] == 300
    assert values["replay"]["left_series"] == 100
    assert values["wal"]["predicted_replay_seconds"] == pytest.approx(20, rel=0.01)
    assert values["wal"]["predicted_replay_memory_bytes"] == 400 * 8_192
    assert values["unfinished"] == [{"expression": "both_total", "samples": 90_000}]
    assert guarded(["doctor", "metrics", server]) == 1
    text = capsys.readouterr().out
    assert "400 series of 3 metrics" in text
    assert "regex: both_total|unused_total" in text


def test_a_server_that_does_not_answer_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["doctor", "metrics", "http://127.0.0.1:9"]) == 3
    assert guarded(["doctor", "metrics", "localhost"]) == 2
    assert "is not the URL" in capsys.readouterr().err
