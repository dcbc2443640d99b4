"""Which scheduled events of EC2 count, how often they are asked for, and what an error changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.e2e.aws_server import AwsServer, aws_server
from tests.e2e.clouds import AwsCloud

from fairlead.cloud import calls
from fairlead.cloud.provider import LaunchRequest
from fairlead.model.health.machines import Inventory

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:Exception.*does not match an error shape:UserWarning"),
]
START = datetime(2026, 12, 1, 8, tzinfo=UTC)


@pytest.fixture(scope="module")
def served() -> Iterator[AwsServer]:
    with aws_server() as server:
        yield server


@pytest.fixture
def server(served: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(served.url))
    served.events.clear()
    served.calls.clear()
    served.faults.clear()
    return served


def event(code: str, start: datetime, hours: float | None = None, text: str = "") -> dict[str, Any]:
    end = {} if hours is None else {"NotAfter": start + timedelta(hours=hours)}
    return {"Code": code, "Description": text, "NotBefore": start, **end}


def windows(inventory: Inventory) -> list[str]:
    return [each.maintenance for each in inventory.instances]


async def test_the_first_event_that_is_not_over_is_the_window(server: AwsServer) -> None:
    provider = AwsCloud(server).provider()
    ids = await provider.launch(LaunchRequest("events-1", "h100", 4, AwsCloud.zone))
    bare = [id_.rpartition("/")[2] for id_ in ids]
    later = START + timedelta(days=7)
    server.events |= {
        bare[0]: [event("system-reboot", later, 1), event("system-maintenance", START, 4)],
        bare[1]: [event("instance-retirement", START)],
        bare[2]: [event("instance-stop", START, 1, "[Completed] done"),
                  event("unheard-of", START, 1)],
    }  # fmt: skip
    found = await provider.instances()
    by_id = dict(zip([each.id for each in found.instances], windows(found), strict=True))
    assert [by_id[id_] for id_ in ids] == [
        "2026-12-01T08:00:00Z/2026-12-01T12:00:00Z",
        "2026-12-01T08:00:00Z/2026-12-02T08:00:00Z",
        "",
        "",
    ]
    assert found.warning == ""
    await provider.terminate(ids)


async def test_events_are_asked_for_once_a_minute_and_kept_while_ec2_does_not_answer(
    server: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = AwsCloud(server).provider()
    ids = await provider.launch(LaunchRequest("events-2", "h100", 1, AwsCloud.zone))
    server.events[ids[0].rpartition("/")[2]] = [event("system-reboot", START, 1)]
    window = "2026-12-01T08:00:00Z/2026-12-01T09:00:00Z"
    for _ in range(3):
        assert windows(await provider.instances()) == [window]
    assert server.calls["events"] == 1
    monkeypatch.setattr(calls, "ANNOUNCED_SECONDS", 0.0)
    AwsCloud(server).plan("events", "UnauthorizedOperation")
    found = await provider.instances()
    assert windows(found) == [window]
    assert found.warning.startswith(
        "what maintenance is announced is not known: AWS: UnauthorizedOperation"
    )
    server.events.clear()
    found = await provider.instances()
    assert (windows(found), found.warning) == ([""], "")
    await provider.terminate(ids)
