"""The fleet controller: lists machines, decides about all pools at once, and does what was decided.

Decisions are paced: the mirrors change all the time, but the fleet is looked at every few seconds.
`pool_providers.py` lists machines and calls the providers. What a provider answers to a launch is
written to the status of the pool; if that write is lost, the launch is sent again with the same
token, and the provider gives the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api.cluster.cluster_report import REPORT_NAME, ClusterReport
from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_pool import Launch, NodePool, NodePoolStatus
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import FLEETS, NODE_POOLS, NODES
from fairlead.api.status import ApiError
from fairlead.api.validation.validate_pool import validate_pool
from fairlead.cloud.provider import (
    CloudError,
    LaunchPending,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.cloud.registry import ProviderFactory
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.nodes.fleet_books import FleetBooks, TimedRequests
from fairlead.controllers.nodes.fleet_records import FleetRecords
from fairlead.controllers.nodes.node_patches import node_patch
from fairlead.controllers.nodes.pool_providers import PoolProviders, answer_of
from fairlead.decide.fleet.actions import (
    Action,
    BeginMaintenance,
    CallLaunch,
    CreateFleet,
    DeleteNode,
    Mark,
    NodeAction,
    PoolAction,
    RestartMachine,
    SetPoolFinalizer,
    Terminate,
    WriteFleet,
    WritePool,
)
from fairlead.decide.fleet.buying.waiting import gangs_in_order, lacks_nodes
from fairlead.decide.fleet.cycle import FleetCycleReport, decide_fleet
from fairlead.decide.fleet.decisions import with_decisions
from fairlead.decide.fleet.pool_status import answered, refused
from fairlead.decide.fleet.view import (
    FleetMemory,
    FleetPolicy,
    FleetView,
    PoolFault,
    PoolView,
    about,
)
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.gang.gangs import JobKey
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.events import EventSink
from fairlead.runtime.exported.fleet_metrics import FleetMetrics, FleetSource
from fairlead.runtime.kept.history import History
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

_SOON_SECONDS = 1.0
#: Between two decisions while ever more jobs lack nodes. The second one sends what the first wrote.
_DEMAND_SECONDS = 3.0


class FleetController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "fleet"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        pools: Mirror[NodePool],
        fleets: Mirror[Fleet],
        *,
        providers: ProviderFactory,
        history: History,
        events: EventSink,
        clock: Clock,
        reports: Mirror[ClusterReport] | None = None,
        policy: FleetPolicy | None = None,
        reader: MirrorReader | None = None,
        metrics: FleetMetrics | None = None,
        log: Logger = SILENT,
        nodes: PoolNodes | None = None,
    ) -> None:
        """`nodes` is the empty index that it keeps, where another controller reads it, too."""
        self.report: FleetCycleReport | None = None
        self._objects = ObjectWriter(client)
        self._books = FleetBooks(client)
        self._world = world
        self._pools = pools
        self._fleets = fleets
        self._reports = reports
        self._records = FleetRecords(history, events, log)
        self._clock = clock
        self._log = log
        self._policy = policy or FleetPolicy()
        self._memory = FleetMemory()
        self._nodes = nodes or PoolNodes()
        #: Jobs that more nodes could place.
        self._waiting: dict[JobKey, None] = {}
        #: Since when jobs have lacked nodes for which no launch call was sent.
        self._lacking_since: dict[JobKey, float] = {}
        #: No decision before this instant of the loop. Whether something has changed since the last
        #: one, and the deadline that it set.
        self._next_at = self._decided_at = float("-inf")
        self._is_changed = False
        self._wake_at: float | None = None
        self._requests = TimedRequests()
        self._set_aside = set_aside_of(reader)
        self._providers = PoolProviders(
            pools, providers, policy=self._policy, set_aside=self._set_aside, log=log,
            metrics=metrics,
        )  # fmt: skip
        #: Pools that a decision raised over: at which version, and what.
        self._faults: dict[str, tuple[str, str]] = {}
        #: What is wrong with each pool, and the version that it was judged by.
        self._mistakes: dict[str, tuple[NodePool, tuple[str, ...]]] = {}
        self._reader, self._follows_cluster = reader, False
        self._followed = ExitStack()
        self._followed.callback(follow(pools, self._pool_changed, reader))
        self._followed.callback(follow(fleets, lambda _: self._decide_soon(), reader))

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        reports = () if self._reports is None else (self._reports,)
        return (self._pools, self._fleets, seen.nodes, seen.jobs, seen.pods, *reports)

    @property
    def source(self) -> FleetSource:
        """Return what metrics read of it at a scrape."""
        return FleetSource(
            self._pools.items,
            lambda: self._fleets.get("", FLEET_NAME),
            lambda: self.report.rulings if self.report is not None else (),
            lambda: self.report.findings if self.report is not None else None,
        )

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        self._followed.close()

    # What it sees

    def _node_changed(self, change: Change[Node]) -> None:
        self._is_changed = True
        if change.new is None:
            self._nodes.remove(change.key[1])
        else:
            self._nodes.put(change.new, loop_time())

    def _use_changed(self) -> None:
        """Take in that use of nodes has changed: it matters to pools and to open grants."""
        fleet = self._fleets.get("", FLEET_NAME)
        has_grants = fleet is not None and bool(fleet.status.grants)
        self._is_changed |= has_grants or bool(len(self._pools))

    def _job_changed(self, change: Change[Job]) -> None:
        self._use_changed()
        job = change.new
        self._nodes.job_changed(change.key, job, loop_time())
        if job is None or not lacks_nodes(job):
            self._waiting.pop(change.key, None)
            self._lacking_since.pop(change.key, None)
        elif change.key not in self._waiting:
            self._waiting[change.key] = None
            instant = self._lacking_since[change.key] = loop_time()
            soon = max(instant + _SOON_SECONDS, self._decided_at + _DEMAND_SECONDS)
            self._next_at = min(self._next_at, soon)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._use_changed()
        self._nodes.pod_changed(change.key, change.new, loop_time())

    def _pool_changed(self, change: Change[NodePool]) -> None:
        self._decide_soon()
        if change.new is None:
            self._providers.forget(change.key[1])
            self._memory.own_launches.pop(change.key[1], None)
            self._memory.without_finalizer.discard(change.key[1])
            self._memory.counted.discard(change.key[1])
            self._records.forget(change.key[1])
            self._faults.pop(change.key[1], None)
            self._mistakes.pop(change.key[1], None)
        else:
            self._providers.pool_appeared()
            self._records.replay(change.new)

    def _decide_soon(self) -> None:
        if not self._follows_cluster:  # it matters from the first pool or fleet on
            self._follows_cluster, seen, reader = True, self._world.mirrors, self._reader
            self._followed.callback(follow(seen.nodes, self._node_changed, reader))
            self._followed.callback(follow(seen.jobs, self._job_changed, reader))
            self._followed.callback(follow(seen.pods, self._pod_changed, reader))
        self._is_changed = True
        self._next_at = min(self._next_at, loop_time() + _SOON_SECONDS)

    async def observe(self) -> None:
        """List the machines of all pools, and record decisions, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._providers.observe())
            group.create_task(self._records.run())

    # Decisions

    def decide(self, now: float) -> Decision[Action]:
        """Decide about the fleet, unless it was decided on a moment ago."""
        instant = loop_time()
        self._is_changed, self._wake_at = False, None
        if self._pools.is_undefined or self._fleets.is_undefined:
            self._wake_at = now + self._policy.idle_loop_seconds
            return Decision(wake_at=self._wake_at)
        if self._has_nothing:
            return Decision()
        if instant < self._next_at:
            self._wake_at = now + self._next_at - instant
            return Decision(wake_at=self._wake_at)
        self._decided_at = instant
        try:
            view = self._view(now, instant)
            decision, report = decide_fleet(view, self._policy, self._memory)
            self.report = report or self.report
        except PoolFault as fault:
            self._note_fault(fault)
            self._next_at, self._wake_at = instant + _SOON_SECONDS, now + _SOON_SECONDS
            return Decision(wake_at=self._wake_at)
        wake_at = decision.wake_at
        # What was written is looked at soon: a launch is recorded first and then sent.
        wait = _SOON_SECONDS if decision.actions else (wake_at or now) - now
        self._next_at = instant + wait
        self._wake_at = None if wake_at is None else now + wait
        return replace(decision, wake_at=self._wake_at)

    @property
    def _has_nothing(self) -> bool:
        """True without a pool and a fleet: no change of a node, a job or a pod matters."""
        return not len(self._pools) and not len(self._fleets)

    def due_at(self) -> float | None:
        """Return when to decide again: after a change, but not before the pace allows."""
        if self._has_nothing or not self._is_changed:
            return self._wake_at
        return self._clock.now() + max(0.0, self._next_at - loop_time())

    def _view(self, now: float, instant: float) -> FleetView:
        fleet = self._fleets.get("", FLEET_NAME)
        pools = [self._pool_view(pool, instant) for pool in self._pools.items()]
        contact = self._world.mirrors.nodes.seconds_since_contact
        pulse = self._requests.pulse(instant)
        self._world.state.follow_claims()
        devices = self._world.mirrors.devices.all
        return FleetView(
            fleet=fleet, pools=pools, nodes=self._nodes, state=self._world.state,
            waiting=gangs_in_order(self._world.state, self._waiting, now), now=now, instant=instant,
            nodes_age_seconds=float("inf") if contact is None else contact,
            api_latency_seconds=pulse.latency_seconds, api_error_share=pulse.error_share,
            knows_devices=self._world.state.devices.is_used and all(m.synced for m in devices),
            report=None if self._reports is None else self._reports.get("", REPORT_NAME),
        )  # fmt: skip

    def _pool_view(self, pool: NodePool, instant: float) -> PoolView:
        listed = self._providers.listed(pool.metadata.name)
        version, fault = self._faults.get(pool.metadata.name, ("", ""))
        if version == pool.metadata.resource_version:  # count its nodes, and do nothing about it
            pool = NodePool(metadata=pool.metadata, spec=pool.spec)
            return PoolView(pool, (fault,), listed.inventory, instant - listed.at, listed.error)
        if version:
            del self._faults[pool.metadata.name]
            self._set_aside.clear(NODE_POOLS, pool.metadata.key, AsideStage.DECIDE)
        judged, mistakes = self._mistakes.get(pool.metadata.name, (None, ()))
        if judged is not pool:
            with about(pool.metadata.name):
                causes = validate_pool(to_wire(pool))
            mistakes = tuple(f"{cause.field}: {cause.message}" for cause in causes)
            self._mistakes[pool.metadata.name] = (pool, mistakes)
        return PoolView(pool, mistakes, listed.inventory, instant - listed.at, listed.error)

    def _note_fault(self, fault: PoolFault) -> None:
        """Leave a pool alone until it changes; raises what no pool's content explains."""
        pool, error = self._pools.get("", fault.pool), fault.__cause__
        assert pool is not None
        assert isinstance(error, Exception)
        version = pool.metadata.resource_version
        if self._faults.get(fault.pool, ("", ""))[0] == version:
            raise error
        entry = self._set_aside.note(NODE_POOLS, pool.metadata, AsideStage.DECIDE, error)
        self._faults[fault.pool] = (version, f"set aside: {entry.fault}")

    # Actions

    def key_of(self, action: Action) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        match action:
            case PoolAction():
                return action.pool.metadata.key
            case NodeAction():
                return ("", f"node/{action.node.metadata.name}")
            case CreateFleet() | WriteFleet():
                return ("", f"/{FLEET_NAME}")
            case _:
                assert_never(action)

    def takings(self, action: Action) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        match action:
            case WriteFleet(fleet=fleet, decided=decided):
                return takings.fleet_decisions(fleet.metadata, FLEETS.kind, decided)
            case WritePool(pool=pool, decided=decided) | CallLaunch(pool=pool, decided=decided):
                return takings.fleet_decisions(pool.metadata, NODE_POOLS.kind, decided)
            case Mark() | Terminate() | RestartMachine() | BeginMaintenance():
                return takings.machines(action)
            case _:
                return ()

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        if isinstance(action, CallLaunch | Terminate | BeginMaintenance | RestartMachine):
            return await self._perform(action)  # these wait for the provider
        with self._requests.timed():
            return await self._perform(action)

    async def _perform(self, action: Action) -> Written | None:
        match action:
            case WritePool(pool, status, decided):
                written = await self._write_pool(pool, status)
                self._records.note(NODE_POOLS, pool.metadata, decided)
                return written
            case SetPoolFinalizer(pool):
                return await self._objects.set_finalizers(
                    NODE_POOLS, pool.metadata, action.finalizers
                )
            case CreateFleet():
                return await self._books.create()
            case WriteFleet(fleet, _, decided):
                written = await self._books.write(action)
                self._records.note(FLEETS, fleet.metadata, decided)
                return written
            case CallLaunch():
                return await self._launch(action)
            case Terminate(pool, instances):
                return await self._terminate(pool, instances)
            case BeginMaintenance(pool, instance):
                return await self._begin_maintenance(pool, instance)
            case RestartMachine(pool, instance, request):
                return await self._restart(pool, instance, request)
            case DeleteNode(node):
                return await self._objects.delete(NODES, node.metadata.key, uid=node.metadata.uid)
            case NodeAction():
                return await self._objects.patch(NODES, action.node.metadata, node_patch(action))
            case _:
                assert_never(action)

    async def _write_pool(self, pool: NodePool, status: NodePoolStatus) -> Written | None:
        diff = merge_diff(to_wire(pool.status), to_wire(status))
        if not diff:
            return None
        written = await self._objects.patch_status(NODE_POOLS, pool.metadata, diff)
        self._memory.wrote(pool.metadata.name, status)
        return written

    async def _launch(self, action: CallLaunch) -> Written | None:
        """Send launches; what the provider answers is written with the version decided on."""
        pool, name = action.pool, action.pool.metadata.name
        status, decided = with_decisions(action.base, action.decided)
        for launch in action.launches:
            self._note_launch(launch)
            try:
                ids = await self._providers.launch(pool, launch)
            except LaunchPending as pending:
                # The next cycle asks again, with the same token.
                self._log.debug("Launch under way", pool=name, state=str(pending))
                continue
            except (OutOfCapacity, RefusedByProvider) as error:
                base = float(pool.spec.scale_up.unavailable_seconds)
                status = refused(status, launch, str(error), now=self._clock.now(), base=base)
                self._providers.metrics.refused(name, answer_of(error))
            except CloudError as error:
                # It is sent again in the next cycle, with the same token.
                self._log.warning("Launch failed", pool=name, error=str(error))
                break
            else:
                nodes = self._nodes.by_instance
                working = {id_ for id_ in ids if id_ in nodes and not nodes[id_].is_joining}
                now = self._clock.now()
                status = answered(status, launch, ids, working=working, now=now)
            decided = (*decided, status.decisions[-1])
        written = await self._write_pool(pool, status)
        self._records.note(NODE_POOLS, pool.metadata, decided)
        return written

    def _note_launch(self, launch: Launch) -> None:
        """Measure how long the jobs of a launch have waited for the first one."""
        for text in launch.jobs:
            namespace, _, name = text.partition("/")
            since = self._lacking_since.pop((namespace, name), None)
            if since is not None:
                self._providers.metrics.demand_answered(loop_time() - since)

    async def _terminate(self, pool: NodePool, instances: tuple[str, ...]) -> None:
        kept = tuple(id_ for id_ in instances if not self._is_used(id_))
        try:
            await self._providers.terminate(pool, kept)
        except CloudError as error:
            self._log.warning("Cannot end machines", pool=pool.metadata.name, error=str(error))

    async def _begin_maintenance(self, pool: NodePool, instance: str) -> None:
        if self._is_used(instance):
            return
        try:
            await self._providers.begin_maintenance(pool, instance)
        except CloudError as error:
            name = pool.metadata.name
            self._log.warning("Maintenance does not begin", pool=name, error=str(error))

    async def _restart(self, pool: NodePool, instance: str, request: str) -> None:
        if self._is_used(instance):
            return
        try:
            await self._providers.restart(pool, instance, request)
        except CloudError as error:
            name = pool.metadata.name
            self._log.warning("Machine is not restarted", pool=name, id=instance, error=str(error))

    def _is_used(self, instance: str) -> bool:
        node = self._nodes.by_instance.get(instance)
        return node is not None and self._nodes.is_used(node.name)

    def changed(self, key: ObjectKey) -> None:
        """Decide again soon."""
        self._decide_soon()

    def failed(self, action: Action, error: ApiError) -> None:
        """An answer that no retry can mend; the next decisions come back to it."""
        if isinstance(action, SetPoolFinalizer) and action.has_finalizer:
            self._memory.without_finalizer.add(action.pool.metadata.name)
            self._log.warning(
                "A node pool cannot be held, so its machines may stay without a word",
                pool=action.pool.metadata.name, error=str(error),
            )  # fmt: skip

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this object: set it aside, so that the others go on."""
        match action:
            case PoolAction():
                self._set_aside.note(NODE_POOLS, action.pool.metadata, AsideStage.ACT, error)
            case NodeAction():
                self._set_aside.note(NODES, action.node.metadata, AsideStage.ACT, error)
            case CreateFleet() | WriteFleet():
                raise error
            case _:
                assert_never(action)
