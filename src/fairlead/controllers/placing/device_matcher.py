"""The matcher: compares kinds of devices that are new with all devices that there are, beside the
cycles of the scheduler and a part at a time.

A kind is what a job asks for by a claim: a class, and expressions. A namespace may make as many as
it likes, so nothing of the comparison is done in a decision (`DeviceTable.match`). Until it is done
the job waits, with a verdict.
"""

from __future__ import annotations

import asyncio

from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.runtime.wake_up import WakeUp
from fairlead.runtime.watching.barrier import Barrier

#: Units of work of a part, which takes 3 to 5 ms, and 50 where it evaluates one long expression.
UNITS = 1_000
#: After so much work: comparisons take a third of the loop at most. After a comparison, as what
#: follows for nodes and jobs is taken in at once.
PAUSE_SECONDS, REST_SECONDS = 0.01, 0.5
_BARRIER_SECONDS = 5.0


class DeviceMatcher:
    """Runs beside the scheduler, on its world."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    async def run(self) -> None:
        """Compare what is new until cancelled, or until our own code fails."""
        woken = WakeUp()
        mirrors = (self._world.mirrors.jobs, *self._world.mirrors.devices.all)
        barrier = Barrier(mirrors, timeout_seconds=_BARRIER_SECONDS)
        removes = [mirror.on_changes(woken.set) for mirror in mirrors]
        try:
            while True:
                await barrier.wait()  # before all slices are known, each is compared alone
                woken.clear()
                if self._world.state.devices.is_unmatched:
                    matched = self._world.match_devices(UNITS)
                    is_over = matched.has_news or not matched.units
                    pause = REST_SECONDS if is_over else PAUSE_SECONDS * matched.units / UNITS
                    await asyncio.sleep(pause)
                else:
                    await woken.wait(None)
        finally:
            for remove in removes:
                remove()
