"""etcd's own API: what is asked, what is said of it, and members that answer badly."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.doctor.loopback import Answer, loopback

from fairlead.cli.main import guarded
from fairlead.doctor.check import Finding, Passed, Unknown, evaluate
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.readers.etcd import MEMBERS_MAX, EtcdReader
from fairlead.doctor.registry import BY_ID
from fairlead.runtime.outside.fetch import Web

STATUS = {"header": {"member_id": "1"}, "version": "3.6.8", "dbSize": "7000000000", "leader": "1",
          "raftIndex": "70", "raftAppliedIndex": "70", "dbSizeInUse": "6900000000",
          "dbSizeQuota": "8589934592"}  # fmt: skip
MEMBERS = {"members": [{"ID": "1", "name": "a"}, {"ID": "255"}]}
ALARMS = {"alarms": [{"memberID": "1", "alarm": "CORRUPT"}]}


def member(
    status: Callable[[], dict[str, Any]] = lambda: STATUS, page: Answer | None = None
) -> Callable[[str, bytes], Answer]:
    """Return an etcd member; by default it shows no page of metrics."""

    def answer(path: str, body: bytes) -> Answer:
        alarms = ALARMS if body == b'{"action": "GET"}' else {}
        values: dict[str, Callable[[], dict[str, Any]]] = {
            "/v3/maintenance/status": status, "/v3/cluster/member/list": lambda: MEMBERS,
            "/v3/maintenance/alarm": lambda: alarms,
        }  # fmt: skip
        if path in values:
            return Answer(json.dumps(values[path]()).encode())
        return (page if path == "/metrics" else None) or Answer(status=404)

    return answer


def doctor(*arguments: str) -> int:
    return guarded(["doctor", "--offline", "--interval", "0", "-o", "json", *arguments])


def test_a_member_without_metrics_is_judged_by_its_own_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with loopback(member()) as server:
        assert doctor("--etcd", server.url, "--only", "ETCD-*", "--nodes", "900") == 2
        asked = [(method, path, body) for method, path, body, _ in server.seen]
    report = json.loads(capsys.readouterr().out)
    found = {each["id"]: (each["subject"], each["severity"]) for each in report["findings"]}
    host = server.url.removeprefix("http://")
    assert found == {
        "ETCD-04": (host, "critical"), "ETCD-08B": ("a", "critical"),
        "ETCD-10B": ("ff", "warning"), "ETCD-10": ("etcd", "warning"),
    }  # fmt: skip
    assert {"ETCD-05", "ETCD-07", "ETCD-08", "ETCD-09B", "ETCD-11B", "ETCD-18"} <= set(
        report["passed"]
    )
    posts = {(path, body) for method, path, body in asked if method == "POST"}
    assert posts == {("/v3/maintenance/status", b"{}"), ("/v3/cluster/member/list", b"{}"),
                     ("/v3/maintenance/alarm", b'{"action": "GET"}')}, "it only reads"  # fmt: skip


def test_a_page_of_metrics_goes_before_the_status() -> None:
    page = Answer(b"etcd_server_has_leader 0\n")
    with loopback(member(page=page)) as server:
        reader = EtcdReader([server.url + "/"], Web())
        (target,) = reader.targets(reader.read())
        text = target.fetch().decode().splitlines()
    assert text == ["etcd_server_has_leader 0", "fairlead_etcd_nospace 0"]


def test_a_member_that_stands_still_is_behind_and_a_fast_log_makes_no_one_so() -> None:
    index = 10_000

    def moving() -> dict[str, Any]:
        nonlocal index
        index += 20_000
        return STATUS | {"raftIndex": str(index), "raftAppliedIndex": str(index)}

    stuck = STATUS | {"raftIndex": "4000", "raftAppliedIndex": "4000"}
    with ExitStack() as stack:
        urls = [stack.enter_context(loopback(member(each))).url
                for each in (moving, lambda: stuck, moving)]  # fmt: skip
        state = EtcdReader(urls, Web()).read()
    results = evaluate(BY_ID["ETCD-11B"], ClusterFacts(nodes=10, etcd=state))
    assert [each.subject for each in results if isinstance(each, Finding)] == [
        urls[1].removeprefix("http://")
    ]
    assert "a member had 50,000 before" in str(results)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"<html>"), "not an answer of etcd"),
        (Answer(b"[" * 100_000), "not an answer of etcd"),
        (Answer(b'{"raftIndex":"many"}'), "not an answer of etcd"),
        (Answer(b'{"header":[]}'), "not an answer of etcd"),
        (Answer(b" " * (2 << 20)), "more than 1,048,576 bytes"),
        (
            Answer(b'{"error":"etcdserver: user\\u001b name is empty"}', 400),
            r"user\x1b name is empty",
        ),
        (Answer(status=404), "HTTP 404"),
        (Answer(b"{", length=10), "ends 9 bytes early"),
    ],
)
def test_what_is_no_answer_of_etcd_is_unknown_with_the_reason(answer: Answer, said: str) -> None:
    with loopback(lambda *_: answer) as server:
        reader = EtcdReader([server.url], Web())
        facts = ClusterFacts(nodes=10, etcd=reader.read(), absent=reader.absent())
    for name in ("ETCD-08B", "ETCD-10B", "ETCD-11B", "ETCD-09C"):
        (unknown,) = evaluate(BY_ID[name], facts)
        assert isinstance(unknown, Unknown)
        assert said in unknown.reason
        assert unknown.reason.isprintable()


def test_alarms_that_cannot_be_read_are_unknown_while_the_status_is_judged() -> None:
    good = member()

    def answer(path: str, body: bytes) -> Answer:
        return Answer(status=403) if path == "/v3/maintenance/alarm" else good(path, body)

    with loopback(answer) as server:
        reader = EtcdReader([server.url], Web())
        facts = ClusterFacts(nodes=10, etcd=reader.read(), absent=reader.absent())
    (alarm,) = evaluate(BY_ID["ETCD-08B"], facts)
    assert isinstance(alarm, Unknown)
    assert "maintenance/alarm: HTTP 403" in alarm.reason
    assert isinstance(evaluate(BY_ID["ETCD-11B"], facts)[0], Passed)


def test_the_number_of_requests_is_bounded_whatever_is_given() -> None:
    with loopback(member()) as server:
        reader = EtcdReader([server.url] * 50, Web())
        reader.read()
        assert len(server.seen) == reader.requests == 2 * MEMBERS_MAX + 2
        assert len(reader.targets(None)) == MEMBERS_MAX


def test_a_member_that_is_not_there_leaves_the_others() -> None:
    with loopback(member()) as server:
        reader = EtcdReader(["http://127.0.0.1:1", server.url], Web())
        state = reader.read()
        facts = ClusterFacts(nodes=10, etcd=state, absent=reader.absent())
        targets = reader.targets(state)
    assert state is not None
    assert [name for name, _ in state.statuses] == [server.url.removeprefix("http://")]
    assert "127.0.0.1:1: maintenance/status" in facts.absent[Source.ETCD_API]
    assert len(targets) == 2, "the page of the other one is asked for, and its absence is said"
