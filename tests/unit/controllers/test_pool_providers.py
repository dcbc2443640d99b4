"""Calls to the providers of pools: what was refused is not asked again under the same token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.node_pool import (
    Launch,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolDomain,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.cloud.provider import CloudError, LaunchRequest, OutOfCapacity, RefusedByProvider
from fairlead.controllers.nodes.pool_providers import PoolProviders
from fairlead.decide.fleet.view import FleetPolicy
from fairlead.model.health.machines import Inventory
from fairlead.runtime.logs import SILENT
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run

FIRST = Launch("token-1", "a", 1, "2026-01-01T00:00:00Z")
SECOND = Launch("token-2", "b", 1, "2026-01-01T00:00:01Z")
SPEC = NodePoolSpec(Provider(ProviderType.SIMULATED), NodeTemplate({"cpu": "1"}), max=2)
POOL = NodePool(ObjectMeta(name="pool"), SPEC, NodePoolStatus(launches=(FIRST,)))


class Fickle:
    """Fails once, and has room from then on."""

    def __init__(self, error: CloudError) -> None:
        self.error = error
        self.asked: list[str] = []
        self.labels: list[Mapping[str, str]] = []

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        self.asked.append(request.token)
        self.labels.append(request.labels)
        if len(self.asked) == 1:
            raise self.error
        return (f"machine-of-{request.token}",)


class Slow:
    """Takes its time to list its machines."""

    async def instances(self) -> Inventory:
        await asyncio.sleep(20)
        return Inventory(())


class Pools:
    """One pool, as of a mirror."""

    def __len__(self) -> int:
        return 1

    def items(self) -> tuple[NodePool, ...]:
        return (POOL,)


class Recovering:
    """Fails to list its machines once."""

    def __init__(self, error: Exception) -> None:
        self.errors = [error]

    async def instances(self) -> Inventory:
        if self.errors:
            raise self.errors.pop()
        return Inventory(())


def providers_of(provider: Fickle | Slow | Recovering) -> PoolProviders:
    pools: Any = Pools()
    return PoolProviders(
        pools, lambda _pool: cast("Any", provider), policy=FleetPolicy(), set_aside=SetAside(),
        log=SILENT,
    )  # fmt: skip


@pytest.mark.parametrize("error", [OutOfCapacity("full"), RefusedByProvider("not allowed")])
def test_a_launch_that_was_refused_is_not_sent_again_when_the_write_of_it_is_repeated(
    error: CloudError,
) -> None:
    provider = Fickle(error)
    providers = providers_of(provider)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(type(error), match=str(error)):
                await providers.launch(POOL, FIRST)
        assert provider.asked == ["token-1"]
        later = replace(POOL, status=NodePoolStatus(launches=(SECOND,)))
        assert await providers.launch(later, SECOND) == ("machine-of-token-2",)

    run(main())


def test_a_launch_without_an_answer_is_sent_again() -> None:
    provider = Fickle(CloudError("timeout"))
    providers = providers_of(provider)

    async def main() -> None:
        with pytest.raises(CloudError, match="timeout"):
            await providers.launch(POOL, FIRST)
        assert await providers.launch(POOL, FIRST) == ("machine-of-token-1",)

    run(main())


def test_machines_have_the_labels_of_their_domain_and_else_those_of_the_template() -> None:
    provider = Fickle(CloudError("timeout"))
    template = NodeTemplate({"cpu": "1"}, labels={"zone": "any", "kind": "gpu"})
    spec = replace(SPEC, template=template, domains=(PoolDomain("a", labels={"zone": "a"}),))

    async def main() -> None:
        with suppress(CloudError):
            await providers_of(provider).launch(replace(POOL, spec=spec), FIRST)
        assert provider.labels == [{"zone": "a", "kind": "gpu"}]

    run(main())


def test_a_pool_that_is_given_another_provider_asks_that_one() -> None:
    provider = Fickle(CloudError("timeout"))
    asked: list[str] = []
    pools: Any = Pools()

    def make(pool: NodePool) -> Any:
        asked.append(pool.spec.provider.reference)
        return provider

    providers = PoolProviders(pools, make, policy=FleetPolicy(), set_aside=SetAside(), log=SILENT)
    moved = replace(POOL, spec=replace(SPEC, provider=replace(SPEC.provider, reference="other")))

    async def main() -> None:
        for pool in (POOL, POOL, moved):
            with suppress(CloudError):
                await providers.launch(pool, FIRST)
        assert asked == ["", "other"]

    run(main())


def test_a_list_of_machines_is_as_old_as_the_question() -> None:
    providers = providers_of(Slow())

    async def main() -> None:
        asked_at, listed = asyncio.get_running_loop().time(), providers.listed("pool")
        await providers._list(POOL, listed)
        assert listed.inventory == Inventory(())
        assert listed.at == asked_at

    run(main())


@pytest.mark.parametrize("error", [CloudError("throttled"), RecursionError("planted")])
def test_the_machines_of_a_pool_are_listed_again_after_a_failure(error: Exception) -> None:
    providers = providers_of(Recovering(error))

    async def main() -> None:
        providers.pool_appeared()
        task = asyncio.create_task(providers.observe())
        await asyncio.sleep(1)
        assert str(error) in providers.listed("pool").error
        await asyncio.sleep(120)
        task.cancel()
        listed = providers.listed("pool")
        assert (listed.inventory, listed.error) == (Inventory(()), "")

    run(main())
