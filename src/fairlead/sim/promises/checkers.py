"""Independent checkers of the promises, fed with every committed write of the store.

They share no code with the scheduler or the jobs controller: each keeps a small model of its own
from the typed objects and raises `PromiseBroken` at the very write that breaks a promise, so that
the last line of the event log is the culprit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.kubernetes.core import Node, Pod, PodSpec
from fairlead.api.meta import OwnerReference
from fairlead.api.values.quantity import resources_to_base
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import ObjectKey
from fairlead.model.pools.balloons import is_balloon
from fairlead.model.pools.yielding_tests import is_yielding
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS
from fairlead.sim.observers.working_time import JOBS, WorkingTime

#: (role, index) of a member
MemberKey = tuple[str, int]

#: Where balloons are.
_BALLOONS = LeaderOptions().namespace
_TESTS = HealthPolicy().test_namespace
#: Pods of another tool run on while a replacement for a lost node is looked for.
_REPAIR_SECONDS = 300.0


def offers_all(node: Node) -> bool:
    """True for a node none of whose GPUs has failed."""
    return node.status.allocatable == node.status.capacity


@dataclass(slots=True)
class _JobModel:
    """What one job claims and which of its pods are alive."""

    uid: str
    attempt: int = 0
    finished: bool = False
    #: Represents pods of another tool: those that run stay while others move as the next attempt.
    adopts: bool = False
    #: Seats of the placement that are given back.
    vacant: frozenset[MemberKey] = frozenset()
    sizes: dict[str, int] = field(default_factory=dict)
    requests: dict[str, dict[str, int]] = field(default_factory=dict)
    claims: dict[MemberKey, str] = field(default_factory=dict)
    placed_attempt: int = 0
    #: Of the current attempt; of an adopted job, those whose pods are still there.
    succeeded: set[MemberKey | None] = field(default_factory=set)
    partial_since: float | None = None  # on the clock of the jobs controller


@dataclass(slots=True)
class _Shrunk:
    """A node that offers less than it did; what it was given before, by resource, may stay."""

    at: float
    excess: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _PodModel:
    """A live pod. `job` and `uid` are of its controller, of its labels where that is a tool's."""

    node: str
    requests: dict[str, int]
    job: ObjectKey | None
    uid: str
    is_adopted: bool
    member: MemberKey | None
    attempt: int
    runs: bool
    is_leaving: bool


class Checkers:
    """All checkers over one model of the world. Call `job`, `pod` and `node` at every change.

    The grace period of a partly running gang counts the time in which a jobs controller works.
    """

    def __init__(
        self, *, partial_seconds_max: float = 120.0, working: WorkingTime | None = None
    ) -> None:
        self.checked = 0
        self._working = working or WorkingTime()
        self._partial_seconds_max = partial_seconds_max
        self._jobs: dict[ObjectKey, _JobModel] = {}
        self._pods: dict[ObjectKey, _PodModel] = {}
        self._capacity: dict[str, dict[str, int]] = {}
        self._shrunk: dict[str, _Shrunk] = {}
        self._now = 0.0
        self._claimed: defaultdict[str, defaultdict[str, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        self._uncovered: defaultdict[str, dict[ObjectKey, dict[str, int]]] = defaultdict(dict)
        self._pods_of: defaultdict[ObjectKey, dict[ObjectKey, _PodModel]] = defaultdict(dict)
        #: Since when each node is cordoned.
        self._cordoned: dict[str, float] = {}
        #: Who was evicted from a node since it was cordoned: node -> job -> attempt.
        self._evicted: defaultdict[str, dict[ObjectKey, int]] = defaultdict(dict)
        #: Pods that had ended and that a drain removed: after the end of their job a creation of
        #: one that got no answer may still arrive, and finds its name free.
        self._removed: set[ObjectKey] = set()
        self.evictions = 0
        self.accepted: set[ObjectKey] = set()
        self.finished: dict[ObjectKey, Job] = {}

    # Changes

    def node(self, new: Node | None, old: Node | None, now: float) -> None:
        """A node was added, changed or removed."""
        self.checked, self._now = self.checked + 1, now
        if new is not None and new.spec.unschedulable:
            self._cordoned.setdefault(new.metadata.name, now)
        elif (name := (new or old or Node()).metadata.name) in self._cordoned:
            del self._cordoned[name]
            self._evicted.pop(name, None)
        if new is not None:
            self._set_capacity(new.metadata.name, resources_to_base(new.status.allocatable))
        elif old is not None:
            self._capacity.pop(old.metadata.name, None)
            self._shrunk.pop(old.metadata.name, None)

    def job(self, new: Job | None, old: Job | None, now: float) -> None:
        """A job was added, changed or removed."""
        self.checked, self._now = self.checked + 1, now
        some = new or old
        assert some is not None
        key = some.metadata.key
        if new is None:
            if key not in self.finished:
                self.accepted.discard(key)  # whether it may go: `jobs_checker.py`
            self._forget(key)
            return
        self.accepted.add(key)
        model = self._jobs.get(key)
        if model is None or model.uid != new.metadata.uid:
            self._forget(key)
            self.finished.pop(key, None)
            model = self._jobs[key] = _JobModel(
                uid=new.metadata.uid, adopts=new.spec.adopts is not None
            )
            for role in new.spec.roles:
                model.sizes[role.name] = role.count
                model.requests[role.name] = requests_of(role.template.spec)
        if model.finished and not new.is_finished:
            raise PromiseBroken(f"3: finished job {key} came back to life")
        if new.status.attempt < model.attempt:
            raise PromiseBroken(f"8: attempt of {key} fell to {new.status.attempt}")
        if new.status.attempt > model.attempt and not model.adopts:
            model.succeeded.clear()
        _check_success(new, model)
        model.attempt, model.finished = new.status.attempt, new.is_finished
        if new.is_finished:
            self.finished.setdefault(key, new)
        _check_size(new, model)
        _check_repair(new)
        self._claim(key, model, {} if new.is_finished else _claims(new, model))
        placed_before = model.placed_attempt
        model.placed_attempt = new.status.placement.attempt if new.status.placement else 0
        if model.placed_attempt > placed_before:
            self._check_cordons(key, model, now)
        self._check_gang(key, model, now)

    def pod(self, new: Pod | None, old: Pod | None, now: float) -> None:
        """A pod was added, changed or removed. Balloons, and tests that leave for work, hold
        nothing that a job could not have.
        """
        self.checked, self._now = self.checked + 1, now
        some = new or old
        assert some is not None
        if is_balloon(some, _BALLOONS) or is_yielding(some, _TESTS):
            return
        key = some.metadata.key
        before = self._pods.pop(key, None)
        if before is not None:
            self._uncovered[before.node].pop(key, None)
            if before.job is not None:
                self._pods_of[before.job].pop(key, None)
                self._cover(before.job, [before.member])
        if new is None and old is not None and old.is_terminal and _is_evicted(old):
            self._removed.add(key)
        if new is None or new.is_terminal or not new.spec.node_name:
            last = before if before is not None else _pod_model(some, {})
            job = self._owner(last)
            if last.job is not None and job is not None:
                if new is None and job.adopts:
                    job.succeeded.discard(last.member)
                elif new is not None and new.status.phase == "Succeeded":
                    job.succeeded.add(last.member)
                self._check_gang(last.job, job, now)
            return
        is_same_spec = before is not None and old is not None and new.spec is old.spec
        model = _pod_model(new, before.requests if before is not None and is_same_spec else None)
        self._pods[key] = model
        job = self._owner(model)
        if model.job is None or job is None:
            self._uncovered[model.node][key] = model.requests
            self._check_node(model.node)
            return
        self._pods_of[model.job][key] = model
        comes_late = job.finished and key in self._removed
        is_new = old is None and not comes_late
        self._check_attempts(model.job, job, model, is_new=is_new)
        self._note_eviction(new, old, model)
        if old is None:
            self._check_return(model.job, model)
        self._cover(model.job, [model.member])
        self._check_node(model.node)
        self._check_gang(model.job, job, now)

    def _owner(self, pod: _PodModel) -> _JobModel | None:
        """The job that a pod is of, by what the API server vouches for."""
        job = self._jobs.get(pod.job) if pod.job is not None else None
        if job is None or (job.uid, job.adopts) != (pod.uid, pod.is_adopted):
            return None
        return job

    # Accounting: claims of placements, plus pods that no claim covers

    def _forget(self, key: ObjectKey) -> None:
        model = self._jobs.pop(key, None)
        if model is not None:
            self._claim(key, model, {})
        self._pods_of.pop(key, None)

    def _claim(self, key: ObjectKey, model: _JobModel, claims: dict[MemberKey, str]) -> None:
        if claims == model.claims:
            return
        for (role, _), node in model.claims.items():
            for resource, amount in model.requests[role].items():
                self._claimed[node][resource] -= amount
        left = [node for node in model.claims.values() if node in self._shrunk]
        model.claims = claims
        for (role, _), node in claims.items():
            for resource, amount in model.requests[role].items():
                self._claimed[node][resource] += amount
        self._cover(key, [pod.member for pod in self._pods_of[key].values()])
        for node in dict.fromkeys((*left, *claims.values())):
            self._check_node(node)

    def _cover(self, key: ObjectKey, members: Iterable[MemberKey | None]) -> None:
        """A claim covers one pod per place, and no more of it than the place holds."""
        job, pods, wanted = self._jobs.get(key), self._pods_of[key], dict.fromkeys(members)
        claims = {} if job is None else job.claims
        requests = {} if job is None else job.requests
        covered = set[MemberKey]()
        for pod_key in sorted(k for k, pod in pods.items() if pod.member in wanted):
            pod = pods[pod_key]
            rest, member = pod.requests, pod.member
            if member is not None and member not in covered and claims.get(member) == pod.node:
                covered.add(member)
                held = requests[member[0]]
                rest = {r: max(0, amount - held.get(r, 0)) for r, amount in rest.items()}
            self._uncovered[pod.node][pod_key] = rest

    def free(self, node: str) -> dict[str, int]:
        """Return what is free on a node, by resource, in base units."""
        out = dict(self._capacity.get(node, {}))
        for used in (self._claimed[node], *self._uncovered[node].values()):
            for resource, amount in used.items():
                out[resource] = out.get(resource, 0) - amount
        return out

    # Promises

    def _set_capacity(self, node: str, capacity: dict[str, int]) -> None:
        before = self._capacity.get(node, {})
        self._capacity[node] = capacity
        if any(capacity.get(name, 0) < amount for name, amount in before.items()):
            excess = {name: -left for name, left in self.free(node).items() if left < 0}
            self._shrunk[node] = _Shrunk(self._now, excess)
        self._check_node(node)

    def _check_node(self, node: str) -> None:
        """1: a node is never given more than it has."""
        capacity, shrunk = self._capacity.get(node), self._shrunk.get(node)
        if capacity is None:
            return
        for resource, amount in sorted(self.free(node).items()):
            allowed = 0 if shrunk is None else shrunk.excess.get(resource, 0)
            if shrunk is not None and (
                -amount <= allowed or self._now <= shrunk.at + STALE_SECONDS
            ):
                shrunk.excess[resource] = max(-amount, 0)
            elif amount < 0:
                has = capacity.get(resource, 0)
                raise PromiseBroken(f"1: node {node} holds {has - amount} {resource}, it has {has}")

    def _check_attempts(
        self, job: ObjectKey, model: _JobModel, pod: _PodModel, *, is_new: bool
    ) -> None:
        """2 and 8: the members of two attempts are never alive together; pods follow a place."""
        attempts = sorted({other.attempt for other in self._pods_of[job].values()})
        if len(attempts) > 1 and not model.adopts:
            raise PromiseBroken(f"2: pods of attempts {attempts} of {job} are alive together")
        members = [other.member for other in self._pods_of[job].values()]
        if len(members) != len(set(members)):
            raise PromiseBroken(f"8: a member of {job} has two pods alive")
        if is_new and pod.attempt != model.placed_attempt:
            raise PromiseBroken(
                f"2: a pod of attempt {pod.attempt} of {job} is made without its place"
            )
        if is_new and not model.adopts and pod.member not in model.claims:
            raise PromiseBroken(f"2: a pod of {job} is made for {pod.member}, which has no place")

    def _check_gang(self, key: ObjectKey, model: _JobModel, now: float) -> None:
        """2: no gang is partly placed, and none runs partly beyond the grace period."""
        size = sum(model.sizes.values())
        if model.claims and len(model.claims) + len(model.vacant) != size:
            raise PromiseBroken(f"2: {len(model.claims)} of {size} members of {key} are placed")
        now = self._working.seconds(JOBS, now)
        runs = sum(1 for pod in self._pods_of[key].values() if pod.runs and not pod.is_leaving)
        if runs == 0 or runs + len(model.succeeded | model.vacant) >= size:
            model.partial_since = None
        elif model.partial_since is None:
            model.partial_since = now
        elif now - model.partial_since > self._partial_seconds_max + (
            _REPAIR_SECONDS if model.adopts else 0.0
        ):
            raise PromiseBroken(
                f"2: {runs} of {size} members of {key} have run alone for "
                f"{now - model.partial_since:.0f} s"
            )

    def _note_eviction(self, new: Pod, old: Pod | None, pod: _PodModel) -> None:
        """Note an eviction of a member of a job's present attempt, which ends with it."""
        job = self._jobs.get(pod.job) if pod.job else None
        if pod.job is None or job is None or job.attempt != pod.attempt:
            return
        if _is_evicted(new) and not (old is not None and _is_evicted(old)):
            self.evictions += 1
            if pod.node in self._cordoned:
                self._evicted[pod.node][pod.job] = pod.attempt

    def _check_return(self, job: ObjectKey, pod: _PodModel) -> None:
        """7: what is evicted from a node does not return to it while it is cordoned."""
        evicted = self._evicted[pod.node].get(job) if pod.node in self._cordoned else None
        if evicted is not None and pod.attempt > evicted:
            raise PromiseBroken(
                f"7: attempt {pod.attempt} of {job} is back on {pod.node}, which is cordoned and "
                f"from which attempt {evicted} was evicted"
            )

    def _check_cordons(self, key: ObjectKey, model: _JobModel, now: float) -> None:
        """7: no attempt begins on a cordoned node; pods of other tools stay where they run."""
        if model.adopts:
            return
        for node in model.claims.values():
            since = self._cordoned.get(node, now)
            if now > since + STALE_SECONDS:
                raise PromiseBroken(
                    f"7: attempt {model.placed_attempt} of {key} is placed on {node}, which has "
                    f"been cordoned for {now - since:.0f} s"
                )

    def check_partial(self, now: float) -> None:
        """2, by the clock: a gang may also stay partial because nothing happens to it."""
        for key, model in self._jobs.items():
            if model.partial_since is not None:
                self._check_gang(key, model, now)

    def adopts(self, key: ObjectKey) -> bool:
        """True for a job that represents pods of another tool."""
        model = self._jobs.get(key)
        return model is not None and model.adopts

    @property
    def unfinished_count(self) -> int:
        """How many accepted jobs have not ended."""
        return len(self.accepted) - len(self.finished)

    def unfinished(self) -> Iterator[ObjectKey]:
        """Yield the jobs that were accepted and have not ended, in key order."""
        return iter(sorted(self.accepted - self.finished.keys()))


def requests_of(spec: PodSpec) -> dict[str, int]:
    """Return what one pod asks for, in base units: together, or what the pod says as a whole."""
    total: dict[str, int] = {"pods": 1}
    for container in spec.containers:
        limits = dict(container.resources.limits)
        wanted = resources_to_base({**limits, **container.resources.requests})
        for resource, amount in wanted.items():
            total[resource] = total.get(resource, 0) + amount
    if spec.resources is not None:
        limits = resources_to_base(spec.resources.limits)
        total = {**limits, **total, **resources_to_base(spec.resources.requests)}
    return total


def _check_size(job: Job, model: _JobModel) -> None:
    """2: an attempt of an elastic job has from the least to all members of each role.

    `model.sizes` is then its size: that it has no other until the next attempt is for `_claims`.
    """
    placement = job.status.placement
    is_old = placement is None or placement.attempt == model.placed_attempt
    if placement is None or is_old or not job.is_elastic:
        return
    for role in job.spec.roles:
        size = placement.sizes.get(role.name, 0)
        if not role.least <= size <= role.count:
            raise PromiseBroken(
                f"2: role {role.name} of {job.metadata.key} has {size} places in attempt "
                f"{placement.attempt}, of {role.least} to {role.count} members"
            )
        model.sizes[role.name] = size


def _check_success(job: Job, model: _JobModel) -> None:
    """2: a gang succeeds once each of its members has."""
    size, ended = sum(model.sizes.values()), len(model.succeeded)
    is_new = job.status.state == JobState.SUCCEEDED.value and not model.finished
    if is_new and not model.adopts and ended < size:
        raise PromiseBroken(f"2: {job.metadata.key} succeeds with {ended} of {size} members")


def _check_repair(job: Job) -> None:
    """3: no elastic job of one role waits for replacements while it keeps its least members."""
    verdict, roles = job.status.verdict, job.spec.roles
    if verdict is None or verdict.reason != Reason.REPAIRING.value or len(roles) != 1:
        return
    kept = int(verdict.facts["members_kept"])
    if job.is_elastic and kept >= roles[0].least:
        raise PromiseBroken(
            f"3: {job.metadata.key} waits in repair with {kept} members, of which "
            f"{roles[0].least} are enough"
        )


def _claims(job: Job, model: _JobModel) -> dict[MemberKey, str]:
    placement = job.status.placement
    if placement is None:
        return {}
    claims: dict[MemberKey, str] = {}
    vacant = job.status.vacant
    for role in placement.roles:
        if len(role.nodes) != model.sizes.get(role.role):
            raise PromiseBroken(
                f"2: role {role.role} of {job.metadata.key} has {len(role.nodes)} places, "
                f"{model.sizes.get(role.role)} members"
            )
        places = {(role.role, i): node for i, node in enumerate(role.nodes)}
        claims.update({seat: node for seat, node in places.items() if seat not in vacant})
    model.vacant = vacant
    return claims


def _is_evicted(pod: Pod) -> bool:
    return any(
        c.type == "DisruptionTarget" and c.reason == "EvictionByEvictionAPI"
        for c in pod.status.conditions
    )


def _pod_model(pod: Pod, requests: dict[str, int] | None) -> _PodModel:
    """Return the model of a pod; `requests` where they are known."""
    labels, space = pod.metadata.labels, pod.metadata.namespace
    owner = _controller(pod)
    name = owner.name if owner is not None else labels.get(names.JOB_NAME)
    index = labels.get(names.INDEX, "")
    return _PodModel(
        node=pod.spec.node_name,
        requests=requests_of(pod.spec) if requests is None else requests,
        job=(space, name) if name else None,
        uid=owner.uid if owner is not None else labels.get(names.JOB_UID, ""),
        is_adopted=owner is None,
        member=(labels.get(names.ROLE, ""), int(index)) if index.isdecimal() else None,
        attempt=int(labels.get(names.ATTEMPT, "0")),
        runs=pod.status.phase == "Running",
        is_leaving=pod.metadata.deletion_timestamp is not None,
    )


def _controller(pod: Pod) -> OwnerReference | None:
    """Return the Fairlead job that controls a pod."""
    for owner in pod.metadata.owner_references:
        if owner.controller and (owner.api_version, owner.kind) == (names.API_VERSION, "Job"):
            return owner
    return None
