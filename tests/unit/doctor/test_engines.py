"""Both ways to read an audit log give the same tally, on usual and on hostile lines."""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.doctor.audit_log import Log, cluster_log, moment, with_agent

from fairlead.doctor.audit import files, parallel
from fairlead.doctor.audit.files import LineBatch
from fairlead.doctor.audit.lines import LineReader
from fairlead.doctor.audit.parallel import Engine, read_logs, reader_of
from fairlead.doctor.audit.tally import Tally

pytest.importorskip("numba")


def read(lines: list[bytes], engine: Engine) -> Tally:
    tally = Tally()
    reader = reader_of(engine, 0)(tally)
    for start in range(0, len(lines), 97):
        reader.read(LineBatch.of(b"\n".join(lines[start : start + 97])))
    reader.flush()
    return tally


def facts(tally: Tally) -> dict[str, Any]:
    """Everything that a tally says."""
    return {
        "costs": {
            key: (cost.requests, round(cost.seconds, 6), round(cost.seconds_max, 6),
                  round(cost.queue_seconds, 6), dict(cost.codes), len(cost.nodes))
            for key, cost in tally.costs.items()
        },
        "skipped": dict(tally.skipped), "lists": dict(tally.lists_by_second),
        "objects": {name: len(names) for name, names in tally.objects.items()},
        "nodes": len(tally.nodes), "addresses": len(tally.addresses),
        "totals": (tally.events, tally.panics, tally.first, tally.last),
    }  # fmt: skip


def assert_same(lines: list[bytes]) -> dict[str, Any]:
    plain = facts(read(lines, Engine.PLAIN))
    assert facts(read(lines, Engine.COMPILED)) == plain
    return plain


def test_both_read_a_usual_log_alike() -> None:
    log = with_agent(cluster_log(nodes=6), "/api/v1/events?limit=500&resourceVersion=0")
    plain = assert_same([line.encode() for line in log.lines])
    assert plain["totals"][0] == len(log.lines)


def test_no_usual_line_is_left_to_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []
    monkeypatch.setattr(LineReader, "read", lambda _, batch: left.append(batch.cut(0, batch.end)))
    log = with_agent(cluster_log(), "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&watch=true")
    assert read([line.encode() for line in log.lines], Engine.COMPILED).events == len(log.lines)
    assert left == []


names = st.sampled_from(["a", "b-1", "train-x2x7p", "", "A%2Fb", "x" * 300, "ü", "status", "a\\b"])
values = st.one_of(st.none(), st.integers(-3, 10**12), st.floats(allow_nan=False), st.booleans(),
                   st.text(max_size=12), names)  # fmt: skip
parts = st.one_of(values, st.lists(values, max_size=3),
                  st.dictionaries(st.text(max_size=6), values, max_size=3))  # fmt: skip
queries = st.lists(
    st.sampled_from([
        "limit=500", "limit=0", "limit=", "resourceVersion=0", "resourceVersion=77",
        "resourceVersion=", "resourceVersion=%30", "continue=abc", "continue=", "watch=true",
        "labelSelector=a%3Db", "labelSelector=", "fieldSelector=spec.nodeName%3Dn1",
        "fieldSelector=metadata.name%3Dx%2Cspec.nodeName%3Dn2", "fieldSelector=a%21%3Db",
        "fieldSelector=spec.nodeName", "timeout=5s", "timeoutSeconds=301", "x", "=", "%6Cimit=5",
        "sendInitialEvents=true", "fieldSelector=", "resourceVersion=+0", "fieldSelector=a=b,c!=d",
    ]),
    max_size=4,
).map("&".join)  # fmt: skip
paths = st.one_of(
    st.builds("/api/v1/namespaces/{}/{}/{}".format, names, names, names),
    st.builds("/apis/apps/v1/namespaces/{}/deployments/{}/{}".format, names, names, names),
    st.builds("/api/v1/{}".format, names), st.builds("/api/v1/nodes/{}/status".format, names),
    st.sampled_from(["/healthz", "", "/", "/api", "/apis/", "/api/v1/watch/namespaces/a/pods/b",
                     "/api/v1/namespaces/a/finalize/x", "//////////", "/api/v1/pods/"]),
)  # fmt: skip
users = st.fixed_dictionaries(
    {"username": st.sampled_from([
        "system:node:n1", "system:node:", "system:serviceaccount:a:b", "me", "", "ü"])},
    optional={
        "groups": st.lists(names, max_size=2), "uid": values, "x": parts,
        "extra": st.fixed_dictionaries({}, optional={
            "authentication.kubernetes.io/node-name": st.lists(names, max_size=2),
            "authentication.kubernetes.io/pod-name": st.lists(names, max_size=2),
            "authentication.kubernetes.io/credential-id": parts}),
    },
)  # fmt: skip
times = st.one_of(
    st.floats(0, 50_000).map(moment),
    st.sampled_from(["2026-02-30T10:00:00.000000Z", "0000-01-01T00:00:00.000000Z", "soon", "",
                     "2024-02-29T23:59:59.999999Z", "2026-11-21T10:00:00Z",
                     "2026-11-21T10:00:00.5Z", "1970-01-01T00:00:00.000000Z",
                     "2026-11-21T99:99:99.000000Z", "2026-13-01T00:00:00.000000Z"]),
)  # fmt: skip
events = st.fixed_dictionaries(
    {
        "kind": st.just("Event"), "auditID": st.text("0123456789abcdef", min_size=8, max_size=36),
        "stage": st.sampled_from(["ResponseComplete"] * 8 + ["Panic", "RequestReceived",
                                                              "ResponseStarted", "Other", ""]),
        "requestURI": st.builds(lambda p, q: f"{p}?{q}" if q else p, paths, queries),
        "verb": st.sampled_from(["list", "get", "watch", "connect", "", "ü"]),
        "user": users, "requestReceivedTimestamp": times, "stageTimestamp": times,
    },
    optional={
        "level": values, "objectRef": parts, "requestObject": parts, "x": parts,
        "userAgent": st.sampled_from(["kubelet/v1 (linux)", "", 'a"b', "a\\"]),
        "sourceIPs": st.lists(st.sampled_from(["10.0.0.1", "::1", ""]), max_size=3),
        "responseStatus": st.fixed_dictionaries(
            {}, optional={"code": st.one_of(st.integers(0, 600), values), "message": values}),
        "annotations": st.fixed_dictionaries({}, optional={
            "apiserver.latency.k8s.io/apf-queue-wait": st.sampled_from(["1.5s", "2ms", "", "x"]),
            "authorization.k8s.io/reason": st.text(max_size=20)}),
    },
)  # fmt: skip


def written(event: dict[str, Any], seed: int) -> bytes:
    """An event as a line; the seed decides about spaces, escapes, damage and doubled keys."""
    chance = random.Random(seed)
    line = json.dumps(event, ensure_ascii=chance.random() < 0.7,
                      separators=(",", ":") if chance.random() < 0.9 else (", ", ": "))  # fmt: skip
    data = line.replace("&", "\\u0026").encode("utf-8", "replace")
    kind = chance.random()
    if kind < 0.1:
        return data[: chance.randrange(len(data))]
    if kind < 0.2:
        at = chance.randrange(len(data))
        return data[:at] + bytes([chance.randrange(256)]).replace(b"\n", b"!") + data[at + 1 :]
    if kind < 0.25:
        name = chance.choice(sorted(event)).encode()
        return (
            data[:-1] + b',"' + name + b'":' + chance.choice([b"1", b'"a"', b"{}", b"null"]) + b"}"
        )
    return data


@given(st.lists(st.tuples(events, st.integers(0, 10**6)), max_size=12))
@settings(max_examples=80, deadline=None)
def test_both_read_hostile_lines_alike(drawn: list[tuple[dict[str, Any], int]]) -> None:
    lines = [written({**event, "auditID": f"{event['auditID']}-{number}"}, seed)
             for number, (event, seed) in enumerate(drawn)]  # fmt: skip
    assert_same(lines + lines[:2])


@given(st.binary(max_size=80), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
@example(b"", 0)
def test_both_read_lines_with_damage_alike(noise: bytes, at: int) -> None:
    log = cluster_log(nodes=2, seconds=2)
    data = "\n".join(log.lines).encode()
    at %= len(data)
    assert_same((data[:at] + noise + data[at:]).split(b"\n"))


@pytest.mark.parametrize("place", [1, 9])
def test_a_time_without_text_is_no_time(place: int) -> None:
    log = cluster_log(nodes=2, seconds=1)
    at = log.lines[0].index("2026-11-21T") - 1
    line = log.lines[0].encode()
    wrong = line[: at + place] + bytes(8) + line[at + place + 8 :]
    both = line[: at + 1] + bytes(16) + line[at + 17 :]
    plain = assert_same([wrong, both, line])
    assert plain["totals"][0] == 1


def test_the_minute_of_a_time_is_that_of_its_line() -> None:
    log = Log()
    for number in range(40):
        log.add(at=number * 47.3, seconds=30.5 * (number % 3))
    plain = assert_same([line.encode() for line in log.lines])
    assert plain["totals"][3] - plain["totals"][2] > 30 * 60 * 1_000_000


def test_what_is_looked_up_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.doctor.audit.scan import compiled

    monkeypatch.setattr(compiled, "IDENTITIES_MAX", 50)
    monkeypatch.setattr(compiled, "FORMS_MAX", 20)
    log = Log()
    for number in range(600):
        address = f"10.0.{number % 9}.{number}"
        log.add(f"/api/v1/namespaces/n{number % 7}/pods/p{number}?limit={number % 40}",
                user=f"user-{number}", address=address, at=number)  # fmt: skip
    assert_same([line.encode() for line in log.lines])


def test_all_cores_read_one_log_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster_log(nodes=20, seconds=20)
    path = tmp_path / "a.log"
    path.write_bytes(log.text())
    barrier = multiprocessing.get_context("fork").Barrier(3)

    class Meeting(LineReader):
        def __init__(self, tally: Tally) -> None:
            super().__init__(tally)
            barrier.wait(60)  # for three processes, or it breaks

    monkeypatch.setattr(files, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(parallel, "_cores", lambda: 3)
    monkeypatch.setattr(parallel, "LineReader", Meeting)
    assert read_logs([str(path)]).events == len(log.lines)


def test_the_engine_is_chosen_by_the_size_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(cluster_log().text())
    chosen: list[type] = []
    monkeypatch.setattr(parallel, "_read", lambda _, make: chosen.append(make) or Tally())
    read_logs([str(path)])
    monkeypatch.setattr(parallel, "COMPILED_BYTES_MIN", 100)
    read_logs([str(path)])
    monkeypatch.setattr(parallel, "_SCAN", "fairlead.doctor.audit.taken_out")
    assert not parallel.has_compiler()
    read_logs([str(path)])
    assert [each.__name__ for each in chosen] == ["LineReader", "CompiledReader", "LineReader"]
