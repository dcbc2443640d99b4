"""Gangs with claims on generated clusters, against an exact search that knows nodes by their names.

The judge shares nothing with the planner: a volume is a set of node names, and members find nodes
by augmenting paths. Volumes are of zones and of nodes, whose sets are apart or within each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED

from fairlead.api.jobs.job import ClaimTemplate, Job
from fairlead.api.meta import ObjectMeta
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.whatif import fits_empty
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node
from fairlead.testing.volume_builders import ZONE, make_claim, make_storage_class, make_volume

SPEC = {"accessModes": ["ReadWriteOnce"], "storageClassName": "free",
        "resources": {"requests": {"storage": "1Gi"}}}  # fmt: skip


@dataclass
class Case:
    """A cluster, and what the judge knows of it."""

    zones: dict[str, str]
    room: dict[str, int]
    #: By job: the nodes that each member may use.
    allowed: dict[str, list[set[str]]] = field(default_factory=dict[str, list[set[str]]])
    jobs: list[Job] = field(default_factory=list[Job])
    claims: list[str] = field(default_factory=list[str])
    volumes: dict[str, tuple[list[str], list[str]]] = field(
        default_factory=dict[str, tuple[list[str], list[str]]]
    )

    def add_volume(self, draw: st.DrawFn, name: str) -> set[str]:
        """Add a bound claim; return the nodes that reach its volume."""
        kind = draw(st.sampled_from(["anywhere", "zone", "zone", "node"]))
        zones = [draw(st.sampled_from("abc"))] if kind == "zone" else []
        nodes = [draw(st.sampled_from(sorted(self.zones)))] if kind == "node" else []
        self.claims.append(name)
        self.volumes[name] = (zones, nodes)
        if kind == "node":
            return set(nodes)
        return {node for node, zone in self.zones.items() if not zones or zone in zones}

    def state(self) -> ClusterState:
        nodes = [make_node(name, gpus=self.room[name], labels={ZONE: zone})
                 for name, zone in self.zones.items()]  # fmt: skip
        claims = [make_claim(name, volume=f"v-{name}") for name in self.claims]
        volumes = [make_volume(f"v-{name}", zones=zones, nodes=on, claim=name)
                   for name, (zones, on) in self.volumes.items()]  # fmt: skip
        return ClusterState.of(
            nodes, self.jobs, claims=claims, volumes=volumes,
            storage_classes=[make_storage_class("free")],
        )  # fmt: skip


@st.composite
def a_case(draw: st.DrawFn, jobs_max: int = 3) -> Case:
    zones = {f"n{i}": draw(st.sampled_from("abc")) for i in range(draw(st.integers(1, 5)))}
    case = Case(zones, {name: draw(st.integers(1, 3)) for name in zones})
    for number in range(draw(st.integers(1, jobs_max))):
        name, count = f"j{number}", draw(st.integers(1, 5))
        reach = set(zones)
        shared = [f"s{number}-{i}" for i in range(draw(st.integers(0, 2)))]
        for claim in shared:
            reach &= case.add_volume(draw, claim)
        job = make_job(name, count=count, gpus=1, claims=shared, created=EPOCH + number)
        members = [set(reach) for _ in range(count)]
        if draw(st.booleans()):
            (role,) = job.spec.roles
            role = replace(
                role, volume_claim_templates=(ClaimTemplate(ObjectMeta(name="data"), SPEC),)
            )
            job = replace(job, spec=replace(job.spec, roles=(role,)))
            for i, member in enumerate(members):
                if draw(st.booleans()):
                    member &= case.add_volume(draw, f"data-{name}-worker-{i}")
        case.jobs.append(job)
        case.allowed[name] = members
    return case


def fits(members: list[set[str]], room: dict[str, int]) -> bool:
    """Whether all members find nodes, each on one that it may use."""
    on: dict[str, list[int]] = {name: [] for name in room}

    def seat(member: int, seen: set[str]) -> bool:
        for node in sorted(members[member] - seen):
            seen.add(node)
            for i, other in enumerate(on[node]):
                if len(on[node]) >= room[node] and seat(other, seen):
                    on[node][i] = member
                    return True
            if len(on[node]) < room[node]:
                on[node].append(member)
                return True
        return False

    return all(seat(member, set()) for member in range(len(members)))


@BOUNDED
@given(a_case(jobs_max=1))
def test_a_gang_fits_an_empty_cluster_exactly_when_each_member_finds_a_node(case: Case) -> None:
    state = case.state()
    verdict = fits_empty(state, state.jobs["default", "j0"].gang)
    is_possible = fits(case.allowed["j0"], case.room)
    assert (verdict.reason is Reason.PLACED) == is_possible
    if not is_possible:
        assert verdict.outcome in (Outcome.IMPOSSIBLE, Outcome.WAITING)


@BOUNDED
@given(a_case())
def test_no_member_is_placed_where_its_volumes_cannot_be_and_the_first_job_gets_its_place(
    case: Case,
) -> None:
    decision = decide(PlacementState(case.state()), PlacementPolicy(), EPOCH + 60)
    used = dict.fromkeys(case.room, 0)
    placed = {a.job.metadata.name: a for a in decision.actions if isinstance(a, PlaceJob)}
    for name, action in placed.items():
        (role,) = action.placement.roles
        for node, allowed in zip(role.nodes, case.allowed[name], strict=True):
            assert node in allowed
            used[node] += 1
    assert all(used[node] <= case.room[node] for node in used)
    assert ("j0" in placed) == fits(case.allowed["j0"], case.room)
