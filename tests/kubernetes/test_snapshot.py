"""`doctor snapshot` on a real Prometheus that scrapes a real run: the page shows what it answers.

The page is read as a person reads it, by its lines and the labels of its axes, and compared with
answers to the same queries over the same time.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import re
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    ended,
    http_client,
    install_kinds,
    job_body,
    remove_report,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.prometheus_server import Server, prometheus, scrape_at, scrape_of
from tests.kubernetes.replicas import leader, replicas
from tests.kubernetes.test_monitoring import EMPTY, FILLED, sees_clearly, static_pool
from tests.unit.doctor.pictured import Pictured, pictured

from fairlead.api.resources import JOBS
from fairlead.doctor.monitoring.boards import Panel, all_boards
from fairlead.doctor.output.snapshot import SERIES_MAX
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
#: Instants that are not compared: the server may have got another sample for them meanwhile.
LATEST = 5
SCRAPES = 5
#: A quantile of nothing: no machine was launched.
NOT_A_NUMBER = {"From demand to the first launch call"}
PANELS = {
    panel.title: (panel, board.uid)
    for board in all_boards() for _, row in board.rows for panel in row
}  # fmt: skip


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(plane)
    await install_kinds(client)
    await remove_report(client)
    yield client
    await sweep(client)
    await client.close()


def window(page: str) -> dict[str, str]:
    """Return the start, end and step that the page names."""
    found = re.search(r"([-\d]+ [:\d]+) to ([-\d]+ [:\d]+) UTC, every (\d+)s", page)
    assert found is not None
    start, end = (
        str(datetime.datetime.fromisoformat(f"{found[i]}+00:00").timestamp()) for i in (1, 2)
    )
    return {"start": start, "end": end, "step": found[3]}


def answered(server: Server, panel: Panel, times: dict[str, str]) -> dict[str, list[float]]:
    """Return the finite values of each series of a panel, by its name in the legend."""
    found: dict[str, list[float]] = {}
    for query, legend in panel.lines:
        text = query.replace("$__rate_interval", "300s")
        path = f"/api/v1/query_range?{urllib.parse.urlencode({'query': text, **times})}"
        for each in server.get(path)["result"]:
            name = legend
            for label, value in each["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            values = [float(value) for _, value in each["values"]]
            name = " ".join(re.sub(r"{{\w+}}", "", name).split())[:60] or "value"
            found[name] = [value for value in values if math.isfinite(value)]
    return {name: values for name, values in found.items() if values}


def is_compared(panel: Pictured, series: dict[str, list[float]]) -> bool:
    """Compare lines with series, but for the latest; False where an axis has no plain numbers."""
    lines = dict(zip(panel.names, panel.lines, strict=True))
    assert set(lines) <= set(series)
    assert len(lines) == min(len(series), SERIES_MAX)
    if not panel.pixel or any(len(line) != len(series[name]) for name, line in lines.items()):
        return False  # dots are two points
    for name, line in lines.items():
        expected = pytest.approx(series[name][:-LATEST], abs=2 * panel.pixel)
        assert list(line)[:-LATEST] == expected, (panel.title, name)
    return True


def compared(server: Server, page: str) -> Iterator[str]:
    """Yield the titles of the panels whose every line was compared."""
    times = window(page)
    for panel in pictured(page):
        wanted, _ = PANELS[panel.title]
        series = answered(server, wanted, times)
        assert panel.is_empty == (not series), panel.title
        if series and not wanted.is_stacked and is_compared(panel, series):
            yield panel.title


async def test_the_page_shows_what_a_real_prometheus_answers(
    plane: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    async with virtual_nodes(client, 2), static_pool(client, tmp_path), replicas(plane) as world:
        await world.start()
        replica = await leader(client, world)
        jobs = [scrape_of(plane), scrape_at("kube-etcd", plane.etcd_url),
                scrape_at("fairlead", f"http://127.0.0.1:{replica.port}")]  # fmt: skip
        with prometheus(tmp_path / "data", jobs, interval="1s") as server:
            await until(lambda: sees_clearly(client))
            for number in range(3):
                await client.create(
                    JOBS, job_body(f"drawn-{number}", 2, seconds=1), namespace="default"
                )
                await ended(client, f"drawn-{number}")

            async def has_examined() -> bool:
                samples = "min(count_over_time(fairlead_doctor_findings[5m]))"
                return (await asyncio.to_thread(server.value, samples) or 0) >= SCRAPES

            await until(has_examined)
            await asyncio.to_thread(server.scraped, SCRAPES, 3)
            page = (await asyncio.to_thread(
                shell.run, "doctor", "snapshot", server.url, "--since", "5m"
            )).out  # fmt: skip
            alike = await asyncio.to_thread(lambda: list(compared(server, page)))

    panels = {each.title: each for each in pictured(page)}
    assert list(panels) == list(PANELS)
    empty = {title for title, each in panels.items() if each.is_empty}
    own = {title for title, (_, uid) in PANELS.items() if uid != "fairlead-control-plane"}
    assert empty & own <= EMPTY | NOT_A_NUMBER
    assert [each for each in FILLED if any(t.startswith(f"{each} ") for t in empty)] == []
    assert len(alike) > 25
