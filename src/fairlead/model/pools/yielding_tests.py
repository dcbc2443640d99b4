"""Tests of nodes that leave as soon as work comes: they use nothing, and members wait for them.

A pod is one by what the API server vouches for, as a balloon is (`balloons.py`): it is in
Fairlead's own namespace, and a NodeTest is its controller. A pod of a tenant that looks like one
counts as any other pod.

The planner counts such a node as empty. The jobs controller makes no pod of a member there before
the test has gone, so a kubelet that gives out devices never sees both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.model.gang.gangs import JobKey
from fairlead.model.pools.grouping import controller_of

KIND = "NodeTest"


def is_yielding(pod: Pod, namespace: str) -> bool:
    """True for a test that leaves for work. `namespace` is Fairlead's own; "": there are none."""
    meta = pod.metadata
    if names.NODE_TEST_YIELDS not in meta.labels or not namespace or meta.namespace != namespace:
        return False
    return controller_of(pod, names.API_VERSION, KIND) is not None


class YieldingTests:
    """Where such tests are, or are being begun."""

    def __init__(self, namespace: str) -> None:
        """`namespace`: as in `is_yielding`."""
        self._namespace = namespace
        self._node_of: dict[JobKey, str] = {}
        self._by_node: dict[str, dict[JobKey, None]] = {}
        #: Nodes on which a member has to wait.
        self.nodes: Mapping[str, object] = MappingProxyType(self._by_node)

    def put(self, pod: Pod) -> None:
        """Take in a pod, new or changed."""
        key = pod.metadata.key
        if not pod.is_terminal and pod.spec.node_name and is_yielding(pod, self._namespace):
            self.begin(key, pod.spec.node_name)
        else:
            self.remove(key)

    def begin(self, key: JobKey, node: str) -> None:
        """Note that a test is being made, before any mirror shows it."""
        self._node_of[key] = node
        self._by_node.setdefault(node, {})[key] = None

    def remove(self, key: JobKey) -> None:
        """Take in that a pod is gone, or was not made."""
        node = self._node_of.pop(key, None)
        if node is None:
            return
        self._by_node[node].pop(key)
        if not self._by_node[node]:
            del self._by_node[node]
