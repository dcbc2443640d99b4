"""Teams with strict order in simulated worlds, and a planted bug that their checker reports."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import QueueingStrategy
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, RolePlacement
from fairlead.api.kubernetes.core import Taint
from fairlead.api.kubernetes.pod_parts import ContainerPort
from fairlead.api.names import TEAM
from fairlead.decide.placement.stages.strict_order import StrictOrder
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.sim.explore import explore_one
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.checkers import Checkers
from fairlead.sim.promises.strict_order_checker import StrictOrderChecker
from fairlead.sim.promises.team_model import TeamModel
from fairlead.sim.setup.team_changes import draw_changes, with_strict_order
from fairlead.sim.world import World
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team

from .test_canaries import SUCCEEDED
from .test_teams import HOUR, arrival, run_world, team, world_of


def _walk_nothing(_order: StrictOrder, _before: OrderKey) -> None:
    """A planted bug: no job holds up another."""


def passing() -> World:
    """Red's small job comes 400 s after a gang that has to wait for its first one."""
    return world_of(
        arrival(400.0, "red", "first", 3, HOUR),
        arrival(500.0, "red", "large", 4, 60.0),
        arrival(900.0, "red", "small", 1, 60.0),
        changes=(team("red", 4, queueingStrategy="StrictFIFO"),),
    )


def test_no_job_of_a_strict_team_passes_an_earlier_one() -> None:
    world = run_world(passing)
    large, small = (world.checkers.finished["red", name].status for name in ("large", "small"))
    assert str(large.started_at) < str(small.started_at)
    assert world.strict.judged == 3


def test_a_scheduler_without_strict_order_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrictOrder, "_walk", _walk_nothing)
    with pytest.raises(PromiseBroken, match=r"4: red/small of .* passes red/large"):
        run_world(passing)


# The checker alone


class History:
    """Two nodes of a strict team, one of them in use. A gang waits for `large` nodes, and a job
    that came later for one; both for longer than a decision may be old.
    """

    def __init__(
        self, large: int = 2, ports: Sequence[ContainerPort] = (), *, most: int = 0
    ) -> None:
        self.model = model = TeamModel()
        self.checkers = Checkers()
        self.checker = StrictOrderChecker(model, {}, self.checkers.free)
        self.now = EPOCH
        strict = make_team(
            "red", nodes=2, queueing_strategy=QueueingStrategy.STRICT_FIFO, borrow_priority_max=most
        )  # fmt: skip
        model.team(strict, "red", self.now)
        for name in ("n1", "n2"):
            self.add_node(name, "red")
        self.now += 1000.0
        self.other = self.put(self.job("other", 1))
        self.other = self.put(self.other, placement=make_placement(["n1"]))
        self.large = self.put(self.job("large", large, ports))
        self.now += 1.0
        self.small = self.put(self.job("small", 1))
        self.now += 1000.0

    def add_node(self, name: str, owner: str) -> None:
        node = make_node(name, taints=(Taint(TEAM, "NoSchedule", owner),))
        self.model.node(node, name, self.now)
        self.checkers.node(node, None, self.now)
        self.checker.node(node, name, self.now)

    def job(self, name: str, count: int, ports: Sequence[ContainerPort] = ()) -> Job:
        return make_job(name, namespace="red", count=count, ports=ports, created=self.now)

    def put(self, job: Job, **status: object) -> Job:
        after = replace(job, status=replace(job.status, **status))
        self.checkers.job(after, job, self.now)
        self.checker.job(after, after.metadata.key, self.now)
        return after

    def place_small(self) -> None:
        self.put(self.small, placement=make_placement(["n2"]))


def test_a_job_that_takes_room_which_an_earlier_one_lacks_is_reported() -> None:
    with pytest.raises(PromiseBroken, match=r"4: red/small of .* passes red/large"):
        History().place_small()


def test_a_job_of_higher_priority_passes_none_that_is_ahead_of_it() -> None:
    history = History()
    history.checker.priorities = {"high": 1}
    spec = replace(history.small.spec, priority_class_name="high")
    history.small = history.put(replace(history.small, spec=spec))
    history.place_small()
    assert history.checker.judged == 2


def test_a_job_that_leaves_the_earlier_one_its_room_is_not_reported() -> None:
    history = History(large=1)
    history.put(history.other, placement=None, conditions=SUCCEEDED)
    history.place_small()  # one decision placed both, and this write came first
    assert history.checker.judged == 2


@pytest.mark.parametrize(("owner", "most"), [("red", -1), ("blue", 0)])
def test_a_job_with_room_on_a_node_that_has_just_come_or_is_borrowed_is_not_passed(
    owner: str, most: int
) -> None:
    history = History(most=most)
    history.add_node("n3", owner)
    history.add_node("n4", owner)
    history.place_small()  # one decision placed both, and this write came first
    assert history.checker.judged == 2


def test_a_job_with_room_only_where_it_may_not_borrow_is_passed() -> None:
    history = History(most=-1)
    history.add_node("n3", "blue")
    history.add_node("n4", "blue")
    with pytest.raises(PromiseBroken, match=r"4: red/small of .* passes red/large"):
        history.place_small()


def test_a_job_whose_host_port_may_keep_it_off_is_not_passed() -> None:
    history = History(ports=[ContainerPort(container_port=80, host_port=80)])
    history.place_small()
    assert history.checker.judged == 2


def test_a_job_whose_nodes_are_promised_is_not_passed() -> None:
    history = History()
    history.put(history.large, nomination=Nomination((RolePlacement("worker", ("n1", "n2")),)))
    history.place_small()
    assert history.checker.judged == 2


def test_a_job_that_is_placed_by_the_write_that_admits_it_passes_no_earlier_one() -> None:
    history = History()
    late = history.job("late", 1)
    history.put(late, attempt=0)
    with pytest.raises(PromiseBroken, match=r"4: red/late of .* passes red/large"):
        history.put(late, placement=make_placement(["n2"]))


def test_a_job_is_not_passed_before_decisions_have_seen_it_admitted() -> None:
    history = History(large=3)
    early = replace(history.large, metadata=replace(history.large.metadata, name="early", uid="e"))
    early = replace(early, spec=history.job("early", 2).spec)
    history.put(early, attempt=0)
    history.now += 1000.0
    history.put(early)
    history.place_small()
    assert history.checker.judged == 2


def test_explored_worlds_have_teams_with_strict_order() -> None:
    drawn = with_strict_order(random.Random(1), draw_changes(random.Random(1), 8, HOUR))
    assert {(c.spec or {}).get("queueingStrategy") for c in drawn} == {None, "StrictFIFO"}
    number = next(
        n for n in range(100)
        if any("queueingStrategy" in (c.spec or {}) for c in options_of(n).team_changes)
        and options_of(n).workload.jobs == 5
    )  # fmt: skip
    assert explore_one(number).broken == ""
