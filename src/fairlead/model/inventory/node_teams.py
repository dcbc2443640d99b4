"""Whose each node is: what admission asks of a pod that names its node itself.

Only the taints are read of a node, so that every replica of the webhook can follow all nodes.
"""

from __future__ import annotations

import msgspec

from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.resources import NODES, Resource
from fairlead.model.asks.teams import owner_of


class _Metadata(ObjectMeta, frozen=True):
    """Names and versions. Labels and annotations, the most of a node, go by names that no object
    has: they are not decoded.
    """

    labels: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="-labels")
    annotations: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="-annotations")


class _Spec(Wire, frozen=True):
    taints: tuple[Taint, ...] = ()


class NodeOutline(Wire, frozen=True):
    """What of a node decides on whose it is."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()

    @property
    def team(self) -> str:
        """The team that its taint gives it to; "" for none."""
        return owner_of(self.spec.taints)


NODE_OUTLINES = Resource(
    NODES.group, NODES.version, NODES.plural, NODES.kind, NodeOutline, namespaced=False
)
