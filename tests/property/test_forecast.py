"""No bound that `why` prints is exceeded in a cluster whose jobs all use their time limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.api.names import MAINTENANCE
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.answers.forecast import Forecasts
from fairlead.decide.placement.actions import PlaceJob, ReleaseJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node

BOUNDED = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
STEPS_MAX = 500


PREFERRED_SECONDS = 40


@dataclass
class World:
    """A cluster in which a job holds its nodes for its time limit and its grace period."""

    nodes: list[Node]
    jobs: dict[str, Job]
    policy: PlacementPolicy
    now: float = EPOCH
    #: The earliest bound that was given for a job, and when it was placed.
    bounds: dict[str, float] = field(default_factory=dict[str, float])
    placed: dict[str, float] = field(default_factory=dict[str, float])

    def state(self) -> PlacementState:
        return PlacementState.of(self.nodes, self.jobs.values())

    def run(self) -> None:
        """Run until nothing will happen any more, asking for forecasts at every instant."""
        for _ in range(STEPS_MAX):
            wake_at = self.decide()
            self.ask()
            ends = [self.end_of(job) for job in self.jobs.values() if job.status.placement]
            wakes = (
                [] if wake_at is None or not any(self.waiting()) else [max(wake_at, self.now + 1)]
            )
            instants = [end for end in (*ends, *self.openings()) if end is not None]
            prefers = [  # to wait for one rack
                at for at in wakes if at <= EPOCH + PREFERRED_SECONDS
            ]
            if not instants and not prefers:
                return
            self.now = min(instants + wakes)
            for name, job in self.jobs.items():
                end = self.end_of(job) if job.status.placement else None
                if end is not None and end <= self.now:
                    done = (*job.status.conditions, Condition(type="Succeeded", status="True"))
                    status = replace(job.status, conditions=done, placement=None)
                    self.jobs[name] = replace(job, status=status)

    def decide(self) -> float | None:
        """Carry out the scheduler's decisions until there are no more placements."""
        while True:
            decision = decide(self.state(), self.policy, self.now)
            for action in decision.actions:
                assert isinstance(action, PlaceJob | ReleaseJob | WriteVerdict)
                name = action.job.metadata.name
                self.jobs[name] = as_written(action)
                if isinstance(action, PlaceJob):
                    self.placed[name] = self.now
            if not any(isinstance(action, PlaceJob) for action in decision.actions):
                return decision.wake_at

    def openings(self) -> list[float]:
        """Return when maintenance ends that has not ended, while a job waits."""
        texts = [node.metadata.annotations.get(MAINTENANCE) for node in self.nodes]
        ends = [parse_time(text.split("/")[1]) for text in texts if text]
        return [end for end in ends if end > self.now and self.waiting()]

    def waiting(self) -> list[str]:
        return [n for n, job in self.jobs.items() if n not in self.placed and not job.is_finished]

    def ask(self) -> None:
        """Ask about each waiting job on a state of its own, and about all of them on one."""
        together = self.state()
        forecasts = Forecasts(together, self.now, self.policy)
        for name in sorted(self.waiting(), key=hash_of):
            found = explain(self.state(), ("default", name), self.now, self.policy)
            assert found is not None
            shared = explain(
                together, ("default", name), self.now, self.policy, forecasts=forecasts
            )
            assert shared == found, "who is asked about before changes no answer"
            if isinstance(found.forecast, Forecast):
                bound = found.forecast.may_start_by
                assert bound >= self.now
                self.bounds[name] = min(bound, self.bounds.get(name, bound))

    def end_of(self, job: Job) -> float | None:
        limit, placement = job.spec.time_limit_seconds, job.status.placement
        if limit is None or placement is None:
            return None
        return parse_time(placement.placed_at) + limit + GRACE_SECONDS_DEFAULT


def hash_of(name: str) -> int:
    """Put jobs in an order that is not that of the queue, and always the same."""
    return crc32(name.encode())


#: Nodes that close early, late, or both before and after the end of some jobs.
WINDOWS = [
    {MAINTENANCE: f"{format_time(EPOCH + start)}/{format_time(EPOCH + end)}"}
    for start, end in ((200, 400), (500, 2000), (-10, 90))
]


@st.composite
def a_world(draw: st.DrawFn) -> World:
    nodes = [
        make_node(
            f"n{i}",
            gpus=draw(st.sampled_from([4, 8, 8])),
            labels={"rack": f"r{i % 2}"},
            annotations=draw(st.sampled_from([{}, {}, *WINDOWS])),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    jobs: dict[str, Job] = {}
    for i in range(draw(st.integers(2, 9))):
        name = f"j{i}"
        jobs[name] = make_job(
            name,
            count=draw(st.integers(1, 4)),
            min_count=draw(st.sampled_from([None, None, 1])),
            gpus=draw(st.sampled_from([1, 2, 4, 8])),
            cpu=1,
            topology=draw(
                st.sampled_from(
                    [
                        None,
                        None,
                        Topology("rack", preferred_seconds=PREFERRED_SECONDS),
                        Topology("rack", True),
                    ]
                )
            ),
            priority=draw(st.sampled_from([None, None, 5])),
            created=EPOCH - draw(st.integers(0, 3)),
            attempt=draw(st.sampled_from([1, 1, 1, 0])) if i else 1,
            time_limit_seconds=draw(st.sampled_from([60, 100, 300, 1000, 1000, None])),
        )
    for name, job in list(jobs.items()):  # the jobs controller admits at once
        if job.status.attempt == 0:
            jobs[name] = replace(job, status=replace(job.status, attempt=1))
    starvation = draw(st.sampled_from([0.0, 50.0, 900.0]))
    return World(nodes, jobs, PlacementPolicy(starvation_seconds=starvation, preempts=False))


@BOUNDED
@given(a_world())
def test_no_bound_is_ever_exceeded(world: World) -> None:
    world.run()
    for name, bound in sorted(world.bounds.items()):
        event("a bound was given")
        assert name in world.placed, f"{name} was to start by {bound - EPOCH} and never did"
        assert world.placed[name] <= bound, (name, world.placed[name] - EPOCH, bound - EPOCH)


def test_the_worlds_have_queues_and_their_bounds_are_met_to_the_second() -> None:
    """A canary: bounds are given, and each is the very instant of the start."""
    jobs = {
        name: make_job(name, count=2, created=EPOCH + i, time_limit_seconds=100)
        for i, name in enumerate(("a", "b", "c"))
    }
    world = World([make_node("n0"), make_node("n1")], jobs, PlacementPolicy())
    world.run()
    assert world.bounds == {"b": EPOCH + 130, "c": EPOCH + 260}
    assert world.placed == {"a": EPOCH, **world.bounds}
