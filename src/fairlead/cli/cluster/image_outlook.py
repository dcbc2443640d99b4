"""Reads what is left to pull before a gang whose place is known can start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.resources import EVENTS, NODES
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.connection.transport import Api
from fairlead.decide.images.outlook import ImageOutlook, outlook, pull_rate
from fairlead.decide.images.view import ImageNode
from fairlead.decide.images.wishes import is_starting

#: Of larger gangs all nodes of the cluster are read at a time.
_READ_ALONE_MAX = 16


def image_outlook(api: Api, job: Job) -> Sequence[ImageOutlook]:
    """Return it of a gang that starts, or for which others make room; () where all is there, and
    for a user who may not see nodes.
    """
    status = job.status
    place = status.placement if is_starting(job) else status.nomination
    if place is None:
        return ()
    try:
        nodes = _nodes(api, dict.fromkeys(nodes_of(place)))
    except Forbidden:
        return ()
    if not outlook(job, place, nodes, None):
        return ()
    try:
        events = api.list(EVENTS, namespace=job.metadata.namespace, field_selector="reason=Pulled")
    except Forbidden:
        events = ()
    return outlook(job, place, nodes, pull_rate(each.message for each in events))


def _nodes(api: Api, names: Mapping[str, None]) -> dict[str, ImageNode]:
    if len(names) > _READ_ALONE_MAX:
        found = [node for node in api.list(NODES) if node.metadata.name in names]
        return {node.metadata.name: ImageNode.of(node) for node in found}
    nodes: dict[str, ImageNode] = {}
    for name in names:
        try:
            nodes[name] = ImageNode.of(api.get(NODES, name))
        except NotFound:
            continue
    return nodes
