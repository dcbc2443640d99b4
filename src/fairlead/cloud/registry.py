"""The provider of a pool, by its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from fairlead.api.node_pool import NodePool, ProviderType
from fairlead.cloud.exec import ExecProvider
from fairlead.cloud.provider import Provider, RefusedByProvider
from fairlead.cloud.simulated import SimulatedCloud, SimulatedProvider
from fairlead.cloud.static import StaticProvider

#: Returns the provider of a pool; RefusedByProvider when this process has none of its type.
ProviderFactory = Callable[[NodePool], Provider]


def provider_of(pool: NodePool, simulated: SimulatedCloud | None = None) -> Provider:
    """Return the provider of a pool. `simulated` is the simulated cloud, where there is one."""
    spec, name = pool.spec.provider, pool.metadata.name
    match spec.type:
        case ProviderType.STATIC:
            return StaticProvider(spec.reference, name)
        case ProviderType.EXEC:
            return ExecProvider(spec.reference, name, spec.options)
        case ProviderType.SIMULATED:
            if simulated is None:
                text = "simulated machines exist on a cluster of `fairlead up` and in simulations"
                raise RefusedByProvider(text)
            return SimulatedProvider(simulated, name)
        case _:
            assert_never(spec.type)
