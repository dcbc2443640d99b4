"""The balloon controller: creates and deletes the pods that hold idle nodes.

The fleet controller writes into the status of a pool how many there are to be. This controller
runs beside it and reads its index of nodes and pods. It has a loop of its own, because the fleet
controller may wait for a provider, and a balloon must leave within seconds when a job gets its
node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.resources import NODE_POOLS, PODS
from fairlead.api.status import ApiError
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.fleet.balloons import (
    Action,
    BalloonPolicy,
    CreateBalloon,
    EndBalloon,
    bounded,
    orphans,
    plan_pool,
)
from fairlead.decide.fleet.view import PoolFault, about
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.pools.balloons import pool_of_balloon
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage


class BalloonController:
    """One per process and leader. After a crash, create a new one: its state is in the pods."""

    name = "balloons"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        pools: Mirror[NodePool],
        nodes: PoolNodes,
        *,
        policy: BalloonPolicy,
        clock: Clock,
        reader: MirrorReader | None = None,
    ) -> None:
        """`nodes` is kept by the fleet controller, from the same mirrors."""
        self._objects = ObjectWriter(client)
        self._client = client
        self._world = world
        self._pools = pools
        self._nodes = nodes
        self._policy = policy
        self._clock = clock
        self._set_aside = set_aside_of(reader)
        #: What the latest decision without actions was made on.
        self._settled_on: tuple[object, ...] | None = None
        #: No decision before this instant of the loop.
        self._next_at = float("-inf")
        #: Pools that a decision raised over, at which version.
        self._faults: dict[str, str] = {}

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        nodes: Mirror[Node] = seen.nodes
        pods: Mirror[Pod] = seen.pods
        jobs: Mirror[Job] = seen.jobs
        return (self._pools, nodes, jobs, pods)

    def close(self) -> None:
        """Nothing to detach: the fleet controller follows the mirrors."""

    def _versions(self) -> tuple[object, ...]:
        versions = sorted(
            (pool.metadata.name, pool.metadata.resource_version) for pool in self._pools.items()
        )
        return (self._nodes.version, *versions)

    def due_at(self) -> float | None:
        """Return when to decide: once something has changed, but not before the pace allows."""
        if self._pools.is_undefined or self._settled_on == self._versions():
            return None
        return self._clock.now() + max(0.0, self._next_at - loop_time())

    def decide(self, now: float) -> Decision[Action]:
        """Decide about the balloons of all pools."""
        instant = loop_time()
        if self._pools.is_undefined or self._settled_on == self._versions():
            return Decision()
        if instant < self._next_at:
            return Decision(wake_at=now + self._next_at - instant)
        versions = self._versions()
        actions = bounded(self._actions(), self._policy)
        self._settled_on = None if actions else versions
        if not actions:
            return Decision()
        self._next_at = instant + self._policy.interval_seconds
        return Decision(actions, wake_at=now + self._policy.interval_seconds)

    def _actions(self) -> list[Action]:
        namespace = self._policy.namespace
        by_uid: dict[str, list[Pod]] = {}
        for pod in self._nodes.balloons.values():
            owner = pool_of_balloon(pod, namespace)
            by_uid.setdefault(owner.uid if owner is not None else "", []).append(pod)
        actions: list[Action] = []
        for pool in sorted(self._pools.items(), key=_name):
            balloons = by_uid.pop(pool.metadata.uid, [])
            if not (balloons or pool.is_external):
                continue
            if self._faults.get(_name(pool)) == pool.metadata.resource_version:
                continue
            try:
                with about(_name(pool)):
                    actions += plan_pool(
                        pool, self._nodes, self._policy, balloons=balloons, is_taken=self._is_taken
                    )
            except PoolFault as fault:
                self._note_fault(pool, fault)
        for left in by_uid.values():
            actions += orphans(left)
        return actions

    def _is_taken(self, name: str) -> bool:
        return self._world.mirrors.pods.get(self._policy.namespace, name) is not None

    def _note_fault(self, pool: NodePool, fault: PoolFault) -> None:
        """Leave the balloons of a pool alone until the pool changes."""
        error = fault.__cause__
        assert isinstance(error, Exception)
        self._set_aside.note(NODE_POOLS, pool.metadata, AsideStage.DECIDE, error)
        self._faults[_name(pool)] = pool.metadata.resource_version

    def key_of(self, action: Action) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        match action:
            case CreateBalloon():
                return action.key
            case EndBalloon(pod):
                return pod.metadata.key
            case _:
                assert_never(action)

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case CreateBalloon(body=body):
                made = await self._client.create(
                    PODS.only_metadata, body, namespace=self._policy.namespace
                )
                return Written.of(PODS, made)
            case EndBalloon(pod):
                return await self._objects.delete(
                    PODS, pod.metadata.key, uid=pod.metadata.uid, grace_seconds=0
                )
            case _:
                assert_never(action)

    def changed(self, key: ObjectKey) -> None:
        """Decide again."""
        self._settled_on = None

    def failed(self, action: Action, error: ApiError) -> None:
        """An answer that no retry can mend; the next decisions come back to it."""

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this object: set it aside, so that the others go on."""
        match action:
            case CreateBalloon(pool):
                self._set_aside.note(NODE_POOLS, pool.metadata, AsideStage.ACT, error)
            case EndBalloon(pod):
                self._set_aside.note(PODS, pod.metadata, AsideStage.ACT, error)
            case _:
                assert_never(action)


def _name(pool: NodePool) -> str:
    return pool.metadata.name
