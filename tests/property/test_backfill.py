"""No later job that starts while room is kept for the head of the queue delays its start."""

from __future__ import annotations

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.answers.forecast import forecast
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node

BOUNDED = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
EASY = PlacementPolicy(starvation_seconds=0.0)
LIMITS = st.sampled_from([60, 100, 300, 300, 1000, 1000])
LEAST = st.sampled_from([None, None, 1])
GPUS = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def a_queue(draw: st.DrawFn) -> tuple[list[Node], list[Job], Job, list[Job]]:
    """Nodes, jobs with limits that may run on them, the head of the queue and later jobs."""
    nodes = [
        make_node(f"n{i}", gpus=draw(st.sampled_from([4, 8, 8])), labels={"rack": f"r{i % 2}"})
        for i in range(draw(st.integers(1, 6)))
    ]
    older = [
        make_job(f"a{i}", count=draw(st.integers(1, 4)), gpus=draw(GPUS), created=EPOCH - 9,
                 min_count=draw(LEAST), time_limit_seconds=draw(LIMITS))
        for i in range(draw(st.integers(1, 6)))
    ]  # fmt: skip
    head = make_job(
        "head", count=draw(st.integers(1, 6)), min_count=draw(LEAST), gpus=draw(GPUS),
        created=EPOCH,
        topology=draw(st.sampled_from([None, None, Topology("rack", True), Topology("rack")])),
    )  # fmt: skip
    later = [
        make_job(f"z{i}", count=draw(st.integers(1, 3)), gpus=draw(GPUS), created=EPOCH + i,
                 min_count=draw(LEAST), time_limit_seconds=draw(st.none() | LIMITS))
        for i in range(1, draw(st.integers(2, 9)))
    ]  # fmt: skip
    return nodes, older, head, later


def placed_of(nodes: list[Node], jobs: list[Job], now: float) -> dict[str, Job]:
    """Decide until nothing more is placed; return the jobs that hold nodes."""
    objects, out = {job.metadata.name: job for job in jobs}, dict[str, Job]()
    while True:
        actions = decide(PlacementState.of(nodes, objects.values()), EASY, now).actions
        new = {a.job.metadata.name: as_written(a) for a in actions if isinstance(a, PlaceJob)}
        if not new:
            return out
        out |= new
        objects |= new


def start_of_head(nodes: list[Node], running: list[Job], head: Job, now: float) -> float | None:
    state = PlacementState.of(nodes, [*running, head])
    found = forecast(state, head.metadata.key, now, EASY)
    return found.may_start_by if isinstance(found, Forecast) else None


@BOUNDED
@given(a_queue())
def test_backfill_never_delays_the_head_of_the_queue(
    queue: tuple[list[Node], list[Job], Job, list[Job]],
) -> None:
    nodes, older, head, later = queue
    running = list(placed_of(nodes, older, EPOCH).values())
    now = EPOCH + 1
    before = start_of_head(nodes, running, head, now)
    if before is None or before <= now:
        return
    started = placed_of(nodes, [*running, head, *later], now)
    assert "head" not in started
    if started:
        event("later jobs started")
    if any(job.spec.time_limit_seconds is None for job in started.values()):
        event("one without a limit, too")
    after = start_of_head(nodes, [*running, *started.values()], head, now)
    assert after is not None
    assert after <= before


def test_later_jobs_do_start_and_do_delay_a_job_that_keeps_nothing() -> None:
    """A canary: the same jobs delay the head where nothing is kept for it."""
    nodes = [make_node("n0"), make_node("n1")]
    running = list(placed_of(nodes, [make_job("a", time_limit_seconds=300)], EPOCH).values())
    head = make_job("head", count=2)
    before = start_of_head(nodes, running, head, EPOCH)
    short, long = (
        make_job(f"z{limit}", created=EPOCH + 1, time_limit_seconds=limit) for limit in (300, 900)
    )
    started = placed_of(nodes, [*running, head, short, long], EPOCH)
    assert list(started) == ["z300"]
    delayed = [*running, *placed_of(nodes, [*running, long], EPOCH).values()]
    assert start_of_head(nodes, delayed, head, EPOCH) == EPOCH + 930
    assert before == EPOCH + 330
