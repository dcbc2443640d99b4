"""The objects that the planner reads, as a client can list them: for a cluster whose controllers
do not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fairlead.api.resources import (
    CLAIMS,
    CSI_NODES,
    DEVICE_CLASSES,
    JOBS,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    TEAMS,
    VOLUME_ATTACHMENTS,
    VOLUMES,
    Resource,
)
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.cluster.installation import own_namespace
from fairlead.cli.connection.transport import Api
from fairlead.model.asks.topology import Level
from fairlead.model.cluster import ClusterState
from fairlead.model.objects import Objects

T = TypeVar("T")


def read_objects(api: Api) -> Objects:
    """Return what the scheduler reads; Forbidden for a user who may not list nodes, or jobs and
    pods of all namespaces.

    Of the other kinds those that the cluster has and the user may list.
    """
    return Objects(
        tuple(api.list(NODES)), tuple(api.list(JOBS)), tuple(api.list(PODS)),
        _if_open(api, PRIORITY_CLASSES), _if_open(api, TEAMS) or (),
        _if_open(api, RESOURCE_QUOTAS) or (), _if_open(api, NODE_POOLS) or (),
        balloon_namespace=own_namespace(api), claims=_if_open(api, CLAIMS) or (),
        volumes=_if_open(api, VOLUMES) or (), storage_classes=_if_open(api, STORAGE_CLASSES) or (),
        csi_nodes=_if_open(api, CSI_NODES) or (),
        attachments=_if_open(api, VOLUME_ATTACHMENTS) or (),
        device_claims=_if_open(api, RESOURCE_CLAIMS) or (),
        device_templates=_if_open(api, RESOURCE_CLAIM_TEMPLATES) or (),
        device_classes=_if_open(api, DEVICE_CLASSES) or (),
        slices=_if_open(api, RESOURCE_SLICES) or (),
    )  # fmt: skip


def read_state(objects: Objects, levels: Sequence[Level], now: float) -> ClusterState:
    """Return the cluster as the scheduler would see it now, with these levels of the topology."""
    state = objects.state(levels)
    state.advance_shares(now)
    return state


def _if_open(api: Api, resource: Resource[T]) -> tuple[T, ...] | None:
    """Return the objects, none of a kind that the cluster does not know; None when the user may not
    list them.
    """
    try:
        return tuple(api.list(resource))
    except NotFound:
        return ()
    except Forbidden:
        return None
