"""The mirrors of the whole cluster: jobs, pods, nodes, priority classes, teams, pools, quotas."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fairlead.api.core import Node, Pod, PriorityClass
from fairlead.api.job import Job
from fairlead.api.node_pool import NodePool
from fairlead.api.resource_quota import ResourceQuota
from fairlead.api.resources import (
    JOBS,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    TEAMS,
)
from fairlead.api.team import Team
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.mirror import Mirror


@dataclass(frozen=True, slots=True)
class ClusterMirrors:
    """Private or shared mirrors; pods are unfiltered."""

    jobs: Mirror[Job]
    pods: Mirror[Pod]
    nodes: Mirror[Node]
    priority_classes: Mirror[PriorityClass]
    teams: Mirror[Team]
    pools: Mirror[NodePool]
    #: None where there are no quotas, as in the embedded cluster.
    quotas: Mirror[ResourceQuota] | None = None

    @classmethod
    def make(
        cls, client: Client, *, clock: Clock, rng: random.Random, has_quotas: bool = False
    ) -> ClusterMirrors:
        """Make private mirrors."""
        quotas = Mirror(client, RESOURCE_QUOTAS, clock=clock, rng=rng) if has_quotas else None
        return cls(
            jobs=Mirror(client, JOBS, clock=clock, rng=rng),
            pods=Mirror(client, PODS, clock=clock, rng=rng),
            nodes=Mirror(client, NODES, clock=clock, rng=rng),
            priority_classes=Mirror(client, PRIORITY_CLASSES, clock=clock, rng=rng),
            teams=Mirror(client, TEAMS, clock=clock, rng=rng),
            pools=Mirror(client, NODE_POOLS, clock=clock, rng=rng),
            quotas=quotas,
        )
