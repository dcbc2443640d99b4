"""Checks promise 4: what teams hold, borrow and get back, at every write and by the clock.

    taints     no node has those of two teams; they meet the shares while healthy nodes suffice
    jobs       no placement exceeds a limit of the team's or the user's jobs or GPUs
    limits     no placement takes nodes of other teams beyond what its team may borrow and they lend
    reclaim    a team's first waiting job does not wait for nodes of the team that others borrow,
               where neither the team has a budget or limits, nor the job asks for a topology,
               which may keep it from them

It knows the objects only, and shares no code with the planner or the teams controller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.api.cluster.team import JobLimits, Share, Team, TeamSpec
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import GPU, resources_to_base
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gang.job_users import user_of
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.observers.working_time import SCHEDULER, TEAMS, WorkingTime
from fairlead.sim.promises.checkers import offers_all, requests_of
from fairlead.sim.promises.team_model import TeamModel, is_healthy, team_taints

_GPUS_PER_NODE_MIN = 1


@dataclass(frozen=True, slots=True)
class _JobModel:
    """A job that has not ended, with the nodes that it holds."""

    job: Job
    priority: int
    team: str
    nodes: tuple[tuple[Role, str], ...] = ()

    @property
    def user(self) -> str:
        return user_of(self.job.metadata, self.job.spec.adopts)

    @property
    def gpus(self) -> int:
        requests = (requests_of(role.template.spec) for role, _ in self.nodes)
        return sum(request.get(GPU, 0) for request in requests)

    @property
    def distinct(self) -> set[str]:
        return {node for _, node in self.nodes}


@dataclass(slots=True)
class _Wait:
    """Since when a job has waited for borrowers of its team's nodes, and on which nodes."""

    key: ObjectKey
    nodes: frozenset[str]
    since: float


@dataclass(slots=True)
class TeamChecker(Observer):
    """An `Observer` that is fed with teams, too. Its model is for other checkers as well."""

    #: By PriorityClass; 0 for a job without one.
    priorities: Mapping[str, int]
    #: The bounds below count the time in which the teams controller or the scheduler works.
    working: WorkingTime = field(default_factory=WorkingTime)
    #: How long borrowers may keep nodes that their owner's first job waits for.
    reclaim_seconds_max: float = 1800.0
    #: How long the taints may differ from the shares while neither shares nor health change.
    taints_seconds_max: float = 300.0
    model: TeamModel = field(default_factory=TeamModel)
    #: What was seen, so that a world without any is noticed.
    borrowed: int = 0
    compared: int = 0
    limited: int = 0
    _nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    _jobs: dict[ObjectKey, _JobModel] = field(default_factory=dict[ObjectKey, _JobModel])
    #: Of them, those of each team that are in the queue.
    _queued: dict[str, dict[ObjectKey, _JobModel]] = field(
        default_factory=lambda: defaultdict[str, dict[ObjectKey, _JobModel]](dict)
    )
    #: When a spec or the health of a node changed last, on the clock of the teams controller.
    _disturbed_at: float = float("-inf")
    #: True where anything that the taints follow from has changed since they were compared last.
    _is_to_compare: bool = True
    _waits: dict[str, _Wait] = field(default_factory=dict[str, _Wait])
    #: By team and node: when a job of the team gave the node back. Until a decision sees that, the
    #: node counts as borrowed already.
    _left_at: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    # Changes

    def team(self, new: Team | None, name: str, now: float) -> None:
        """Take in a team."""
        if self.model.team(new, name, now):
            self._is_to_compare = True
            self._disturbed_at = self.working.seconds(TEAMS, now)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """4: no node ever has the taints of two teams."""
        teams = team_taints(new)
        if len(teams) > 1:
            raise PromiseBroken(f"4: node {name} has the taints of teams {', '.join(teams)}")
        before = self._nodes.get(name)
        has_changed = is_healthy(new) != is_healthy(before)
        if has_changed or (new and before and offers_all(new) != offers_all(before)):
            self._disturbed_at = self.working.seconds(TEAMS, now)
        self._is_to_compare |= _compared(new) != _compared(before)
        self.model.node(new, name, now)
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """4: a placement borrows within the limits that its team and the owners set."""
        before = self._jobs.pop(key, None)
        after = self._model_of(new) if new is not None and not new.is_finished else None
        if before is not None:
            self._queued[before.team].pop(key, None)
            for node in before.distinct - (after.distinct if after is not None else set()):
                self._left_at[before.team, node] = now
        if new is None or after is None:
            return
        self._jobs[key] = after
        if phase_of(after.job) is Phase.QUEUED:
            self._queued[after.team][key] = after
        if before is not None and after.nodes and not before.nodes:
            self._check_job_limits(key, after, now)
        if before is None or after.nodes == before.nodes or new.spec.adopts is not None:
            return
        taken = after.distinct - before.distinct
        borrowed = {node for node in taken if self._is_foreign(node, after.team, now)}
        if not borrowed:
            return
        others = [j for k, j in self._jobs.items() if k != key]
        new_to_team = borrowed - {n for j in others if j.team == after.team for n in j.distinct}
        if now - self.model.changed_at <= STALE_SECONDS:
            return
        self.borrowed += len(new_to_team)
        new_to_team -= {n for n in borrowed if self._had_lately(after.team, n, now)}
        if new_to_team:
            self._check_borrowing(key, after, now)
            self._check_lending(key, after, new_to_team, now)

    def _model_of(self, job: Job) -> _JobModel:
        placement, roles = job.status.placement, {role.name: role for role in job.spec.roles}
        given_back = job.status.vacant
        return _JobModel(
            job,
            self.priorities.get(job.spec.priority_class_name, 0),
            placement.team if placement is not None else self.model.team_of(job),
            tuple(
                (roles[role.role], node)
                for role in (placement.roles if placement is not None else ())
                for i, node in enumerate(role.nodes)
                if (role.role, i) not in given_back
            ),
        )

    # Limits

    def _check_job_limits(self, key: ObjectKey, job: _JobModel, now: float) -> None:
        """4: with a new place, the jobs of the team and of the user are within their limits."""
        spec = self.model.specs.get(job.team)
        if spec is None or now - self.model.changed_at <= STALE_SECONDS:
            return
        if spec.limits == spec.user_limits == JobLimits():
            return
        of_team = [other for other in self._jobs.values() if other.team == job.team]
        of_user = [other for other in of_team if other.user == job.user]
        for whose, limits, jobs in (
            (f"team {job.team}", spec.limits, of_team),
            (f"user {job.user!r} of team {job.team}", spec.user_limits, of_user),
        ):
            held = [other for other in jobs if other.nodes]
            self.limited += limits != JobLimits()
            for what, count, limit in (
                ("jobs with nodes", len(held), limits.running),
                ("unfinished jobs that started", len(held), limits.submitted),
                ("GPUs", sum(other.gpus for other in held), limits.gpus),
            ):
                if limit is not None and count > limit:
                    why = f"4: with {key} {whose} has {count} {what}, its limit is {limit}"
                    raise PromiseBroken(why)

    def _is_foreign(self, node: str, team: str, now: float) -> bool:
        """True for a node that has been another team's for so long that every decision saw it."""
        is_old = now - self.model.owned_since.get(node, now) > STALE_SECONDS
        return is_old and self.model.owner.get(node, "") not in ("", team)

    def _had_lately(self, team: str, node: str, now: float) -> bool:
        """True where a decision may not have seen that a job of the team left the node."""
        return now - self._left_at.get((team, node), float("-inf")) <= STALE_SECONDS

    def _check_borrowing(self, key: ObjectKey, job: _JobModel, now: float) -> None:
        spec = self.model.specs.get(job.team)
        if spec is None or job.priority > spec.borrow_priority_max:
            raise PromiseBroken(f"4: {key} of team {job.team or 'none'} may not borrow, and does")
        held = {n for j in self._jobs.values() if j.team == job.team for n in j.distinct}
        count = sum(self._is_foreign(node, job.team, now) for node in held)
        limit = spec.borrow_limit_nodes
        if limit is not None and count > limit:
            raise PromiseBroken(
                f"4: with {key} team {job.team} borrows {count} nodes, its limit is {limit}"
            )

    def _check_lending(
        self, key: ObjectKey, job: _JobModel, taken: Iterable[str], now: float
    ) -> None:
        lent = defaultdict[str, set[str]](set)
        for other in self._jobs.values():
            for node in other.distinct:
                if self._is_foreign(node, other.team, now):
                    lent[self.model.owner[node]].add(node)
        owners = self.model.owner
        before = {
            node for other in self._jobs.values() if other is not job
            for node in other.distinct if other.team != owners[node]
        }  # fmt: skip
        before |= {
            node for team, node in self._left_at
            if team != owners[node] and self._had_lately(team, node, now)
        }  # fmt: skip
        for owner in sorted({owners[node] for node in taken if node not in before}):
            spec = self.model.specs.get(owner)
            limit = spec.lend_limit_nodes if spec is not None else None
            if limit is not None and len(lent[owner]) > limit:
                raise PromiseBroken(
                    f"4: with {key} team {owner} lends {len(lent[owner])} nodes, its limit is "
                    f"{limit}"
                )

    # By the clock

    def check_by_clock(self, now: float) -> None:
        """4: taints meet the shares, and no team waits for what it has lent."""
        if not self.model.specs and not any(self.model.owner.values()):
            return
        if self.working.seconds(TEAMS, now) - self._disturbed_at > self.taints_seconds_max:
            if self._is_to_compare:
                self.check_taints()
            self._is_to_compare = False
        for team in sorted(self.model.specs):
            self._check_reclaim(team, now)

    def check_taints(self) -> None:
        """4: every share has its nodes, if healthy nodes suffice for all, and no more."""
        healthy = [name for name, node in sorted(self._nodes.items()) if is_healthy(node)]
        if 2 * len(healthy) < len(self._nodes):
            return  # no node changes hands on what may be a fault of what reports health
        if not all(offers_all(self._nodes[name]) for name in healthy):
            return  # a share in GPUs takes another number of nodes
        self.compared += 1
        wanted = [(team, share, self._count(share))
                  for team, spec in sorted(self.model.specs.items())
                  for share in spec.shares]  # fmt: skip
        has: dict[str, int] = defaultdict(int)
        for name in healthy:
            has[self.model.owner.get(name, "")] += 1
        for team in sorted(set(has) - {""}):
            if team not in self.model.specs:
                raise PromiseBroken(f"4: team {team} is gone, and has {has[team]} nodes")
        can_all_be_met = _matches(
            [
                ([n for n in healthy if _selects(share, self._nodes[n])], count)
                for _, share, count in wanted
            ]
        )
        for team in sorted(self.model.specs):
            promised = sum(count for other, _, count in wanted if other == team)
            if has[team] > promised or (can_all_be_met and has[team] < promised):
                raise PromiseBroken(
                    f"4: team {team} has {has[team]} healthy nodes, its shares are {promised}"
                )

    def _count(self, share: Share) -> int:
        """Return the nodes of a share; all nodes of a simulated world have as many GPUs."""
        if share.gpus is None:
            return share.nodes or 0
        node = next(iter(self._nodes.values()))
        per_node = resources_to_base(node.status.allocatable).get(GPU, 0)
        return -(-share.gpus // max(per_node, _GPUS_PER_NODE_MIN))

    def _check_reclaim(self, team: str, now: float) -> None:
        now = self.working.seconds(SCHEDULER, now)
        waiting = self._waits.pop(team, None)
        first = self._first_waiting(team)
        if first is None or _keeps_waiting(self.model.specs[team]):
            return
        key, job = first
        if job.job.spec.topology is not None:
            return
        own = frozenset(
            name for name, node in self._nodes.items()
            if self.model.owner.get(name) == team and is_healthy(node)
        )  # fmt: skip
        if not own:
            return
        is_lent = not self._has_room(job, own, self._jobs.values())
        if not is_lent and _has_rules(job.job):
            return  # it may be that other pods are in its way
        stay = [other for other in self._jobs.values() if not self._gives_way(other, team)]
        if is_lent and not self._has_room(job, own, stay):
            return
        since = now
        if waiting is not None and (waiting.key, waiting.nodes) == (key, own):
            since = waiting.since
        self._waits[team] = _Wait(key, own, since)
        if now - since > self.reclaim_seconds_max:
            raise PromiseBroken(
                f"4: {key} of team {team} has waited {now - since:.0f} s for nodes of its team "
                f"that {'others borrow' if is_lent else 'are free'}"
            )

    def _first_waiting(self, team: str) -> tuple[ObjectKey, _JobModel] | None:
        waiting = (
            (-job.priority, job.job.metadata.creation_timestamp or "", key)
            for key, job in self._queued[team].items()
        )
        first = min(waiting, default=None)
        return None if first is None else (first[2], self._jobs[first[2]])

    def _gives_way(self, job: _JobModel, team: str) -> bool:
        """True for a borrower that runs: others end their attempts by themselves, or soon."""
        is_running = phase_of(job.job) in (Phase.ACTIVE, Phase.PLACED)
        return job.team != team and is_running and job.job.spec.adopts is None

    def _has_room(self, job: _JobModel, nodes: Iterable[str], others: Iterable[_JobModel]) -> bool:
        """True when the members of a job find room on nodes, first fit, beside other jobs."""
        left = {n: resources_to_base(self._nodes[n].status.allocatable) for n in sorted(nodes)}
        for other in others:
            for role, node in other.nodes:
                if node in left:
                    _take(left[node], requests_of(role.template.spec))
        for role in job.job.spec.roles:
            request = requests_of(role.template.spec)
            for _ in range(role.least):
                found = next((n for n, room in left.items() if _fits(room, request)), None)
                if found is None:
                    return False
                _take(left[found], request)
        return True


def _has_rules(job: Job) -> bool:
    """True where pods near its own matter, by its own rules or by those of others."""
    pods = [role.template for role in job.spec.roles]
    return any(
        pod.metadata.labels or pod.spec.affinity or any(c.ports for c in pod.spec.containers)
        for pod in pods
    )


def _keeps_waiting(spec: TeamSpec) -> bool:
    """True where a job of the team may wait although it would fit."""
    is_unlimited = spec.limits == spec.user_limits == JobLimits()
    return spec.budget.gpu_hours is not None or not is_unlimited


def _take(room: dict[str, int], request: Mapping[str, int]) -> None:
    for resource, amount in request.items():
        room[resource] = room.get(resource, 0) - amount


def _fits(room: Mapping[str, int], request: Mapping[str, int]) -> bool:
    return all(room.get(resource, 0) >= amount for resource, amount in request.items())


def _selects(share: Share, node: Node) -> bool:
    return share.node_selector.items() <= node.metadata.labels.items()


def _compared(node: Node | None) -> tuple[object, ...]:
    """Return all of a node that the taints are compared by."""
    if node is None:
        return ()
    status = node.status
    amounts = (status.allocatable, status.capacity)
    return is_healthy(node), node.metadata.labels, team_taints(node), amounts


def _matches(choices: list[tuple[list[str], int]]) -> bool:
    """True when each share can have its count of nodes of its choices: bipartite matching, after
    Kuhn. A node that is taken stays taken, so none of a share's choices is tried twice.
    """
    taken: dict[str, int] = {}
    free = [iter(nodes) for nodes, _ in choices]

    def place(number: int, seen: set[int]) -> bool:
        node = next((node for node in free[number] if node not in taken), None)
        if node is not None:
            taken[node] = number
            return True
        for node in choices[number][0]:
            other = taken[node]
            if other not in seen:
                seen.add(other)
                if place(other, seen):
                    taken[node] = number
                    return True
        return False

    numbers = (number for number, (_, count) in enumerate(choices) for _ in range(count))
    return all(place(number, {number}) for number in numbers)
