"""What a provider of machines does, and what can go wrong with it.

Every call may be repeated. `launch` names its request with a token: the same token gives the same
machines, however often it is sent. `terminate` names machines. So a controller that dies between
a call and its record calls again, and nothing is bought twice or forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from fairlead.api.kubernetes.device_shapes import DeviceShape
from fairlead.model.health.machines import HostReport, Inventory


class CloudError(Exception):
    """A call did not succeed; it may be repeated later."""


class OutOfCapacity(CloudError):
    """The provider has no such machines there now, or a quota is used up: try another domain."""


class RefusedByProvider(CloudError):
    """The provider will not do it however often it is asked: credentials, a wrong reference."""


class LaunchPending(CloudError):
    """The launch is under way: its answer comes when it is sent again, with the same token."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Machines to launch, all or none."""

    token: str
    pool: str
    count: int
    domain: str = ""
    resources: Mapping[str, str | int | float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Devices that claims ask for; only a simulated machine must be given them.
    devices: tuple[DeviceShape, ...] = ()


class MachineProvider(Protocol):
    """Makes the machines of one pool."""

    async def instances(self) -> Inventory:
        """Return the machines that carry the pool's tag, with one call; CloudError."""
        ...

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Launch machines, or find those of this token; return their ids.

        LaunchPending, OutOfCapacity, RefusedByProvider, CloudError. Fewer ids than asked for only
        where the provider cannot launch all or none.
        """
        ...

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """End these machines; those that are gone are no mistake. CloudError."""
        ...


@runtime_checkable
class BeginsMaintenance(Protocol):
    """A provider that begins announced maintenance early where it is asked."""

    async def begin_maintenance(self, id_: str) -> None:
        """Begin the announced maintenance of a machine now. CloudError, also once it has begun."""
        ...


@runtime_checkable
class RestartsMachines(Protocol):
    """A provider that restarts a machine, whatever runs on it."""

    async def restart(self, id_: str) -> None:
        """Have a machine start again, as by its reset button. CloudError."""
        ...


@runtime_checkable
class ReportsHosts(Protocol):
    """A provider that takes reports of its customers about faulty hosts."""

    async def report_host(self, report: HostReport) -> bool:
        """Report the host of a machine; the same report may be sent again. CloudError.

        False where the provider takes no such report: of the end of a fault, of another's machine.
        """
        ...
