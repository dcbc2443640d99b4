"""The cluster's nodes as services: this machine, and the virtual ones."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.device_shapes import DeviceShape
from fairlead.app.configuration.settings import LogSettings, Settings
from fairlead.cloud.simulated import SimulatedCloud
from fairlead.embedded.http.metrics import MeasuredUse
from fairlead.embedded.local.host import LocalOptions
from fairlead.embedded.local.logfiles import LogLimits
from fairlead.embedded.local.node import LocalNode
from fairlead.embedded.local.processes.streams import LocalStreams
from fairlead.embedded.logs.archive import LogArchive
from fairlead.embedded.own_controllers.node_leases import NodeLeases
from fairlead.embedded.virtual.contact import VirtualContact
from fairlead.embedded.virtual.fleet import NodeFleet, shrink_fleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import Profile, load_profile
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger
from fairlead.runtime.supervisor import SupervisedService
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside


def local_node_name() -> str:
    """Return this machine's host name as a node's name: lower case, odd characters as dashes."""
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower())
    return name[:63].strip("-.") or "local"


class Nodes:
    """Creates the nodes at each start of their services, and keeps the current ones."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        clock: Clock,
        *,
        pods: Mirror[Pod],
        nodes: Mirror[Node],
        log: Logger,
    ) -> None:
        """Make them of `settings`; `pods` and `nodes` are mirrors that others keep running."""
        self._settings = settings
        self._client = client
        self._clock = clock
        self._log = log
        self._pods = pods
        self.archive = LogArchive(settings.data, client)
        #: The machines of node pools of provider Simulated.
        self.cloud = SimulatedCloud(self, _rng())
        self.contact = VirtualContact(lambda: self._virtual.records if self._virtual else {})
        self._leases = NodeLeases(client, clock, nodes, log, renews=self.contact.renews)
        self._local: LocalNode | None = None
        self.streams = LocalStreams(lambda: self._local)
        self._virtual: VirtualNodes | None = None
        self._local_is_ready = False
        self._virtual_is_ready = False

    async def shrink(self) -> int:
        """Remove idle virtual nodes beyond the fleet; return how many stay since they are used."""
        fleet = self._fleet(load_profile(self._settings.profile))
        return len(await shrink_fleet(self._client, fleet))

    def _fleet(self, profile: Profile) -> NodeFleet:
        return NodeFleet(self._settings.nodes, profile.node, gpus=self._settings.gpus)

    async def register(self, body: Mapping[str, Any], devices: Sequence[DeviceShape] = ()) -> None:
        """Create the node of a machine of the simulated cloud."""
        if self._virtual is not None:
            await self._virtual.register(body, devices)

    async def unregister(self, name: str) -> None:
        """End the machine of a node."""
        if self._virtual is not None:
            await self._virtual.unregister(name)

    def living(self) -> tuple[str, ...]:
        """Return the pods whose processes run on this machine now."""
        return () if self._local is None else self._local.living

    def measured_pods(self) -> Iterator[MeasuredUse]:
        """Yield what pods use now, as their nodes measure it or their profile says."""
        if self._local is not None:
            yield from self._local.measured_pods()
        if self._virtual is not None:
            yield from self._virtual.measured_pods()

    def measured_nodes(self) -> Iterator[MeasuredUse]:
        """Yield what this machine uses now; virtual nodes use what their pods do."""
        if self._local is not None:
            yield from self._local.measured_nodes()
        if self._virtual is not None:
            yield from self._virtual.measured_nodes()

    def services(self) -> list[SupervisedService]:
        """Return the services of all nodes."""
        return [
            SupervisedService(
                "virtual-nodes", self._run_virtual, is_ready=lambda: self._virtual_is_ready
            ),
            SupervisedService("simulated-cloud", self.cloud.run),
            SupervisedService("local-node", self._run_local, is_ready=lambda: self._local_is_ready),
            SupervisedService("node-leases", self._leases.run),
        ]

    async def _run_virtual(self) -> None:
        self._virtual_is_ready = False
        profile = load_profile(self._settings.profile)
        fleet = self._fleet(profile)
        reader = MirrorReader(SetAside("virtual-nodes", log=self._log))
        self._virtual = VirtualNodes(
            self._client, fleet, profile, clock=self._clock, rng=_rng(), log=self._log,
            pods=self._pods, reader=reader,
        )  # fmt: skip
        try:
            report = await self._virtual.start()
            self.cloud.take_in(report.nodes)
            self._virtual_is_ready = True
            await self._virtual.run()
        finally:
            reader.close()

    async def _run_local(self) -> None:
        self._local_is_ready = False
        node = LocalNode(
            self._client, local_node_name(), self._settings.data,
            clock=self._clock, rng=_rng(), log=self._log,
            options=LocalOptions(logs=log_limits(self._settings.logs)),
        )  # fmt: skip
        self._local = node

        async def note_ready() -> None:
            await node.wait_synced()
            self._local_is_ready = True

        async with asyncio.TaskGroup() as group:
            group.create_task(note_ready())
            await node.run()

    async def shut_down(self, grace_seconds: float) -> None:
        """End the processes of local pods; call it when the services have ended."""
        if self._local is not None:
            await self._local.shut_down(grace_seconds)


def log_limits(settings: LogSettings) -> LogLimits:
    """Return the settings in the units of the local node."""
    return LogLimits(
        file_bytes_max=settings.file_mib << 20,
        files_max=settings.files,
        age_seconds_max=settings.days * 86_400.0,
        total_bytes_max=settings.total_gib << 30,
    )


def _rng() -> random.Random:
    return random.Random()  # noqa: S311 # jitter, not secrets
