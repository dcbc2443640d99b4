"""What the jobs controller reads besides the cluster: what jobs own that is not a pod."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.core import ConfigMap, Service
from fairlead.api.podgroups import PodGroup, pod_groups
from fairlead.api.resources import CONFIG_MAPS, SERVICES
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.mirror import Mirror, MirrorOptions


@dataclass(frozen=True, slots=True)
class JobsMirrors:
    """Mirrors that no other controller reads; they hold only what jobs own."""

    config_maps: Mirror[ConfigMap]
    services: Mirror[Service] | None = None
    pod_groups: Mirror[PodGroup] | None = None

    @classmethod
    def make(
        cls, client: Client, policy: JobsPolicy, *, clock: Clock, rng: random.Random
    ) -> JobsMirrors:
        """Make the mirrors that the policy needs."""
        own = MirrorOptions(label_selector=names.JOB_UID)
        services = None
        if policy.peer_naming is PeerNaming.DNS:
            services = Mirror(client, SERVICES, clock=clock, rng=rng, options=own)
        groups = None
        if policy.groups is not None:
            resource = pod_groups(policy.groups)
            groups = Mirror(client, resource, clock=clock, rng=rng, options=own)
        return cls(
            config_maps=Mirror(client, CONFIG_MAPS, clock=clock, rng=rng, options=own),
            services=services,
            pod_groups=groups,
        )

    @property
    def all(self) -> Sequence[Mirror[Any]]:
        """Return those that there are."""
        optional = (self.services, self.pod_groups)
        return [self.config_maps, *(mirror for mirror in optional if mirror is not None)]
