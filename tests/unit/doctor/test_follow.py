"""A log that grows is followed across rotation; the generated audit policy says what it saves."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.doctor.audit_log import Log, cluster_log, with_agent

from fairlead.cli.main import guarded
from fairlead.doctor.audit import follow
from fairlead.doctor.audit.cost import CostModel, summarise
from fairlead.doctor.audit.follow import Follower, windows
from fairlead.doctor.audit.parallel import read_logs
from fairlead.doctor.audit.policy import policy_text
from fairlead.doctor.audit.tally import Tally


def numbered(first: int, count: int) -> bytes:
    log = Log(["{}"] * first)
    for number in range(count):
        log.add(f"/api/v1/namespaces/a/pods/p{first + number}", at=first + number, verb="get")
    return "".join(f"{line}\n" for line in log.lines[first:]).encode()


def events(path: Path, steps: list[Callable[[], object]]) -> list[Tally]:
    """The tally of a window of one second for each step, taken at the begin of the window."""
    clock = itertools.count(0, 0.25)
    left = iter(steps)
    state = {"now": next(clock), "window": -1}

    def sleep(_: float) -> None:
        state["now"] = next(clock)
        if int(state["now"]) > state["window"]:
            state["window"] = int(state["now"])
            next(left, lambda: None)()

    follower = Follower(str(path))
    found = windows(follower, 1.0, now=lambda: state["now"], sleep=sleep)
    tallies = list(itertools.islice(found, len(steps) + 1))
    follower.close()
    return tallies


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_what_is_appended_is_read_and_what_was_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(numbered(0, 5))
    data = numbered(5, 3)
    tallies = events(path, [
        lambda: append(path, data[:-200]), lambda: append(path, data[-200:]),
        lambda: append(path, b"{\n"),
    ])  # fmt: skip
    assert sum(each.events for each in tallies) == 3
    assert [dict(each.skipped) for each in tallies if each.skipped] == [
        {"not JSON (cut, interleaved or damaged)": 1}
    ]


def test_a_rotated_log_is_followed_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch()

    def rotate() -> None:
        append(path, numbered(0, 4).rstrip(b"\n"))
        path.rename(tmp_path / "audit-1.log")
        path.write_bytes(numbered(4, 5))

    tallies = events(path, [rotate, lambda: append(path, numbered(9, 1))])
    assert sum(each.events for each in tallies) == 10


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(numbered(0, 50))

    def truncate() -> None:
        os.truncate(path, 0)
        append(path, numbered(50, 2))

    assert sum(each.events for each in events(path, [truncate, lambda: None])) == 2


def test_a_line_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LINE_BYTES_MAX", 2_000)
    path = tmp_path / "audit.log"
    path.touch()
    steps = [lambda: append(path, b"x" * 3_000)] * 3 + [
        lambda: append(path, b"\n" + numbered(0, 2))
    ]
    tallies = events(path, [*steps, lambda: None])
    assert sum(each.events for each in tallies) == 2
    assert sum(sum(each.skipped.values()) for each in tallies) == 1


@pytest.mark.parametrize("is_truncated", [True, False])
def test_what_follows_a_line_without_end_in_a_new_file_is_read(
    is_truncated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LINE_BYTES_MAX", 2_000)
    path = tmp_path / "audit.log"
    path.touch()

    def renew() -> None:
        if is_truncated:
            os.truncate(path, 0)
        else:
            path.rename(tmp_path / "audit-1.log")
        append(path, numbered(0, 2))

    tallies = events(path, [lambda: append(path, b"x" * 3_000), renew, lambda: None])
    assert sum(each.events for each in tallies) == 2


def test_an_absent_file_cannot_be_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["doctor", "audit", "--follow", str(tmp_path / "absent")]) == 2
    assert guarded(["doctor", "audit", "--follow", "a", "b"]) == 2
    assert "--follow takes one file" in capsys.readouterr().err


def test_a_policy_without_a_log_keeps_heartbeats_of_small_clusters() -> None:
    small, large = (yaml.safe_load(policy_text(None, nodes)) for nodes in (20, 7_500))
    assert small["omitStages"] == ["RequestReceived"]
    assert {rule["level"] for rule in large["rules"]} == {"None", "Metadata"}
    assert small["rules"][-1] == large["rules"][-1] == {"level": "Metadata"}
    assert len(large["rules"]) == len(small["rules"]) + 1


def test_a_policy_says_what_it_leaves_out_of_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = with_agent(cluster_log(nodes=20), "/api/v1/events")
    for number in range(40):
        log.add("/api/v1/namespaces/a/events", at=number, verb="create", user="system:node:n",
                agent="kubelet/v1")  # fmt: skip
        log.add("/readyz?verbose", at=number, verb="get", user="system:anonymous")
    path = tmp_path / "audit.log"
    path.write_bytes(log.text())
    assert guarded(["doctor", "audit", "policy", "--nodes", "500", str(path)]) == 0
    text = capsys.readouterr().out
    total = summarise(read_logs([str(path)]), CostModel()).events
    assert f"leaves out 200 of {total} requests" in text, "120 heartbeats, 40 events, 40 probes"
    assert text.count("Leaves out 40 of") == 2
    assert "list" not in {verb for rule in yaml.safe_load(text)["rules"]
                          for verb in rule.get("verbs", ())}  # fmt: skip
