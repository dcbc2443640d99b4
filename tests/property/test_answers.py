"""What `why` and `submit` say of a job is what the scheduler's verdict says of it.

Random worlds: jobs that run, wait and are deleted while their pods go on (orphans), pods of other
tools, pods that hang in their deletion, gangs of which only some pods are bound, quotas, teams with
limits, and reservations. The planner decides until nothing changes; then each waiting job is asked
about on the state that followed the events (as in the leader) and on one that a client assembles.
In all of it a planner that is asked decides the same as one that is not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from fairlead.api.cluster.team import JobLimits, Reservation, Team
from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod, Taint
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ResourceQuotaStatus
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import TEAM
from fairlead.api.values.times import format_time
from fairlead.app.queries.answers import KnownState, PlannerAnswers
from fairlead.decide.answers.supposed import submitted
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.model.objects import Objects
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_member_pod,
    make_node,
    make_pod,
    make_priority_class,
    make_team,
)

T = TypeVar("T")
SEEN = (
    Reason.INSUFFICIENT_CAPACITY, Reason.FRAGMENTED, Reason.AWAITING_QUOTA, Reason.RUNNING_LIMIT,
    Reason.NO_MATCHING_NODE, Reason.NO_NODE_SHAPE_FITS, Reason.BEHIND_EARLIER_JOB,
)  # fmt: skip
WORLDS, STEPS, ROUNDS_MAX = 24, 16, 40
NAMESPACES = ("default", "default", "default", "a", "b", "poor")
CLASSES = (make_priority_class("high", 10),)
POLICY = PlacementPolicy(refresh_seconds=0.0, deep_refresh_seconds=0.0, starvation_seconds=0.0)

NARROW = PlacementPolicy(
    starvation_seconds=0.0, evaluations_max=1, judgements_max=2, writes_max=3, placements_max=2,
    fresh_jobs_max=3,
)  # fmt: skip


def teams() -> tuple[Team, ...]:
    reservation = Reservation(
        name="talk", node_names=("n1",), start_time=format_time(EPOCH + 40),
        end_time=format_time(EPOCH + 90),
    )  # fmt: skip
    return (
        make_team("a", namespaces=("a",), user_limits=JobLimits(running=1)),
        make_team("b", namespaces=("b",), reservations=(reservation,)),
    )


@dataclass
class World:
    """Objects that change at random, and a planner that follows them and whose writes are made."""

    rng: random.Random
    policy: PlacementPolicy = POLICY
    now: float = EPOCH
    jobs: dict[tuple[str, str], Job] = field(default_factory=dict[tuple[str, str], Job])
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict[tuple[str, str], Pod])
    count: int = 0

    def __post_init__(self) -> None:
        taints = [Taint(TEAM, "NoSchedule", "b")]
        self.nodes = tuple(
            make_node(f"n{i}", gpus=8, cpu=16, labels={"pool": "ab"[i % 2]},
                      taints=taints if i == 5 else ())
            for i in range(6)
        )  # fmt: skip
        status = ResourceQuotaStatus({"requests.nvidia.com/gpu": "8"},
                                     {"requests.nvidia.com/gpu": "4"})  # fmt: skip
        self.quotas = (ResourceQuota(ObjectMeta("q", namespace="poor"), status=status),)
        cluster, other = self.objects().state(()), self.objects().state(())
        self.state = PlacementState(cluster)
        #: Follows the same events, and is never asked.
        self.unasked = PlacementState(other)

    @property
    def clusters(self) -> tuple[ClusterState, ClusterState]:
        """The states of both planners."""
        return self.state.cluster, self.unasked.cluster

    def objects(self) -> Objects:
        jobs, pods = tuple(self.jobs.values()), tuple(self.pods.values())
        return Objects(self.nodes, jobs, pods, CLASSES, teams(), self.quotas)

    def change(self) -> None:
        """Let some time pass, in which something happens."""
        self.now += self.rng.choice([0.0, 1.0, 20.0])
        happens = (
            *[self.submit] * 4, self.bind, self.bind, self.orphan, self.intrude, self.hang,
        )  # fmt: skip
        self.rng.choice(happens)()

    def submit(self) -> None:
        rng, self.count = self.rng, self.count + 1
        job = make_job(
            f"j{self.count}", namespace=rng.choice(NAMESPACES), count=rng.randrange(1, 5),
            gpus=rng.choice([1, 3, 5, 8, 8, 16]), created=self.now,
            time_limit_seconds=rng.choice([None, 40, 200]),
            node_selector=rng.choice([*[{}] * 8, {"pool": "a"}, {"pool": "z"}]),
            spec={"priority_class_name": rng.choice(["", "", "high"])},
        )  # fmt: skip
        self.put_job(job)

    def bind(self) -> None:
        """Let some pods of a placed gang be bound."""
        for job in self.drawn(job for job in self.jobs.values() if job.status.placement):
            places = nodes_of(job.status.placement)
            for index in range(self.rng.randrange(len(places) + 1)):
                self.put_pod(make_member_pod(job, index))

    def orphan(self) -> None:
        """Delete a job, and leave its pods."""
        for job in self.drawn(self.jobs.values()):
            del self.jobs[job.metadata.key]
            for cluster in self.clusters:
                cluster.job_deleted(job.metadata.key)

    def intrude(self) -> None:
        self.count += 1
        node = self.rng.choice(self.nodes).metadata.name
        self.put_pod(make_pod(f"p{self.count}", node=node, gpus=self.rng.choice([1, 4]), cpu=1))

    def hang(self) -> None:
        """Let a pod hang in its deletion, or take one away."""
        for pod in self.drawn(self.pods.values()):
            if self.rng.random() < 0.5:
                del self.pods[pod.metadata.key]
                for cluster in self.clusters:
                    cluster.pod_deleted(pod.metadata.key)
            else:
                metadata = replace(pod.metadata, deletion_timestamp=format_time(self.now))
                self.put_pod(replace(pod, metadata=metadata))

    def drawn(self, among: Iterable[T]) -> list[T]:
        found = list(among)
        return [self.rng.choice(found)] if found else []

    def put_job(self, job: Job) -> None:
        self.jobs[job.metadata.key] = job
        for cluster in self.clusters:
            cluster.job_changed(job)

    def put_pod(self, pod: Pod) -> None:
        self.pods[pod.metadata.key] = pod
        for cluster in self.clusters:
            cluster.pod_changed(pod)

    def settle(self) -> None:
        """Decide, and write, until there is nothing to write."""
        for _ in range(ROUNDS_MAX):
            for cluster in self.clusters:
                cluster.advance_shares(self.now)
            actions = decide(self.state, self.policy, self.now).actions
            assert actions == decide(self.unasked, self.policy, self.now).actions
            if not actions:
                return
            for action in actions:
                self.put_job(as_written(action))
        raise AssertionError("the planner does not settle")

    def waiting(self) -> list[Job]:
        """The jobs that wait for a place and have a verdict."""
        jobs = (job for _, job in sorted(self.jobs.items()))
        return [job for job in jobs if job.status.verdict and phase_of(job) is Phase.QUEUED]


def answers_on(state: PlacementState, nodes: Sequence[Node]) -> PlannerAnswers:
    return PlannerAnswers(
        state, KnownState(lambda: nodes), POLICY, JobsPolicy(), stopwatch=lambda: 0.0,
        seconds=lambda: 1.0,
    )  # fmt: skip


def like(job: Job) -> Job:
    """The job as one that is not queued yet."""
    metadata = replace(job.metadata, name="next", uid="next")
    return replace(job, metadata=metadata, status=JobStatus())


def smaller(job: Job) -> Job:
    """The job with one member, and of the highest class."""
    (role,) = job.spec.roles
    spec = replace(job.spec, roles=(replace(role, count=1),), priority_class_name="high")
    return replace(job, spec=spec)


def test_why_and_submit_say_what_the_verdict_says() -> None:
    met = Counter[str]()
    for seed in range(WORLDS):
        world = World(random.Random(seed))
        for _ in range(STEPS):
            world.change()
            world.settle()
            compare(world, met)
    assert min(met[reason.value] for reason in SEEN) > 1, met


def test_a_planner_that_is_asked_decides_the_same() -> None:
    """Also where it looks at one thing after the other, by what it remembers."""
    asked = 0
    for seed in range(WORLDS):
        world = World(random.Random(seed), NARROW)
        answers = answers_on(world.state, world.nodes)
        for _ in range(STEPS):
            world.change()
            for job in list(world.jobs.values()):
                answers.explain(job.metadata.key, world.now)
                answers.fit(like(job), world.now)
                if job.status.nomination is None:  # else its room is free for the time
                    answers.suppose(smaller(job), world.now)
                asked += 1
            world.settle()
    assert asked > 1_000


def compare(world: World, met: Counter[str]) -> None:
    nodes = world.nodes
    cluster = world.objects().state(())
    cluster.advance_shares(world.now)
    client = PlacementState(cluster)
    leader, own = answers_on(world.state, nodes), answers_on(client, nodes)
    for job in world.waiting():
        written = job.status.verdict
        assert written is not None
        answered, assembled = (each.explain(job.metadata.key, world.now) for each in (leader, own))
        found, again = answered.explanation, assembled.explanation
        assert found is not None
        assert again is not None
        assert (found.verdict, found.arithmetic) == (again.verdict, again.arithmetic)
        verdict = found.verdict
        assert (verdict.reason.value, dict(verdict.facts)) == (written.reason, written.facts)
        met[verdict.reason.value] += 1
        compare_new(world, client, (leader, own), like(job))


def compare_new(
    world: World, client: PlacementState, asked: Sequence[PlannerAnswers], job: Job
) -> None:
    """What is said of a job before it is submitted is what the first decision on it says."""
    now, cluster = world.now, client.cluster
    fitted, again = (each.fit(job, now) for each in asked)
    assert fitted == again
    queued = submitted(job, now)
    cluster.job_changed(queued)
    decided = decide(client, POLICY, now).verdicts[queued.metadata.key]
    cluster.job_deleted(queued.metadata.key)
    if decided.reason is Reason.PLACED and fitted.verdict.reason is Reason.AWAITING_QUOTA:
        return  # its pods are refused
    assert (fitted.verdict.reason, fitted.verdict.facts) == (decided.reason, decided.facts)
