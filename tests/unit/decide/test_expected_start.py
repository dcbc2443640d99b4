"""Between when and when a waiting job starts, by the run times of past jobs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import Attempt, Job, Progress
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.decide.answers.expected_start import expected_start
from fairlead.decide.answers.explanation import ExpectedStart
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.run_times import SAMPLES_MIN
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement

NOW = EPOCH + 1000
#: Past jobs ran for 1010, 1020 ... seconds.
PAST = 100


def attempt(start: float, end: float | None = None) -> Attempt:
    return Attempt(
        1,
        started_at=format_time(EPOCH + start),
        finished_at=None if end is None else format_time(EPOCH + end),
    )


def past(count: int = PAST, *, members: int = 1, limit: int | None = None) -> list[Job]:
    return [
        make_job(
            f"a-{1000 + n}", count=members, time_limit_seconds=limit,
            conditions=(Condition(type="Succeeded", status="True"),),
            status={"attempts": (replace(attempt(0, 1010 + 10 * n), reason="Succeeded"),),
                    "finished_at": format_time(EPOCH + 1010 + 10 * n)},
        )
        for n in range(count)
    ]  # fmt: skip


def running(name: str, *nodes: str, limit: int | None = None, start: float = 0.0) -> Job:
    return make_job(
        name, count=len(nodes), placement=make_placement(nodes), time_limit_seconds=limit,
        status={"attempts": (attempt(start),)},
    )  # fmt: skip


def expect(
    *jobs: Job, nodes: int = 2, is_late: bool = False, policy: PlacementPolicy | None = None
) -> ExpectedStart | None:
    """Return when job `j` is expected to start."""
    state = PlacementState.of(make_nodes(nodes), jobs)
    policy = policy or PlacementPolicy()
    found = expected_start(state, ("default", "j"), NOW, policy, is_late=lambda: is_late)
    assert found == expected_start(state, ("default", "j"), NOW, policy, is_late=lambda: is_late)
    return found


def test_it_starts_when_the_job_that_holds_its_nodes_is_expected_to_end() -> None:
    found = expect(*past(members=2), running("a", "node-0000", "node-0001"), make_job("j"))
    assert found is not None
    assert found.past_jobs == PAST
    # Of 100 sorted runs the quantiles 1/40 and 39/40 are those at places 1.525 and 97.475.
    assert found.earliest - EPOCH == pytest.approx(1025.25)
    assert found.latest - EPOCH == pytest.approx(1984.75)
    assert found.median - EPOCH == pytest.approx(1505.0)


def test_the_first_of_several_to_end_is_expected_sooner() -> None:
    one = expect(*past(), running("a", "node-0000"), make_job("j"), nodes=1)
    holders = [running(f"a-{n}", f"node-000{n}") for n in range(4)]
    four = expect(*past(), *holders, make_job("j"), nodes=4)
    assert one is not None
    assert four is not None
    assert four.median < one.median - 200
    assert four.latest < one.latest


def test_jobs_unlike_those_that_have_ended_say_nothing() -> None:
    """Gangs of an hour, of which one waits: toy jobs, of another name, say nothing about them."""
    holders = [running(f"sweep-{n}", f"node-000{n}", limit=3600) for n in range(4)]
    ahead = [make_job(f"sweep-1{n}", created=EPOCH - 1, time_limit_seconds=3600) for n in range(8)]
    waits = make_job("j", time_limit_seconds=3600)
    assert expect(*past(), *holders, *ahead, waits, nodes=4) is None


def test_of_jobs_that_are_not_predicted_nothing_but_the_limit_is_known() -> None:
    """Two jobs hold a node each; the one that is not predicted may end at once, or at its limit."""
    learned, other = running("a", "node-0000"), running("b", "node-0001", limit=1200)
    one = expect(*past(), learned, other, make_job("j"))
    assert one is not None
    assert one.past_jobs == PAST
    assert one.earliest == NOW + 1.0
    assert EPOCH + 1220 < one.latest <= EPOCH + 1230  # its limit and its grace period
    both = expect(*past(), learned, other, make_job("j", count=2))
    assert both is not None
    assert (both.earliest, both.latest) == (EPOCH + 1025.25, EPOCH + 1984.75)
    endless = running("b", "node-0001")
    assert expect(*past(), learned, endless, make_job("j", count=2)) is None
    either = expect(*past(), learned, endless, make_job("j"))
    assert either is not None
    assert (either.earliest, either.latest) == (NOW + 1.0, EPOCH + 1984.75)


@pytest.mark.parametrize(
    ("earliest", "latest", "bound", "says_more"),
    [
        (1.0, 3600.0, 3600.0, False), (1.0, 3599.0, 3600.0, True), (60.0, 3600.0, 3600.0, True),
        (3600.0, 3600.0, 3600.0, False), (1.0, 3600.0, None, True),
    ],
)  # fmt: skip
def test_a_range_from_now_to_the_bound_says_no_more_than_the_bound(
    earliest: float, latest: float, bound: float | None, *, says_more: bool
) -> None:
    found = ExpectedStart(NOW + earliest, NOW + earliest, NOW + latest, 20)
    assert found.says_more(NOW, bound if bound is None else NOW + bound) is says_more


def test_no_job_is_expected_to_run_beyond_its_limit() -> None:
    found = expect(*past(limit=1100), running("a", "node-0000", limit=1100), make_job("j"), nodes=1)
    assert found is not None
    assert found.latest == EPOCH + 1130  # and its grace period
    assert found.earliest - EPOCH == pytest.approx(1025.25)


def test_jobs_ahead_run_first_for_as_long_as_such_jobs_do() -> None:
    ahead = make_job("a-9", created=EPOCH - 1)
    found = expect(*past(), running("a", "node-0000"), ahead, make_job("j"), nodes=1)
    assert found is not None
    assert NOW + 1010 < found.earliest < found.latest < NOW + 1000 + 2 * 2010


def test_a_job_with_a_checkpoint_goes_on_where_it_was() -> None:
    medians: list[float] = []
    for progress in (None, Progress(checkpoint_step=5)):
        status = {"attempts": (attempt(0, 900),), "progress": progress}
        ahead = make_job("a-9", created=EPOCH - 1, attempt=2, status=status)
        found = expect(*past(), running("a", "node-0000"), ahead, make_job("j"), nodes=1)
        assert found is not None
        medians.append(found.median)
    assert medians[0] - medians[1] == pytest.approx(900, abs=100)


def test_nothing_is_expected_where_run_times_do_not_tell() -> None:
    holder = running("a", "node-0000")
    few = past(SAMPLES_MIN - 1)
    assert expect(*few, holder, make_job("j"), nodes=1) is None
    assert expect(*past(), holder, make_job("j"), nodes=1, is_late=True) is None
    after = make_job("other", attempt=0, spec={"after": (After(job="a"),)})
    assert expect(*past(), holder, after, make_job("j"), nodes=1) is None
    urgent = make_job("j", priority=10)
    low = running("a", "node-0000", start=-1000.0)
    assert expect(*past(), low, urgent, nodes=1) is None  # it preempts
    assert expect(*past(), holder, make_job("j", count=3), nodes=2) is None  # never fits
    lost = replace(attempt(0, 900), nodes_lost=("gone",))
    restarts = make_job("a", count=2, attempt=2, placement=make_placement(["node-0000", "gone"]),
                        status={"attempts": (lost,)})  # fmt: skip
    assert expect(*past(), restarts, make_job("j"), nodes=1) is None
