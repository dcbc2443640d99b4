"""The mirrors that several parts of one process read: one list and one watch per kind.

Each is a service of its own and outlives its readers, which come and go with their crashes. A full
cluster's pods are decoded, listed and kept once instead of once per reader.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from fairlead.api.core import Node, Pod, PriorityClass
from fairlead.api.job import Job
from fairlead.api.resource_quota import ResourceQuota
from fairlead.api.resources import JOBS, NODES, PODS, PRIORITY_CLASSES, RESOURCE_QUOTAS
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventSink
from fairlead.runtime.logs import Logger
from fairlead.runtime.metrics import Metrics
from fairlead.runtime.mirror import Mirror
from fairlead.runtime.set_aside import SetAside
from fairlead.runtime.supervisor import Service


class SharedMirrors:
    """The mirrors that several controllers read; these register through a `MirrorReader`."""

    def __init__(
        self,
        client: Client,
        *,
        priority_classes: Mirror[PriorityClass] | None = None,
        has_quotas: bool = False,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        log: Logger,
    ) -> None:
        """`priority_classes` is given where somebody else in the process runs that mirror."""
        #: Objects that cannot be decoded, of these kinds and of those that a reader has alone.
        self.set_aside = SetAside("mirrors", events=events, log=log)
        metrics.watch_set_aside(self.set_aside)
        make = partial(Mirror, client, clock=clock, log=log, set_aside=self.set_aside)
        self.nodes: Mirror[Node] = make(NODES, rng=_rng())
        self.jobs: Mirror[Job] = make(JOBS, rng=_rng())
        self.pods: Mirror[Pod] = make(PODS, rng=_rng())
        self._own: list[Mirror[Any]] = [self.nodes, self.jobs, self.pods]
        if priority_classes is None:
            priority_classes = make(PRIORITY_CLASSES, rng=_rng())
            self._own.append(priority_classes)
        self.priority_classes = priority_classes
        self.quotas: Mirror[ResourceQuota] | None = None
        if has_quotas:
            self.quotas = make(RESOURCE_QUOTAS, rng=_rng())
            self._own.append(self.quotas)
        self._metrics = metrics

    def services(self) -> list[Service]:
        """Return what runs the mirrors; put it before the readers, to be stopped after them."""
        return [
            Service(
                f"mirror-{mirror.resource.plural}",
                partial(self._run, mirror),
                is_ready=partial(_is_synced, mirror),
            )
            for mirror in self._own
        ]

    async def _run(self, mirror: Mirror[Any]) -> None:
        self._metrics.watch_mirror(mirror)
        try:
            await mirror.run()
        finally:
            self._metrics.forget_mirrors([mirror])


def _is_synced(mirror: Mirror[Any]) -> bool:
    return mirror.synced


def _rng() -> random.Random:
    return random.Random()  # noqa: S311 # jitter, not secrets
