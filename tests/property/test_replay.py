"""A state that has followed random events, and one made from the snapshot, decide the same.

With the planner's own limits, and with such narrow ones that most of the work is left to the next
decision, so that what a decision looks at depends on whose turn it is.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import Budget, JobLimits, TeamStatus, TeamUse
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY, TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import PlanMemory, Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.snapshot import CarriedState, Snapshot, replay
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.cluster import ClusterState
from fairlead.model.objects import Objects
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_priority_class,
    make_role,
    make_team,
)

WORLDS, STEPS = 20, 25
WIDE = PlacementPolicy(starvation_seconds=60.0, preemption_min_run_seconds=20.0)
NARROW = PlacementPolicy(
    starvation_seconds=60.0, preemption_min_run_seconds=20.0, evaluations_max=1, judgements_max=2,
    writes_max=3, placements_max=2, fresh_jobs_max=3,
)  # fmt: skip
NODES = [f"n{i}" for i in range(6)]
CLASSES = (make_priority_class("high", 10), make_priority_class("low", -10))
USED = TeamUse(gpu_hours=0.98, dominant_share_seconds=60.0, as_of=format_time(EPOCH))
#: Teams whose jobs use up a budget, may borrow, or give back what they borrow.
TEAMS = tuple(
    replace(made, status=TeamStatus(use=USED))
    for made in (
        make_team("a", shares=(), budget=Budget(gpu_hours=1)),
        make_team("b", shares=(), borrow_limit_nodes=1, user_limits=JobLimits(gpus=16)),
    )
)


@pytest.mark.parametrize("is_narrow", [True, False])
def test_a_decision_is_made_again_from_its_snapshot(
    monkeypatch: pytest.MonkeyPatch, *, is_narrow: bool
) -> None:
    if is_narrow:
        monkeypatch.setattr("fairlead.model.inventory.fits.ROWS_MAX", 2)
        monkeypatch.setattr("fairlead.model.inventory.fits._UNCACHED_MAX", 1)
        monkeypatch.setattr("fairlead.decide.placement.waiting.queue._COMPLEX_MAX", 1)
    met = Counter[str]()
    for seed in range(WORLDS):
        world = _World(random.Random(seed), NARROW if is_narrow else WIDE)
        for _ in range(STEPS):
            world.change()
            world.decide(met)
    assert min(met["PlaceJob"], met["WriteVerdict"]) > 100, met
    assert met["NominateJob"] > 12, met
    assert min(met["GPUBudget"], met["GPULimit"]) > 5, met
    if is_narrow:
        assert min(met["in turn"], met["failed"]) > 50, met


@dataclass
class _World:
    """Objects that change at random, and a planner that follows them and whose writes are made."""

    rng: random.Random
    policy: PlacementPolicy
    now: float = EPOCH
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    count: int = 0

    def __post_init__(self) -> None:
        cluster = ClusterState(PriorityTable(CLASSES))
        for team in TEAMS:
            cluster.team_changed(team.metadata.name, team)
        self.state = PlacementState(cluster)
        for name in NODES:
            self._put_node(name)

    def decide(self, met: Counter[str]) -> None:
        """Decide, make the decision again from its snapshot, and write most of it."""
        recall = Recall()
        self.state.cluster.advance_shares(self.now)
        made = decide(self.state, self.policy, self.now, memory=PlanMemory(recall)).actions
        nodes = tuple(node for _, node in sorted(self.nodes.items()))
        jobs = tuple(job for _, job in sorted(self.jobs.items()))
        objects = Objects(nodes, jobs, (), CLASSES, TEAMS)
        carried = CarriedState.of(self.state)
        snapshot = Snapshot(self.now, objects, self.policy, carried=carried, recall=recall)
        assert replay(snapshot).actions == made
        met.update(type(action).__name__ for action in made)
        met.update(each.verdict.reason for each in made if isinstance(each, WriteVerdict))
        met["in turn"] += sum(each is not None for each in recall.tried)
        met["failed"] += len(recall.failed)
        for action in made:
            if self.rng.random() < 0.9:
                self._put_job(as_written(action))

    def change(self) -> None:
        """Let some time pass, in which a few things happen."""
        self.now += self.rng.choice([0.0, 0.001, 1.0, 5.0, 30.0])
        for _ in range(self.rng.randrange(3)):
            happens = self.rng.choice([self._submit, self._submit, self._end, self._change_node])
            happens()

    def _submit(self) -> None:
        rng, self.count = self.rng, self.count + 1
        where = {"node_selector": {"pool": rng.choice("ab")}} if rng.random() < 0.3 else {}
        least = rng.choice([None, None, 1])
        roles = [
            make_role(f"r{i}", count=rng.randrange(1, 4), min_count=least, cpu=rng.randrange(4),
                      gpus=rng.choice([1, 2, 4, 8]), image=rng.choice(["train:1", "train:2"]),
                      **where)
            for i in range(rng.choice([1, 1, 2]))
        ]  # fmt: skip
        job = make_job(
            f"{rng.choice(['train', 'sweep'])}-{self.count}", roles=roles, created=self.now,
            namespace=rng.choice(["default", "default", "a", "b"]),
            time_limit_seconds=rng.choice([None, None, 40, 200]),
            spec={"priority_class_name": rng.choice(["", "", "high", "low"])},
        )  # fmt: skip
        by = {SUBMITTED_BY: rng.choice(["ana", "ben"])}
        self._put_job(replace(job, metadata=replace(job.metadata, annotations=by)))

    def _end(self) -> None:
        """Let a job end, or vanish; one with nodes has run."""
        found = sorted(name for name, job in self.jobs.items() if not job.is_finished)
        if not found:
            return
        job = self.jobs[self.rng.choice(found)]
        if self.rng.random() < 0.3:
            del self.jobs[job.metadata.name]
            self.state.cluster.job_deleted(job.metadata.key)
            return
        began, ended = job.metadata.creation_timestamp, format_time(self.now)
        attempts = (Attempt(number=1, begun_at=began, started_at=began, finished_at=ended),)
        self._put_job(replace(job, status=replace(
            job.status, attempts=attempts if job.status.placement else (), placement=None,
            nomination=None, preemption=None, finished_at=ended,
            conditions=(*job.status.conditions, Condition(type="Succeeded", status="True")),
        )))  # fmt: skip

    def _change_node(self) -> None:
        name = self.rng.choice(NODES)
        if name in self.nodes and self.rng.random() < 0.4:
            del self.nodes[name]
            self.state.cluster.node_deleted(name)
        else:
            self._put_node(name)

    def _put_node(self, name: str) -> None:
        rng = self.rng
        is_out, labels = rng.random() < 0.1, {"pool": rng.choice("ab")}
        images = rng.choice([(), ("train:1",), ("train:1", "train:2")])
        owner = rng.choice(["", "", "", "a"])
        node = make_node(
            name, gpus=rng.choice([4, 8, 8]), unschedulable=is_out, labels=labels, images=images,
            taints=[Taint(TEAM, "NoSchedule", owner)] if owner else [],
        )  # fmt: skip
        self.nodes[name] = node
        self.state.cluster.node_changed(node)

    def _put_job(self, job: Job) -> None:
        self.jobs[job.metadata.name] = job
        self.state.cluster.job_changed(job)
