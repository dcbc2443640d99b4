"""Kills containers that use more memory than their limit, where no control group does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fairlead.embedded.local.host import PodHost
from fairlead.embedded.local.memory import above_limit
from fairlead.embedded.local.process import Run

#: The looks take one part in so many of the time at most.
_SHARE = 20


async def watch_memory(host: PodHost, runs: Callable[[], Iterable[Run]]) -> None:
    """Look at the runs that are to be measured until cancelled; without any it costs nothing."""
    loop = asyncio.get_running_loop()
    while True:
        began_at = loop.time()
        try:
            await _look(runs())
        except OSError as error:
            host.problem(error)
        taken = loop.time() - began_at
        await asyncio.sleep(max(host.options.memory_seconds, _SHARE * taken))


async def _look(runs: Iterable[Run]) -> None:
    measured: dict[int, Run] = {}
    limits: dict[int, int] = {}
    for run in runs:
        found = run.measured_limit()
        if found is not None:
            shim, limits[found[0]] = found
            measured[shim] = run
    if not limits:
        return
    for shim, used in (await asyncio.to_thread(above_limit, limits)).items():
        measured[shim].kill_for_memory(used)
