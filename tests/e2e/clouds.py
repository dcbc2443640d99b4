"""Public clouds as the shared tests of providers see them: each through its own SDK."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tests.e2e.aws_server import GROUP as AWS_GROUP
from tests.e2e.aws_server import REGION, AwsServer, Fault
from tests.e2e.aws_server import ZONE as AWS_ZONE
from tests.e2e.gcp_server import GROUP, PROJECT, ZONE, GcpFault, GcpServer

from fairlead.cloud.aws import Aws, AwsProvider
from fairlead.cloud.calls import Runner
from fairlead.cloud.gcp import GcpProvider
from fairlead.cloud.gcp_api import Gcp, Service
from fairlead.cloud.provider import LaunchPending, LaunchRequest, Provider


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

    def __init__(self, server: AwsServer | GcpServer) -> None:
        self.server: Any = server

    @abstractmethod
    def provider(self, run: Runner = asyncio.to_thread, group: str = "h100") -> Provider:
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


class AwsCloud(Cloud):
    name, zone = "AWS", AWS_ZONE
    internal, throttled, denied = "InternalFailure", "Throttling", "AccessDenied"
    no_capacity = "InsufficientInstanceCapacity: we do not have enough"

    def provider(self, run: Runner = asyncio.to_thread, group: str = AWS_GROUP) -> Provider:
        return AwsProvider(Aws(run), "h100", group, {"region": REGION})

    def machines(self) -> set[str]:
        return {f"aws:///{AWS_ZONE}/{id_}" for id_ in self.server.machines()}

    def clear(self) -> None:
        for kept in (self.server.faults, self.server.calls, self.server.capacity):
            kept.clear()

    def plan(self, operation: str, code: Any, *, after: bool = False) -> None:
        self.server.faults.append(Fault(operation, code, after))


class GcpCloud(Cloud):
    name, zone = "GCP", ZONE
    internal, throttled = (503, "backendError"), (403, "rateLimitExceeded")
    denied = (403, "forbidden")
    no_capacity = "POOL_EXHAUSTED"

    def __init__(
        self, server: GcpServer, connect: Callable[[Service], Any], *, resizes: bool = False
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


async def launched(provider: Provider, request: LaunchRequest) -> tuple[str, ...]:
    """Send a launch as the controller does: again and again while it is under way."""
    while True:
        try:
            return await provider.launch(request)
        except LaunchPending:
            await asyncio.sleep(0.01)


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
