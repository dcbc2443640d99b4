"""How many of the gangs that arrive one after the other find a place, against HiGHS.

The planner places each gang when it comes, and knows none of the later ones. The programme knows
all of them: it finds places for the first, for the second beside it, and so on, each gang that can
be placed beside those before it; and, as a second measure, as many gangs as possible in any order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.property.exact import ExactGang, Programme, Terms, demands
from tests.property.placement_world import PATIENT

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node, make_role

CASES = 60
NODE = (8, 32)
#: Of the gangs that are placed in turn, and of the most that could be placed.
IN_TURN_SHARE_MIN, MOST_SHARE_MIN = 0.975, 0.92


@dataclass(frozen=True)
class Case:
    """Racks by node, and gangs that together ask for more than all nodes have."""

    racks: tuple[str, ...]
    gangs: tuple[ExactGang, ...]


def a_case(rng: random.Random) -> Case:
    racks = tuple(f"r{i % 2}" for i in range(rng.randint(4, 7)))
    gangs, asked = list[ExactGang](), 0
    while asked < len(racks) * NODE[0] * 1.2:
        roles = tuple(
            (rng.randint(1, 4), (rng.choice((1, 2, 3, 4, 8)), rng.choice((1, 4, 8))))
            for _ in range(rng.choice((1, 1, 1, 2)))
        )
        gangs.append(ExactGang(roles, rack=rng.random() < 0.3))
        asked += sum(count * gpus for count, (gpus, _) in roles)
    return Case(racks, tuple(gangs))


def placed_in_turn(case: Case) -> int:
    """Return how many gangs the planner places, one decision after each arrival."""
    nodes = [
        make_node(f"n{i}", gpus=NODE[0], cpu=NODE[1], labels={"rack": rack})
        for i, rack in enumerate(case.racks)
    ]
    state, placed = PlacementState.of(nodes), 0
    for number, gang in enumerate(case.gangs):
        state.cluster.job_changed(_job(f"gang-{number:02}", gang, EPOCH + number))
        for action in decide(state, PATIENT, EPOCH + number).actions:
            if isinstance(action, PlaceJob):
                state.cluster.job_changed(as_written(action))
                placed += 1
    return placed


def _job(name: str, gang: ExactGang, created: float) -> Job:
    roles = [
        make_role(f"r{i}", count=count, gpus=gpus, cpu=cpus)
        for i, (count, (gpus, cpus)) in enumerate(gang.roles)
    ]
    return make_job(
        name, roles=roles, created=created, topology=Topology("rack", True) if gang.rack else None
    )


def best(case: Case) -> tuple[int, int]:
    """Return how many gangs can be placed in turn, and how many at most."""
    programme, weights = Programme(), Terms()
    uses: list[list[Terms]] = [[{} for _ in NODE] for _ in case.racks]
    for index, gang in enumerate(case.gangs):
        is_placed = programme.variable()
        weights[is_placed] = -(2.0 ** (len(case.gangs) - 1 - index))
        taken = programme.place(gang, case.racks, if_=is_placed)
        for node, amounts in enumerate(uses):
            for kind, terms in enumerate(amounts):
                for variable, amount in demands(gang, taken, node, kind).items():
                    terms[variable] = amount
    for amounts in uses:
        for terms, most in zip(amounts, NODE, strict=True):
            programme.bound(terms, 0, most)
    (in_turn,) = programme.minimise([weights]) or (0.0,)
    (most,) = programme.minimise([dict.fromkeys(weights, -1.0)]) or (0.0,)
    return round(-in_turn).bit_count(), round(-most)


def test_gangs_that_arrive_one_by_one_are_placed_nearly_as_well_as_if_all_were_known() -> None:
    rng = random.Random(5)
    placed = in_turn = at_most = 0
    for _ in range(CASES):
        case = a_case(rng)
        count, (turn, most) = placed_in_turn(case), best(case)
        assert count <= most, "the planner is better than the best"
        placed, in_turn, at_most = placed + count, in_turn + turn, at_most + most
    assert placed >= IN_TURN_SHARE_MIN * in_turn
    assert placed >= MOST_SHARE_MIN * at_most
