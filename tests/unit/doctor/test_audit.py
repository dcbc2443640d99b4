"""The analysis of audit logs: who costs what, and what each kind of misuse is found as."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor.audit_log import Log, cluster_log, with_agent

from fairlead.cli.main import guarded
from fairlead.doctor.audit import files
from fairlead.doctor.audit.cost import CostModel, seats, summarise
from fairlead.doctor.audit.event import owner_of, program_of, seconds_of
from fairlead.doctor.audit.parallel import read_logs
from fairlead.doctor.audit.request import parse_uri
from fairlead.doctor.audit.summary import AuditSummary, Key
from fairlead.doctor.audit.tally import Distinct, Tally
from fairlead.doctor.check import Finding, Passed, Unknown, evaluate
from fairlead.doctor.examine import examine
from fairlead.doctor.facts import ClusterFacts
from fairlead.doctor.registry import AUDIT_CHECKS, BY_ID

EVENTS = "/api/v1/events"


def analysed(log: Log | bytes, path: Path, **model: Any) -> AuditSummary:
    data = log if isinstance(log, bytes) else log.text()
    path.write_bytes(data)
    return summarise(read_logs([str(path)], processes=1), CostModel(**model))


def found(summary: AuditSummary) -> set[str]:
    report = examine(AUDIT_CHECKS, ClusterFacts(nodes=summary.nodes, audit=summary))
    return {finding.check.id for finding in report.findings}


@pytest.mark.parametrize(
    ("uri", "resource", "scope", "shape"),
    [
        ("/api/v1/pods", "pods", "cluster", ""),
        ("/api/v1/pods?limit=500&resourceVersion=0", "pods", "cluster", "limit=500 rv=0"),
        ("/api/v1/pods?limit=500&continue=abc", "pods", "cluster", "limit=500 continue"),
        ("/api/v1/pods?continue=abc&limit=500&resourceVersion=9", "pods", "cluster",
         "limit=500 continue"),
        ("/api/v1/namespaces/a/pods?labelSelector=x%3Dy", "pods", "namespace", "label"),
        ("/api/v1/namespaces/a/pods/p/status", "pods/status", "resource", ""),
        ("/api/v1/namespaces/a", "namespaces", "resource", ""),
        ("/api/v1/namespaces/a/finalize", "namespaces/finalize", "resource", ""),
        ("/api/v1/namespaces", "namespaces", "cluster", ""),
        ("/apis/apps/v1/deployments", "deployments", "cluster", ""),
        ("/apis/fairlead.dev/v1alpha1/jobs", "jobs.fairlead.dev", "cluster", ""),
        ("/api/v1/nodes/n/proxy/metrics", "nodes/proxy", "resource", ""),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&watch=true", "pods", "cluster",
         "field=spec.nodeName"),
        ("/healthz?verbose", "/healthz", "nonresource", ""),
        ("/apis/apps/v1", "/apis/apps", "nonresource", ""),
        ("", "/", "nonresource", ""), ("///", "//", "nonresource", ""),
        ("?", "/", "nonresource", ""),
        ("%%%\x00/api/v1/pods", "%%%\x00/api/v1", "nonresource", ""),
    ],
)  # fmt: skip
def test_a_uri_is_folded(uri: str, resource: str, scope: str, shape: str) -> None:
    request = parse_uri(uri).request
    assert (request.resource, request.scope, request.shape) == (resource, scope, shape)


@pytest.mark.parametrize(
    ("pod", "owner"),
    [("web-6d4cf56db6-x2x7p", "web"), ("agent-x2x7p", "agent"), ("db-0", "db"), ("solo", "solo")],
)
def test_a_pod_leads_to_its_workload(pod: str, owner: str) -> None:
    assert owner_of(pod) == owner


def test_durations_and_programs_are_read() -> None:
    assert seconds_of("1m2.5s") == pytest.approx(62.5)
    assert seconds_of("12.25ms") == pytest.approx(0.01225)
    assert seconds_of("soon") == 0
    assert program_of("kubelet/v1.36.3 (linux/amd64) kubernetes/abc") == "kubelet"


def test_distinct_is_exact_while_small_and_close_when_large() -> None:
    many, again = Distinct(f"n{i}" for i in range(7_500)), Distinct(f"n{i}" for i in range(4_000))
    assert len(Distinct(["a", "b", "a"])) == 2
    assert abs(len(many) - 7_500) < 150
    again.update(many)
    assert len(again) == len(many)


def test_a_healthy_cluster_has_no_finding(tmp_path: Path) -> None:
    summary = analysed(cluster_log(), tmp_path / "a.log")
    assert summary.events == 200
    assert summary.nodes == 20
    assert found(summary) == set()


AGENT = "system:serviceaccount:monitoring:agent"
MISUSE: dict[str, tuple[Callable[[], Log], set[str]]] = {
    "every node lists events": (
        lambda: with_agent(cluster_log(), EVENTS, seconds=60),
        {"AUD-08", "AUD-02", "API-11", "AUD-03"}),
    "a client polls pods": (
        lambda: _repeated(cluster_log(), 12, "/api/v1/pods"), {"API-11", "AUD-03"}),
    "a loop reads one object": (
        lambda: _repeated(cluster_log(), 900, "/api/v1/namespaces/a/configmaps/c", verb="get"),
        {"AUD-15"}),
    "a watch ends at once": (
        lambda: _repeated(cluster_log(), 40, "/api/v1/pods?watch=true", verb="watch"), {"AUD-14"}),
    "a tool that runs commands in pods": (
        lambda: _repeated(cluster_log(), 101, "/api/v1/namespaces/a/pods/p/exec", verb="create"),
        {"AUD-10"}),
    "watches of Endpoints": (
        lambda: with_agent(cluster_log(), "/api/v1/endpoints?watch=true", every=60, verb="watch"),
        {"AUD-18"}),
    "requests are rejected": (
        lambda: _repeated(cluster_log(), 40, "/api/v1/namespaces/a/pods", verb="create", code=429),
        {"AUD-13"}),
    "two controllers fight": (
        lambda: _repeated(cluster_log(), 40, "/api/v1/namespaces/a/pods/p", verb="update",
                          code=409),
        {"AUD-05"}),
    "rights are missing": (
        lambda: _repeated(cluster_log(), 120, "/api/v1/namespaces/a/pods", verb="create", code=403),
        {"AUD-06"}),
    "a script lists secrets": (
        lambda: _repeated(cluster_log(), 1, "/api/v1/secrets", agent="python-requests/2.31"),
        {"AUD-11", "AUD-09"}),
    "requests run out of time": (
        lambda: _repeated(cluster_log(), 40, "/api/v1/namespaces/a/pods/p", verb="get", code=504),
        {"AUD-12"}),
    "all list at once": (
        lambda: _repeated(cluster_log(), 60, "/api/v1/configmaps", step=0.001), {"AUD-04"}),
}  # fmt: skip


def _repeated(log: Log, count: int, uri: str, *, step: float = 0.0, **more: Any) -> Log:
    for number in range(count):
        log.add(uri, at=number * (step or 60 / count), **more)
    return log


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_found(name: str, tmp_path: Path) -> None:
    build, ids = MISUSE[name]
    assert ids <= found(analysed(build(), tmp_path / "a.log"))


def test_the_pages_of_a_list_are_no_polling(tmp_path: Path) -> None:
    pages = _repeated(cluster_log(), 12, "/api/v1/pods?continue=x&limit=500")
    assert "AUD-03" not in found(analysed(pages, tmp_path / "a.log"))


def test_watches_of_endpoints_are_counted_per_node_of_the_cluster(tmp_path: Path) -> None:
    log = _repeated(cluster_log(), 1, "/api/v1/endpoints?watch=true", verb="watch")
    summary = analysed(log, tmp_path / "a.log")
    assert isinstance(evaluate(BY_ID["AUD-18"], ClusterFacts(audit=summary))[0], Finding)
    assert isinstance(evaluate(BY_ID["AUD-18"], ClusterFacts(nodes=900, audit=summary))[0], Passed)


def test_two_absent_objects_in_a_short_log_are_no_loop(tmp_path: Path) -> None:
    log = Log()
    for name in ("a", "b"):
        log.add(f"/api/v1/namespaces/kube-system/configmaps/{name}", verb="get", code=404)
    assert analysed(log, tmp_path / "a.log").events == 2
    assert found(analysed(log, tmp_path / "a.log")) == set()


def test_the_culprit_comes_first_with_its_workload_nodes_and_exponent(tmp_path: Path) -> None:
    log = with_agent(cluster_log(), EVENTS)
    first = analysed(log, tmp_path / "a.log", objects={"events": 5_000}).callers[0]
    assert (first.workload, first.verb, first.resource) == ("monitoring/agent", "list", "events")
    assert (first.nodes, first.is_fan, first.exponent) == (20, True, 2)
    assert first.requests == 120
    assert first.seat_seconds == pytest.approx(120 * 0.01 * 10)
    assert first.bytes == pytest.approx(120 * 5_000 * 900)
    assert first.period_seconds == pytest.approx(10, rel=0.05)


def test_a_list_of_its_own_node_grows_with_the_nodes_only_once(tmp_path: Path) -> None:
    log = with_agent(cluster_log(), "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=500")
    summary = analysed(log, tmp_path / "a.log")
    (caller,) = (c for c in summary.callers if c.workload)
    assert caller.exponent == 1
    assert "AUD-16" not in found(summary)


def test_the_size_at_which_a_square_takes_the_capacity(tmp_path: Path) -> None:
    log = with_agent(cluster_log(), EVENTS, seconds=60)
    summary = analysed(log, tmp_path / "a.log", objects={"events": 5_000})
    first = summary.callers[0]
    used = first.seat_seconds / summary.span_seconds
    assert first.full_share_nodes == int(20 * (0.3 * 600 / used) ** 0.5)
    assert "AUD-16" in found(summary)


def test_seats_follow_the_servers_estimator() -> None:
    def of(shape: str, count: int) -> int:
        key = Key("u", "p", "", "list", "pods", "cluster", shape)
        return seats(key, CostModel(objects={"pods": count}))

    assert [of("", 50), of("", 450), of("", 10**6)] == [1, 5, 10]
    assert of("limit=100", 10**6) == 2
    assert of("limit=100 label", 700) == 8
    assert of("limit=100 rv=0", 450) == 5


def test_waiting_for_a_seat_is_no_cost(tmp_path: Path) -> None:
    log = Log()
    log.add(EVENTS, seconds=2.0, annotations={"apiserver.latency.k8s.io/apf-queue-wait": "1.5s"})
    log.add("/api/v1/pods", at=10)
    first = analysed(log, tmp_path / "a.log").callers[0]
    assert first.queue_seconds == pytest.approx(1.5)
    assert first.seat_seconds == pytest.approx(0.5)


def damaged() -> tuple[bytes, int]:
    """A log with every kind of damage, and the number of its events that can be used."""
    log = cluster_log(nodes=5, seconds=20)
    good = len(log.lines)
    lines = [line.encode() for line in log.lines]
    cut = lines[3][: len(lines[3]) // 2]
    hostile = [
        cut, cut + lines[4], lines[5].replace(b'"verb":"', b'"verb":7,"x":"'), b"\xff\xfe\x00",
        b"{", lines[6].replace(b'"userAgent":"', b'"userAgent":"\xff'), b"[" * 100_000,
        b"null", b"3", b'"x"', b"[]", b"{}",
        lines[7].replace(b"ResponseComplete", b"RequestReceived"),
        lines[8].replace(b'"code":200', b'"code":1e400'),
        lines[9].replace(b"2026-11-21T", b"yesterday--"), b"x" * (5 << 20), b"", b"   ", lines[10],
    ]  # fmt: skip
    return b"\n".join([*lines[:15], *hostile, *lines[15:]]) + b"\n", good


def test_damage_is_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    data, good = damaged()
    summary = analysed(data, tmp_path / "a.log")
    assert summary.events == good
    assert dict(summary.skipped) == {
        "duplicate events": 1,
        "fields of another type": 7,
        "lines over 4 MiB": 1,
        "no time": 1,
        "not JSON (cut, interleaved or damaged)": 5,
        "not an audit event": 1,
        "stage RequestReceived": 1,
    }


def test_a_clock_that_steps_back_costs_nothing_and_is_counted(tmp_path: Path) -> None:
    log = Log()
    log.add(seconds=-5.0)
    log.add(at=1.0, seconds=0.5)
    summary = analysed(log, tmp_path / "a.log")
    assert summary.seat_seconds == pytest.approx(0.5)
    assert summary.skipped == {"durations below zero, taken as zero (clock steps)": 1}


def test_events_without_an_id_are_no_duplicates(tmp_path: Path) -> None:
    log = Log()
    for second in (1, 2):
        log.add(at=second)
    summary = analysed(re.sub(rb'"auditID":"[^"]*",', b"", log.text()), tmp_path / "a.log")
    assert (summary.events, summary.skipped) == (2, {})


def test_rotated_and_compressed_sets_give_the_same_as_one_file(tmp_path: Path) -> None:
    lines = with_agent(cluster_log(), EVENTS).text().splitlines(keepends=True)
    whole = analysed(b"".join(lines), tmp_path / "whole.log")
    (tmp_path / "a.log").write_bytes(b"".join(lines[:99]))
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"".join(lines[99:200])))
    (tmp_path / "c.log").write_bytes(b"".join(lines[200:]))
    parts = [str(tmp_path / name) for name in ("a.log", "b.log.gz", "c.log")]
    assert rounded(summarise(read_logs(parts, processes=2), CostModel())) == rounded(whole)


def test_a_part_without_events_leaves_the_time_that_a_log_covers() -> None:
    whole = Tally()
    whole.see(5, 9)
    whole.merge(Tally())
    assert (whole.first, whole.last) == (5, 9)


def rounded(summary: AuditSummary) -> list[tuple[object, ...]]:
    return [
        (c.name, c.does, c.requests, c.nodes, c.exponent, round(c.seat_seconds, 6))
        for c in summary.callers
    ]


@pytest.mark.parametrize("chunk", [700, 4_096, 100_000])
def test_a_file_cut_anywhere_gives_the_same(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = damaged()
    data = data.replace(b"x" * (5 << 20), b"x" * 5_000)
    whole = analysed(data, tmp_path / "a.log")
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk)
    parts = summarise(read_logs([str(tmp_path / "a.log")], processes=1), CostModel())
    assert parts.events == whole.events
    assert [c.does for c in parts.callers] == [c.does for c in whole.callers]


def test_a_cut_gzip_file_is_counted_as_damage(tmp_path: Path) -> None:
    data = gzip.compress(cluster_log().text())
    summary = analysed(data[: len(data) // 2], tmp_path / "a.gz")
    assert summary.events > 0
    assert any("damaged" in reason for reason in summary.skipped)


def test_more_kinds_than_the_bound_are_added_up_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.doctor.audit.tally.KEYS_MAX", 10)
    log = Log()
    for number in range(50):
        log.add(user=f"user-{number}", at=number)
    summary = analysed(log, tmp_path / "a.log")
    assert len(summary.callers) == 11
    assert sum(c.requests for c in summary.callers) == 50


def audit(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = guarded(["doctor", "audit", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_callers_by_cost_findings_and_what_was_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(with_agent(cluster_log(), EVENTS, every=5).text() + b"{\n")
    code, out, _ = audit(str(path), "-o", "json", capsys=capsys)
    values = json.loads(out)
    assert code == 2
    costs = [caller["seat_seconds"] for caller in values["callers"]]
    assert costs == sorted(costs, reverse=True)
    first = values["callers"][0]
    assert {"principal": AGENT, "program": "agent", "verb": "list", "resource": "events",
            "scope": "cluster", "nodes": 20, "exponent": 2}.items() <= first.items()  # fmt: skip
    assert {finding["id"] for finding in values["findings"]} >= {"AUD-08", "AUD-02"}
    assert values["skipped"] == {"not JSON (cut, interleaved or damaged)": 1}


def test_standard_input_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = io.TextIOWrapper(io.BytesIO(cluster_log().text()))
    monkeypatch.setattr(sys, "stdin", data)
    code, out, _ = audit("-", capsys=capsys)
    assert code == 0
    assert out.startswith("200 requests in ")


def test_a_zstd_log_is_read_and_one_that_is_cut_loses_one_line(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor().compress(cluster_log(nodes=100, seconds=100).text())
    whole = analysed(data, tmp_path / "a.zst")
    cut = analysed(data[: len(data) * 2 // 3], tmp_path / "b.zst")
    assert whole.events == 1_200
    assert dict(whole.skipped) == {}
    assert 0 < cut.events < whole.events
    assert sum(cut.skipped.values()) == 1


def test_a_zstd_log_without_the_package_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "a.zst"
    path.write_bytes(files.ZSTD + b"rest")
    code, _, err = audit(str(path), capsys=capsys)
    assert code == 2
    assert "pip install 'fairlead[zstd]'" in err


def test_an_absent_file_and_a_bad_count_are_errors_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(str(tmp_path / "absent"), capsys=capsys)[0] == 2
    code, _, err = audit("x", "--objects", "pods=many", capsys=capsys)
    assert code == 2
    assert "'pods=many' is not NAME=COUNT" in err


def test_a_flow_schema_isolates_the_dearest_caller_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    path = tmp_path / "audit.log"
    path.write_bytes(with_agent(cluster_log(), EVENTS).text())
    _, out, _ = audit(str(path), "--flow-schema", capsys=capsys)
    level, schema = yaml.safe_load_all(out)
    assert level["kind"] == "PriorityLevelConfiguration"
    assert schema["spec"]["priorityLevelConfiguration"]["name"] == level["metadata"]["name"]
    subject = schema["spec"]["rules"][0]["subjects"][0]
    assert subject["serviceAccount"] == {"namespace": "monitoring", "name": "agent"}
    path.write_bytes(with_agent(cluster_log(), EVENTS, pod=f"{'a' * 38}-agent").text())
    _, out, _ = audit(str(path), "--flow-schema", capsys=capsys)
    cut = next(yaml.safe_load_all(out))["metadata"]["name"]
    assert cut == f"doctor-monitoring-{'a' * 38}", "names end with a letter or a digit"


def test_two_logs_are_compared_by_what_changed_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path, every in ((old, 30), (new, 2)):
        log = with_agent(cluster_log(), "/api/v1/pods", every=1)  # the dearest, in both
        path.write_bytes(with_agent(log, EVENTS, every=every).text())
    code, out, _ = audit("diff", str(old), str(new), "-o", "json", capsys=capsys)
    first = json.loads(out)[0]
    assert code == 0
    assert (first["workload"], first["resource"]) == ("monitoring/agent", "events")
    assert first["seats_new"] > 10 * first["seats_old"]


def test_an_audit_check_without_a_log_is_unknown() -> None:
    results = [
        result for check in AUDIT_CHECKS for result in evaluate(check, ClusterFacts(nodes=5))
    ]
    assert [type(each) for each in results] == [Unknown] * len(AUDIT_CHECKS)
