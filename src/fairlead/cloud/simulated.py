"""A simulated cloud: machines that take their time, domains without capacity, launches that fail.

It lives beside the controllers and outlives their crashes, as a real cloud does. After its delay a
machine registers a node, through `NodeMaker`; the virtual nodes of the embedded cluster and of the
simulator are one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fairlead.api import names
from fairlead.api.kubernetes.core import Node
from fairlead.api.kubernetes.device_shapes import DeviceShape
from fairlead.cloud.provider import CloudError, LaunchRequest, OutOfCapacity, RefusedByProvider
from fairlead.model.health.machines import HostReport, Instance, InstanceState, Inventory

SCHEME = "fairlead-simulated://"


class NodeMaker(Protocol):
    """Makes and removes the nodes of machines."""

    async def register(self, body: Mapping[str, Any], devices: Sequence[DeviceShape] = ()) -> None:
        """Create a node, ready, as a kubelet would, and offer devices of it, as drivers would;
        nothing happens when it exists.
        """
        ...

    async def unregister(self, name: str) -> None:
        """End what drives a node; its object stays, as after the end of a real machine."""
        ...


@dataclass(frozen=True, slots=True)
class CloudRates:
    """How the cloud behaves. Durations in seconds, chances from 0 to 1."""

    launch_seconds: float = 60.0
    launch_jitter_seconds: float = 60.0
    refusal: float = 0.0  # of a launch: no capacity
    error: float = 0.0  # of a call, which may have had its effect
    never_registers: float = 0.0  # of a machine
    capacity: int = 1_000_000  # machines of all pools together
    latency_seconds_mean: float = 0.0  # of a call, before and after its effect; exponential
    #: A list shows a launch and an end so much later at most, uniform per machine.
    list_lag_seconds_max: float = 0.0
    cut: float = 0.0  # of a list: only half of it comes, and says so
    preflight: bool = False  # nodes register with the taint of those that are to be tested
    short: float = 0.0  # of a list: only half of it comes, and does not say so


@dataclass(slots=True)
class _Machine:
    instance: Instance
    request: LaunchRequest
    #: Since when lists show it; and, after its end, until when.
    listed_at: float = 0.0
    listed_until: float = float("inf")


@dataclass(slots=True)
class SimulatedCloud:
    """All machines of all pools. `run` registers their nodes."""

    maker: NodeMaker
    rng: random.Random
    rates: CloudRates = field(default_factory=CloudRates)
    #: Machines that exist, by id.
    machines: dict[str, _Machine] = field(default_factory=dict)
    #: Machines that have ended and that lists may still show, oldest end first.
    ended: deque[_Machine] = field(default_factory=deque["_Machine"])
    #: Called with each machine that is launched, and with each that ends.
    on_launch: Callable[[Instance], None] = lambda _: None
    on_end: Callable[[Instance], None] = lambda _: None
    #: What each token launched, for ever: a cloud remembers tokens for a day or so.
    tokens: dict[str, tuple[str, ...]] = field(default_factory=dict)
    launched: int = 0
    #: Machines whose maintenance was asked to begin.
    begun: list[str] = field(default_factory=list[str])
    #: Machines that were asked to start again.
    restarted: list[str] = field(default_factory=list[str])
    #: What was said of hosts, by the token of the report.
    reported: dict[str, HostReport] = field(default_factory=dict[str, HostReport])
    _starting: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        """Let machines start until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                id_ = await self._starting.get()
                group.create_task(self._start(id_))

    async def report_host(self, report: HostReport) -> None:
        """Take a report of a machine that exists."""
        await self._pass()
        self._fail()
        if report.machine not in self.machines:
            raise RefusedByProvider(f"there is no machine {report.machine}")
        self.reported[report.token] = report
        await self._pass()

    def take_in(self, nodes: Iterable[Node]) -> None:
        """Note the machines of an earlier process, whose nodes exist. Its tokens are gone."""
        for node in nodes:
            id_, pool = node.spec.provider_id, node.metadata.labels.get(names.POOL, "")
            number = id_.rpartition("-")[2]
            if not id_.startswith(SCHEME) or not pool or not number.isdecimal():
                continue
            self.launched = max(self.launched, int(number))
            instance = Instance(id_, pool, InstanceState.RUNNING)
            self.machines.setdefault(id_, _Machine(instance, LaunchRequest("", pool, 1)))

    async def list(self, pool: str) -> Inventory:
        """Return the machines of a pool."""
        await self._pass()
        self._fail()
        now, lag = self._now(), self.rates.list_lag_seconds_max
        while self.ended and self.ended[0].listed_until + lag < now:
            self.ended.popleft()
        found = [
            machine.instance
            for machine in (*self.machines.values(), *self.ended)
            if machine.instance.pool == pool and machine.listed_at <= now < machine.listed_until
        ]
        await self._pass()
        if self._happens(self.rates.cut):
            return Inventory(tuple(found[::2]), is_complete=False)
        return Inventory(tuple(found[::2] if self._happens(self.rates.short) else found))

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Launch all or none."""
        await self._pass()
        known = self.tokens.get(request.token)
        if known is not None:
            return known
        self._fail()
        room = self.rates.capacity - len(self.machines)
        if room < request.count or self._happens(self.rates.refusal):
            raise OutOfCapacity(f"no capacity for {request.count} machines in {request.domain!r}")
        ids: list[str] = []
        for _ in range(request.count):
            self.launched += 1
            id_ = f"{SCHEME}{request.pool}-{self.launched:06d}"
            starting = InstanceState.STARTING
            instance = Instance(id_, request.pool, starting, request.domain, request.token)
            self.machines[id_] = _Machine(instance, request, self._now() + self._lag())
            self.on_launch(instance)
            ids.append(id_)
            self._starting.put_nowait(id_)
        self.tokens[request.token] = tuple(ids)
        await self._pass()
        self._fail()
        return tuple(ids)

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """End machines at once."""
        await self._pass()
        for id_ in ids:
            machine = self.machines.pop(id_, None)
            if machine is not None:
                self.on_end(machine.instance)
                machine.instance = replace(machine.instance, state=InstanceState.STOPPING)
                machine.listed_until = self._now() + self._lag()
                self.ended.append(machine)
                await self.maker.unregister(id_.removeprefix(SCHEME))
        await self._pass()
        self._fail()

    async def restart(self, id_: str) -> None:
        """Note that a machine was asked to start again."""
        await self._pass()
        self._fail()
        self.restarted.append(id_)

    async def begin_maintenance(self, id_: str) -> None:
        """Note that the maintenance of a machine was asked to begin."""
        await self._pass()
        self._fail()
        self.begun.append(id_)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance

    def _lag(self) -> float:
        return self.rng.random() * self.rates.list_lag_seconds_max

    async def _pass(self) -> None:
        """Let the time of half a call pass."""
        mean = self.rates.latency_seconds_mean
        await asyncio.sleep(self.rng.expovariate(1 / mean) if mean else 0)

    def _fail(self) -> None:
        if self._happens(self.rates.error):
            raise CloudError("injected: the provider did not answer")

    async def _start(self, id_: str) -> None:
        delay = self.rates.launch_seconds + self.rng.random() * self.rates.launch_jitter_seconds
        never = self._happens(self.rates.never_registers)
        await asyncio.sleep(delay)
        machine = self.machines.get(id_)
        if machine is None or never:
            return
        machine.instance = replace(machine.instance, state=InstanceState.RUNNING)
        body = node_body(machine.instance, machine.request)
        if self.rates.preflight:
            taint = {"key": names.TAINT_PREFLIGHT, "effect": "NoSchedule"}
            body["spec"]["taints"].append(taint)
        await self.maker.register(body, machine.request.devices)


def node_body(instance: Instance, request: LaunchRequest) -> dict[str, Any]:
    """Return the node of a machine, as its kubelet registers it: with the startup taint."""
    name = instance.id.removeprefix(SCHEME)
    resources = {"pods": "110", **request.resources}
    return {
        "metadata": {
            "name": name,
            "labels": {names.HOSTNAME: name, **request.labels, names.POOL: instance.pool},
        },
        "spec": {
            "providerID": instance.id,
            "taints": [{"key": names.TAINT_JOINING, "effect": "NoSchedule"}],
        },
        "status": {"capacity": resources, "allocatable": resources},
    }


class SimulatedProvider:
    """The machines of one pool of the simulated cloud."""

    def __init__(self, cloud: SimulatedCloud, pool: str) -> None:
        self._cloud = cloud
        self._pool = pool

    async def instances(self) -> Inventory:
        """Return the machines of the pool."""
        return await self._cloud.list(self._pool)

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Launch machines of the pool."""
        return await self._cloud.launch(request)

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """End machines."""
        await self._cloud.terminate(ids)

    async def begin_maintenance(self, id_: str) -> None:
        """Begin the announced maintenance of a machine."""
        await self._cloud.begin_maintenance(id_)

    async def restart(self, id_: str) -> None:
        """Have a machine start again."""
        await self._cloud.restart(id_)

    async def report_host(self, report: HostReport) -> bool:
        """Report the host of a machine."""
        await self._cloud.report_host(report)
        return True
