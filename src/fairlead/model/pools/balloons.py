"""Balloons: pods that hold idle nodes, so that another autoscaler does not remove them.

A pod is a balloon by what the API server vouches for, never by a label: it is in Fairlead's own
namespace, where only administrators and Fairlead create pods, and a NodePool is its controller. A
pod of a tenant that looks like one counts as any other pod, and Fairlead never deletes it.
"""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import OwnerReference
from fairlead.model.pools.grouping import controller_of

KIND = "NodePool"


def pool_of_balloon(pod: Pod, namespace: str) -> OwnerReference | None:
    """Return the pool that controls a balloon; None for any other pod.

    `namespace` is Fairlead's own; "" where there are no balloons.
    """
    if not namespace or pod.metadata.namespace != namespace:
        return None
    return controller_of(pod, names.API_VERSION, KIND)


def is_balloon(pod: Pod, namespace: str) -> bool:
    """True for a balloon. `namespace` as in `pool_of_balloon`."""
    return pool_of_balloon(pod, namespace) is not None
