"""What others are promised, whatever the tenant does: watched at every committed write.

    nodes     no pod and no job of the tenant is on a node of another team
    gangs     no gang of others gives way to him, fails, or is placed where it should not be
    late      a new gang of others runs within a bound
    quota     his jobs hold no more than his quota has room for, also without pods
    service   no controller crashes; what he deletes goes
    accounts  what teams show as used, and the records of jobs, are what others did
    elements  which job is an element of which array is what the controllers said at its creation
    bytes     what controllers keep of his objects is bounded, and goes with them

What becomes of elements is promise 15, which `ArrayChecker` watches. The model is of the objects
alone and shares no code with the controllers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import OwnerReference, is_true
from fairlead.api.values.quantity import GPU, resources_to_base
from fairlead.decide.adoption.group_job import NAMED_KIND
from fairlead.decide.verdict import ObjectKey
from fairlead.history.memory import MemoryHistory
from fairlead.model.pools.grouping import is_gated
from fairlead.runtime.kept.history import HistoryQuery, JobRecord
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.promises.checkers import requests_of
from fairlead.sim.promises.team_model import team_taints
from fairlead.sim.tenants.calls import TENANT
from fairlead.sim.tenants.quota import GPUS_MAX

#: The namespaces of gangs on nodes that no team has, and of those that take such nodes from gangs
#: of a lower class, as the tenant's are.
SHARED, PREEMPTORS = "open", "urgent"
#: A gang of others for which there is room runs within this on nodes of its team; where plain pods
#: may take a node at the same moment, after another try.
LATE_SECONDS_MAX, SHARED_SECONDS_MAX = 10.0, 40.0
#: For so long his jobs may hold more than his quota has room for: places of one decision are many,
#: and the API server refuses the pods of those that are too many.
OVER_SECONDS_MAX = 15.0
#: Kept of one of his jobs that has ended.
RECORD_BYTES_MAX = 256 << 10
_RECORDS_MAX = 1_000_000
#: Entries that may come in addition with a round in which all that he made is deleted. Measured: 17
#: of caches.
KEPT_MAX, KEPT_PER_ROUND_MAX = 100, 40
#: How an attempt ends where another scheduler gave its node away, as it may one that no team has.
_TAKEN = ("NotBound",)
#: GPU-hours that a team shows are written at most every few minutes, and when they have changed.
_HOURS_PART, _HOURS = 0.05, 0.5


@dataclass(slots=True)
class _Gang:
    """A job, and what it holds."""

    uid: str
    team: str = ""
    created_at: float = 0.0
    is_running: bool = False
    is_over: bool = False
    attempts: int = 0
    gives_way_to: str = ""
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    is_adopted: bool = False
    array_uid: str = ""
    #: Of members, for devices.
    has_claims: bool = False
    is_of_others: bool = True


@dataclass(frozen=True, slots=True)
class _TenantPod:
    """A pod of the tenant. One that was given another controller has left its gang, and is a plain
    pod, whatever its labels say: it gives way to nothing, and counts for his quota as before.
    """

    node: str
    gpus: int
    gang_uid: str
    controller: OwnerReference | None
    has_left: bool


@dataclass(slots=True)
class Promises(Observer):
    """Feed it with every change of a job, a pod, a node and a team; PromiseBroken at the write.

    `own_team` is the tenant's own; "" where his namespace has none. `borrowers` are the namespaces
    whose gangs give way to those of other teams, `lenders` the namespaces that take nodes back.
    """

    own_team: str = ""
    borrowers: frozenset[str] = frozenset()
    lenders: frozenset[str] = frozenset()
    #: Groups of other tools' pods give way to gangs of a higher class, too.
    preempts_adopted: bool = False
    #: How often each was judged, so that a world that judges nothing is noticed.
    judged: Counter[str] = field(default_factory=Counter[str])
    _owner: dict[str, str] = field(default_factory=dict[str, str])
    _size: dict[str, int] = field(default_factory=dict[str, int])
    _gangs: dict[ObjectKey, _Gang] = field(default_factory=dict[ObjectKey, _Gang])
    #: The uids of the arrays that are there.
    _arrays: dict[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    _pods: dict[ObjectKey, _TenantPod] = field(default_factory=dict[ObjectKey, _TenantPod])
    _over_since: float | None = None
    #: Gated pods of others, and since when each waits.
    _guests: dict[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])
    #: Since when a gang that may take nodes from the tenant has waited where one could be taken.
    _room_since: dict[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])
    _ended: dict[str, tuple[ObjectKey, str]] = field(
        default_factory=dict[str, tuple[ObjectKey, str]]
    )
    _hours: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    _at: float = 0.0
    _teams: dict[str, Team] = field(default_factory=dict[str, Team])

    def nodes_of(self, team: str) -> list[str]:
        """Return the nodes of a team; of "" those that no team has."""
        return sorted(name for name, owner in self._owner.items() if owner == team)

    # Changes

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note whose a node is."""
        self._owner[name] = (team_taints(new) or [""])[0]
        gpus = resources_to_base(new.status.allocatable).get(GPU, 0) if new is not None else 0
        self._size[name] = gpus

    def team(self, new: Team | None, name: str) -> None:
        """Note what a team shows."""
        if new is not None:
            self._teams[name] = new

    def array(self, new: JobArray | None, key: ObjectKey, now: float) -> None:
        """Note that an array is there, or gone."""
        if new is None or new.metadata.deletion_timestamp is not None:
            self._arrays.pop(key, None)
        else:
            self._arrays[key] = new.metadata.uid

    def made(self, job: Job) -> None:
        """Judge what the tenant has created."""
        self.judged["elements"] += 1
        if array_uid_of(job) in self._arrays.values():
            raise PromiseBroken(f"elements: he made {job.metadata.key} an element of an array")

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """No pod of the tenant is on a node of another team; those of others wait not for long."""
        if key[0] != TENANT:
            if new is not None and is_gated(new):
                self._guests.setdefault(key, now)
            else:
                self._guests.pop(key, None)
            return
        before = self._pods.pop(key, None)
        if new is None or new.is_terminal:
            return
        if new.spec.node_name:
            self.check_node(new.spec.node_name, f"pod {key[0]}/{key[1]}")
        controller = next((o for o in new.metadata.owner_references if o.controller), None)
        gpus = requests_of(new.spec).get(GPU, 0)
        uid = new.metadata.labels.get(names.JOB_UID, "")
        left = before is not None and (before.has_left or before.controller != controller)
        self._pods[key] = _TenantPod(new.spec.node_name, gpus, uid, controller, left)

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Judge a job of his by where it is, and one of others by what becomes of it."""
        self._tick(now)
        gang = self._gangs.get(key)
        if new is None:
            self._gangs.pop(key, None)
            return
        if gang is None or gang.uid != new.metadata.uid:
            gang = self._gangs[key] = _Gang(new.metadata.uid, created_at=now)
            gang.is_adopted = new.spec.adopts is not None
            gang.array_uid = array_uid_of(new)
            gang.is_of_others = key[0] != TENANT
            gang.has_claims = any(r.template.spec.resource_claims for r in new.spec.roles)
        self._check_element(key, gang, array_uid_of(new))
        before, gang.nodes = gang.nodes, nodes_of(new.status.placement)
        gang.gpus = _gpus(new) if gang.nodes else 0
        gang.team = new.status.placement.team if new.status.placement is not None else ""
        gang.is_over = new.is_finished or is_true(new.status.conditions, names.FAILURE_TARGET)
        if gang.is_over:
            gang.nodes, gang.gpus = (), 0
        if gang.nodes != before:
            for node in gang.nodes:
                self._check_place(key, gang, node)
        if key[0] != TENANT:
            self._judge(key, gang, new, now)

    def _check_element(self, key: ObjectKey, gang: _Gang, uid: str) -> None:
        if gang.array_uid in self._arrays.values() and uid != gang.array_uid:
            raise PromiseBroken(f"elements: job {key[0]}/{key[1]} was taken out of its array")
        if uid not in ("", gang.array_uid):
            raise PromiseBroken(f"elements: job {key[0]}/{key[1]} was made an element")

    def _tick(self, now: float) -> None:
        for gang in self._gangs.values():
            if gang.team:
                self._hours[gang.team] += gang.gpus * (now - self._at) / 3600
        self._at = now

    def check_node(self, node: str, what: str) -> None:
        """Judge a node on which something of the tenant's is."""
        self.judged["nodes"] += 1
        owner = self._owner.get(node, "")
        if owner not in ("", self.own_team):
            raise PromiseBroken(f"nodes: {what} of the tenant is on {node} of team {owner}")

    def _check_place(self, key: ObjectKey, gang: _Gang, node: str) -> None:
        if key[0] == TENANT:
            self.check_node(node, f"job {key[0]}/{key[1]}")
            return
        owner = self._owner.get(node, "")
        if owner not in ("", gang.team) and key[0] not in self.borrowers:
            raise PromiseBroken(f"gangs: {key} is on {node} of team {owner}")

    def _judge(self, key: ObjectKey, gang: _Gang, new: Job, now: float) -> None:
        """A gang of others runs soon, gives way to owners only, and never fails."""
        self.judged["gangs"] += 1
        status = new.status
        gang.is_running = gang.is_running or status.state in ("Running", "Succeeded")
        preemption = status.preemption
        if preemption is not None and preemption.namespace not in self.lenders:
            whom = f"{preemption.namespace}/{preemption.name}" if preemption.uid else "no job"
            raise PromiseBroken(f"gangs: {key} gives way to {whom}")
        for attempt in status.attempts[gang.attempts :]:
            if attempt.finished_at is None:
                break
            gang.attempts += 1
            is_fine = attempt.reason in ("Succeeded", "Cancelled")
            is_owed = attempt.reason == "Preempted" and key[0] in self.borrowers
            is_taken = attempt.reason in _TAKEN and key[0] in (SHARED, PREEMPTORS)
            if not is_fine and not is_owed and not is_taken:
                why = f"{attempt.reason}: {attempt.message}"
                raise PromiseBroken(f"gangs: attempt {attempt.number} of {key} ended: {why}")
        if new.is_finished and status.state not in ("Succeeded", "Cancelled"):
            if not _is_lost_to_pods(new):
                raise PromiseBroken(f"gangs: {key} ended as {status.state}")
            self.judged["lost guests"] += 1
        if new.is_finished:
            self._ended[new.metadata.uid] = (key, status.state)

    # By the clock

    def check_by_clock(self, now: float) -> None:
        """Judge what takes time: gangs that do not run, and what the tenant holds."""
        self._tick(now)
        for key, gang in self.waiting():
            if gang.has_claims and key[0] in (SHARED, PREEMPTORS):
                continue  # `DevicePromises` judges it
            self.judged["late"] += 1
            since, most = gang.created_at, _late_seconds(key)
            if key[0] == PREEMPTORS:
                since = self._room_since.setdefault(key, now) if self._has_room() else now
                self._room_since[key] = since
            if now - since > most:
                raise PromiseBroken(f"late: {key} does not run {now - since:.0f} s on")
        for key, since in self._guests.items():
            self.judged["late guests"] += 1
            if now - since > _late_seconds(key):
                raise PromiseBroken(f"late: pod {key} is gated {now - since:.0f} s on")
        held = {key[1]: g.gpus for key, g in self._gangs.items() if key[0] == TENANT and g.gpus}
        self.judged["quota"] += bool(held)
        if sum(held.values()) <= GPUS_MAX:
            self._over_since = None
            return
        self._over_since = now if self._over_since is None else self._over_since
        if now - self._over_since > OVER_SECONDS_MAX:
            shown = ", ".join(f"{gpus} by {name}" for name, gpus in sorted(held.items()))
            raise PromiseBroken(
                f"quota: his jobs hold {sum(held.values())} GPUs, of {GPUS_MAX}: {shown}"
            )

    def waiting(self) -> Iterator[tuple[ObjectKey, _Gang]]:
        """Yield the gangs of others that have not run, but for those that borrow."""
        for key, gang in self._gangs.items():
            if not gang.is_of_others or gang.is_running or gang.is_over or key[0] in self.borrowers:
                continue
            if gang.is_adopted and gang.nodes:
                continue  # kube-scheduler binds its pods, and may have bound a plain one there
            yield key, gang

    def placed(self) -> Iterator[_Gang]:
        """Yield the gangs that have places."""
        return (gang for gang in self._gangs.values() if gang.nodes)

    def giving(self) -> set[str]:
        """Return the uids of the tenant's jobs that give way to those of a higher class."""
        return {
            gang.uid for gang in self._gangs.values()
            if not gang.is_of_others and (self.preempts_adopted or not gang.is_adopted)
        }  # fmt: skip

    def _has_room(self) -> bool:
        """True where a node of no team is used by nothing but jobs that give way."""
        giving = self.giving()
        kept = {
            node for gang in self._gangs.values() if gang.uid not in giving for node in gang.nodes
        }
        kept |= {
            pod.node for pod in self._pods.values()
            if pod.gpus and (pod.has_left or pod.gang_uid not in giving)
        }  # fmt: skip
        return any(node not in kept for node in self.nodes_of(""))

    # At rest

    def check_accounts(self) -> None:
        """Judge what teams show; nothing has happened for a while."""
        for name, team in sorted(self._teams.items()):
            if name in ("", self.own_team):
                continue
            self.judged["accounts"] += 1
            use, gangs = team.status.use, [g for g in self._gangs.values() if g.team == name]
            placed = [gang for gang in gangs if gang.nodes]
            own = {node for gang in placed for node in gang.nodes if self._owner[node] == name}
            all_nodes = {node for gang in placed for node in gang.nodes}
            expected = {
                "jobs_placed": len(placed),
                "gpus": sum(gang.gpus for gang in placed),
                "nodes_used": len(own),
                "nodes_borrowed": sum(self._owner[node] not in ("", name) for node in all_nodes),
                "nodes_lent": sum(
                    self._owner[node] == name
                    for node in {
                        node for gang in self._gangs.values() if gang.team != name
                        for node in gang.nodes
                    }
                ),
                "nodes_lent_to_pods": 0,
                "nodes": sum(owner == name for owner in self._owner.values()),
            }  # fmt: skip
            for field_name, value in expected.items():
                shown = getattr(team.status if field_name == "nodes" else use, field_name)
                if shown != value:
                    raise PromiseBroken(
                        f"accounts: team {name} shows {field_name} {shown}, not {value}"
                    )
            hours = self._hours[name]
            if abs(use.gpu_hours - hours) > _HOURS + _HOURS_PART * hours:
                raise PromiseBroken(
                    f"accounts: team {name} shows {use.gpu_hours:.2f} GPU-hours, not {hours:.2f}"
                )

    def check_kept(self, first: int, last: int, rounds: int) -> None:
        """Judge what controllers keep after the tenant has deleted all: entries of containers after
        the first round, and so many rounds later.
        """
        self.judged["bytes"] += 1
        if last > first + KEPT_MAX + KEPT_PER_ROUND_MAX * rounds:
            raise PromiseBroken(f"bytes: controllers keep {last} entries, and kept {first}")

    async def check_records(self, history: MemoryHistory) -> None:
        """Judge the records of ended jobs: those of others are exact, the tenant's are small."""
        pages = [page async for page in history.query(HistoryQuery(limit=_RECORDS_MAX))]
        found = [record for page in pages for record in page]
        of_others = {record.uid: record for record in found if record.namespace != TENANT}
        for uid, (key, state) in self._ended.items():
            record = of_others.pop(uid, None)
            self.judged["accounts"] += 1
            if record is None or (record.namespace, record.name, record.state) != (*key, state):
                raise PromiseBroken(f"accounts: the record of {key}, {state}, is {_shown(record)}")
        if of_others:
            forged = next(iter(of_others.values()))
            raise PromiseBroken(f"accounts: there is a record of {_shown(forged)}, which none ran")
        for record in found:
            self.judged["bytes"] += 1
            if record.namespace == TENANT and len(record.document) > RECORD_BYTES_MAX:
                raise PromiseBroken(
                    f"bytes: the record of {_shown(record)} has {len(record.document)} bytes"
                )


def array_uid_of(job: Job) -> str:
    """Return the uid of the array that controls a job; "" where none does."""
    owners = job.metadata.owner_references
    uids = [owner.uid for owner in owners if owner.controller and owner.kind == "JobArray"]
    return uids[0] if uids else ""


def _is_lost_to_pods(job: Job) -> bool:
    """True for pods of no controller that lost their node to a plain pod in the instant in which
    they got it: refused there for minutes, they were deleted, and nothing creates them again.
    """
    attempts, adopts = job.status.attempts, job.spec.adopts
    is_bare = adopts is not None and adopts.kind == NAMED_KIND
    return is_bare and bool(attempts) and attempts[-1].reason in _TAKEN


def _late_seconds(key: ObjectKey) -> float:
    return SHARED_SECONDS_MAX if key[0] in (SHARED, PREEMPTORS) else LATE_SECONDS_MAX


def _shown(record: JobRecord | None) -> str:
    if record is None:
        return "not there"
    return f"{record.namespace}/{record.name}, {record.state}"


def _gpus(job: Job) -> int:
    place = job.status.placement
    asked = {role.name: requests_of(role.template.spec) for role in job.spec.roles}
    return sum(
        asked.get(role.role, {}).get(GPU, 0) * len(role.nodes)
        for role in (place.roles if place is not None else ())
    )
