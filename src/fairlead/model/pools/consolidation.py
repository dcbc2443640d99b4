"""Node pools whose nodes may be emptied by moves, and what on their nodes no move can take away.

The fleet controller says in the status of a pool down to how many nodes in use it may go
(`consolidatesTo`); the pool's spec must allow it, too, so that an operator's change counts at once.
"""

from __future__ import annotations

from collections import Counter

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.kubernetes.core import Pod
from fairlead.model.gang.gangs import JobKey
from fairlead.model.pools.pool_nodes import is_static


class ConsolidatingPools:
    """Kept per event. Pods that no claim covers are counted by node."""

    def __init__(self) -> None:
        #: To how many nodes in use each pool is consolidated, by name; none for those that are not.
        self.consolidates_to: dict[str, int] = {}
        #: What a GPU of each pool costs per hour, in millionths: of pools with a price. No decision
        #: follows from it, so it changes no version.
        self.gpu_hour_micros: dict[str, int] = {}
        #: Rises with each change.
        self.version = 0
        self._uncovered: Counter[str] = Counter()
        #: The nodes of static pods, which are among those.
        self._static: dict[JobKey, str] = {}

    def set_pool(self, name: str, pool: NodePool | None) -> None:
        """Take in a pool, new or changed; None: it is gone."""
        before, after = self.consolidates_to.pop(name, None), None
        if pool is not None and pool.is_active and pool.spec.scale_down.consolidates:
            after = pool.status.consolidates_to
        if after is not None:
            self.consolidates_to[name] = after
        self.gpu_hour_micros.pop(name, None)
        if pool is not None and (price := pool.spec.gpu_hour_micros):
            self.gpu_hour_micros[name] = price
        self.version += after != before

    def set_pod(self, pod: Pod) -> None:
        """Note a static pod, which belongs to its node."""
        key, node = pod.metadata.key, pod.spec.node_name
        if not is_static(pod) or pod.is_terminal:
            self.remove_pod(key)
        elif self._static.get(key) != node:
            self._static[key] = node
            self.version += 1

    def remove_pod(self, key: JobKey) -> None:
        """Forget a pod; unknown ones are ignored."""
        self.version += self._static.pop(key, None) is not None

    def add_uncovered(self, node: str, sign: int) -> None:
        """Count a pod that no claim covers and that is of no DaemonSet; with -1 no more."""
        self.version += 1
        self._uncovered[node] += sign
        if not self._uncovered[node]:
            del self._uncovered[node]

    def nodes_with_pods(self) -> set[str]:
        """Return the nodes with pods that no claim covers and that do not belong to the node."""
        static = Counter(self._static.values())
        return {name for name, count in self._uncovered.items() if count > static[name]}
