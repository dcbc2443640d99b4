"""The providers of all pools: the lists of their machines, and the calls to them, measured.

One task lists the machines of each pool, at most once per interval; a slow provider delays its own
pool alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from fairlead.api.cluster.node_pool import Launch, NodePool
from fairlead.api.resources import NODE_POOLS
from fairlead.cloud.provider import (
    BeginsMaintenance,
    CloudError,
    LaunchPending,
    LaunchRequest,
    MachineProvider,
    OutOfCapacity,
    RefusedByProvider,
    RestartsMachines,
)
from fairlead.cloud.registry import ProviderFactory
from fairlead.decide.fleet.view import FleetPolicy
from fairlead.model.health.machines import Inventory
from fairlead.runtime.clock import loop_time
from fairlead.runtime.exported.fleet_metrics import FleetMetrics, ProviderAnswer, ProviderCall
from fairlead.runtime.logs import Logger
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.set_aside import AsideStage, SetAside

T = TypeVar("T")
#: Characters of a provider's words that are kept.
_ERROR_MAX = 500
#: So long after a request to begin maintenance it is not sent again.
_ASKED_SECONDS = 600.0


@dataclass(slots=True)
class Listed:
    """The latest list of a pool's machines, and what was answered instead of one, lately."""

    inventory: Inventory | None = None
    at: float = float("-inf")
    tried_at: float = float("-inf")
    error: str = ""
    is_under_way: bool = False


class PoolProviders:
    """Asks the provider of each pool. Errors are those of `MachineProvider`."""

    def __init__(
        self,
        pools: Mirror[NodePool],
        make_provider: ProviderFactory,
        *,
        policy: FleetPolicy,
        set_aside: SetAside,
        log: Logger,
        metrics: FleetMetrics | None = None,
    ) -> None:
        self.metrics = metrics or FleetMetrics(CollectorRegistry())
        self._pools = pools
        self._make_provider = make_provider
        self._policy = policy
        self._set_aside = set_aside
        self._log = log
        self._providers: dict[str, tuple[Any, MachineProvider]] = {}
        self._listed: dict[str, Listed] = {}
        #: What was refused, by pool and token: never sent again, though the write that says so may
        #: get no answer, or the provider would have room by then.
        self._refusals: dict[str, dict[str, CloudError]] = {}
        #: Machines whose maintenance was asked to begin, and when.
        self._asked: dict[str, float] = {}
        self._has_pools = asyncio.Event()

    def pool_appeared(self) -> None:
        """Begin to list machines."""
        self._has_pools.set()

    def forget(self, pool: str) -> None:
        """Drop what is kept of a pool that is gone."""
        self._listed.pop(pool, None)
        self._providers.pop(pool, None)
        self._refusals.pop(pool, None)

    def listed(self, pool: str) -> Listed:
        """Return the latest list of a pool's machines."""
        return self._listed.setdefault(pool, Listed())

    async def observe(self) -> None:
        """List the machines of each pool again and again, until cancelled; a slow one alone."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._has_pools.wait()
                for pool in self._pools.items():
                    listed = self.listed(pool.metadata.name)
                    age = loop_time() - listed.tried_at
                    is_due = age >= self._policy.list_seconds and not listed.is_under_way
                    if is_due and not pool.is_external:
                        listed.is_under_way = True
                        group.create_task(self._list(pool, listed))
                if not len(self._pools):
                    self._has_pools.clear()
                await asyncio.sleep(self._policy.loop_seconds)

    async def launch(self, pool: NodePool, launch: Launch) -> tuple[str, ...]:
        """Send a launch; return the machines. Look at the pool's machines soon after."""
        request, name = _request(pool, launch), pool.metadata.name
        open_ = {each.token for each in pool.status.launches}
        before = self._refusals.get(name, {})
        refusals = self._refusals[name] = {t: e for t, e in before.items() if t in open_}
        if launch.token in refusals:
            raise refusals[launch.token]
        try:
            ids = await self._ask(
                pool, ProviderCall.LAUNCH, lambda provider: provider.launch(request)
            )
        except LaunchPending:
            raise  # its machines are counted by the launch until it is answered
        except CloudError as error:
            self.listed(name).tried_at = float("-inf")
            if isinstance(error, OutOfCapacity | RefusedByProvider):
                refusals[launch.token] = error
            raise
        self.listed(name).tried_at = float("-inf")
        return ids

    async def terminate(self, pool: NodePool, ids: tuple[str, ...]) -> None:
        """End machines. Look at the pool's machines soon after."""
        await self._ask(pool, ProviderCall.TERMINATE, lambda provider: provider.terminate(ids))
        self.listed(pool.metadata.name).tried_at = float("-inf")

    def _is_first(self, asked: str) -> bool:
        """True where this was not asked lately; it is from now on."""
        now = loop_time()
        self._asked = {i: at for i, at in self._asked.items() if now < at + _ASKED_SECONDS}
        return self._asked.setdefault(asked, now) == now

    async def begin_maintenance(self, pool: NodePool, id_: str) -> None:
        """Ask the provider to begin the maintenance of a machine; again after a while only."""
        if not self._is_first(id_):
            return

        async def begin(provider: MachineProvider) -> None:
            if isinstance(provider, BeginsMaintenance):
                await provider.begin_maintenance(id_)

        await self._ask(pool, ProviderCall.MAINTAIN, begin)

    async def restart(self, pool: NodePool, id_: str, request: str) -> None:
        """Ask the provider to restart a machine, once for a request; CloudError, then again."""
        if not self._is_first(request):
            return

        async def restart(provider: MachineProvider) -> None:
            if isinstance(provider, RestartsMachines):
                await provider.restart(id_)

        try:
            await self._ask(pool, ProviderCall.RESTART, restart)
        except CloudError:
            del self._asked[request]
            raise

    async def _list(self, pool: NodePool, listed: Listed) -> None:
        # The list is as old as the question: what happens meanwhile may be missing in it.
        listed.tried_at = asked_at = loop_time()
        try:
            inventory = await self._ask(pool, ProviderCall.LIST, lambda p: p.instances())
            before = listed.inventory.warning if listed.inventory is not None else ""
            if inventory.warning and inventory.warning != before:
                self._log.warning(
                    "List of machines lacks something", pool=pool.metadata.name,
                    warning=inventory.warning,
                )  # fmt: skip
            if inventory != listed.inventory:  # the same object while nothing changes
                listed.inventory = inventory
        except CloudError as error:
            listed.error = str(error)[:_ERROR_MAX]
            self._log.warning("Cannot list machines", pool=pool.metadata.name, error=listed.error)
        except Exception as error:  # noqa: BLE001 - over one pool, so it is that pool's
            entry = self._set_aside.note(NODE_POOLS, pool.metadata, AsideStage.ACT, error)
            listed.error = entry.fault
        else:
            listed.at, listed.error = asked_at, ""
            self._set_aside.clear(NODE_POOLS, pool.metadata.key, AsideStage.ACT)
        finally:
            listed.is_under_way = False

    async def _ask(
        self,
        pool: NodePool,
        call: ProviderCall,
        question: Callable[[MachineProvider], Awaitable[T]],
    ) -> T:
        started_at = loop_time()
        outcome: ProviderAnswer | None = ProviderAnswer.FAULT
        try:
            found = await question(self._provider(pool))
            outcome = ProviderAnswer.DONE
        except LaunchPending:
            outcome = None  # measured when there is an answer
            raise
        except CloudError as error:
            outcome = answer_of(error)
            raise
        except asyncio.CancelledError:
            outcome = ProviderAnswer.FAILED
            raise
        finally:
            if outcome is not None:
                seconds = loop_time() - started_at
                self.metrics.called(pool.spec.provider.type, call, outcome, seconds)
        return found

    def _provider(self, pool: NodePool) -> MachineProvider:
        name, spec = pool.metadata.name, pool.spec.provider
        known = self._providers.get(name)
        if known is None or known[0] != spec:
            known = self._providers[name] = (spec, self._make_provider(pool))
        return known[1]


def answer_of(error: CloudError) -> ProviderAnswer:
    """Return how a call ended that raised."""
    if isinstance(error, OutOfCapacity):
        return ProviderAnswer.OUT_OF_CAPACITY
    return ProviderAnswer.REFUSED if isinstance(error, RefusedByProvider) else ProviderAnswer.FAILED


def _request(pool: NodePool, launch: Launch) -> LaunchRequest:
    template = pool.spec.template
    domain = next((each for each in pool.spec.domains if each.name == launch.domain), None)
    labels = {**template.labels, **(domain.labels if domain else {})}
    return LaunchRequest(
        launch.token, pool.metadata.name, launch.count, launch.domain, template.resources, labels,
        template.devices,
    )  # fmt: skip
