"""The provider of a pool, by its type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from fairlead.api.cluster.ec2_fleet_options import LAUNCH_TEMPLATE, ec2_fleet_options
from fairlead.api.cluster.node_pool import NodePool, ProviderType
from fairlead.cloud.amazon.aws import AwsProvider
from fairlead.cloud.amazon.aws_api import Aws
from fairlead.cloud.amazon.aws_ec2_fleet import Ec2FleetProvider
from fairlead.cloud.exec import ExecProvider
from fairlead.cloud.google.gcp import GcpProvider
from fairlead.cloud.google.gcp_api import Gcp
from fairlead.cloud.microsoft.azure import AzureProvider
from fairlead.cloud.microsoft.azure_api import Azure
from fairlead.cloud.provider import MachineProvider, RefusedByProvider
from fairlead.cloud.simulated import SimulatedCloud, SimulatedProvider
from fairlead.cloud.static import StaticProvider

#: Returns the provider of a pool; RefusedByProvider when this process has none of its type.
ProviderFactory = Callable[[NodePool], MachineProvider]


@dataclass(frozen=True, slots=True)
class Clouds:
    """What the pools of one process share of each cloud: clients, and how often it may be asked."""

    aws: Aws = field(default_factory=Aws)
    azure: Azure = field(default_factory=Azure)
    gcp: Gcp = field(default_factory=Gcp)


def providers() -> ProviderFactory:
    """Return what makes the providers of one process."""
    return partial(provider_of, clouds=Clouds())


def provider_of(
    pool: NodePool, clouds: Clouds | None = None, simulated: SimulatedCloud | None = None
) -> MachineProvider:
    """Return the provider of a pool. `simulated` is the simulated cloud, where there is one."""
    clouds = clouds or Clouds()
    spec, name = pool.spec.provider, pool.metadata.name
    domains = [domain.name for domain in pool.spec.domains]
    match spec.type:
        case ProviderType.AWS if LAUNCH_TEMPLATE in spec.options:
            return Ec2FleetProvider(clouds.aws, name, ec2_fleet_options(spec.options))
        case ProviderType.AWS:
            return AwsProvider(clouds.aws, name, spec.reference, spec.options)
        case ProviderType.AZURE:
            return AzureProvider(clouds.azure, spec.reference, domains, spec.options)
        case ProviderType.GCP:
            return GcpProvider(clouds.gcp, spec.reference, domains, spec.options)
        case ProviderType.STATIC:
            return StaticProvider(spec.reference, name)
        case ProviderType.EXEC:
            return ExecProvider(spec.reference, name, spec.options)
        case ProviderType.SIMULATED:
            if simulated is None:
                text = "simulated machines exist on a cluster of `fairlead up` and in simulations"
                raise RefusedByProvider(text)
            return SimulatedProvider(simulated, name)
        case ProviderType.EXTERNAL:
            raise RefusedByProvider("another autoscaler owns the machines of this pool")
        case _:
            assert_never(spec.type)
