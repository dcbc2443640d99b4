"""What the jobs of a simulated world claim, volumes and devices: who makes and binds it."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.sim.setup import devices, volumes
from fairlead.sim.setup.devices import DeviceWorld
from fairlead.sim.setup.volumes import VolumeWorld
from fairlead.sim.setup.world_options import WorldOptions

#: Kinds of what is claimed: observers see these by `stored`.
CLAIMED_KINDS = frozenset((*volumes.KINDS, *devices.KINDS))


def claim_keepers(
    options: WorldOptions, client: Client, clock: Clock, streams: Callable[[str], random.Random]
) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what is to run, until cancelled, for the claims of a world's jobs."""
    load = options.workload
    if load.volume_share:
        yield VolumeWorld(client, clock, streams("volumes")).run(load.teams, load.volume_limit)
    if load.devices:
        world = DeviceWorld(
            client, clock, streams("devices"), allocates=options.binding is None
        )  # fmt: skip
        yield world.run(load.teams, load.devices)
