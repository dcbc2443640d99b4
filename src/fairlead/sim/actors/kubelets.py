"""The kubelets of a simulated world, as far as their leases go; and who is called unreachable.

Each renews its node's lease every 10 s, some a little late. In an outage none does, in three kinds
that look alike at first: the API server takes no renewals and machines answer, our own network is
cut and none does, or half of the machines are cut off.

`Kubelets` watches the marks that the controllers write (promise 4):

* only a node whose machine does not answer is marked, or has not answered a moment ago;
* none is marked once an outage has lasted for so long that every decision saw it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from enum import Enum

from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import NODES
from fairlead.decide.health.unreachable_nodes import Contact
from fairlead.embedded.own_controllers.node_leases import KUBELETS, NodeLeases
from fairlead.embedded.virtual.contact import VirtualContact
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.model.health.unreachable import unreachable_since
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.setup.world_options import DAY_SECONDS, WorldOptions

#: Of the renewals, and by how much.
_LATE_SHARE, _LATE_SECONDS_MAX = 0.002, 20.0
_OUTAGE_SECONDS_MEAN = 180.0
#: From the last answer of a machine until a mark may come that was decided on before; and from the
#: begin of an outage.
_STALE_SECONDS = 30.0


class LeaseOutage(Enum):
    """What keeps leases from being renewed."""

    API = "api"  # machines answer
    OWN_NETWORK = "own-network"  # none answers us
    HALF = "half"  # half of the machines are cut off; the others are not


class Kubelets(Observer):
    """Renews leases, is the network in which machines are tried, and checks the marks."""

    def __init__(
        self,
        options: WorldOptions,
        client: Client,
        clock: Clock,
        virtual: VirtualNodes,
        *,
        streams: Callable[[str], random.Random],
    ) -> None:
        self.marked = 0
        self.outages = 0
        self._options = options
        self._virtual = virtual
        self._clock = clock
        self._streams = streams
        self._rng = streams("lease-renewals")
        self._network = VirtualContact(lambda: virtual.records)
        self._nodes = Mirror(client, NODES, clock=clock, rng=streams("lease-nodes"))
        self._leases = NodeLeases(
            client, clock, self._nodes, renews=self._renews, times=KUBELETS
        )  # fmt: skip
        self._outage: LeaseOutage | None = None
        self._began_at = 0.0
        #: When machines that were away answered again, and until when a renewal is put off.
        self._back_at: dict[str, float] = {}
        self._away: frozenset[str] = frozenset()
        self._late_until: dict[str, float] = {}
        self._open: set[str] = set()

    async def run(self, until: float) -> None:
        """Renew leases until cancelled; outages come until so many seconds have passed."""
        if not self._options.silence.enabled:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="lease-nodes")
            group.create_task(self._leases.run(), name="node-leases")
            group.create_task(self._watch_machines(), name="machines")
            group.create_task(self._fail(until), name="lease-outages")

    async def connect(self, address: str, port: int, seconds: float) -> Contact:
        """Connect to a machine over the network as it is now."""
        if self._outage is LeaseOutage.OWN_NETWORK or self._is_cut(address):
            await asyncio.sleep(seconds)
            return Contact.SILENT
        return await self._network.connect(address, port, seconds)

    def _is_cut(self, address: str) -> bool:
        """True for every other address while half of the machines are cut off."""
        return self._outage is LeaseOutage.HALF and int(address.rpartition(".")[2]) % 2 == 0

    def _renews(self, name: str) -> bool:
        now, record = self._clock.now(), self._virtual.records.get(name)
        if record is None or self._outage in (LeaseOutage.API, LeaseOutage.OWN_NETWORK):
            return False
        if self._is_cut(record.address):
            return False
        if name not in self._late_until and self._rng.random() < _LATE_SHARE:
            self._late_until[name] = now + self._rng.random() * _LATE_SECONDS_MAX
        if now < self._late_until.get(name, 0.0):
            return False
        self._late_until.pop(name, None)
        return self._network.renews(name)

    async def _fail(self, until: float) -> None:
        rng, rate = self._streams("lease-outages"), self._options.lease_outages_per_day
        loop = asyncio.get_running_loop()
        while rate > 0 and (wait := rng.expovariate(rate / DAY_SECONDS)) < until - loop.time():
            await asyncio.sleep(wait)
            self._outage, self._began_at = rng.choice(list(LeaseOutage)), self._clock.now()
            self.outages += 1
            await asyncio.sleep(rng.expovariate(1 / _OUTAGE_SECONDS_MEAN))
            now = self._clock.now()
            if self._outage is LeaseOutage.HALF:
                cut = (r for r in self._virtual.records.values() if self._is_cut(r.address))
                self._back_at |= {record.name: now for record in cut}
            self._outage = None

    async def _watch_machines(self) -> None:
        """Note when machines come back."""
        while True:
            now, records = self._clock.now(), self._virtual.records
            away = frozenset(name for name in records if not self._network.renews(name))
            self._back_at |= dict.fromkeys(sorted(self._away - away), now)
            self._away = away
            await asyncio.sleep(0.5)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """4: a node is marked only while its machine is away, and none in an outage."""
        is_open = new is not None and unreachable_since(new) is not None
        if not is_open or name in self._open:
            if not is_open:
                self._open.discard(name)
            return
        self._open.add(name)
        self.marked += 1
        record = self._virtual.records.get(name)
        is_away = record is None or not self._network.renews(name)
        is_away = is_away or (record is not None and self._is_cut(record.address))
        if not is_away and now - self._back_at.get(name, -_STALE_SECONDS) > _STALE_SECONDS:
            raise PromiseBroken(f"4: {name} is marked as unreachable, and its machine answers")
        if self._outage is not None and now - self._began_at > _STALE_SECONDS:
            raise PromiseBroken(
                f"4: {name} is marked as unreachable in an outage ({self._outage.value})"
            )
