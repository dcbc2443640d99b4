"""Checks that Prometheus answers: each form, who goes first, and servers that answer badly."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor.facts_of import scraped
from tests.unit.doctor.loopback import Answer, loopback

from fairlead.cli.main import guarded
from fairlead.doctor.check import Check, Finding, Passed, Unknown, evaluate, warning
from fairlead.doctor.expressions import CodeShare, Gauge, Increase, PerSecond, Quantile, Ratio
from fairlead.doctor.facts import ClusterFacts, MeasuredValue, Source
from fairlead.doctor.prometheus.answers import PromSample, is_to_answer, readings
from fairlead.doctor.prometheus.api import REQUESTS_MAX
from fairlead.doctor.query import JOBS
from fairlead.doctor.readers.prometheus import SECONDS_MAX, PrometheusAnswers
from fairlead.doctor.registry import BY_ID, CHECKS
from fairlead.runtime.outside.fetch import TooMuch, Web, WebAccess

ETCD = Source.ETCD
Series = tuple[dict[str, str], str]


def sample(part: str, value: str, **labels: str) -> dict[str, Any]:
    return {"metric": {"instance": "e1", **labels, "fairlead_part": part}, "value": [1.0, value]}


def vector(*samples: dict[str, Any]) -> Answer:
    data = {"resultType": "vector", "result": list(samples)}
    return Answer(json.dumps({"status": "success", "data": data}).encode())


VALUE, RATE, RISE = Gauge(ETCD, "a", ("x",)), PerSecond(ETCD, "a"), Increase(ETCD, "a")
MATCHED = PerSecond(ETCD, "a", match=(("code", ("429",)),))
SHARE, SLOW = CodeShare(ETCD, "a", "code", "5", count_min=50), Quantile(ETCD, "a", 0.9)


@pytest.mark.parametrize(
    ("measure", "parts", "found"),
    [
        (VALUE, [("value", "3", {"x": "1"})], [("e1 x=1", 3.0, "a = 3")]),
        (Ratio(ETCD, "a", "b"), [("value", "0.9", {})], [("e1", 0.9, "a / b = 0.9")]),
        (RATE, [("value", "2.5", {})], [("e1", 2.5, "a: 2.5 /s over 5m")]),
        (RISE, [("value", "4", {})], [("e1", 4.0, "a: +4 over 1h")]),
        (
            SHARE, [("value", "0.6", {}), ("count", "80", {})],
            [("e1", 0.6, "60 % of 80 in a have code 5, over 5m")],
        ),
        (SHARE, [("count", "80", {})], [("e1", 0.0, "0 % of 80 in a have code 5, over 5m")]),
        (SHARE, [("value", "0.6", {}), ("count", "49", {})], []),
        (
            SLOW, [("value", "0.2", {}), ("count", "100", {})],
            [("e1", 0.2, "p90 of a is 0.2 s in 100 observations over 5m")],
        ),
        (SLOW, [("value", "NaN", {}), ("count", "0", {})], []),
        (SLOW, [("value", "0.2", {}), ("count", "99", {})], []),
        (MATCHED, [("seen", "7", {})], []),
        (MATCHED, [], None),
        (RATE, [], None),
        (SHARE, [], None),
    ],
)  # fmt: skip
def test_an_answer_to_each_form_gives_readings_with_their_origin(
    measure: Any, parts: list[tuple[str, str, dict[str, str]]], found: list[Any] | None
) -> None:
    query = measure.query(JOBS)
    assert query is not None
    samples = [PromSample(**sample(part, value, **labels)) for part, value, labels in parts]
    expected = None if found is None else tuple(
        MeasuredValue(subject, value, f"{text}, from P") for subject, value, text in found
    )  # fmt: skip
    assert readings(measure, query, samples, "P") == expected


def make_check(measure: Any) -> Check:
    return Check("X-1", "A title", (ETCD,), measure, (warning(1),), "why", "fix", "reference")


@pytest.mark.parametrize(
    ("measure", "is_seen", "instances", "expected"),
    [
        (RATE, True, 1, False),
        (RATE, True, 3, True),
        (RATE, False, 1, True),
        (RISE, True, 1, True),
    ],
)
def test_a_page_goes_first_unless_prometheus_sees_more(
    measure: Any, is_seen: bool, instances: int, expected: bool
) -> None:
    direct = (MeasuredValue("e1", 1.0, ""),) if is_seen else ()
    check = make_check(measure)
    assert is_to_answer(check, direct, pages=1, instances=instances) is expected


def run(
    answer: Callable[[str], Answer], checks: list[Check], facts: ClusterFacts | None = None
) -> tuple[ClusterFacts, int]:
    """Return the facts with the answers of a server, which is given each query."""

    def of_path(path: str, _body: bytes) -> Answer:
        query = urllib.parse.parse_qs(path.partition("?")[2])["query"][0]
        if "up{" in query:
            return vector({"metric": {"job": "kube-etcd"}, "value": [1.0, "1"]})
        return answer(query)

    known = facts or ClusterFacts(nodes=10)
    with loopback(of_path) as server:
        reader = PrometheusAnswers(server.url, Web(), iter(range(10**6)).__next__)
        answers = reader.read(checks, known)
        return ClusterFacts(
            nodes=known.nodes, scrapes=known.scrapes, answers=answers
        ), reader.requests


def test_a_finding_of_prometheus_names_the_server() -> None:
    check = make_check(RATE)
    facts, requests = run(lambda _: vector(sample("value", "5")), [check])
    (finding,) = evaluate(check, facts)
    assert isinstance(finding, Finding)
    assert "from Prometheus at http://127.0.0.1" in finding.evidence
    assert requests == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (vector(), "it has no such series"),
        (Answer(b"<html>"), "does not answer with JSON"),
        (Answer(b"[" * 100_000), "does not answer with JSON"),
        (Answer(b'{"status":"success","data":[1]}'), "not an answer of Prometheus"),
        (Answer(b'{"data":{"resultType":"matrix","result":[]}}'), "not an instant vector"),
        (Answer(b'{"data":{"resultType":"vector","result":{"a":1}}}'), "no list of at most"),
        (Answer(b'{"data":{"resultType":"vector","result":[{"metric":[]}]}}'), "not an instant"),
        (vector(sample("other", "1")), "not asked for"),
        (vector(sample("value", "five\x1b[31m")), r"'five\x1b[31m' is not a value"),
        (Answer(b'{"status":"error","error":"too many\\nsamples"}', 422), r"HTTP 422, too many\ns"),
        (Answer(b"secret", 401), "HTTP 401"),
        (Answer(b'{"data"', length=500), "ends 493 bytes early"),
        (Answer(b" " * (33 << 20)), "more than 33,554,432 bytes"),
        (Answer(status=302, headers={"Location": "http://127.0.0.1:1/x"}), "another server"),
    ],
)
def test_what_is_no_answer_is_unknown_with_the_reason(answer: Answer, said: str) -> None:
    check = make_check(RATE)
    facts, _ = run(lambda _: answer, [check])
    (unknown,) = evaluate(check, facts)
    assert isinstance(unknown, Unknown)
    assert said in unknown.reason
    assert "Prometheus at http" in unknown.reason
    assert unknown.reason.isprintable()


def test_an_answer_that_fails_leaves_the_page() -> None:
    name = "etcd_server_leader_changes_seen_total"
    check = BY_ID["ETCD-09"]
    page = scraped(ETCD, f"{name} 9\n", before=f"{name} 1\n")
    for answer in (vector(), vector(sample("value", "NaN"))):
        left = run(lambda _, answer=answer: answer, [check], page)[0]
        assert isinstance(evaluate(check, left)[0], Finding)
    quiet = run(lambda _: vector(sample("value", "1")), [check], page)[0]
    assert isinstance(evaluate(check, quiet)[0], Passed), "an hour says more than ten seconds"


def test_a_lazy_metric_that_prometheus_lacks_is_unknown_as_it_may_have_been_dropped() -> None:
    check = BY_ID["ETCD-11"]
    page = scraped(ETCD, "etcd_server_has_leader 1\n", before="etcd_server_has_leader 1\n")
    assert isinstance(evaluate(check, page)[0], Passed)
    facts, _ = run(lambda _: vector(), [check])
    assert isinstance(evaluate(check, facts)[0], Unknown)


def test_checks_that_compute_are_given_the_series_of_each_instance() -> None:
    metrics = {"etcd_mvcc_db_total_size_in_bytes": "1e9",
               "etcd_mvcc_db_total_size_in_use_in_bytes": "2e8",
               "etcd_server_quota_backend_bytes": "2147483648"}  # fmt: skip
    asked: list[str] = []

    def answer(query: str) -> Answer:
        asked.append(query)
        names = [name for name in metrics if name in query]
        return vector(*({"metric": {"__name__": name, "instance": "e1", "job": "kube-etcd"},
                         "value": [1, metrics[name]]} for name in names))  # fmt: skip

    checks = [BY_ID["ETCD-05"], BY_ID["ETCD-07"]]
    facts, requests = run(answer, checks, ClusterFacts(nodes=900))
    found = [evaluate(check, facts)[0] for check in checks]
    assert [type(each) for each in found] == [Finding, Finding]
    assert all("from Prometheus" in each.evidence for each in found if isinstance(each, Finding))
    assert (requests, len(asked)) == (2, 1), "the series are read once"


def test_all_checks_together_keep_to_the_bound_of_requests_and_time() -> None:
    _, requests = run(lambda _: vector(sample("value", "0")), list(CHECKS))
    assert 5 < requests <= REQUESTS_MAX
    ticks = iter([0.0, 1.0, *([SECONDS_MAX + 1] * 1000)])
    with loopback(lambda *_: vector({"metric": {"job": "etcd"}, "value": [1, "1"]})) as server:
        reader = PrometheusAnswers(server.url, Web(), ticks.__next__)
        answers = reader.read(list(CHECKS), ClusterFacts(nodes=10))
    assert len(server.seen) == 1
    assert "are over" in str(answers["ETCD-01"])


def status_of(config: Answer) -> tuple[ClusterFacts, int]:
    """Return the facts of a server's status, and how many requests that took."""
    tsdb = {"headStats": {"numSeries": 200_000},
            "seriesCountByMetricName": [{"name": "wide", "value": 90_000}]}  # fmt: skip

    def answer(path: str, _body: bytes) -> Answer:
        if path.startswith("/api/v1/status/tsdb"):
            return Answer(json.dumps({"status": "success", "data": tsdb}).encode())
        if path.startswith("/api/v1/status/config"):
            return config
        if path.startswith("/api/v1/status/flags"):
            return Answer(b"{", length=9)  # a connection that breaks off
        return Answer(b"up 1\n") if path == "/metrics" else Answer(status=404)

    with loopback(answer) as server:
        reader = PrometheusAnswers(server.url, Web(), iter(range(10**6)).__next__)
        assert reader.with_status([BY_ID["ETCD-04"]], ClusterFacts()) == ClusterFacts()
        return reader.with_status([BY_ID["MET-03"]], ClusterFacts(nodes=10)), reader.requests


def test_the_status_and_the_configuration_of_the_server_are_facts() -> None:
    text = "scrape_configs:\n- job_name: nodes\n- {job_name: apis, sample_limit: 9}\n"
    config = Answer(json.dumps({"status": "success", "data": {"yaml": text}}).encode())
    facts, requests = status_of(config)
    (wide,), (open_,) = (evaluate(BY_ID[id_], facts) for id_ in ("MET-03", "MET-10"))
    assert isinstance(wide, Finding)
    assert isinstance(open_, Finding)
    assert (wide.subject, wide.value) == ("wide", 0.45)
    assert open_.evidence == "1 of 2 scrapes: nodes"
    assert requests <= 4


@pytest.mark.parametrize("yaml", ["a: [", "- 1", ""])
def test_a_configuration_that_cannot_be_read_leaves_the_status(yaml: str) -> None:
    facts, _ = status_of(Answer(json.dumps({"data": {"yaml": yaml}}).encode()))
    assert isinstance(evaluate(BY_ID["MET-03"], facts)[0], Finding)
    assert isinstance(evaluate(BY_ID["MET-10"], facts)[0], Unknown)
    hidden, _ = status_of(Answer(b"secret", 403))
    assert "HTTP 403" in hidden.absent[Source.RECORDED]


def test_what_only_records_show_is_answered_by_its_query() -> None:
    check = BY_ID["ETCD-06"]
    facts, _ = run(lambda _: vector(sample("value", "2.5")), [check])
    (finding,) = evaluate(check, facts)
    assert isinstance(finding, Finding)
    assert (finding.severity.word, finding.value) == ("critical", 2.5)
    (unknown,) = evaluate(check, run(lambda _: vector(), [check])[0])
    assert isinstance(unknown, Unknown)


@pytest.mark.parametrize("count", ["NaN", "+Inf", "many"])
def test_a_number_of_instances_that_is_none_is_a_reason(count: str) -> None:
    with loopback(lambda *_: vector({"metric": {"job": "etcd"}, "value": [1, count]})) as server:
        reader = PrometheusAnswers(server.url, Web(), iter(range(10**6)).__next__)
        answers = reader.read([BY_ID["ETCD-01"]], ClusterFacts(nodes=10))
    assert "not a" in str(answers["ETCD-01"])


def test_a_job_is_matched_by_its_whole_name() -> None:
    answer = vector({"metric": {"job": "etcd-backup"}, "value": [1, "1"]})
    with loopback(lambda *_: answer) as server:
        clock = iter(range(10**6)).__next__
        reader = PrometheusAnswers(server.url, Web(), clock, {ETCD: "etcd", Source.COREDNS: ".*"})
        answers = reader.read([BY_ID["ETCD-01"]], ClusterFacts(nodes=10))
    assert "no job that is up matches etcd" in str(answers["ETCD-01"])


def test_a_server_that_sends_slowly_is_left() -> None:
    ticks = iter(range(0, 10**6, 3))
    web = Web(clock=ticks.__next__)
    with loopback(lambda *_: Answer(b"x" * (1 << 20))) as server:
        with pytest.raises(TooMuch, match="takes too long"):
            web.fetch(server.url, seconds_max=10.0)
        assert web.fetch(server.url, seconds_max=10**5) == b"x" * (1 << 20)


@pytest.mark.parametrize(
    ("access", "header"),
    [
        (WebAccess(token="t"), "Bearer t"),
        (WebAccess(login="me:x"), "Basic bWU6eA=="),
        (WebAccess(), None),
    ],
)
def test_credentials_are_sent_to_the_server_alone(access: WebAccess, header: str | None) -> None:
    def moved(path: str, _: bytes) -> Answer:
        return Answer(b"ok") if path == "/b" else Answer(status=302, headers={"Location": "/b"})

    with loopback(lambda *_: Answer()) as stranger, loopback(moved) as server:
        assert Web(access).fetch(f"{server.url}/a") == b"ok"
        assert [each[3].get("Authorization") for each in server.seen] == [header, header]
        away = Answer(status=307, headers={"Location": stranger.url})
        with loopback(lambda *_: away) as other, pytest.raises(OSError, match="another server"):
            Web(access).fetch(other.url)
        assert stranger.seen == []


def test_the_command_asks_with_the_login_and_the_jobs_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    login = tmp_path / "login"
    login.write_text("me:secret\n")

    def answer(path: str, _: bytes) -> Answer:
        query = urllib.parse.parse_qs(path.partition("?")[2])["query"][0]
        if "up{" in query:
            return vector({"metric": {"job": "store"}, "value": [1.0, "2"]})
        assert 'job=~"store"' in query
        return vector(sample("value", "0.95"), sample("value", "0.1", instance="e2"))

    with loopback(answer) as server:
        arguments = ("--prometheus", server.url, "--prometheus-login-file", str(login),
                     "--job", "etcd=store", "--only", "ETCD-04", "-o", "json")  # fmt: skip
        code = guarded(["doctor", "--offline", "--interval", "0", *arguments])
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert code == 2
    assert (finding["subject"], finding["value"]) == ("e1", 0.95)
    assert {each[3]["Authorization"] for each in server.seen} == {"Basic bWU6c2VjcmV0"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prometheus", "prometheus:9090"), "--prometheus: 'prometheus:9090' is not the URL"),
        (("--prometheus", "http://u:p@h"), "a user in a URL shows"),
        (("--prometheus-login-file", "/etc/hostname"), "the file is not user:password"),
        (("--prometheus-ca-file", "/absent"), "--prometheus-ca-file: No such file"),
        (("--metrics-cert-file", "/etc/hostname"), "--metrics-cert-file: "),
        (("--job", "etdc=x"), "SOURCE=REGEX"),
        (("--node-pods", "1"), "--node-pods: with --offline no pod can be created"),
    ],
)
def test_a_wrong_flag_for_a_server_is_explained(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["doctor", "--offline", *arguments]) == 2
    assert said in capsys.readouterr().err
