"""People of a simulated world who submit its jobs, and try again when a limit refuses one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api.resources import JOBS
from fairlead.api.status import Invalid
from fairlead.runtime.client import Client
from fairlead.sim.workload import Arrival

#: A job that a limit of its team or user refuses is submitted again after this.
_REFUSED_SECONDS = 60.0


@dataclass(slots=True)
class Submission:
    """`elapsed` returns the seconds since the world began."""

    client: Client
    elapsed: Callable[[], float]
    #: How often a limit has refused a job.
    refused: int = 0

    async def run(self, arrivals: Sequence[Arrival]) -> None:
        """Submit each job at its instant; end when every one was taken."""
        async with asyncio.TaskGroup() as again:
            for arrival in arrivals:
                await asyncio.sleep(max(0.0, arrival.at - self.elapsed()))
                if not await self._create(arrival.body):
                    again.create_task(self._create_later(arrival.body))

    async def _create_later(self, body: dict[str, Any]) -> None:
        while True:
            await asyncio.sleep(_REFUSED_SECONDS)
            if await self._create(body):
                return

    async def _create(self, body: dict[str, Any]) -> bool:
        """Submit a job, one whose team is gone as a job of no team; False when a limit refuses."""
        namespace = body["metadata"]["namespace"]
        but_team = {name: value for name, value in body["spec"].items() if name != "team"}
        for spec in (body["spec"], but_team):
            try:
                await self.client.create(JOBS, {**body, "spec": spec}, namespace=namespace)
            except Invalid as error:
                details = error.status.details
                causes = details.causes if details is not None else ()
                if any(cause.reason == "FieldValueForbidden" for cause in causes):
                    self.refused += 1
                    return False
                if spec == but_team:
                    raise
            else:
                break
        return True
