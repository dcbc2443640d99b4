"""How many members of each class each node has room for: kept per change, as read from scratch."""

from __future__ import annotations

import random
from collections import Counter

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import MAINTENANCE
from fairlead.model.asks.requests import MemberClass
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.health.windows import window_text
from fairlead.model.inventory.supply import Supply
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_pod

#: Resources that only some nodes offer at a time; those of the last kind are no devices.
EXTRA = ("x/a", "x/b", "hugepages-1Gi")


def amounts(rng: random.Random) -> dict[str, int]:
    return {name: rng.randrange(4) for name in rng.sample(EXTRA, rng.randrange(3))}


def a_node(rng: random.Random, name: str) -> Node:
    start = EPOCH + rng.randrange(60)
    window = window_text(start, start + rng.randrange(1, 60))
    return make_node(
        name, gpus=rng.randrange(4), extra=amounts(rng), ready=rng.random() < 0.8,
        unschedulable=rng.random() < 0.2,
        annotations={MAINTENANCE: window} if rng.random() < 0.3 else {},
    )  # fmt: skip


def a_job(rng: random.Random, name: str) -> Job:
    placement = make_placement([rng.choice("klmn")]) if rng.random() < 0.4 else None
    limit = rng.choice([None, 1, 10])
    return make_job(
        name, gpus=rng.randrange(3), extra=amounts(rng), placement=placement,
        time_limit_seconds=limit,
    )  # fmt: skip


class Objects:
    """The latest version of each object, and a state that has seen all versions."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.pods: dict[str, Pod] = {}

    def change(self, rng: random.Random) -> None:
        """Make, change or delete one object."""
        gone = rng.random() < 0.25
        match rng.choice(["node", "job", "pod"]):
            case "node":
                name = rng.choice("klmn")
                self.nodes.pop(name, None)
                if gone:
                    self.state.node_deleted(name)
                else:
                    self.nodes[name] = a_node(rng, name)
                    self.state.node_changed(self.nodes[name])
            case "job":
                name = rng.choice("abc")
                self.jobs.pop(name, None)
                if gone:
                    self.state.job_deleted(("default", name))
                else:
                    self.jobs[name] = a_job(rng, name)
                    self.state.job_changed(self.jobs[name])
            case _:
                name = rng.choice("pq")
                self.pods.pop(name, None)
                if gone:
                    self.state.pod_deleted(("default", name))
                else:
                    self.pods[name] = make_pod(name, node=rng.choice("klmn"), extra=amounts(rng))
                    self.state.pod_changed(self.pods[name])


def members(state: ClusterState) -> list[MemberClass]:
    gangs = [entry.gang for _, entry in sorted(state.jobs.items())]
    return [role.member for gang in gangs if isinstance(gang, GangRequest) for role in gang.roles]


def rooms(state: ClusterState) -> list[tuple[int, dict[str, int]]]:
    """Return the total of each class, and how many members each node has room for."""
    out = list[tuple[int, dict[str, int]]]()
    for member in members(state):
        fits = state.fits.fits(member).tolist()
        by_name = {name: n for name, n in zip(state.table.names, fits, strict=True) if n}
        out.append((state.fits.total(member), by_name))
    return out


def sums(state: ClusterState) -> list[tuple[int, list[Supply]]]:
    """Return for each class what all nodes would hold were they empty, and what they have."""
    return [
        (
            state.fits.empty_total(member),
            [state.fits.supply(member.constraints, name) for name in ("nvidia.com/gpu", *EXTRA)],
        )
        for member in members(state)
    ]


def test_the_room_for_members_depends_on_the_latest_objects_and_the_time_alone() -> None:
    met = Counter[bool]()
    for seed in range(40):
        rng, objects = random.Random(seed), Objects()
        state, now = objects.state, EPOCH
        state.fits.advance(now)
        for _ in range(40):
            objects.change(rng)
            if rng.random() < 0.2:
                now = EPOCH + rng.randrange(-10, 130)
                state.fits.advance(now)
            if rng.random() < 0.2:
                with state.transaction() as what_if:
                    what_if.with_nodes(a_node(rng, "more"), rng.randrange(1, 3))
                    rooms(state)
                    sums(state)
            if rng.random() < 0.5:
                continue  # several changes are taken in at once
            rebuilt = ClusterState.of(
                objects.nodes.values(), objects.jobs.values(), objects.pods.values()
            )
            rebuilt.fits.advance(now)
            assert members(state) == members(rebuilt)
            assert rooms(state) == rooms(rebuilt), seed
            assert sums(state) == sums(rebuilt), seed
            met.update(total > 0 for total, _ in rooms(state))
    assert min(met[True], met[False]) > 300, met


def test_the_sums_of_nodes_are_those_of_the_nodes_that_are_admitted() -> None:
    full = make_job("full", gpus=4, placement=make_placement(["a"]))
    nodes = [make_node("a", gpus=4), make_node("b", gpus=8), make_node("c", ready=False, gpus=8)]
    state = ClusterState.of(nodes, [full, make_job("next", gpus=3)])
    *_, member = members(state)
    assert state.fits.supply(member.constraints, "nvidia.com/gpu") == Supply(
        unused=8, owned=12, free_nodes=1, nodes=2, largest=8
    )
    assert state.fits.empty_total(member) == 1 + 2 + 2
    state.job_deleted(full.metadata.key)
    assert state.fits.supply(member.constraints, "nvidia.com/gpu").unused == 12


def test_the_room_of_a_class_that_is_known_grows_and_shrinks_with_the_nodes() -> None:
    state = ClusterState.of([make_node("n000")], [make_job("a", gpus=4)])
    first, names = rooms(state), [f"n{number:03}" for number in range(2 * state.table.capacity)]
    for name in names:
        state.node_changed(make_node(name))
    assert rooms(state) == [(2 * len(names), dict.fromkeys(names, 2))]
    for name in names[1:]:
        state.node_deleted(name)
    assert rooms(state) == first
