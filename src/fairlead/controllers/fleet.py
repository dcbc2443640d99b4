"""The fleet controller: lists machines, decides about all pools at once, and does what was decided.

One task lists the machines of each pool, at most once per interval. Decisions are paced: the
mirrors change all the time, but the fleet is looked at every few seconds. What a provider answers
to a launch is written to the status of the pool; if that write is lost, the launch is sent again
with the same token, and the provider gives the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from fairlead.api import names
from fairlead.api.core import Node, Pod
from fairlead.api.fleet import FLEET_NAME, Fleet
from fairlead.api.job import Job
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.node_pool import Launch, NodePool, NodePoolStatus, PoolDecision
from fairlead.api.resources import FLEETS, NODE_POOLS, NODES
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.api.times import parse_time
from fairlead.api.validate_pool import validate_pool
from fairlead.cloud.provider import (
    CloudError,
    LaunchRequest,
    OutOfCapacity,
    Provider,
    RefusedByProvider,
)
from fairlead.cloud.registry import ProviderFactory
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.fleet.actions import (
    Action,
    Admit,
    CallLaunch,
    CreateFleet,
    DeleteNode,
    Mark,
    Terminate,
    Unmark,
    WriteFleet,
    WritePool,
)
from fairlead.decide.fleet.cycle import Report, decide_fleet
from fairlead.decide.fleet.pool_status import answered, refused
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.gangs import GangRequest, JobKey
from fairlead.model.machines import Inventory
from fairlead.model.phase import Phase, phase_of
from fairlead.model.pool_nodes import PoolNodes
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.mirror import Change, Mirror
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.set_aside import Stage

OWNER = "fairlead-fleet"
#: Verdicts of jobs that more nodes could place. Others wait for a user, a quota or their turn.
BUYABLE = frozenset(
    reason.value
    for reason in (
        Reason.INSUFFICIENT_CAPACITY, Reason.FRAGMENTED, Reason.TOPOLOGY_UNAVAILABLE,
        Reason.NODES_UNAVAILABLE, Reason.NO_MATCHING_NODE, Reason.NO_NODE_SHAPE_FITS,
        Reason.EXCEEDS_CLUSTER, Reason.NO_SUCH_TOPOLOGY, Reason.NO_DOMAIN_FITS,
        Reason.BEHIND_EARLIER_JOB,
    )
)  # fmt: skip
#: Share of the newest sample in the average latency and error rate of our own requests.
_NEWEST = 0.1
_SOON_SECONDS = 1.0


@dataclass(slots=True)
class _Listed:
    inventory: Inventory | None = None
    at: float = float("-inf")
    tried_at: float = float("-inf")
    error: str = ""


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
        events: EventSink,
        clock: Clock,
        policy: FleetPolicy | None = None,
        reader: MirrorReader | None = None,
        log: Logger = SILENT,
    ) -> None:
        self.report: Report | None = None
        self._objects = ObjectWriter(client)
        self._client = client
        self._world = world
        self._pools = pools
        self._fleets = fleets
        self._make_provider = providers
        self._providers: dict[str, tuple[Any, Provider]] = {}
        self._events = events
        self._clock = clock
        self._log = log
        self._policy = policy or FleetPolicy()
        self._memory = FleetMemory()
        self._nodes = PoolNodes()
        self._waiting: dict[JobKey, Job] = {}
        self._listed: dict[str, _Listed] = {}
        self._has_pools = asyncio.Event()
        self._next_at = float("-inf")
        self._latency = self._errors = 0.0
        self._set_aside = set_aside_of(reader)
        seen = world.mirrors
        self._removers = [
            follow(seen.nodes, self._node_changed, reader),
            follow(seen.jobs, self._job_changed, reader),
            follow(seen.pods, self._pod_changed, reader),
            follow(pools, self._pool_changed, reader),
            follow(fleets, self._fleet_changed, reader),
        ]

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        return (self._pools, self._fleets, seen.nodes, seen.jobs, seen.pods)

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        for remove in self._removers:
            remove()

    # What it sees

    @staticmethod
    def _instant() -> float:
        return asyncio.get_running_loop().time()

    def _node_changed(self, change: Change[Node]) -> None:
        if change.new is None:
            self._nodes.remove(change.key[1])
        else:
            self._nodes.put(change.new, self._instant())

    def _job_changed(self, change: Change[Job]) -> None:
        job = change.new
        self._nodes.job_changed(change.key, job, self._instant())
        verdict = job.status.verdict if job is not None else None
        is_buyable = verdict is not None and verdict.reason in BUYABLE
        if job is not None and is_buyable and phase_of(job) is Phase.QUEUED:
            self._waiting[change.key] = job
        else:
            self._waiting.pop(change.key, None)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._nodes.pod_changed(change.key, change.new, self._instant())

    def _pool_changed(self, change: Change[NodePool]) -> None:
        self._next_at = min(self._next_at, self._instant() + _SOON_SECONDS)
        if change.new is None:
            self._listed.pop(change.key[1], None)
            self._providers.pop(change.key[1], None)
        else:
            self._has_pools.set()

    def _fleet_changed(self, change: Change[Fleet]) -> None:
        self._next_at = min(self._next_at, self._instant() + _SOON_SECONDS)

    async def observe(self) -> None:
        """List the machines of each pool again and again, until cancelled."""
        while True:
            await self._has_pools.wait()
            for pool in self._pools.items():
                listed = self._listed.setdefault(pool.metadata.name, _Listed())
                if self._instant() - listed.tried_at >= self._policy.list_seconds:
                    await self._list(pool, listed)
            if not len(self._pools):
                self._has_pools.clear()
            await asyncio.sleep(self._policy.loop_seconds)

    async def _list(self, pool: NodePool, listed: _Listed) -> None:
        # The list is as old as the question: what happens meanwhile may be missing in it.
        listed.tried_at = asked_at = self._instant()
        try:
            listed.inventory = await self._provider(pool).instances()
        except CloudError as error:
            listed.error = str(error)
            self._log.warning("Cannot list machines", pool=pool.metadata.name, error=str(error))
        else:
            listed.at, listed.error = asked_at, ""

    def _provider(self, pool: NodePool) -> Provider:
        name, spec = pool.metadata.name, pool.spec.provider
        known = self._providers.get(name)
        if known is None or known[0] != spec:
            known = self._providers[name] = (spec, self._make_provider(pool))
        return known[1]

    # Decisions

    def decide(self, now: float) -> Decision[Action]:
        """Decide about the fleet, unless it was decided on a moment ago."""
        instant = self._instant()
        if not len(self._pools) and not len(self._fleets):
            return Decision()
        if instant < self._next_at:
            return Decision(wake_at=now + self._next_at - instant)
        decision, self.report = decide_fleet(self._view(now, instant), self._policy, self._memory)
        wake_at = decision.wake_at
        # What was written is looked at soon: a launch is recorded first and then sent.
        wait = _SOON_SECONDS if decision.actions else (wake_at or now) - now
        self._next_at = instant + wait
        return replace(decision, wake_at=None if wake_at is None else now + wait)

    def _view(self, now: float, instant: float) -> FleetView:
        fleet = self._fleets.get("", FLEET_NAME)
        pools = [self._pool_view(pool, instant) for pool in self._pools.items()]
        contact = self._world.mirrors.nodes.seconds_since_contact
        return FleetView(
            fleet=fleet, pools=pools, nodes=self._nodes, state=self._world.state,
            waiting=self._gangs(), now=now, instant=instant,
            nodes_age_seconds=float("inf") if contact is None else contact,
            api_latency_seconds=self._latency, api_error_share=self._errors,
        )  # fmt: skip

    def _pool_view(self, pool: NodePool, instant: float) -> PoolView:
        listed = self._listed.get(pool.metadata.name, _Listed())
        causes = validate_pool(to_wire(pool))
        mistakes = tuple(f"{cause.field}: {cause.message}" for cause in causes)
        return PoolView(pool, mistakes, listed.inventory, instant - listed.at, listed.error)

    def _gangs(self) -> list[tuple[JobKey, GangRequest]]:
        """Return the gangs that more nodes could place: by priority, then by age."""
        out: list[tuple[int, float, JobKey, GangRequest]] = []
        for key, job in self._waiting.items():
            entry = self._world.state.jobs.get(key)
            created = job.metadata.creation_timestamp
            if entry is None or not isinstance(entry.gang, GangRequest) or created is None:
                continue
            priority = entry.priority if isinstance(entry.priority, int) else 0
            out.append((-priority, parse_time(created), key, entry.gang))
        out.sort(key=_order)
        return [(key, gang) for _, _, key, gang in out]

    # Actions

    def key_of(self, action: Action) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        match action:
            case WritePool(pool=pool) | CallLaunch(pool=pool) | Terminate(pool=pool):
                return pool.metadata.key
            case CreateFleet() | WriteFleet():
                return ("", f"/{FLEET_NAME}")
            case Mark(node=node) | Unmark(node=node) | Admit(node=node) | DeleteNode(node=node):
                return ("", f"node/{node.metadata.name}")
            case _:
                assert_never(action)

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        started_at, failed = self._instant(), 0.0
        try:
            return await self._perform(action)
        except ApiError as error:
            failed = float(error.retryable)
            raise
        finally:
            if not isinstance(action, CallLaunch | Terminate):  # these wait for the provider
                seconds = self._instant() - started_at
                self._latency += (seconds - self._latency) * _NEWEST
                self._errors += (failed - self._errors) * _NEWEST

    async def _perform(self, action: Action) -> Written | None:
        match action:
            case WritePool(pool, status, decided):
                written = await self._write_pool(pool, status)
                for each in decided:
                    self._emit(pool, each)
                return written
            case CreateFleet():
                return await self._create_fleet()
            case WriteFleet(fleet, status):
                diff = merge_diff(to_wire(fleet.status), to_wire(status))
                return await self._objects.patch_status(FLEETS, fleet.metadata, diff)
            case CallLaunch(pool, launches):
                return await self._launch(pool, launches)
            case Terminate(pool, instances):
                return await self._terminate(pool, instances)
            case DeleteNode(node):
                return await self._objects.delete(NODES, node.metadata.key, uid=node.metadata.uid)
            case Mark() | Unmark() | Admit():
                return await self._objects.patch(NODES, action.node.metadata, _node_patch(action))
            case _:
                assert_never(action)

    async def _create_fleet(self) -> Written | None:
        try:
            made = await self._client.create(FLEETS, {"metadata": {"name": FLEET_NAME}, "spec": {}})
        except AlreadyExists:
            return None
        return Written.of(FLEETS, made)

    async def _write_pool(self, pool: NodePool, status: NodePoolStatus) -> Written | None:
        diff = merge_diff(to_wire(pool.status), to_wire(status))
        if not diff:
            return None
        return await self._objects.patch_status(NODE_POOLS, pool.metadata, diff)

    async def _launch(self, pool: NodePool, launches: Sequence[Launch]) -> Written | None:
        """Send launches; what the provider answers is written with the version decided on."""
        status = pool.status
        for launch in launches:
            try:
                ids = await self._provider(pool).launch(_request(pool, launch))
            except (OutOfCapacity, RefusedByProvider) as error:
                base = float(pool.spec.scale_up.unavailable_seconds)
                status = refused(status, launch, str(error), now=self._clock.now(), base=base)
                self._emit(pool, status.decisions[-1])
            except CloudError as error:
                # It is sent again in the next cycle, with the same token.
                self._log.warning("Launch failed", pool=pool.metadata.name, error=str(error))
                break
            else:
                status = answered(status, launch, ids)
        self._listed.setdefault(pool.metadata.name, _Listed()).tried_at = float("-inf")
        return await self._write_pool(pool, status)

    async def _terminate(self, pool: NodePool, instances: tuple[str, ...]) -> None:
        kept = [id_ for id_ in instances if not self._is_used(id_)]
        try:
            await self._provider(pool).terminate(tuple(kept))
        except CloudError as error:
            self._log.warning("Cannot end machines", pool=pool.metadata.name, error=str(error))
        else:
            self._listed.setdefault(pool.metadata.name, _Listed()).tried_at = float("-inf")

    def _is_used(self, instance: str) -> bool:
        node = self._nodes.by_instance.get(instance)
        return node is not None and self._nodes.is_used(node.name)

    def _emit(self, pool: NodePool, decision: PoolDecision) -> None:
        kind = EventKind.WARNING if decision.action == "Refused" else EventKind.NORMAL
        text = f"{decision.message} ({decision.reason})"
        self._events.record(NODE_POOLS, pool.metadata, kind, reason=decision.action, message=text)
        self._log.info(
            "Fleet decision", pool=pool.metadata.name, action=decision.action,
            reason=decision.reason, message=decision.message,
        )  # fmt: skip

    def changed(self, key: ObjectKey) -> None:
        """Decide again soon."""
        self._next_at = min(self._next_at, self._instant() + _SOON_SECONDS)

    def failed(self, action: Action, error: ApiError) -> None:
        """An answer that no retry can mend; the next decisions come back to it."""

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this object: set it aside, so that the others go on."""
        match action:
            case WritePool(pool=pool) | CallLaunch(pool=pool) | Terminate(pool=pool):
                self._set_aside.note(NODE_POOLS, pool.metadata, Stage.ACT, error)
            case Mark(node=node) | Unmark(node=node) | Admit(node=node) | DeleteNode(node=node):
                self._set_aside.note(NODES, node.metadata, Stage.ACT, error)
            case CreateFleet() | WriteFleet():
                raise error
            case _:
                assert_never(action)


def _request(pool: NodePool, launch: Launch) -> LaunchRequest:
    template = pool.spec.template
    domain = next((each for each in pool.spec.domains if each.name == launch.domain), None)
    labels = {**template.labels, **(domain.labels if domain else {})}
    return LaunchRequest(
        launch.token, pool.metadata.name, launch.count, launch.domain, template.resources, labels
    )


def _order(entry: tuple[int, float, JobKey, GangRequest]) -> tuple[int, float, JobKey]:
    return entry[:3]


def _node_patch(action: Mark | Unmark | Admit) -> dict[str, Any]:
    match action:
        case Mark(why=why):
            notes = {names.REMOVAL: why, names.CORDONED_BY: OWNER}
            return {"metadata": {"annotations": notes}, "spec": {"unschedulable": True}}
        case Unmark(uncordons=uncordons):
            notes = {names.REMOVAL: None, names.CORDONED_BY: None}
            spec = {"spec": {"unschedulable": None}} if uncordons else {}
            return {"metadata": {"annotations": notes}, **spec}
        case Admit(node=node):
            kept = [to_wire(t) for t in node.spec.taints if t.key != names.TAINT_JOINING]
            return {"spec": {"taints": kept or None}}
        case _:
            assert_never(action)
