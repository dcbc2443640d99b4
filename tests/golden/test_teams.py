"""What people see of teams: tables, a team in detail, a plan of other shares, converted tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW, WorldApi

from fairlead.api.cluster.team import (
    Budget,
    JobLimits,
    Reservation,
    ShareStatus,
    Team,
    TeamStatus,
    TeamUse,
)
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.kubernetes.core import ConfigMap, Node, Taint
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.names import TEAM
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODES, TEAMS
from fairlead.api.values.times import format_time
from fairlead.cli.connection.common import Common
from fairlead.cli.main import guarded
from fairlead.testing.builders import make_job, make_node, make_placement, make_team


def node(number: int, team: str = "") -> Node:
    taints = [Taint(TEAM, "NoSchedule", team)] if team else []
    return make_node(f"v{number:05d}", taints=taints)


def running(name: str, team: str, nodes: list[int]) -> Job:
    placed = make_placement([f"v{number:05d}" for number in nodes])
    return make_job(
        name, namespace=team, count=len(nodes), gpus=8,
        placement=replace(placed, team=team, may_borrow=True),
        conditions=[Condition("Admitted", "True"), Condition("Running", "True")],
        status={"attempts": (Attempt(1, started_at=format_time(NOW - 7200)),),
                "started_at": format_time(NOW - 7200), "state": "Running"},
    )  # fmt: skip


def status(reason: str, message: str = "", **more: Any) -> TeamStatus:
    ready = Condition("Ready", "True" if reason == "SharesMet" else "False", reason, message)
    return TeamStatus(conditions=(ready,), **more)


def teams() -> list[Team]:
    """Return two teams, one of which lends two of its four nodes, and one without a share."""
    speech = make_team("speech", nodes=4, lend_limit_nodes=3)
    vision = make_team(
        "vision", nodes=3, weight=2, borrow_limit_nodes=2,
        limits=JobLimits(running=4, waiting=50, submitted=100, gpus=64),
        user_limits=JobLimits(running=2, gpus=48), budget=Budget(gpu_hours=1000),
    )  # fmt: skip
    return [
        replace(speech, status=status(
            "SharesMet", nodes=4, shares=(ShareStatus(nodes=4, gpus=32),),
            use=TeamUse(jobs_placed=1, jobs_waiting=1, gpus=16, nodes_used=2, nodes_lent=3,
                        nodes_lent_to_pods=1, intruders=2, dominant_share_seconds=9000.0))),
        replace(vision, status=status(
            "SharesUnmet", "no healthy node is left for 1 node of its shares", nodes=2,
            nodes_missing=1, shares=(ShareStatus(nodes=2, gpus=16, nodes_missing=1),),
            use=TeamUse(jobs_placed=2, jobs_submitted=2, gpus=32, nodes_used=2, nodes_borrowed=2,
                        dominant_share_seconds=72_000.0, gpu_hours=1100.0))),
        make_team("guests", shares=()),
    ]  # fmt: skip


class TeamsApi(WorldApi):
    """Six nodes: four of speech, on two of which a gang of vision runs, and two of vision."""

    def __init__(self) -> None:
        super().__init__()
        self.objects |= {
            TEAMS.name: teams(),
            NODES.name: [node(i, "speech" if i < 4 else "vision") for i in range(6)],
            JOBS.name: [
                running("asr", "speech", [0, 1]),
                running("gang", "vision", [2, 3]),
                running("own", "vision", [4, 5]),
                make_job("tts", namespace="speech", count=2, gpus=8, created=NOW - 60),
            ],
            CONFIG_MAPS.name: [ConfigMap(metadata=ObjectMeta(name="quotas"), data=TABLE)],
        }


TABLE = {
    "quotas": """
- ["fairlead.dev/pool=a100", speech, 40]
- [{zone: west}, vision, 8]
- {selector: "", team: vision, gpus: 64}
- ["fairlead.dev/pool=a100", speech, 2]
""",
}


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Common, "connect", lambda _self, **_: TeamsApi())
    monkeypatch.setattr("fairlead.cli.cluster.cluster_settings.read_status", lambda _api: None)
    monkeypatch.setattr("fairlead.cli.commands.teams.now", lambda: NOW)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert guarded(list(arguments)) == 0
    return capsys.readouterr().out


def test_teams(capsys: pytest.CaptureFixture[str]) -> None:
    check("tables/teams.txt", said(capsys, "teams"))
    check("tables/teams-wide.txt", said(capsys, "teams", "-o", "wide"))
    assert said(capsys, "teams", "-o", "name") == "speech\nvision\nguests\n"
    items = json.loads(said(capsys, "teams", "-o", "json"))["items"]
    assert [item["metadata"]["name"] for item in items] == ["speech", "vision", "guests"]


def test_quota_shows_what_is_lent_and_borrowed_and_by_which_jobs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "".join(said(capsys, "quota", name) for name in ("speech", "vision", "guests"))
    check("tables/quota.txt", text)
    assert json.loads(said(capsys, "quota", "speech", "-o", "json"))["kind"] == "Team"


def test_quota_of_a_team_that_does_not_exist_names_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(["quota", "spech"]) == 2
    assert "fairlead quota speech" in capsys.readouterr().err


def test_ps_and_why_say_what_a_job_borrows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.commands.jobs.is_embedded", lambda _api: False)
    monkeypatch.setattr("fairlead.cli.commands.why.read_status", lambda _api: None)
    for module in ("jobs", "why"):
        monkeypatch.setattr(f"fairlead.cli.commands.{module}.now", lambda: NOW)
    check("tables/ps-teams.txt", said(capsys, "ps", "-A", "-o", "wide"))
    check("tables/why-borrows.txt", said(capsys, "why", "gang", "-n", "vision"))
    facts = json.loads(said(capsys, "why", "gang", "-n", "vision", "-o", "json"))
    assert facts["borrowed"] == {"speech": ["v00002", "v00003"]}


def test_why_explains_several_jobs_one_after_the_other_and_if_only_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.commands.why.read_status", lambda _api: None)
    monkeypatch.setattr("fairlead.cli.commands.why.now", lambda: NOW)
    waiting = [
        make_job(name, namespace="vision", count=count, gpus=8)
        for name, count in (("a", 9), ("b", 8))
    ]
    api = TeamsApi()
    api.objects[JOBS.name] = [running("gang", "vision", [2, 3, 4, 5]), *waiting]
    monkeypatch.setattr(Common, "connect", lambda _self, **_: api)
    each = [said(capsys, "why", name, "-n", "vision") for name in ("b", "a")]
    assert said(capsys, "why", "b", "a", "-n", "vision") == "\n".join(each)
    assert said(capsys, "why", "b", "a", "-n", "vision", "-o", "name") == "b\na\n"
    facts = json.loads(said(capsys, "why", "b", "a", "-n", "vision", "-o", "json"))
    assert [of["explanation"]["job"] for of in facts] == [["vision", "b"], ["vision", "a"]]
    assert guarded(["why", "b", "a", "--if", "nodes=1"]) == 2
    assert "--if: explains one job, got 2" in capsys.readouterr().err


def test_why_says_that_a_job_backs_off_from_borrowing_and_what_helps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.commands.why.read_status", lambda _api: None)
    monkeypatch.setattr("fairlead.cli.commands.why.now", lambda: NOW)
    api = TeamsApi()
    borrowed = (HeldNodes("", "speech", 8),)
    gave_way = tuple(
        Attempt(n + 1, finished_at=format_time(NOW - 720 + 240 * n), reason="Preempted",
                message="gives its nodes back for job speech/tts of priority 0", held=borrowed)
        for n in range(4)
    )  # fmt: skip
    waits = make_job("sweep", namespace="vision", gpus=8, attempt=5, created=NOW - 3600,
                     time_limit_seconds=600, status={"attempts": gave_way})  # fmt: skip
    api.objects[JOBS.name] = [running("own", "vision", [4, 5]), waits]
    monkeypatch.setattr(Common, "connect", lambda _self, **_: api)
    check("tables/why-borrow-back-off.txt", said(capsys, "why", "sweep", "-n", "vision"))
    facts = json.loads(said(capsys, "why", "sweep", "-n", "vision", "-o", "json"))
    assert facts["explanation"]["borrowerBackoff"] == {"times": 4, "until": NOW + 240}


def test_reservations(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def reservation(name: str, hours: float, **nodes: Any) -> Reservation:
        start = NOW + 3600 * hours
        return Reservation(name, format_time(start), format_time(start + 7200), **nodes)

    api = TeamsApi()
    speech, vision, *_ = teams()
    late = reservation("workshop", 20, pool="a100", node_selector={"rack": "r1"})
    now = reservation("demo", -1, node_names=tuple(f"v{n:05d}" for n in range(5)))
    past = reservation("old", -30, node_names=("v00001",))
    api.objects[TEAMS.name] = [
        replace(vision, spec=replace(vision.spec, reservations=(late, now))),
        replace(speech, spec=replace(speech.spec, reservations=(past,))),
    ]
    monkeypatch.setattr(Common, "connect", lambda _self, **_: api)
    monkeypatch.setattr("fairlead.cli.commands.reservations.now", lambda: NOW)
    check("tables/reservations.txt", said(capsys, "reservations"))
    assert said(capsys, "reservations", "-o", "name") == "old\nworkshop\ndemo\n"
    items = json.loads(said(capsys, "reservations", "-o", "json"))["items"]
    assert [(item["team"], item["name"]) for item in items] == [
        ("speech", "old"), ("vision", "workshop"), ("vision", "demo"),
    ]  # fmt: skip


PLANNED = """
apiVersion: fairlead.dev/v1alpha1
kind: Team
metadata: {name: speech}
spec:
  namespaces: [speech]
  shares: [{nodes: 2}]
---
apiVersion: fairlead.dev/v1alpha1
kind: Team
metadata: {name: robots}
spec:
  namespaces: [robots]
  shares: [{nodes: 3}]
"""


def test_the_plan_of_other_shares(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "teams.yaml"
    file.write_text(PLANNED)
    check("tables/teams-plan.txt", said(capsys, "teams", "plan", "-f", str(file)))
    check("tables/teams-plan-prune.txt", said(capsys, "teams", "plan", "-f", str(file), "--prune"))
    facts = json.loads(said(capsys, "teams", "plan", "-f", str(file), "-o", "json"))
    assert {move["before"] for move in facts["moves"]} == {"speech"}


def test_a_plan_with_mistakes_names_each_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = PLANNED.replace("nodes: 2", "nodes: -2").replace("nodes: 3", "nods: 3")
    Path("teams.yaml").write_text(bad)
    assert guarded(["teams", "plan", "-f", "teams.yaml"]) == 2
    check("errors/teams-plan.txt", capsys.readouterr().err)


def test_a_table_of_tuples_becomes_teams(capsys: pytest.CaptureFixture[str]) -> None:
    check("tables/teams-import.yaml", said(capsys, "teams", "import", "quotas"))


def test_a_table_with_mistakes_names_each_entry(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: quotas}\ndata:\n"
        "  a: |\n    - [zone, vision, 8]\n    - ['', '', 8]\n    - ['', vision, many]\n    - 7\n"
        "  b: 'not: a list'\n"
    )
    assert guarded(["teams", "import", "-f", "table.yaml"]) == 2
    check("errors/teams-import.txt", capsys.readouterr().err)
