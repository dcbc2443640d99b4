"""Public clouds as the shared tests of providers see them: each through its own SDK."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from tests.e2e.aws_server import GROUP as AWS_GROUP
from tests.e2e.aws_server import REGION, AwsServer, Fault
from tests.e2e.aws_server import ZONE as AWS_ZONE
from tests.e2e.azure_server import GROUP as AZURE_GROUP
from tests.e2e.azure_server import RESOURCE_GROUP, SUBSCRIPTION, AzureFault, AzureServer
from tests.e2e.azure_server import ZONE as AZURE_ZONE
from tests.e2e.ec2_fleet_server import TEMPLATE, fleet_machines
from tests.e2e.gcp_server import GROUP, PROJECT, ZONE, GcpFault, GcpServer

from fairlead.api.cluster.ec2_fleet_options import ec2_fleet_options
from fairlead.cloud.amazon.aws import AwsProvider
from fairlead.cloud.amazon.aws_api import Aws
from fairlead.cloud.amazon.aws_ec2_fleet import Ec2FleetProvider
from fairlead.cloud.calls import Runner
from fairlead.cloud.google.gcp import GcpProvider
from fairlead.cloud.google.gcp_api import Gcp, GcpServices
from fairlead.cloud.microsoft.azure import AzureProvider
from fairlead.cloud.microsoft.azure_api import Azure
from fairlead.cloud.provider import (
    CloudError,
    LaunchPending,
    LaunchRequest,
    MachineProvider,
    OutOfCapacity,
    RefusedByProvider,
)

A = TypeVar("A")
T = TypeVar("T")


class Cloud(ABC):
    """One cloud with one group, in one zone, that belongs to the pool h100."""

    name: str
    zone: str
    #: What `plan` plants.
    internal: Any
    throttled: Any
    denied: Any
    #: What a launch without capacity says.
    no_capacity: str
    #: What is said of a host whose GPU fell off the bus; and once it is well.
    faulty: str
    well: str = ""
    #: The name of a machine that is gone.
    gone = "i-0000000000000dead"

    def __init__(self, server: AwsServer | AzureServer | GcpServer) -> None:
        self.server: Any = server

    @abstractmethod
    def provider(self, run: Runner = asyncio.to_thread, group: str = "h100") -> MachineProvider:
        """Return the provider of a process that has just begun."""

    @abstractmethod
    def machines(self) -> set[str]:
        """Return the ids of the machines that exist, as their nodes state them."""

    @abstractmethod
    def clear(self) -> None:
        """Begin without faults and machines."""

    @abstractmethod
    def plan(self, operation: str, code: Any, *, after: bool = False) -> None:
        """Plant an error of one call: list, launch or terminate."""

    async def ask_of(self, group: str) -> None:
        """Ask for something that needs this group."""
        await self.provider(group=group).instances()

    @abstractmethod
    def said_of(self, id_: str) -> list[str]:
        """Return the kinds of what was reported of the host of a machine, in the cloud's words."""

    @abstractmethod
    def announce(self, id_: str, start: datetime, end: datetime) -> None:
        """Announce maintenance of a machine."""


class AwsCloud(Cloud):
    name, zone = "AWS", AWS_ZONE
    internal, throttled, denied = "InternalFailure", "Throttling", "AccessDenied"
    no_capacity = "InsufficientInstanceCapacity: we do not have enough"
    faulty, well = "impaired other", "ok other"

    def provider(self, run: Runner = asyncio.to_thread, group: str = AWS_GROUP) -> MachineProvider:
        return AwsProvider(Aws(run), "h100", group, {"region": REGION})

    def machines(self) -> set[str]:
        return {f"aws:///{AWS_ZONE}/{id_}" for id_ in self.server.machines()}

    def clear(self) -> None:
        self.server.clear()

    def said_of(self, id_: str) -> list[str]:
        return [f"{each['Status']} {each['ReasonCodes'][0]}" for each in self.server.reports
                if each["Instances"] == [_last(id_)]]  # fmt: skip

    def announce(self, id_: str, start: datetime, end: datetime) -> None:
        event = {"Code": "system-maintenance", "Description": "", "NotBefore": start,
                 "NotAfter": end}  # fmt: skip
        self.server.events[_last(id_)] = [event]

    def plan(self, operation: str, code: Any, *, after: bool = False) -> None:
        self.server.faults.append(Fault(operation, code, after))


class Ec2FleetCloud(AwsCloud):
    name = "AWS, EC2 Fleet"

    def __init__(self, server: AwsServer, subnets: Mapping[str, str], **options: str) -> None:
        super().__init__(server)
        self.options = {
            "region": REGION, "cluster": "research",
            "subnets": ", ".join(f"{zone}={subnet}" for zone, subnet in subnets.items()),
            "launchTemplate": TEMPLATE, **options,
        }  # fmt: skip

    def provider(self, run: Runner = asyncio.to_thread, group: str = TEMPLATE) -> Ec2FleetProvider:
        options = ec2_fleet_options({**self.options, "launchTemplate": group})
        return Ec2FleetProvider(Aws(run), "h100", options)

    def machines(self) -> set[str]:
        return {f"aws:///{each.placement.zone}/{id_}" for id_, each in fleet_machines().items()}

    async def ask_of(self, group: str) -> None:
        # Its machines are found by their tags: only a launch needs the launch template.
        await self.provider(group=group).launch(LaunchRequest("ask", "h100", 1, self.zone))


class AzureCloud(Cloud):
    name, zone = "Azure", AZURE_ZONE
    internal, throttled = (500, "InternalServerError"), (429, "TooManyRequests")
    denied, gone = (403, "AuthorizationFailed"), "77"
    no_capacity = "ZonalAllocationFailed: Allocation failed"
    faulty = "Resource.Hpc.Unhealthy.XID79FallenOffBus"
    well = "Resource.Hpc.Healthy"
    options = {"subscription": SUBSCRIPTION, "resourceGroup": RESOURCE_GROUP}

    def __init__(self, server: AzureServer, connect: Callable[[str], Any]) -> None:
        super().__init__(server)
        self.connect = connect

    def provider(self, run: Runner = asyncio.to_thread, group: str = AZURE_GROUP) -> AzureProvider:
        return AzureProvider(Azure(run, self.connect), group, [AZURE_ZONE], self.options)

    def machines(self) -> set[str]:
        return {azure_id(name, id_) for name, id_ in self.server.machines()}

    def clear(self) -> None:
        self.server.clear()

    def plan(self, operation: str, code: Any, *, after: bool = False) -> None:
        self.server.faults.append(AzureFault(operation, code, after))

    def said_of(self, id_: str) -> list[str]:
        return [each["impactCategory"] for each in self.server.reports.values()
                if f"azure://{each['impactedResourceId']}" == id_]  # fmt: skip

    def announce(self, id_: str, start: datetime, end: datetime) -> None:
        form = "%Y-%m-%dT%H:%M:%S.0000000+00:00"
        self.server.maintenance[id_.split("/")[-3], _last(id_)] = (
            start.strftime(form), end.strftime(form),
        )  # fmt: skip


def azure_id(scale_set: str, instance: str) -> str:
    """Return the id of a machine as Kubernetes states it."""
    group = f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP.lower()}"
    kind = "providers/Microsoft.Compute/virtualMachineScaleSets"
    return f"{group}/{kind}/{scale_set}/virtualMachines/{instance}"


class GcpCloud(Cloud):
    name, zone = "GCP", ZONE
    internal, throttled = (503, "backendError"), (403, "rateLimitExceeded")
    denied = (403, "forbidden")
    no_capacity, faulty = "POOL_EXHAUSTED", "UNRECOVERABLE_GPU_ERROR"

    def __init__(
        self, server: GcpServer, connect: Callable[[GcpServices], Any], *, resizes: bool = False
    ) -> None:
        super().__init__(server)
        self.connect = connect
        self.options = {"project": PROJECT}
        if resizes:
            self.name, self.no_capacity = "GCP, resize requests", "found no capacity"
            self.options |= {"resizeRequests": "true", "queueSeconds": "1"}

    def provider(self, run: Runner = asyncio.to_thread, group: str = GROUP) -> GcpProvider:
        return GcpProvider(Gcp(run, self.connect), group, [ZONE], self.options)

    def machines(self) -> set[str]:
        return {f"gce://{PROJECT}/{ZONE}/{name}" for name in self.server.machines()}

    def clear(self) -> None:
        self.server.clear()

    def plan(self, operation: str, code: Any, *, after: bool = False) -> None:
        self.server.faults.append(GcpFault(operation, code, after))

    def said_of(self, id_: str) -> list[str]:
        return [body["faultReasons"][0]["behavior"] for name, body in self.server.reports.values()
                if name == _last(id_)]  # fmt: skip

    def announce(self, id_: str, start: datetime, end: datetime) -> None:
        self.server.upcoming[_last(id_)] = (start.isoformat(), end.isoformat())


def _last(id_: str) -> str:
    return id_.rpartition("/")[2]


async def launched(
    provider: MachineProvider, request: LaunchRequest, *, seconds: float = 1.0
) -> tuple[str, ...]:
    """Send a launch as the controller does: again and again while it is under way."""
    while True:
        try:
            return await provider.launch(request)
        except LaunchPending:
            await asyncio.sleep(seconds)


async def until_done(
    rng: random.Random, make: Callable[[], A], act: Callable[[A], Awaitable[T]]
) -> T:
    """Act through a provider, through a new one after each death, until there is an answer."""
    provider = make()
    while True:
        try:
            return await act(provider)
        except asyncio.CancelledError:
            await asyncio.sleep(rng.random() * 60)
            provider = make()
        except (OutOfCapacity, RefusedByProvider):
            raise
        except CloudError:
            await asyncio.sleep(1)


async def direct(question: Callable[[], Any]) -> Any:
    """Run a call at once."""
    return question()


class Chaos:
    """Runs calls that fail or are the last of their process, before or after their effect."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def _strike(self) -> None:
        drawn = self._rng.random()
        if drawn < 0.08:
            raise asyncio.CancelledError
        if drawn < 0.16:
            raise CloudError("planted: no answer")

    async def __call__(self, question: Callable[[], Any]) -> Any:
        await asyncio.sleep(self._rng.random())
        self._strike()
        answer = question()
        await asyncio.sleep(self._rng.random())
        self._strike()
        return answer


class Dies:
    """Runs calls until the n-th, before or after which the process dies."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.count = at, after, 0

    async def __call__(self, question: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count == self.at and not self.after:
            raise asyncio.CancelledError
        answer = await asyncio.to_thread(question)
        if self.count == self.at:
            raise asyncio.CancelledError
        return answer
