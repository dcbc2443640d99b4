"""What could be asked instead of what the nodes can never hold; each is tried on empty nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.values import quantity
from fairlead.decide.answers.explanation import Alternatives
from fairlead.decide.placement.places.whatif import fits_empty
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.asks.requests import request_of
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory.spares import is_spare


def alternatives_to(
    state: ClusterState,
    job: Job,
    gang: GangRequest | InvalidGang,
    verdict: Verdict,
    *,
    nodes: Sequence[Node],
) -> Alternatives:
    """Return what could be asked instead of a job with an impossible verdict."""
    if verdict.reason is Reason.NO_MATCHING_NODE:
        return Alternatives(taints=tuple(_taints(nodes, job)))
    if verdict.reason is Reason.NO_SUCH_TOPOLOGY:
        return Alternatives(levels=tuple(level.name for level in state.levels))
    if isinstance(gang, InvalidGang):
        return Alternatives()
    if verdict.reason is Reason.NO_DOMAIN_FITS:
        return Alternatives(wider_level=_wider(state, gang))
    return Alternatives(spread_members=_spread(state, gang, verdict))


def _taints(nodes: Sequence[Node], job: Job) -> Iterator[tuple[str, str]]:
    """Yield the taints of the first role that some keep from nodes that its selector allows."""
    for role in job.spec.roles:
        spec = role.template.spec
        tolerated = {toleration.key for toleration in spec.tolerations}
        taints = {
            taint.key
            for node in nodes
            if spec.node_selector.items() <= node.metadata.labels.items()
            for taint in node.spec.taints
            if taint.effect != "PreferNoSchedule"
            and taint.key not in tolerated
            and not is_spare((taint,))
        }
        if taints and "" not in tolerated:
            yield from ((role.name, key) for key in sorted(taints))
            return


def _wider(state: ClusterState, gang: GangRequest) -> str:
    """Return the next level that would hold a gang which the one it requires never can, or ""."""
    level = gang.topology.required
    index = state.levels.index(level) if level in state.levels else 0
    wider = (
        each.name
        for each in reversed(state.levels[:index])
        if fits_empty(state, gang.within_level(each)).outcome is Outcome.PLACED
    )
    return next(wider, "")


def _spread(state: ClusterState, gang: GangRequest, verdict: Verdict) -> int:
    """Return with how many members a gang would fit whose members ask for too many GPUs, or 0."""
    facts = verdict.facts
    if verdict.reason is not Reason.NO_NODE_SHAPE_FITS or len(gang.roles) != 1:
        return 0
    if facts["resource"] != quantity.GPU or not facts["largest"]:
        return 0
    (role,), largest = gang.roles, int(facts["largest"])
    amounts = {**dict(role.member.request), quantity.GPU: largest}
    member = replace(role.member, request=request_of(amounts.items()))
    count = -(-int(facts["asked"]) * role.count // largest)
    spread = replace(role, member=member, count=count)
    fits = fits_empty(state, replace(gang, roles=(spread,))).outcome is Outcome.PLACED
    return count if fits else 0
