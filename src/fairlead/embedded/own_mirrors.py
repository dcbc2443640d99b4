"""Runs a controller of the embedded cluster with the mirrors that only it reads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

from fairlead.runtime.clock import Clock
from fairlead.runtime.loop import Controller, ControllerLoop, LoopOptions
from fairlead.runtime.mirror import Mirror


async def run_with_mirrors(
    controller: Controller[Any],
    own: Iterable[Mirror[Any]],
    name: str,
    *,
    clock: Clock,
    rng: random.Random,
) -> None:
    """Run the controller's loop and its own mirrors until cancelled; others run elsewhere."""
    loop = ControllerLoop(controller, clock=clock, rng=rng, options=LoopOptions(runs_mirrors=False))
    async with asyncio.TaskGroup() as group:
        for mirror in own:
            group.create_task(mirror.run(), name=f"{name}-{mirror.resource.plural}")
        group.create_task(loop.run(), name=name)
