"""What teams get of each other over time, while jobs of one GPU come, run and end.

The planner decides on each event until nothing happens; a job that is preempted queues again at
once and starts from the beginning, as one without checkpoints does. Armada names the properties.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED, TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.record import End, closed_record, new_record, with_attempt
from fairlead.decide.placement.actions import PlaceJob, PreemptJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import JobKey
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node, make_team

TEAMS = ("a", "b", "c")
#: Of each team; a fourth node of as many belongs to nobody.
SHARE_GPUS = 2
RUN_SECONDS = 1000
FEW = settings(max_examples=30, deadline=None)
#: Seconds since the arrival before, and the team.
_arrivals = st.lists(
    st.tuples(st.sampled_from((0, 0, 10, 300, 700, 1100)), st.sampled_from(TEAMS)),
    min_size=8, max_size=28,
)  # fmt: skip
_weights = st.tuples(*[st.integers(1, 3)] * len(TEAMS))
Arrivals = Sequence[tuple[float, str]]


@dataclass
class _Run:
    """A cluster on which jobs arrive, run for `RUN_SECONDS`, or as their team's do, and end."""

    nodes: Sequence[str]
    weights: Sequence[int] = (1, 1, 1)
    run_seconds: Mapping[str, float] = field(default_factory=dict)
    now: float = EPOCH
    #: When time alone may change the decision.
    wake_at: float = float("inf")
    ends: dict[JobKey, float] = field(default_factory=dict)
    #: By team, the instants at which its jobs have ended.
    ended: dict[str, list[float]] = field(default_factory=lambda: {t: [] for t in TEAMS})
    #: (beneficiary, victim) of each preemption.
    preempted: list[tuple[str, str]] = field(default_factory=list)
    #: By job: when its latest attempts ended that all gave way on borrowed nodes.
    gave_way: dict[JobKey, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = ClusterState.of(
            make_node(f"n{i}", gpus=SHARE_GPUS, taints=[Taint(TEAM, "NoSchedule", o)] if o else ())
            for i, o in enumerate(self.nodes)
        )
        for name, weight in zip(TEAMS, self.weights, strict=True):
            self.cluster.team_changed(name, make_team(name, weight=weight))
        self.state = PlacementState(self.cluster)

    def run(self, arrivals: Arrivals) -> _Run:
        """Let all jobs arrive and end."""
        at = EPOCH
        for number, (seconds, team) in enumerate(arrivals):
            at += seconds
            self._until(at)
            self.now = at
            self.cluster.job_changed(_job(number, team, at))
            self._settle()
        self._until(float("inf"))
        return self

    def _until(self, at: float) -> None:
        """Let the jobs end that end before an instant, in order, and time pass between them."""
        while (then := min([*self.ends.values(), self.wake_at])) <= at and then < float("inf"):
            self.now = then
            for key in sorted(k for k, each in self.ends.items() if each == then):
                job = self.cluster.jobs[key].job
                done = (Condition("Succeeded", "True"),)
                status = replace(job.status, conditions=done, placement=None)
                self.cluster.job_changed(replace(job, status=status))
                self.ended[key[0]].append(then)
                del self.ends[key]
            self._settle()

    def _settle(self) -> None:
        """Decide until nothing happens."""
        for _ in range(40):
            self.cluster.advance_shares(self.now)
            use = {team: self.use(team) for team in TEAMS}
            decision = decide(self.state, PlacementPolicy(), self.now)
            actions = decision.actions
            placed = [a.job for a in actions if isinstance(a, PlaceJob)]
            for action in actions:
                self._apply(action.job.metadata.key, as_written(action))
            for job in placed:
                key = job.metadata.key
                self.ends[key] = self.now + self.run_seconds.get(key[0], RUN_SECONDS)
                self.check_turn(key, use)
            for action in actions:
                if isinstance(action, PreemptJob):
                    self._leave(action)
            if not any(isinstance(a, PlaceJob | PreemptJob) for a in actions) and not any(
                job.job.status.nomination for job in self.cluster.jobs.values()
            ):
                self.check_shares()
                self.wake_at = decision.wake_at or float("inf")
                assert self.wake_at > self.now
                return
        raise AssertionError("it never settles")

    def _apply(self, key: JobKey, job: Job) -> None:
        self.cluster.job_changed(job)
        assert self.cluster.jobs[key].job is job

    def _leave(self, action: PreemptJob) -> None:
        """End the attempt of a job that was preempted; it queues again."""
        key = action.job.metadata.key
        job = self.cluster.jobs[key].job
        preemption, placement = job.status.preemption, job.status.placement
        assert preemption is not None
        assert placement is not None
        self.preempted.append((preemption.name, key[1]))
        self.gave_way[key] = [*self.gave_way.get(key, ()), self.now]
        if not self._borrows(key):
            del self.gave_way[key]
        record = closed_record(
            new_record(job, self.now, placement), End(EndReason.PREEMPTED), self.now
        )
        status = replace(
            with_attempt(job.status, record), preemption=None, placement=None,
            attempt=job.status.attempt + 1, conditions=(Condition(ADMITTED, "True"),),
        )  # fmt: skip
        self.cluster.job_changed(replace(job, status=status))
        del self.ends[key]

    def use(self, team: str) -> float:
        """Return the dominant share of a team over time, for its weight."""
        found = self.cluster.teams.get(team)
        assert found is not None
        return self.cluster.uses.shares.at(team, self.now) / found.spec.weight

    def waiting(self, *, for_others: bool = False) -> Counter[str]:
        """Return how many jobs of each team wait, or may have nodes of other teams."""
        return Counter(
            e.team_name for k, e in self.cluster.jobs.items()
            if k not in self.ends and not e.job.is_finished
            and (not for_others or self.borrows_at(k) <= self.now)
        )  # fmt: skip

    def borrows_at(self, key: JobKey) -> float:
        """Return from when on a job may borrow: not before its back-off ends."""
        gave_way = self.gave_way.get(key, [])
        if len(gave_way) < 2:
            return 0.0
        return gave_way[-1] + min(60.0 * 2 ** (len(gave_way) - 2), 86_400.0)

    def _borrows(self, key: JobKey) -> bool:
        placement = self.cluster.jobs[key].job.status.placement
        assert placement is not None
        nodes = [node for role in placement.roles for node in role.nodes]
        return any(self.cluster.uses.owner(node) not in ("", key[0]) for node in nodes)

    def check_shares(self) -> None:
        """A team that has waiting jobs holds at least its share."""
        held = Counter(key[0] for key in self.ends)
        for team in self.waiting():
            assert held[team] >= SHARE_GPUS * list(self.nodes).count(team)

    def check_turn(self, placed: JobKey, use: dict[str, float]) -> None:
        """But for nodes of its own, no team got one that another had used less, and waits for;
        and none that its job may not borrow yet.
        """
        placement = self.cluster.jobs[placed].job.status.placement
        assert placement is not None
        (node,) = (n for role in placement.roles for n in role.nodes)
        is_borrowed = self._borrows(placed)
        assert not is_borrowed or self.borrows_at(placed) <= self.now
        if self.cluster.uses.owner(node) != placed[0]:
            waiting = self.waiting(for_others=is_borrowed)
            assert all(use[placed[0]] <= use[team] for team in waiting)


def _job(number: int, team: str, at: float) -> Job:
    waits = Condition("Placed", "False", last_transition_time=format_time(at))
    conditions = (Condition(ADMITTED, "True"), waits)
    return make_job(
        f"j{number:02}", namespace=team, gpus=1, created=at, priority=0, conditions=conditions
    )


@FEW
@given(_arrivals)
def test_a_team_is_served_as_early_as_on_its_share_alone_but_for_the_work_that_a_borrower_loses(
    arrivals: Arrivals,
) -> None:
    """Sharing incentive: its n-th job ends at most one run later, and it never holds less."""
    together = _Run([*TEAMS, ""]).run(arrivals)
    for team in TEAMS:
        at, own = 0.0, list[tuple[float, str]]()
        for seconds, other in arrivals:
            at += seconds
            if other == team:
                own.append((at, team))
                at = 0.0
        alone = _Run([team]).run(own)
        ends, alone_ends = together.ended[team], alone.ended[team]
        assert len(ends) == len(alone_ends) == len(own)
        late = [end - before for end, before in zip(ends, alone_ends, strict=True)]
        assert max(late, default=0.0) <= RUN_SECONDS


@FEW
@given(_arrivals, _weights)
def test_no_team_envies_another_that_it_has_used_less_than_for_its_weight(
    arrivals: Arrivals, weights: tuple[int, ...]
) -> None:
    """`check_turn` asserts it at each placement, on nodes that belong to nobody and on others'."""
    assert sum(map(len, _Run(["", "", "a"], weights).run(arrivals).ended.values())) == len(arrivals)


@FEW
@given(_arrivals)
def test_each_job_makes_others_leave_once_and_what_it_got_is_not_taken_back(
    arrivals: Arrivals,
) -> None:
    """Preemption stability: no chains, no cycles, no job that leaves again and again for one."""
    run = _Run(TEAMS).run(arrivals)
    beneficiaries = Counter(job for job, _ in run.preempted)
    assert not beneficiaries or max(beneficiaries.values()) == 1
    for position, (beneficiary, _) in enumerate(run.preempted):
        assert beneficiary not in [victim for _, victim in run.preempted[position:]]


#: A job of team b, then two short jobs of team a at a time, which fill the node that it borrows.
_VISITS = [(0, "b"), *[(seconds, "a") for _ in range(20) for seconds in (100, 0)]]
_VISIT_SECONDS = {"a": 50.0, "b": 3600.0}


def test_a_borrower_gives_way_six_times_while_its_owner_comes_twenty_times() -> None:
    """The last visit is 1900 s after the first; the sixth back-off, of 960 s, outlasts it."""
    run = _Run(["a"], run_seconds=_VISIT_SECONDS).run(_VISITS)
    assert [len(ends) for ends in run.ended.values()] == [40, 1, 0]
    assert [victim for _, victim in run.preempted] == ["j00"] * 6


@FEW
@given(st.lists(st.integers(1, 3000), min_size=3, max_size=40))
def test_how_often_a_borrower_gives_way_is_bounded_by_the_logarithm_of_the_time(
    pauses: list[int],
) -> None:
    """Each further time takes twice as long as the one before, whenever the owner comes."""
    visits = [(0, "b"), *[(at, "a") for pause in pauses for at in (pause, 0)]]
    run = _Run(["a"], run_seconds={"a": 50.0, "b": 1e7}).run(visits)
    gave_way = run.gave_way["b", "j00"]
    assert len(gave_way) == len(run.preempted)
    assert len(gave_way) <= 2 + math.log2((gave_way[-1] - gave_way[0]) / 60 + 1)
