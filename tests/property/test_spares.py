"""Spares are for repairs: no other job gets one, and a gang that one could complete does not wait.

Room is counted again by brute force from the objects: what is free on each node, spares included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node, Taint, Toleration
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

SPARE = Taint(names.TAINT_SPARE, "NoSchedule")
EVERYTHING = (Toleration(operator="Exists"), Toleration(names.TAINT_SPARE, "Exists"))
BOUNDED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
KEY = ("default", "gang")
_GPUS = 8


@st.composite
def some_nodes(draw: st.DrawFn) -> list[Node]:
    return [
        make_node(
            f"n{i}",
            gpus=_GPUS,
            labels={"rack": draw(st.sampled_from(["r1", "r2"]))},
            taints=draw(st.sampled_from([(), (), (SPARE,)])),
            ready=draw(st.sampled_from([True, True, True, False])),
            unschedulable=draw(st.sampled_from([False, False, False, True])),
        )
        for i in range(draw(st.integers(1, 7)))
    ]


@st.composite
def runners(draw: st.DrawFn, nodes: Sequence[Node]) -> list[Job]:
    """Jobs of some GPUs each on nodes that exist: at most half of a node."""
    return [
        make_job(f"runs-{node.metadata.name}", gpus=draw(st.sampled_from([1, 4])),
                 placement=make_placement([node.metadata.name]))
        for node in nodes if draw(st.integers(0, 3)) == 0
    ]  # fmt: skip


@st.composite
def waiting(draw: st.DrawFn) -> list[Job]:
    return [
        make_job(
            f"waits-{i}", count=draw(st.integers(1, 4)), gpus=draw(st.sampled_from([1, 4, 8])),
            priority=draw(st.sampled_from([-1, 0, 9])),
            tolerations=draw(st.sampled_from([(), EVERYTHING])),
            topology=draw(st.sampled_from([None, Topology("rack", required=True)])),
        )
        for i in range(draw(st.integers(0, 4)))
    ]  # fmt: skip


@st.composite
def a_wounded_gang(draw: st.DrawFn, nodes: Sequence[Node]) -> Job:
    """A gang of one role: some members on nodes that exist, some on nodes that are gone."""
    kept = [n.metadata.name for n in nodes if draw(st.booleans())][:3]
    lost = [f"gone-{i}" for i in range(draw(st.integers(1, 3)))]
    gpus = draw(st.sampled_from([1, 2, 4] if kept else [1, 4, 8]))
    return make_job(
        "gang", count=len(kept) + len(lost), gpus=gpus, attempt=2,
        placement=make_placement([*kept, *lost]),
        topology=draw(st.sampled_from([None, Topology("rack", required=True), Topology("rack")])),
        status={"attempts": (Attempt(number=1, nodes_lost=tuple(lost)),)},
    )  # fmt: skip


def places(job: Job) -> list[str]:
    assert job.status.placement is not None
    return [node for role in job.status.placement.roles for node in role.nodes]


def rooms(
    nodes: Sequence[Node], gang: Job, running: Sequence[Job], *, only_spares: bool
) -> tuple[int, int]:
    """Return for how many lost members there is room around the kept ones, and how many are lost.

    Where the rack is required, in the rack of the kept members; -1 where these are in several.
    """
    role = gang.spec.roles[0]
    asked = int(role.template.spec.containers[0].resources.requests["nvidia.com/gpu"])
    by_name = {node.metadata.name: node for node in nodes}
    used: Counter[str] = Counter()
    for job in running:
        amount = job.spec.roles[0].template.spec.containers[0].resources.requests
        for node in places(job):
            used[node] += int(amount["nvidia.com/gpu"])
    kept = [n for n in places(gang) if n in by_name and is_usable(by_name[n])]
    for node in kept:
        used[node] += asked
    lost = len(places(gang)) - len(kept)
    racks = {by_name[n].metadata.labels["rack"] for n in kept}
    is_bound = gang.spec.topology is not None and gang.spec.topology.required
    if is_bound and len(racks) > 1:
        return -1, lost
    total = Counter[str]()
    for node in nodes:
        rack = node.metadata.labels["rack"]
        is_open = is_usable(node) and (SPARE in node.spec.taints or not only_spares)
        if is_open and not (is_bound and racks and rack not in racks):
            total[rack if is_bound else ""] += (_GPUS - used[node.metadata.name]) // asked
    return max(total.values(), default=0), lost


def is_usable(node: Node) -> bool:
    return node.status.conditions[0].status == "True" and not node.spec.unschedulable


@BOUNDED
@given(st.data())
def test_a_gang_that_nodes_and_spares_could_complete_never_waits(data: st.DataObject) -> None:
    nodes = data.draw(some_nodes())
    running, gang = data.draw(runners(nodes)), data.draw(a_wounded_gang(nodes))
    decision = decide(PlacementState.of(nodes, [*running, gang]), PlacementPolicy(), EPOCH)
    action = next((a for a in decision.actions if a.job.metadata.key == KEY), None)
    room, lost = rooms(nodes, gang, running, only_spares=False)
    event("room" if room >= lost else "none")
    if room >= lost:
        assert isinstance(action, PlaceJob)
        after = [node for role in action.placement.roles for node in role.nodes]
        for before, node in zip(places(gang), after, strict=True):
            assert before == node or not before.startswith("n") or not is_kept(nodes, before)
    elif lost < len(places(gang)):
        assert decision.verdicts[KEY].reason is Reason.REPAIRING


def is_kept(nodes: Sequence[Node], name: str) -> bool:
    return any(node.metadata.name == name and is_usable(node) for node in nodes)


@BOUNDED
@given(st.data())
def test_no_waiting_job_gets_a_spare_or_keeps_one_from_a_repair(data: st.DataObject) -> None:
    nodes, jobs = data.draw(some_nodes()), data.draw(waiting())
    running, gang = data.draw(runners(nodes)), data.draw(a_wounded_gang(nodes))
    spares = {node.metadata.name for node in nodes if SPARE in node.spec.taints}
    state = PlacementState.of(nodes, [*running, gang, *jobs])
    decision = decide(state, PlacementPolicy(starvation_seconds=0.0), EPOCH)
    for action in decision.actions:
        if isinstance(action, PlaceJob) and action.job.metadata.key != KEY:
            taken = {node for role in action.placement.roles for node in role.nodes}
            assert not taken & spares
    room, lost = rooms(nodes, gang, running, only_spares=True)
    event("spares suffice" if room >= lost else "others")
    if room >= lost:
        assert any(isinstance(a, PlaceJob) and a.job.metadata.key == KEY for a in decision.actions)
