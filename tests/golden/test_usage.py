"""GPU-hours as people read them: tables, CSV, JSON, refusals."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW, WorldApi

from fairlead.api.jobs.job import Attempt, Cause, Job
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.meta import to_wire
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import JOBS
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import HistoryLine
from fairlead.cli.connection.common import Common
from fairlead.cli.main import guarded
from fairlead.testing.builders import make_job

HOUR = 3600.0


def job(name: str, user: str, *attempts: Attempt) -> Job:
    made = make_job(name, namespace="vision", count=2, gpus=8, status={"attempts": attempts})
    return replace(made, metadata=replace(made.metadata, annotations={SUBMITTED_BY: user}))


def attempt(begun: float, ended: float | None, team: str, **more: object) -> Attempt:
    """Return an attempt that began and ended so many hours ago."""
    end = format_time(NOW - ended * HOUR) if ended is not None else None
    begin = format_time(NOW - begun * HOUR)
    return Attempt(1, begun_at=begin, started_at=begin, finished_at=end, team=team, **more)  # type: ignore[arg-type]


LENT = (HeldNodes("a100", "", 8), HeldNodes("a100", "speech", 8))
ENDED = [
    job("train", "ana", attempt(30, 20, "vision", cause=Cause.NODE, reason="NodeLost"),
        attempt(20, 10, "vision", held=LENT)),
    job("tune", "ben", attempt(5, 4, "vision", reason="Preempted", held=LENT)),
    job("asr", "eva", attempt(1000, 999, "speech")),
]  # fmt: skip
LIVE = [job("now", "eva", attempt(2, None, "speech")), ENDED[1]]


def line(one: Job) -> HistoryLine:
    return HistoryLine(one.metadata.uid, "vision", one.metadata.name, "Succeeded",
                       document=to_wire(one))  # fmt: skip


class UsageApi(WorldApi):
    def __init__(self) -> None:
        super().__init__()
        self.objects[JOBS.name] = LIVE


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "fairlead.cli.commands.usage"
    monkeypatch.setattr(Common, "connect", lambda _self, **_: UsageApi())
    monkeypatch.setattr(f"{module}.past_lines", lambda *_: [line(one) for one in ENDED])
    monkeypatch.setattr(f"{module}.stopped", lambda _common: None)
    monkeypatch.setattr(f"{module}.now", lambda: NOW)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert guarded(["usage", *arguments]) == 0
    return capsys.readouterr().out


def test_usage_by_team_and_by_several_keys(capsys: pytest.CaptureFixture[str]) -> None:
    check("tables/usage.txt", said(capsys) + said(capsys, "--by", "user,pool,job"))


def test_usage_has_a_cost_where_a_price_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    priced = (HeldNodes("h100", "", 8, gpu_hour_micros=12_290_000), HeldNodes("a100", "", 8))
    ended = [*ENDED, job("big", "eva", attempt(200, 100, "vision", held=priced)),
             job("small", "ben", attempt(3, 2, "audio", held=priced[:1]))]  # fmt: skip
    module = "fairlead.cli.commands.usage"
    monkeypatch.setattr(f"{module}.past_lines", lambda *_: [line(one) for one in ended])
    check("tables/usage-cost.txt", said(capsys) + said(capsys, "--by", "team", "-o", "csv"))
    facts = json.loads(said(capsys, "-o", "json"))
    costs = {fact["team"]: fact.get("cost") for fact in facts}
    assert costs["audio"] == {"amount": 98.32, "unpricedGpuHours": 0.0}
    assert costs["vision"] == {"amount": 9832.0, "unpricedGpuHours": 1136.0}
    assert costs["speech"] is None


def test_usage_as_csv_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    check("tables/usage.csv", said(capsys, "--by", "team,user", "-o", "csv"))
    facts = json.loads(said(capsys, "--since", "3h", "-o", "json"))
    assert [fact["team"] for fact in facts] == ["speech"]
    assert facts[0]["gpuHours"]["held"] == 32.0


def test_a_job_that_the_history_has_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(said(capsys, "--by", "job", "-o", "json"))
    assert {fact["job"]: fact["gpuHours"]["held"] for fact in facts}["tune"] == 16.0


def test_usage_by_week_sums_up_to_that_of_the_whole_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = json.loads(said(capsys, "--since", "60d", "-o", "json"))
    weeks = json.loads(said(capsys, "--by", "team,week", "--since", "60d", "-o", "json"))
    assert len({each["week"] for each in weeks}) > 1
    for each in whole:
        own = [week["gpuHours"]["held"] for week in weeks if week["team"] == each["team"]]
        assert sum(own) == pytest.approx(each["gpuHours"]["held"])


def test_an_unknown_key_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["usage", "--by", "teams"]) == 2
    assert "--by team" in capsys.readouterr().err
