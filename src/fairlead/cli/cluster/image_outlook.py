"""Reads what is left to pull before a gang whose place is known can start.

The user's own rights decide: who may not see nodes gets nothing, as nodes say what others run.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, Placement, nodes_of
from fairlead.api.resources import EVENTS, NODES
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.connection.transport import Api
from fairlead.decide.images.outlook import NOT_MEASURED, GangOutlook, PullRates, outlook
from fairlead.decide.images.pulled import pulls_of
from fairlead.decide.images.view import ImageNode
from fairlead.decide.images.wishes import is_starting

#: Of larger gangs all nodes of the cluster are read at a time.
_READ_ALONE_MAX = 16


def image_outlook(api: Api, job: Job, place: Placement | Nomination | None = None) -> GangOutlook:
    """Return it of a gang at its place, by default that of one that starts, or for which others
    make room; nothing where all is there, and for a user who may not see nodes.
    """
    if place is None:
        place = job.status.placement if is_starting(job) else job.status.nomination
    if place is None:
        return GangOutlook()
    try:
        nodes = _nodes(api, dict.fromkeys(nodes_of(place)))
    except Forbidden:
        return GangOutlook()
    if not outlook(job, place, nodes, NOT_MEASURED):
        return GangOutlook()
    try:
        events = api.list(EVENTS, namespace=job.metadata.namespace, field_selector="reason=Pulled")
    except Forbidden:
        events = ()
    rates = PullRates.measured(pulls_of(events))
    return outlook(job, place, nodes, rates)


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
