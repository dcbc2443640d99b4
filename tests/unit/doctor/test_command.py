"""The command from its flags to its exit code, with files and pages of metrics."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.unit.doctor.audit_log import cluster_log, with_agent

from fairlead.cli.main import guarded

PAGE = """etcd_mvcc_db_total_size_in_bytes 1.9e9
etcd_server_quota_backend_bytes 2.147483648e9
etcd_server_has_leader 1
"""


class Etcd(BaseHTTPRequestHandler):
    """An etcd whose quota is used up."""

    def do_GET(self) -> None:
        is_health = self.path == "/health"
        self.send_response(503 if is_health else 200)
        self.end_headers()
        body = '{"health":"false","reason":"ALARM NOSPACE"}' if is_health else PAGE
        self.wfile.write(body.encode())

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def etcd() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Etcd)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def doctor(*arguments: str) -> int:
    return guarded(["doctor", "--offline", "--interval", "0", *arguments])


def test_an_etcd_at_its_quota_is_critical_and_its_alarm_is_seen(
    etcd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = doctor("--metrics", f"etcd={etcd}", "--nodes", "900", "-o", "json")
    found = {f["id"]: f["severity"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert code == 2
    assert found == {"ETCD-04": "critical", "ETCD-08": "critical", "ETCD-05": "warning"}


def test_a_page_that_does_not_answer_is_unknown_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = doctor("--metrics", "etcd=http://127.0.0.1:1/metrics", "--only", "ETCD-04", "-o", "json")
    (unknown,) = json.loads(capsys.readouterr().out)["unknown"]
    assert code == 3
    assert "127.0.0.1:1" in unknown["reason"]


def test_flags_of_manifests_and_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "api.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n  - name: kube-apiserver\n"
        "    command: [kube-apiserver, --audit-policy-file=/p.yaml]\n"
    )
    arguments = ("--manifests", str(tmp_path), "--nodes", "3000", "--only", "ETCD-16", "-o", "json")
    assert doctor(*arguments) == 2
    baseline = tmp_path / "last.json"
    baseline.write_text(capsys.readouterr().out)
    assert doctor(*arguments, "--baseline", str(baseline)) == 0
    assert json.loads(capsys.readouterr().out)["known"] == 1


def test_an_audit_log_is_a_source_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(with_agent(cluster_log(), "/api/v1/events").text())
    assert doctor("--audit", str(path), "--only", "AUD-*") == 2
    assert "monitoring/agent: list events (cluster)" in capsys.readouterr().out


def test_suppressions_give_their_mistakes_and_act_until_their_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "doctor.yaml"
    path.write_text("suppressions:\n- {check: ETCD-*, until: 2100-01-01}\n")
    assert doctor("--suppressions", str(path)) == 2
    assert "suppressions[0].reason is missing" in capsys.readouterr().err
    path.write_text("suppressions:\n- {check: ETCD-*, reason: hidden, until: 2100-01-01}\n")
    assert doctor("--suppressions", str(path), "--only", "ETCD-*") == 0
    assert "0 unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--only", "ETCD-99"), "no check matches 'ETCD-99'"),
        (("--explain", "ETCD-99"), "there is no check 'ETCD-99'"),
        (("--metrics", "etdc=http://a"), "'etdc=http://a' is not NAME=URL"),
        (("--metrics", "etcd=file:///etc/passwd"), "is not NAME=URL"),
        (("-o", "jsn"), "-o json"),
        (("--node-facts", "/absent"), "--node-facts: '/absent' cannot be read"),
        (("--baseline", "/absent"), "--baseline: '/absent' cannot be read"),
        (("chekcs",), "did you mean fairlead doctor checks?"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(*arguments) == 2
    assert text in capsys.readouterr().err


def test_every_check_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["doctor", "checks", "-o", "json"]) == 0
    ids = [each["id"] for each in json.loads(capsys.readouterr().out)]
    assert len(ids) > 90
    for each in ids:
        assert guarded(["doctor", "--explain", each.lower()]) == 0
        assert capsys.readouterr().out.startswith(f"{each}  ")
