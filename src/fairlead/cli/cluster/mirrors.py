"""The mirrors that several parts of one process read: one list and one watch per kind.

Each is a service of its own and outlives its readers, which come and go with their crashes. A full
cluster's pods are decoded, listed and kept once instead of once per reader.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from fairlead.api.core import Node, Pod
from fairlead.api.job import Job
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger
from fairlead.runtime.metrics import Metrics
from fairlead.runtime.mirror import Mirror
from fairlead.runtime.supervisor import Service


class SharedMirrors:
    """Mirrors of all jobs, pods and nodes. Readers register through a `MirrorReader`."""

    def __init__(self, client: Client, *, clock: Clock, metrics: Metrics, log: Logger) -> None:
        self.nodes: Mirror[Node] = Mirror(client, NODES, clock=clock, rng=_rng(), log=log)
        self.jobs: Mirror[Job] = Mirror(client, JOBS, clock=clock, rng=_rng(), log=log)
        self.pods: Mirror[Pod] = Mirror(client, PODS, clock=clock, rng=_rng(), log=log)
        self._metrics = metrics

    def services(self) -> list[Service]:
        """Return what runs the mirrors; put it before the readers, to be stopped after them."""
        mirrors: list[Mirror[Any]] = [self.nodes, self.jobs, self.pods]
        return [
            Service(
                f"mirror-{mirror.resource.plural}",
                partial(self._run, mirror),
                is_ready=partial(_is_synced, mirror),
            )
            for mirror in mirrors
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
