"""The probes of an embedded cluster say what its controllers do, not only that it answers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS
from fairlead.app.configuration.settings import Settings
from fairlead.app.local.embedded import Cluster
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.logs import SILENT
from fairlead.testing.builders import make_job

pytestmark = pytest.mark.e2e


async def until(session: aiohttp.ClientSession, url: str, code: int) -> str:
    """Return the answer once it has this code."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with session.get(url) as answer:
                text = await answer.text()
                if answer.status == code:
                    return text
            await asyncio.sleep(0.05)


async def test_a_controller_that_crashes_makes_the_cluster_unready_until_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(tmp_path, 2, 8, "instant", "127.0.0.1", 0, is_port_asked=False)
    cluster = Cluster(settings, "token", clock=SystemClock(), log=SILENT, say=lambda _: None)
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    decide = SchedulerController.decide

    def broken(*_: object) -> Any:
        raise RuntimeError("planted")

    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.run(ready.set_result))
        url = (await ready).url
        trusted = ssl.create_default_context(cadata=cluster.authority.decode())
        connector = aiohttp.TCPConnector(ssl=trusted)
        async with aiohttp.ClientSession(connector=connector) as session:
            assert await until(session, f"{url}/readyz", 200) == "ok"
            monkeypatch.setattr(SchedulerController, "decide", broken)
            headers = {"Authorization": "Bearer token"}
            jobs = f"{url}{JOBS.path('default')}"
            kind = {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
            spec = to_wire(make_job("job"))["spec"]
            job = {**kind, "metadata": {"name": "job"}, "spec": spec}
            async with session.post(jobs, json=job, headers=headers) as answer:
                assert answer.status == 201, await answer.text()
            text = await until(session, f"{url}/readyz", 500)
            assert "[-]scheduler failed" in text
            assert "jobs" not in text
            async with session.get(f"{url}/livez") as answer:
                assert answer.status == 200
            monkeypatch.setattr(SchedulerController, "decide", decide)
            await until(session, f"{url}/readyz", 200)
        cluster.stop()
        await running
