"""Limits of jobs, whatever happens to jobs and teams: who queues, and that no limit is exceeded."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api.cluster.team import JobLimits
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.testing.builders import EPOCH, as_written, make_job, make_nodes, make_team

USERS = ("ana", "ben", "")
TEAMS = ("a", "b")
_STARTING = (Reason.RUNNING_LIMIT, Reason.GPU_LIMIT)
FEW = settings(max_examples=100, deadline=None)
_limit = st.none() | st.integers(0, 5)
_limits = st.builds(JobLimits, running=_limit, waiting=_limit, submitted=_limit,
                    gpus=st.none() | st.integers(0, 40))  # fmt: skip
_ANA_FIRST, _ANA_NEXT = ("job", 0, "ana", 0), ("job", 2, "ana", 0)
_numbers = st.integers(0, 11)
_jobs = st.tuples(st.just("job"), _numbers, st.sampled_from(USERS), st.integers(0, 2))
_change = st.one_of(
    _jobs, _jobs, _jobs,
    st.tuples(st.just("end"), _numbers),
    st.tuples(st.just("delete"), _numbers),
    st.tuples(st.just("hold"), _numbers),
    st.tuples(st.just("team"), st.sampled_from(TEAMS), _limits, _limits),
    st.tuples(st.just("gone"), st.sampled_from(TEAMS)),
    st.tuples(st.just("decide")),
)  # fmt: skip
#: Limits of both teams, a few jobs, and what happens to them.
_events = st.tuples(_limits, _limits, st.lists(_jobs, min_size=4, max_size=12, unique=True),
                    st.lists(_change, max_size=30))  # fmt: skip


def _key(number: int) -> tuple[str, str]:
    return TEAMS[number % 2], f"j{number:02d}"


def _made(number: int, user: str, priority: int) -> Job:
    namespace, name = _key(number)
    made = make_job(name, namespace=namespace, priority=priority, gpus=1 + 3 * (number % 3),
                    created=EPOCH + number)  # fmt: skip
    annotations = {SUBMITTED_BY: user} if user else {}
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def _user_of(job: Job) -> str:
    return job.metadata.annotations.get(SUBMITTED_BY, "")


def _gpus_of(job: Job) -> int:
    return 1 + 3 * (int(job.metadata.name[1:]) % 3)


class _World:
    """A cluster that follows drawn events, and decides when it is told to."""

    def __init__(self) -> None:
        self.cluster = ClusterState.of(make_nodes(4, prefix="n"))
        self.state = PlacementState(self.cluster)

    def apply(self, event: tuple[object, ...]) -> None:
        cluster = self.cluster
        match event:
            case ("job", int() as number, str() as user, int() as priority):
                if _key(number) not in cluster.jobs:
                    cluster.job_changed(_made(number, user, priority))
            case ("team", str() as name, JobLimits() as limits, JobLimits() as users):
                team = make_team(name, limits=limits, user_limits=users)
                cluster.team_changed(name, team)
            case ("gone", str() as name):
                cluster.team_changed(name, None)
            case ("decide",):
                self.decide()
            case (str() as what, int() as number) if _key(number) in cluster.jobs:
                job = cluster.jobs[_key(number)].job
                if what == "delete":
                    cluster.job_deleted(_key(number))
                elif what == "end":
                    done = (Condition("Succeeded", "True"),)
                    status = replace(job.status, conditions=done, placement=None)
                    cluster.job_changed(replace(job, status=status))
                elif job.status.placement is None:
                    spec = replace(job.spec, suspend=not job.spec.suspend)
                    cluster.job_changed(replace(job, spec=spec))
            case _:
                pass

    def decide(self) -> None:
        before = {key: bool(e.job.status.placement) for key, e in self.cluster.jobs.items()}
        for action in decide(self.state, PlacementPolicy(), EPOCH + 1000.0).actions:
            self.cluster.job_changed(as_written(action))
            if isinstance(action, PlaceJob) and not before[action.job.metadata.key]:
                self.check(action.job)

    def check(self, placed: Job) -> None:
        """With a new place its team and its user are within their limits."""
        team = self.cluster.teams.get(placed.metadata.namespace)
        if team is None:
            return
        held = [e.job for e in self.cluster.jobs.values()
                if e.job.status.placement and e.team_name == team.metadata.name]  # fmt: skip
        of_user = [job for job in held if _user_of(job) == _user_of(placed)]
        for limits, jobs in ((team.spec.limits, held), (team.spec.user_limits, of_user)):
            most = min((n for n in (limits.running, limits.submitted) if n is not None), default=99)
            assert len(jobs) <= most
            assert limits.gpus is None or sum(map(_gpus_of, jobs)) <= limits.gpus

    def is_over(self, job: Job) -> bool:
        """True where the jobs and GPUs with nodes leave its user or its team no room for a job."""
        team = self.cluster.teams.get(job.metadata.namespace)
        if team is None:
            return False
        user = _user_of(job)
        held = [e.job for e in self.cluster.jobs.values()
                if e.job.status.placement and e.team_name == team.metadata.name]  # fmt: skip
        of_user = [each for each in held if _user_of(each) == user]
        return any(
            (limits.running is not None and len(jobs) >= limits.running)
            or (limits.gpus is not None and sum(map(_gpus_of, (*jobs, job))) > limits.gpus)
            for limits, jobs in ((team.spec.limits, held), (team.spec.user_limits, of_user))
        )

    def expected_queue(self) -> set[tuple[str, str]]:
        """Return who is in the queue by the rules themselves, without state between events."""
        jobs, cluster = self.cluster.jobs, self.cluster
        queued = [e for e in jobs.values() if phase_of(e.job) is Phase.QUEUED]
        queued.sort(key=lambda e: (-int(e.job.spec.priority or 0), e.job.metadata.name))
        rooms = Counter[tuple[str, str | None]]()
        out: set[tuple[str, str]] = set()
        for entry in queued:
            team = cluster.teams.get(entry.team_name)
            if team is None:
                out.add(entry.job.metadata.key)
                continue
            limits = {(entry.team_name, entry.user): team.spec.user_limits,
                      (entry.team_name, None): team.spec.limits}  # fmt: skip
            if all(rooms[a] < self._most(a, limit) for a, limit in limits.items()):
                out.add(entry.job.metadata.key)
                rooms.update(list(limits))
        return out

    def _most(self, account: tuple[str, str | None], limits: JobLimits) -> int:
        team, user = account
        running = sum(
            1 for e in self.cluster.jobs.values()
            if e.job.status.placement and e.team_name == team and user in (None, e.user)
        )  # fmt: skip
        submitted = 99 if limits.submitted is None else max(limits.submitted - running, 0)
        return min(submitted, 99 if limits.waiting is None else limits.waiting)


_Events = tuple[JobLimits, JobLimits, list[tuple[object, ...]], list[tuple[object, ...]]]


def _listed(events: _Events) -> list[tuple[object, ...]]:
    limits, users, jobs, changes = events
    teams: list[tuple[object, ...]] = [("team", name, limits, users) for name in TEAMS]
    return [*teams, *jobs, ("decide",), *changes, ("decide",)]


@FEW
@given(_events)
def test_the_queue_is_what_the_limits_say_and_no_place_exceeds_one(events: _Events) -> None:
    world = _World()
    for event in _listed(events):
        world.apply(event)
        in_queue = {order.job_key for order in world.state.queue.in_order()}
        assert in_queue == world.expected_queue()


@FEW
@given(_events)
@example((JobLimits(running=1), JobLimits(), [_ANA_FIRST, _ANA_NEXT], [("end", 0)]))
def test_a_waiting_job_has_a_verdict_that_says_so_if_a_limit_keeps_it_out(events: _Events) -> None:
    world = _World()
    for event in _listed(events):
        world.apply(event)
    for _ in range(15):
        world.decide()
    kept_out, over = {Reason.QUEUE_LIMIT.value}, {r.value for r in _STARTING}
    for key, entry in world.cluster.jobs.items():
        job, written = entry.job, entry.job.status.verdict
        if phase_of(job) is Phase.QUEUED:
            assert written is not None
            assert (written.reason in kept_out) == (key in world.state.queue_limits)
            assert written.reason in kept_out or (written.reason in over) == world.is_over(job)
