"""Gangs that ask for a resource of containers, or claim the devices that serve it, on generated
clusters, against a counter of what each node has.

A node serves the resource by itself where it has some, else by its devices. The judge knows both
amounts of each node. After each decision some members have their devices, as kube-scheduler binds
them, others have only their places.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED
from tests.property.test_devices import pod_of

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import PodStatus
from fairlead.api.kubernetes.pod_parts import ExtendedResourceClaim
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node
from fairlead.testing.device_builders import (
    device_request,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)

CARD = "example.com/card"
CLASS = "gpu.example.com"


@dataclass
class Node:
    """What a node has of the resource by itself, and its devices; and what of both is in use."""

    own: int
    devices: int
    own_used: int = 0
    had: list[str] = field(default_factory=list[str])

    def room(self, count: int, *, by_claim: bool) -> int:
        """Return how many members that ask for so much it takes."""
        if self.own and not by_claim:
            return (self.own - self.own_used) // count
        return (self.devices - len(self.had)) // count

    def take(self, count: int, *, by_claim: bool) -> list[str]:
        """Take a member, and return the devices that it gets."""
        if self.own and not by_claim:
            self.own_used += count
            return []
        found = [f"gpu-{i}" for i in range(self.devices) if f"gpu-{i}" not in self.had][:count]
        assert len(found) == count, "a member has no devices where it was placed"
        self.had += found
        return found


@dataclass(frozen=True)
class Ask:
    """A gang: members, what each asks for, and how; and whether it is bound before the next."""

    members: int
    count: int
    by_claim: bool
    is_bound: bool


NODES = st.lists(st.builds(Node, st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=4)
ASKS = st.lists(
    st.builds(Ask, st.integers(1, 4), st.integers(1, 2), st.booleans(), st.booleans()), max_size=7
)


def job_of(ask: Ask, age: int) -> Job:
    extra = {} if ask.by_claim else {CARD: ask.count}
    job = make_job(f"j{age}", count=ask.members, gpus=0, cpu="1", extra=extra, created=EPOCH + age)
    return with_device_claims(job, f"t{ask.count}") if ask.by_claim else job


@given(NODES, ASKS, st.booleans())
@settings(BOUNDED)
def test_a_gang_gets_places_if_and_only_if_nodes_or_their_devices_have_room(
    nodes: list[Node], asks: list[Ask], serves_late: bool,
) -> None:  # fmt: skip
    known = {f"n{i}": node for i, node in enumerate(nodes)}
    made = make_device_class(CLASS)
    serving = replace(made, spec=replace(made.spec, extended_resource_name=CARD))
    templates = [make_device_template(f"t{n}", device_request(CLASS, n)) for n in (1, 2)]
    slices = [make_slice(name, node.devices) for name, node in known.items()]
    table = DeviceTable(slices, [made if serves_late else serving], templates)
    machines = [
        make_node(name, gpus=0, extra={CARD: node.own} if node.own else {})
        for name, node in known.items()
    ]
    state = ClusterState.of(machines, devices=table)
    placement = PlacementState(state)
    if serves_late:
        decide(placement, PlacementPolicy(), EPOCH)
        state.devices.put_class(CLASS, serving)
    for age, ask in enumerate(asks):
        job = job_of(ask, age)
        state.job_changed(job)
        decision = decide(placement, PlacementPolicy(), EPOCH + age)
        placed = [each for each in decision.actions if isinstance(each, PlaceJob)]
        room = {n: node.room(ask.count, by_claim=ask.by_claim) for n, node in known.items()}
        assert bool(placed) == (sum(room.values()) >= ask.members), (room, decision.verdicts)
        if not placed:
            state.job_deleted(job.metadata.key)
            continue
        job = replace(job, status=replace(job.status, placement=placed[0].placement))
        state.job_changed(job)
        for i, where in enumerate(placed[0].placement.roles[0].nodes):
            had = known[where].take(ask.count, by_claim=ask.by_claim)
            if ask.is_bound:
                bind(state, job, i, (where, had))


def bind(state: ClusterState, job: Job, index: int, given: tuple[str, list[str]]) -> None:
    """Bind a member to its node, with the devices that its claim gets there."""
    node, devices = given
    pod = pod_of(job, index, node)
    if devices:
        name = f"{pod.metadata.name}-devices"
        claim = make_device_claim(name, pod=pod.metadata.name, has=[(node, d) for d in devices])
        state.devices.put_claim(claim.metadata.key, claim)
        if not pod.spec.resource_claims:
            status = PodStatus(extended_resource_claim_status=ExtendedResourceClaim(name))
            pod = replace(pod, status=status)
    state.pod_changed(pod)
