"""Which nodes a gang gives up with the end of an attempt, and which take no new member.

The next attempt keeps the nodes of the members that were well. A node is given up when it is lost,
when another scheduler refuses the member there, when the member was evicted from it (a node under
pressure shows its taint seconds later), and when its provider is about to stop it. A cordoned node
keeps the members that run there and gets no new one, whatever ended the old one
(docs/design/jobs.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.seats import Seat, seats
from fairlead.decide.jobs import members, native
from fairlead.decide.jobs.closing import closing_nodes
from fairlead.decide.jobs.member_failure import Failure, is_evicted
from fairlead.decide.jobs.view import JobView

#: Ends after which the member needs another node.
MOVES = (EndReason.NODE_LOST, EndReason.NOT_BOUND, EndReason.DRAINED, EndReason.EVICTED)


def nodes_lost(view: JobView, reason: EndReason, failure: Failure | None) -> tuple[str, ...]:
    """Return the nodes that the attempt gives up as it ends for `reason`, sorted."""
    placement = view.job.status.placement
    lost = set(_nodes_given_up(view, reason))
    if reason in MOVES and failure is not None and failure.member:
        lost.add(native.node_for(failure.member, placement))
    seat = cordoned_seat(view) if reason is EndReason.DRAINED else None
    if seat is not None:
        lost.add(seat.node)
    if reason is EndReason.DRAINED:
        lost.update(closing_nodes(view))
    for member in view.current.members.values() if view.node_troubles else ():
        if member.node in view.node_troubles and not member.is_terminal:
            lost.add(member.node)
    return tuple(sorted(lost - {""}))


def _nodes_given_up(view: JobView, reason: EndReason) -> Iterator[str]:
    """Yield the nodes of evicted members, and of those that the other scheduler refuses."""
    pods, placement = view.current, view.job.status.placement
    for name in pods.troubled:
        member = pods.members[name]
        is_refused = reason is EndReason.NOT_BOUND and member.is_refused
        if is_refused or is_evicted(member):
            yield native.node_for(member, placement)


def cordoned_seat(view: JobView) -> Seat | None:
    """Return the first seat without a pod whose node is cordoned, None when there is none.

    Not of a native gang: kube-scheduler finds its nodes, and cordoned ones it leaves out.
    """
    job, pods, placement = view.job, view.current, view.job.status.placement
    attempt = job.status.attempt
    if not view.cordoned or placement is None or len(pods.members) >= job.member_count:
        return None
    nodes = {node for role in placement.roles for node in role.nodes}
    is_native = native.group_name(job, attempt) in view.pod_groups
    if is_native or not any(node in view.cordoned for node in nodes):
        return None
    for seat in seats(job, placement):
        name = members.member_name(job, attempt, seat.role.name, seat.index)
        if seat.node in view.cordoned and name not in pods.members:
            return seat
    return None
