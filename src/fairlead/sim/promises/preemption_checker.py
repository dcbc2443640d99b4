"""Checks promise 5 at every write: preemption takes whole jobs, for a job that is then placed.

A victim has lower priority, or borrows nodes of the other job's team. One that gives way again and
again while it borrows, and gets on no further, borrows less and less often. One that is moved has
no higher priority, and a whole place that is kept for it from the request on until it is placed.
Where it is moved for no job, it empties nodes (`consolidation_checker.py`).

It knows the objects only: who is nominated for which nodes, who gives its place back for whom. The
priorities are those of the classes that jobs name. During an attempt a job has at most the priority
that its class gave it when the attempt was placed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, PreemptionKind, nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import ADMITTED
from fairlead.api.values.times import parse_time
from fairlead.decide.verdict import ObjectKey
from fairlead.model.adopted import as_stated
from fairlead.model.asks.priorities import class_names
from fairlead.model.gang.phase import is_failing
from fairlead.model.health.windows import closed_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.promises.checkers import offers_all
from fairlead.sim.promises.consolidation_checker import ConsolidationChecker
from fairlead.sim.promises.team_model import TeamModel, is_healthy
from fairlead.sim.setup.world_options import WorldOptions

#: What a gang is moved for that empties nodes.
_NO_JOB = "no job"
#: A pod that should have gone so long ago counts as staying.
_LATE_SECONDS = 60.0
#: A job that gave way twice in a row on borrowed nodes without progress borrows again so long after
#: it ended; each further time doubles that.
_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 60.0, 86_400.0
#: A job whose victims have left is placed by then; their pods end, and nodes report late.
_PLACED_SECONDS_MAX = 3600.0


@dataclass(slots=True)
class _Loan:
    """What one job made of the nodes that it borrowed."""

    #: The attempt that its place is for, and the step that it starts from.
    attempt: int = 0
    step: int | None = None
    #: True where its place surely has nodes of another team.
    is_borrowed: bool = False
    #: How often in a row it gave way on such nodes, and when it ended last.
    times: int = 0
    ended_at: float = 0.0
    #: The number of the latest attempt that has ended.
    ended: int = 0


@dataclass(slots=True)
class _JobModel:
    """What one job holds, is nominated for, and was given by others."""

    uid: str
    priority: int
    #: The attempt that it was placed for last, and the priority of its class by then.
    placed: tuple[int, int] = (0, 0)
    #: The highest priority that it had before its latest change, and when that was.
    had: tuple[int, float] = (0, float("-inf"))
    nodes: frozenset[str] = frozenset()
    #: Since when it holds each of them.
    held_since: dict[str, float] = field(default_factory=dict[str, float])
    nominated: frozenset[str] = frozenset()
    nominated_at: float = 0.0
    #: Another job was given a node of it by a decision that had not seen this one, or not that one.
    is_contested: bool = False
    #: Others are to move for it, and none of them was asked yet.
    is_tentative: bool = False
    #: Until when each victim was named, by uid; infinity: it still is.
    named: dict[str, float] = field(default_factory=dict[str, float])
    gives_way_to: str = ""
    #: `turns` of that job when this one was asked: the place that it gives way for.
    gives_way_for: int = 0
    #: It gives way for a place that is kept for it.
    is_moved: bool = False
    #: Since when a job that others gave way to has not been placed.
    owed_since: float | None = None
    preempted_attempts: int = 0
    team: str = ""
    #: The job that preempted it last, as (uid, its `turns` when this one was asked), and when.
    served: tuple[str, int] = ("", 0)
    served_at: float = 0.0
    #: How often it was placed, lost its nodes, or lost the place that was kept for it.
    turns: int = 0
    loan: _Loan = field(default_factory=_Loan)


class PreemptionChecker(Observer):
    """An `Observer` of a world without pods of others."""

    def __init__(
        self,
        priorities: Mapping[str, int],
        teams: TeamModel | None = None,
        *,
        clock_error_seconds: float = 0.0,
        options: WorldOptions | None = None,
    ) -> None:
        """`priorities` are the values of the PriorityClasses, 0 for a job without one.

        `teams` is fed before this checker is. The clocks of the controllers are wrong by at most
        `clock_error_seconds`. `options` say which pools are consolidated; None: there are none.
        """
        self.preemptions = 0
        self.nominations = 0
        #: Requests to victims that are moved.
        self.moves = 0
        #: Requests to victims that do not have a lower priority, and borrow.
        self.reclaims = 0
        #: Places on borrowed nodes of jobs that had given way there at least twice in a row.
        self.borrowed_again = 0
        self._priorities = priorities
        self._teams = teams or TeamModel()
        self._jobs: dict[ObjectKey, _JobModel] = {}
        #: Those that a place is kept for.
        self._nominees: dict[ObjectKey, None] = {}
        #: When each node was last seen unable to start pods.
        self._unavailable_at: dict[str, float] = {}
        self._is_unavailable: dict[str, bool] = {}
        #: By node: from when on pods that are being deleted may count as staying, and until when
        #: controllers may not have seen that they are gone.
        self._late: defaultdict[str, dict[ObjectKey, tuple[float, float]]] = defaultdict(dict)
        self.consolidation = ConsolidationChecker(
            options or WorldOptions(), clock_error_seconds=clock_error_seconds
        )
        self._late_seconds = _LATE_SECONDS - clock_error_seconds
        self._clock_error_seconds = clock_error_seconds

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Compare a job with what it was."""
        model = self._jobs.get(key)
        if new is None or (model is not None and model.uid != new.metadata.uid):
            self._jobs.pop(key, None)
            self._nominees.pop(key, None)
            if model is not None:
                self.consolidation.held(key, model.nodes, frozenset(), now)
            model = None
        if new is None:
            return
        placement = new.status.placement
        stated = class_names(as_stated(new).spec)
        priority = min(self._priorities.get(name, 0) for name in stated)
        if model is None:
            model = self._jobs[key] = _JobModel(new.metadata.uid, priority)
        if placement is not None and placement.attempt == new.status.attempt:
            if model.placed[0] != placement.attempt:
                model.placed = (placement.attempt, priority)
            priority = min(priority, model.placed[1])
        if priority != model.priority:
            model.had = (max(model.priority, self._priority_seen(model, now)), now)
            model.priority = priority
        model.team = placement.team if placement is not None else self._teams.team_of(new)
        self._nomination(key, model, new, now)
        self._preemption(key, model, new, now)
        self._end(key, model, new, now)
        self._loan(key, model, new, now)
        nodes = frozenset(nodes_of(placement))
        if model.gives_way_to and nodes and nodes < model.nodes:
            raise PromiseBroken(
                f"5: a part of the gang {key} gives way, and {len(nodes)} nodes stay"
            )
        model.turns += bool(nodes) != bool(model.nodes)
        if taken := nodes - model.nodes:
            self._contests(key, taken, now)
        self.consolidation.held(key, model.nodes, nodes, now)
        if nodes != model.nodes:
            model.held_since = {node: model.held_since.get(node, now) for node in nodes}
        model.nodes = nodes
        if model.nodes or _wants_none(new):
            model.owed_since = None

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note until when a pod should be gone; the other checkers count pods."""
        for pods in self._late.values():
            if key in pods:
                pods[key] = (pods[key][0], now + STALE_SECONDS)
        deleted = new.metadata.deletion_timestamp if new is not None else None
        if new is not None and deleted:
            late_at = parse_time(deleted) + self._late_seconds
            self._late[new.spec.node_name][key] = (late_at, float("inf"))

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note since when a node can start no pods, or none of jobs that take long."""
        self.consolidation.node(new, name)
        is_out = new is None or not is_healthy(new) or not offers_all(new)
        is_out = is_out or new is None or closed_of(new.metadata.annotations) is not None
        changed_hands = self._teams.owned_since.get(name) == now
        if is_out or changed_hands or self._is_unavailable.get(name, False):
            self._unavailable_at[name] = now
        self._is_unavailable[name] = is_out

    def check_by_clock(self, now: float) -> None:
        """5, by the clock: what others gave way for is placed, or does not want it any more."""
        for key, model in self._jobs.items():
            since = model.owed_since
            if since is not None and model.nominated and now - since > _PLACED_SECONDS_MAX:
                raise PromiseBroken(
                    f"5: {key} is not placed {now - since:.0f} s after others gave way to it"
                )

    def _nomination(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        nomination = new.status.nomination
        is_released = bool(model.nodes) and new.status.placement is None
        if model.is_moved and is_released and model.nominated:
            ends = _wants_none(new)
            if nomination is None and not ends and not new.metadata.deletion_timestamp:
                raise PromiseBroken(f"5: {key} moves, and gives back the place that is kept for it")
            model.owed_since = now
        nodes = frozenset(nodes_of(nomination)) if nomination else None
        names = {v.uid for v in nomination.victims} if nomination is not None else set[str]()
        if nomination is not None and nodes is not None and nodes != model.nominated:
            self.nominations += 1
            model.nominated_at, model.is_tentative = now, nomination.kind.is_move
            is_contested = self._contests(key, nodes, now)
            model.is_contested = is_contested or self._comes_late(nomination, nodes, now)
        if not nodes and model.nominated:
            model.turns += 1
            self._check_withdrawn(key, model, new, now)
        for uid, until in model.named.items():
            if uid not in names and until == float("inf"):
                model.named[uid] = now
        model.named.update(dict.fromkeys(names, float("inf")))
        model.nominated = nodes or frozenset()
        if nodes:
            self._nominees[key] = None
        else:
            self._nominees.pop(key, None)

    def _contests(self, key: ObjectKey, nodes: frozenset[str], now: float) -> bool:
        """True where such nodes were kept for other jobs as late as a write may come; notes it of
        them, too. The planner then keeps the place of one, or of none where a job is placed there.
        """
        others = [
            other for name in self._nominees if name != key
            and (other := self._jobs[name]).nominated & nodes
            and now - other.nominated_at <= STALE_SECONDS
        ]  # fmt: skip
        for other in others:
            other.is_contested = True
        return bool(others)

    def _comes_late(self, nomination: Nomination, nodes: frozenset[str], now: float) -> bool:
        """True where the write comes after another job, none of the victims, got a node of it.

        Until the write there is no nomination that a decision could see. A place that a job had
        before the nomination was decided is no excuse: the plan has counted it.
        """
        if nomination.nominated_at is None:
            return False
        decided_at = parse_time(nomination.nominated_at) - self._clock_error_seconds
        since = max(decided_at, now - STALE_SECONDS)
        victims = {victim.uid for victim in nomination.victims}
        return any(
            other.held_since[node] >= since
            for other in self._jobs.values() if other.uid not in victims
            for node in other.nodes & nodes
        )  # fmt: skip

    def _check_withdrawn(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        """5: a place that is kept is given up only by its job, with a node of it, where a pod does
        not go in time, where a victim that borrowed borrows no more, where its own priority has
        changed, or where others were to move and have no place to go any more before one was asked.
        """
        wants_none = _wants_none(new)
        was_held = any(  # until the release is seen
            c.type == ADMITTED and c.status == "False" for c in new.status.conditions
        )
        if new.status.placement is not None or wants_none or was_held:
            return
        if new.metadata.deletion_timestamp:
            return
        since = model.nominated_at - STALE_SECONDS
        is_node_lost = any(
            self._is_unavailable.get(n, True) or self._unavailable_at.get(n, 0.0) > since
            for n in model.nominated
        )
        late = (each for node in model.nominated for each in self._late[node].values())
        is_late = any(late_at <= now < seen_by for late_at, seen_by in late)
        is_excused = is_node_lost or is_late or model.is_contested or model.is_tentative
        is_excused = is_excused or self._borrows_no_more(model, since, now)
        is_excused = is_excused or model.had[1] > since
        if not is_excused and self._teams.changed_at <= since:
            raise PromiseBroken(f"5: {key} lost the place that was kept for it")
        model.owed_since = None

    def _borrows_no_more(self, model: _JobModel, since: float, now: float) -> bool:
        """True where a victim that gave way only as a borrower of the job's team, and is still on
        the place that was kept, may have been seen without a node of that team.
        """
        teams, seen_by = self._teams, now - STALE_SECONDS
        return any(
            other.priority >= model.priority
            and bool(other.nodes & model.nominated)
            and any(teams.lost(model.team, n, since) for n in other.nodes)
            and not any(
                teams.owner.get(n) == model.team and teams.owned_since[n] <= seen_by
                for n in other.nodes
            )
            for other in self._jobs.values() if model.named.get(other.uid) == float("inf")
        )  # fmt: skip

    def _preemption(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        preemption = new.status.preemption
        for_whom = ""
        if preemption is not None:
            is_for_none = preemption.kind is PreemptionKind.EMPTY
            for_whom = _NO_JOB if is_for_none else preemption.uid
        if preemption is None or model.gives_way_to == for_whom:
            model.gives_way_to = for_whom
            model.is_moved = preemption is not None and preemption.kind.is_move
            return
        model.gives_way_to, model.is_moved = for_whom, preemption.kind.is_move
        if for_whom == _NO_JOB:
            self.consolidation.asked(key, new, model.nodes, now)
            self._check_whole(key, new)
            return
        other = self._jobs.get((preemption.namespace, preemption.name))
        if other is None or other.uid != preemption.uid:
            return  # deleted since this was decided
        other.is_tentative = False
        for_priority = self._priority_seen(other, now)
        if preemption.kind.is_move:
            self._check_move(key, model, for_priority, new)
        is_reclaim = for_priority <= model.priority and not preemption.kind.is_move
        if is_reclaim and not self._borrows(model, other, now):
            raise PromiseBroken(
                f"5: {key} of priority {model.priority} gives way to one of {for_priority}"
            )
        self.reclaims += is_reclaim
        named_until = other.named.get(model.uid, 0.0)
        if now > named_until + STALE_SECONDS:
            raise PromiseBroken(f"5: {key} gives way to a job that does not name it")
        is_named = named_until == float("inf")  # else the request comes late, for an earlier place
        model.gives_way_for = other.turns if is_named else other.turns - 1
        if is_named and other.nominated and not other.nominated & model.nodes:
            raise PromiseBroken(f"5: {key} gives way to a job that needs none of its nodes")

    def _priority_seen(self, model: _JobModel, now: float) -> int:
        """Return the highest priority that a decision written now may have seen."""
        priority, until = model.had
        return max(model.priority, priority) if now - until <= STALE_SECONDS else model.priority

    def _check_move(self, key: ObjectKey, model: _JobModel, for_priority: int, new: Job) -> None:
        """5: a job moves for one of at least its priority, as a whole, and was not moved before."""
        self.moves += 1
        if for_priority < model.priority:
            raise PromiseBroken(
                f"5: {key} of priority {model.priority} moves for one of {for_priority}"
            )
        self._check_whole(key, new)

    def _check_whole(self, key: ObjectKey, new: Job) -> None:
        """5: a whole place is kept for a gang that moves."""
        placement, nomination = new.status.placement, new.status.nomination
        held = [(r.role, len(r.nodes)) for r in placement.roles] if placement else []
        kept = [(r.role, len(r.nodes)) for r in nomination.roles] if nomination else []
        if held != kept:
            raise PromiseBroken(f"5: {key} holds {held} and is to move to {kept}")

    def _end(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        count = sum(attempt.reason == "Preempted" for attempt in new.status.attempts)
        if count <= model.preempted_attempts:
            model.preempted_attempts = count  # old records are dropped
            return
        model.preempted_attempts = count
        self.preemptions += 1
        if not model.gives_way_to:
            raise PromiseBroken(f"5: {key} was preempted for no job")
        for name, other in self._jobs.items():
            if other.uid != model.gives_way_to:
                continue
            if model.served == (other.uid, model.gives_way_for):
                raise PromiseBroken(
                    f"5: {key} was preempted twice for one place of the same job, {name}, the "
                    f"first time {now - model.served_at:.0f} s before; kept since "
                    f"{now - other.nominated_at:.0f} s on {sorted(other.nominated)}"
                )
            model.served, model.served_at = (other.uid, model.gives_way_for), now
            if not other.nodes and other.owed_since is None:
                other.owed_since = now

    def _loan(self, key: ObjectKey, model: _JobModel, new: Job, now: float) -> None:
        """5: a job that gave way on borrowed nodes in vain borrows again only after a while."""
        status, loan = new.status, model.loan
        last = status.attempts[-1] if status.attempts else None
        if last is not None and last.finished_at and last.number > loan.ended:
            loan.ended, loan.ended_at = last.number, parse_time(last.finished_at)
            counts = last.reason == "Preempted" and loan.is_borrowed
            loan.times = loan.times + 1 if counts else 0
        nodes = nodes_of(status.placement)
        if status.placement is None or (model.nodes and status.placement.attempt == loan.attempt):
            return
        step = status.progress.checkpoint_step if status.progress is not None else None
        if step != loan.step:
            loan.times = 0
        loan.attempt, loan.step = status.placement.attempt, step
        since = now - STALE_SECONDS  # whose a node was by then, the decision has seen
        loan.is_borrowed = self._teams.changed_at <= since and any(
            self._teams.owner.get(node, "") not in ("", model.team)
            and self._teams.owned_since[node] <= since
            for node in nodes
        )
        if loan.times < 2 or not loan.is_borrowed:
            return
        self.borrowed_again += 1
        wait = min(_BACKOFF_SECONDS * 2 ** (loan.times - 2), _BACKOFF_SECONDS_MAX)
        if now + self._clock_error_seconds < loan.ended_at + wait:
            raise PromiseBroken(
                f"5: {key} borrows again {now - loan.ended_at:.0f} s after it gave way "
                f"{loan.times} times in a row without progress, which takes {wait:.0f} s"
            )

    def _borrows(self, victim: _JobModel, other: _JobModel, now: float) -> bool:
        """True where the victim uses, or used lately, nodes of the other job's team."""
        since = now - STALE_SECONDS
        if self._teams.changed_at > since:
            return True  # whose either job was by then is not known
        is_others = bool(other.team) and victim.team != other.team
        return is_others and any(self._teams.had(other.team, n, since) for n in victim.nodes)


def _wants_none(job: Job) -> bool:
    """True for a job that has no use for nodes now."""
    return job.is_finished or is_failing(job) or job.spec.suspend or job.spec.cancel
