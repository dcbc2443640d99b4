"""What the jobs controller reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.core import ConfigMap, Node, Pod, Service
from fairlead.api.job import Job
from fairlead.api.podgroups import PodGroup, pod_groups
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODES, PODS, SERVICES
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.mirror import Mirror, MirrorOptions
from fairlead.runtime.reader import MirrorReader


@dataclass(frozen=True, slots=True)
class JobsMirrors:
    """What the controller reads. Pods and nodes may be shared with others and unfiltered."""

    jobs: Mirror[Job]
    pods: Mirror[Pod]
    nodes: Mirror[Node]
    config_maps: Mirror[ConfigMap]
    services: Mirror[Service] | None = None
    pod_groups: Mirror[PodGroup] | None = None
    #: Given where mirrors are shared: holds the controller's handlers, and takes their faults.
    reader: MirrorReader | None = None

    @classmethod
    def make(
        cls, client: Client, policy: JobsPolicy, *, clock: Clock, rng: random.Random
    ) -> JobsMirrors:
        """Make mirrors of one's own, that hold only what jobs own."""
        own = MirrorOptions(label_selector=names.JOB_UID)
        services = None
        if policy.peer_naming is PeerNaming.DNS:
            services = Mirror(client, SERVICES, clock=clock, rng=rng, options=own)
        groups = None
        if policy.groups is not None:
            resource = pod_groups(policy.groups)
            groups = Mirror(client, resource, clock=clock, rng=rng, options=own)
        return cls(
            jobs=Mirror(client, JOBS, clock=clock, rng=rng),
            pods=Mirror(client, PODS, clock=clock, rng=rng, options=own),
            nodes=Mirror(client, NODES, clock=clock, rng=rng),
            config_maps=Mirror(client, CONFIG_MAPS, clock=clock, rng=rng, options=own),
            services=services,
            pod_groups=groups,
        )

    @property
    def own(self) -> Sequence[Mirror[Any]]:
        """Return those that nobody else reads."""
        optional = (self.services, self.pod_groups)
        return [self.config_maps, *(mirror for mirror in optional if mirror is not None)]
