"""Starts of reserved jobs that are kept from decision to decision are those of a search in each.

Random clusters go from decision to decision: jobs begin, end early, start later than they were
placed, get other limits, come and go; nodes and time change. After each step what is kept for the
jobs ahead is compared with what a planner without memory keeps.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.names import TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.kept_room import KeptRoom, QueueReservation, together
from fairlead.decide.placement.stages.first_start import FirstStart
from fairlead.decide.placement.stages.reservation import HeadReservations
from fairlead.decide.placement.waiting.known_starts import Chain, Changes, KnownStarts
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.holdings.held_ends import HeldEnds
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node, make_pod, make_team

STEPS, SEEDS = 14, 30
LIMITS = (30, 70, 170, 300, 600, 970, 4000)


def policy_of(reservations: int) -> PlacementPolicy:
    return PlacementPolicy(starvation_seconds=0.0, backfill_reservations_max=reservations)


def kept(
    state: PlacementState, policy: PlacementPolicy, now: float
) -> tuple[QueueReservation, ...]:
    """Return what one decision keeps, for all that wait, before it places anything."""
    state.advance(now)
    with state.cluster.transaction() as transaction:
        context = PlanningContext(state, policy, now, PresentCapacity(state.cluster, transaction))
        last = list(state.queue.in_order())[-1:]
        for order in last:
            HeadReservations(context).reserve_before(order._replace(rank=(1e9,)))
        return context.reservations


def facts(each: QueueReservation) -> tuple[object, ...]:
    place = [(slots.tolist(), counts.tolist(), request) for slots, counts, request in each.place]
    amounts, nodes = each.kept.amounts, each.kept.nodes
    kept_there = None if amounts is None else amounts[:, nodes].tolist()
    return (each.head, each.starts_by, place, nodes.tolist(), kept_there, each.hold_seconds)


def assert_same(found: tuple[KeptRoom, ...], searched: tuple[KeptRoom, ...]) -> None:
    assert [each.nodes.tolist() for each in found] == [each.nodes.tolist() for each in searched]
    for one, two in zip(found, searched, strict=True):
        assert one.amounts is two.amounts or np.array_equal(one.amounts, two.amounts)  # type: ignore[arg-type] # both None or neither


class World:
    """A cluster in a planner that remembers and in one that does not, fed with the same events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.has_teams = rng.random() < 0.3
        kinds = rng.choice((("x",), ("x", "y")))
        self.nodes = [
            make_node(
                f"n{i}", gpus=rng.choice((4, 8, 8)), labels={"kind": kinds[i % len(kinds)]},
                taints=[Taint(TEAM, "NoSchedule", rng.choice("ab"))] if self.has_teams else (),
            )
            for i in range(rng.randint(2, 7))
        ]  # fmt: skip
        self.policy = policy_of(rng.choice((1, 2, 4, 100)))
        self.now, self.count = EPOCH, 0
        self.jobs: dict[tuple[str, str], Job] = {}
        self.state, self.fresh = (PlacementState.of(self.nodes) for _ in range(2))
        if self.has_teams:
            for state in (self.state, self.fresh):
                for name in "ab":
                    state.cluster.team_changed(name, make_team(name))
        for _ in range(rng.randint(4, 12)):
            self.submit()
        self.place()

    def put(self, job: Job) -> None:
        self.jobs[job.metadata.key] = job
        for state in (self.state, self.fresh):
            state.cluster.job_changed(job)

    def node(self, node: Node) -> None:
        for state in (self.state, self.fresh):
            state.cluster.node_changed(node)

    def delete(self, job: Job) -> None:
        del self.jobs[job.metadata.key]
        for state in (self.state, self.fresh):
            state.cluster.job_deleted(job.metadata.key)

    def submit(self) -> None:
        rng, self.count = self.rng, self.count + 1
        selector = rng.choice(({}, {}, {"kind": "x"}))
        self.put(make_job(
            f"j{self.count:03}", count=rng.choice((1, 1, 2, 3, 5)), gpus=rng.choice((1, 2, 4, 4)),
            created=EPOCH + self.count, node_selector=selector,
            namespace=rng.choice("ab") if self.has_teams else "default",
            time_limit_seconds=rng.choice((*LIMITS, None) if rng.random() < 0.2 else LIMITS),
        ))  # fmt: skip

    def place(self) -> None:
        """Decide, and let the cluster do what was decided."""
        self.fresh.suspect(self.now, self.policy.suspect_seconds)  # as deciding does
        for action in decide(self.state, self.policy, self.now).actions:
            written = as_written(action)
            if isinstance(action, PlaceJob) and written.status.placement is not None:
                at = replace(written.status.placement, placed_at=format_time(self.now))
                written = replace(written, status=replace(written.status, placement=at))
            self.put(written)

    def chosen(self, *, placed: bool) -> Job | None:
        found = [j for j in self.jobs.values() if (j.status.placement is not None) == placed]
        return self.rng.choice(found) if found else None

    def step(self) -> str:
        """Change one thing; return what."""
        rng = self.rng
        kind = rng.choice((
            "time", "end", "end", "submit", "place", "place", "start", "limit", "leave", "node",
            "pod", "suspect", "nothing",
        ))  # fmt: skip
        runs, waits = self.chosen(placed=True), self.chosen(placed=False)
        if kind == "time":
            self.now += rng.choice((1.0, 20.0, 200.0))
        elif kind == "end" and runs is not None:
            self.delete(runs)
        elif kind == "submit":
            self.submit()
        elif kind == "place":
            self.submit()
            self.place()
        elif kind == "start" and runs is not None and not runs.status.attempts:
            attempt = Attempt(1, begun_at=format_time(self.now), started_at=format_time(self.now))
            self.put(replace(runs, status=replace(runs.status, attempts=(attempt,))))
        elif kind == "limit" and runs is not None:
            self.put(replace(runs, spec=replace(runs.spec, time_limit_seconds=rng.choice(LIMITS))))
        elif kind == "leave" and waits is not None:
            self.delete(waits)
        elif kind == "node" and rng.random() < 0.3:
            node = rng.choice(self.nodes)
            cordoned = replace(node.spec, unschedulable=rng.random() < 0.5)
            self.node(replace(node, spec=cordoned))
        elif kind == "suspect":
            name = rng.choice(self.nodes).metadata.name
            for state in (self.state, self.fresh):
                state.cluster.table.set_suspects([name])
        elif kind == "pod" and rng.random() < 0.3:
            pod = make_pod(f"p{self.count}", node=rng.choice(self.nodes).metadata.name, gpus=1)
            for state in (self.state, self.fresh):
                state.cluster.pod_changed(pod)
        return kind

    def compare(self) -> None:
        """Compare what both keep."""
        self.fresh.starts = KnownStarts()
        for entry in self.fresh.jobs.values():
            entry.first_start = None
        found = [kept(state, self.policy, self.now) for state in (self.state, self.fresh)]
        assert [facts(each) for each in found[0]] == [facts(each) for each in found[1]]
        all_kept, starts = [each.kept for each in found[0]], self.state.starts
        assert_same(starts.together(all_kept), together(all_kept))
        for each in found[0][:1]:  # a job begins that is over before this one
            each.kept.add(self.state.cluster.table, each.place, sign=-1)
        assert_same(starts.together(all_kept), together(all_kept))


def run(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        world.compare()
        for number in range(STEPS):
            kind = world.step()
            try:
                world.compare()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {number}: {kind}") from error


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the searches, and the starts that hold."""
    counts: Counter[str] = Counter()
    find, holds = FirstStart.find, Chain.holds

    def counted_find(self: FirstStart) -> object:
        counts["searched"] += 1
        return find(self)

    def counted_holds(self: Chain, *args: object) -> bool:
        found = holds(self, *args)  # type: ignore[arg-type] # passed on
        counts["held" if found else "not proven"] += 1
        counts["held though room differs"] += found and bool(len(self.changes.slots))
        return found

    monkeypatch.setattr(FirstStart, "find", counted_find)
    monkeypatch.setattr(Chain, "holds", counted_holds)
    return counts


def test_starts_that_are_kept_are_those_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counting(monkeypatch)
    run(range(SEEDS))
    assert counts["held though room differs"] > 20
    assert counts["not proven"] > 50


@pytest.mark.parametrize(
    ("owner", "name", "stale", "seed"),
    [
        (Chain, "holds", lambda *_: True, 0),
        (Chain, "_is_after_all", lambda *_: True, 70),
        (Changes, "more_before", lambda self, _: np.zeros(len(self.slots), dtype=np.bool_), 12),
        (Changes, "at", lambda self, _: self.amounts[-1], 9),
        (HeadReservations, "_fixed", lambda *_: None, 23),
        (KnownStarts, "_added_slots", lambda _: set[int](), 3),
        (HeldEnds, "changed_since", lambda *_: [], 0),
    ],
)
def test_a_start_that_is_stale_is_noticed(
    owner: type, name: str, stale: object, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canaries: each takes one question away that a start has to pass."""
    monkeypatch.setattr(owner, name, stale)
    with pytest.raises(AssertionError, match="seed"):
        run(range(seed, seed + 1))
