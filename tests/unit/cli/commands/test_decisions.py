"""`fairlead decisions`: the list, a file, and the decision made again from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.status import ApiError, Expired, Forbidden, NotFound
from fairlead.app.queries.decision_file import write_lines
from fairlead.app.queries.messages import DECISIONS_PATH
from fairlead.cli.app import run
from fairlead.cli.cluster.archive import proxy_path
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.controllers.placing.decision_log import Cycle
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import PlanMemory, Recall
from fairlead.decide.placement.snapshot import CarriedState, Snapshot
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import Connection
from fairlead.model.objects import Objects
from fairlead.testing.builders import EPOCH, make_job, make_nodes

LINE = (
    b'{"cycle":7,"at":1767225600.0,"seconds":0.0012,"waiting":3,'
    b'"actions":{"PlaceJob":1,"WriteVerdict":2},"digest":"sha256:0123456789abcdef"}'
)


@dataclass
class Server(Api):
    """Answers with lines, or refuses, by path."""

    answers: dict[str, list[bytes] | ApiError]
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(Connection("http://nowhere", source="a test"))

    def token(self) -> str:
        return "token"

    def request(self, *_: object, **__: object) -> HttpResponse:
        raise Forbidden("may not get clusterrolebindings")

    def lines(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        self.asked.append((path, query))
        answer = self.answers.get(path, NotFound("404 page not found"))
        if isinstance(answer, ApiError):
            raise answer
        yield from answer


def serve(monkeypatch: pytest.MonkeyPatch, **answers: list[bytes] | ApiError) -> Server:
    """Let commands ask a server; keys are "own" and "proxied", with "_7" of that decision."""
    bases = {"own": DECISIONS_PATH, "proxied": proxy_path(OWN_NAMESPACE) + DECISIONS_PATH}
    by_path: dict[str, list[bytes] | ApiError] = {}
    for name, answer in answers.items():
        base, _, number = name.partition("_")
        by_path[bases[base] + (f"/{number}" if number else "")] = answer
    server = Server(by_path)
    monkeypatch.setattr(Common, "connect", lambda _: server)
    return server


def recorded() -> list[bytes]:
    """Return the file of a decision that places a job."""
    objects = Objects(tuple(make_nodes(2, gpus=8)), (make_job("train", count=2, gpus=8),))
    snapshot = Snapshot(EPOCH, objects)
    state = PlacementState.of(objects.nodes, objects.jobs)
    actions = decide(state, snapshot.policy, EPOCH, memory=PlanMemory(snapshot.recall)).actions
    cycle = Cycle(EPOCH, 0.001, 0, False, actions, Recall(), CarriedState(), number=7)
    return [line.rstrip(b"\n") for line in write_lines(cycle, snapshot)]


def test_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(monkeypatch, own=[LINE])
    assert run(["decisions", "--limit", "5"]) == 0
    assert server.asked == [(DECISIONS_PATH, {"limit": "5"})]
    assert capsys.readouterr().out.splitlines() == [
        "CYCLE  AT                     MS  WAITING  ACTIONS",
        "    7  2026-01-01T00:00:00Z  1.2        3  1 PlaceJob, 2 WriteVerdict",
    ]
    assert run(["decisions", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [json.loads(LINE)]
    assert run(["decisions", "-o", "name"]) == 0
    assert capsys.readouterr().out == "7\n"


def test_on_a_real_cluster_the_controller_is_asked_with_the_users_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, own=Forbidden("no"), proxied=[LINE])
    assert run(["decisions", "-o", "name"]) == 0
    assert capsys.readouterr().out == "7\n"
    serve(monkeypatch, proxied=Forbidden("ann may not list jobs.fairlead.dev in all namespaces"))
    assert run(["decisions"]) == 5
    error = capsys.readouterr().err
    assert "error[E422]: the scheduler's decisions cannot be read" in error
    assert "ann may not list jobs.fairlead.dev in all namespaces" in error


def test_a_decision_is_saved_for_its_owner_alone_and_made_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serve(monkeypatch, own_7=recorded())
    file = tmp_path / "decision.jsonl"
    assert run(["decisions", "save", "7", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert run(["decisions", "replay", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "Decision 7 of 2026-01-01T00:00:00Z, by fairlead 0.1.0: 2 nodes, 1 job, 0 pods",
        "  ACTION    NAMESPACE  JOB    WHAT",
        "  PlaceJob  default    train  Placed, 2 nodes: node-[0000-0001]",
    ]
    assert "The decision is the same as the recorded one: sha256:" in err
    assert run(["decisions", "replay", str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert found["digest"] == found["recordedDigest"]


def test_a_decision_that_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("own_9", "proxied_9"):
        serve(monkeypatch, **{name: Expired("decision 9 is not kept")})
        assert run(["decisions", "save", "9", str(tmp_path / "file")]) == 3
        assert "error[E306]: decision 9 is not kept, or not any more" in capsys.readouterr().err
    assert not (tmp_path / "file").exists()
    serve(monkeypatch, own_7=recorded())
    assert run(["decisions", "save", "7", str(tmp_path / "no" / "file")]) == 5
    assert "error[E703]" in capsys.readouterr().err


def test_a_changed_file_shows_another_decision(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = recorded()
    file = tmp_path / "decision.jsonl"
    file.write_bytes(b"\n".join(lines).replace(b'"count":2', b'"count":1'))
    assert run(["decisions", "replay", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "-  PlaceJob  default    train  Placed, 2 nodes: node-[0000-0001]" in out
    assert "+  PlaceJob  default    train  Placed, 1 node: node-0000" in out
    assert "The decision DIFFERS from the recorded one" in err
    header = json.loads(lines[0])
    header["actions"][0]["patch"] = {"verdict": 7, "placement": {"roles": [3]}, "\u001b[2J": 1}
    file.write_bytes(b"\n".join([json.dumps(header).encode(), *lines[1:]]))
    assert run(["decisions", "replay", str(file)]) == 1
    out = capsys.readouterr().out
    assert r"changes \x1b[2J, placement, verdict" in out
    header = json.loads(lines[0]) | {"digest": "sha256:0"}
    file.write_bytes(b"\n".join([json.dumps(header).encode(), *lines[1:]]))
    assert run(["decisions", "replay", str(file)]) == 1


def test_files_that_are_none_are_refused_with_their_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines, file = recorded(), tmp_path / "decision.jsonl"
    assert run(["decisions", "replay", str(file)]) == 2
    assert "error[E802]: " in capsys.readouterr().err
    lines[1] = lines[1].replace(b'"name":"', b'"name":5,"x":"', 1)
    file.write_bytes(b"\n".join(lines))
    assert run(["decisions", "replay", str(file)]) == 2
    assert capsys.readouterr().err.splitlines()[:2] == [
        "error[E802]: Expected `str`, got `int`", f"  --> {file}:2   `object.metadata.name`",
    ]  # fmt: skip
    file.write_bytes(b"\x00\xff" * 100)
    assert run(["decisions", "replay", str(file)]) == 2
    assert f"  --> {file}:1" in capsys.readouterr().err


def test_objects_that_no_server_would_take_end_in_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "decision.jsonl"
    text = b"\n".join(recorded()).replace(b'"2025-', b'"x025-').replace(b'"2026-', b'"x026-')
    file.write_bytes(text)
    assert run(["decisions", "replay", str(file)]) == 2
    assert "error[E802]: no decision can be made from" in capsys.readouterr().err
