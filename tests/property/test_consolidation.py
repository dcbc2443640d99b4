"""Consolidation against brute force: what can be emptied is found, and no promise is broken."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

from tests.unit.decide.test_consolidation import pool
from tests.unit.decide.test_preemption import Cluster, running

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import POOL
from fairlead.decide.placement.actions import PreemptJob
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import make_node

CASES = 150
GPUS = 8
FOUND_SHARE_MIN = 0.95
POLICY = PlacementPolicy(
    move_min_run_seconds=0.0, moves_max=100, consolidation_horizon_seconds=float("inf")
)


@dataclass(frozen=True)
class Case:
    #: The pool of each node: "p" may be consolidated, "q" may not, "" is none.
    pools: tuple[str, ...]
    #: Of each gang the node of each member, GPUs of a member, and whether it may be moved.
    gangs: tuple[tuple[tuple[int, ...], int, bool], ...]
    #: Nodes in use that the pool keeps.
    kept: int


def a_case(rng: random.Random) -> Case:
    count = rng.randint(2, 5)
    free = [GPUS] * count
    gangs = list[tuple[tuple[int, ...], int, bool]]()
    for _ in range(rng.randint(1, 5)):
        gpus, places = rng.choice((1, 1, 2, 3, 4, 7)), list[int]()
        for i in rng.choices(range(count), k=rng.choice((1, 1, 1, 2))):
            if free[i] >= gpus:
                free[i] -= gpus
                places.append(i)
        if places:
            gangs.append((tuple(places), gpus, rng.random() < 0.85))
    pools = tuple(rng.choice(("p", "p", "p", "q", "")) for _ in range(count))
    return Case(pools, tuple(gangs), rng.choice((0, 0, 0, 1, 2)))


def world_of(case: Case) -> Cluster:
    nodes: list[Node] = [
        make_node(f"n{i}", gpus=GPUS, labels={POOL: name} if name else {})
        for i, name in enumerate(case.pools)
    ]
    jobs: list[Job] = [
        running(f"g{i}", [f"n{place}" for place in places], gpus=gpus)
        for i, (places, gpus, _) in enumerate(case.gangs)
    ]
    state = PlacementState.of(nodes, jobs)
    given: tuple[NodePool, ...] = (pool("p", kept=case.kept), pool("q", consolidates=False))
    for each in given:
        state.cluster.pools.set_pool(each.metadata.name, each)
    for job, (_, _, may_move) in zip(jobs, case.gangs, strict=True):
        if not may_move:  # as where writes of it fail
            state.write_blocked[job.metadata.key] = None
    return Cluster(state, POLICY)


def can_be_emptied(case: Case) -> bool:
    """By brute force: one node of the pool can lose all its gangs, to room that is free now."""
    used = {n for nodes, _, _ in case.gangs for n in nodes}
    if sum(case.pools[n] == "p" for n in used) <= case.kept:
        return False
    free = [GPUS] * len(case.pools)
    for nodes, gpus, _ in case.gangs:
        for n in nodes:
            free[n] -= gpus
    return any(_has_room(case, n, used, free) for n in sorted(used) if case.pools[n] == "p")


def _has_room(case: Case, leaves: int, used: set[int], free: list[int]) -> bool:
    """Try all ways to put the gangs of a node elsewhere; own places that are left count as free."""
    movers = [(nodes, gpus, may) for nodes, gpus, may in case.gangs if leaves in nodes]
    if not all(may for _, _, may in movers):
        return False
    targets = [n for n, name in enumerate(case.pools) if n != leaves and (n in used or not name)]
    members = [(i, gpus) for i, (nodes, gpus, _) in enumerate(movers) for _ in nodes]
    for chosen in product(targets, repeat=len(members)):
        here = [dict[int, int]() for _ in movers]
        for (i, gpus), n in zip(members, chosen, strict=True):
            here[i][n] = here[i].get(n, 0) + gpus
        asked = dict[int, int]()
        for i, (nodes, gpus, _) in enumerate(movers):
            for n, amount in here[i].items():
                own = nodes.count(n) * gpus
                asked[n] = asked.get(n, 0) + max(0, amount - own)
        if all(amount <= free[n] for n, amount in asked.items()):
            return True
    return False


def test_nodes_that_can_be_emptied_are_found_and_fewer_are_in_use_after_each_step() -> None:
    rng = random.Random(18)
    possible = found = moved = 0
    while possible < CASES:
        case = a_case(rng)
        expected = can_be_emptied(case)
        world = world_of(case)
        before = {f"n{n}" for nodes, _, _ in case.gangs for n in nodes}
        asked = [each for each in world.step() if isinstance(each, PreemptJob)]
        possible += expected
        found += expected and bool(asked)
        assert expected or not asked
        if not asked:
            continue
        moved += 1
        emptied = {name for each in asked for name in each.preemption.empties}
        pool_of = {f"n{i}": name for i, name in enumerate(case.pools)}
        assert {pool_of[name] for name in emptied} == {"p"}
        for each in asked:
            assert each.nomination is not None
            assert case.gangs[int(each.job.metadata.name[1:])][2]
            targets = {n for role in each.nomination.roles for n in role.nodes}
            assert not targets & emptied
            assert all(n in before or not pool_of[n] for n in targets)
        for node in pool_of:  # both places of a gang have room, where it does not keep its own
            here = int(node[1:])
            nexts = {each.job.metadata.name: each.nomination.roles[0].nodes for each in asked}
            counts = (
                (max(nodes.count(here), nexts.get(f"g{i}", ()).count(node)), gpus)
                for i, (nodes, gpus, _) in enumerate(case.gangs)
            )
            assert sum(count * gpus for count, gpus in counts) <= GPUS
        for each in asked:
            world.leave(each.job.metadata.name)
        world.settle()
        places = [world.nodes_of(f"g{i}") for i in range(len(case.gangs))]
        assert all(places)
        after = set[str]().union(*places)
        assert not emptied & after
        used_before = sum(pool_of[n] == "p" for n in before)
        used_after = sum(pool_of[n] == "p" for n in after)
        assert used_after < used_before
        assert used_before - len(emptied) >= case.kept
    assert moved > CASES / 2
    assert found >= FOUND_SHARE_MIN * possible, f"{found} of {possible}"
