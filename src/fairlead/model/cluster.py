"""The cluster as a decision sees it: nodes, who uses them, jobs. Kept per event, in O(change).

    state = ClusterState()
    state.node_changed(node); state.pod_changed(pod); state.job_changed(job)      # in any order
    with state.transaction() as tx:       # what if? the same columns, put back at the end
        tx.take(slots, counts, member)

Events may come in any order and repeatedly; only the latest version of each object counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import Node, Pod, PriorityClass
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from fairlead.api.values.times import parse_time
from fairlead.model.adopted import as_stated
from fairlead.model.asks.image_pulls import is_pull
from fairlead.model.asks.neighbours import (
    Term,
    TermTable,
    job_terms,
    member_labels,
    rules_of_pod,
    states_rules,
)
from fairlead.model.asks.priorities import PriorityTable, Unresolved, placed_priority
from fairlead.model.asks.requests import RequestReader, counts
from fairlead.model.asks.teams import TeamTable, UnresolvedTeam, owner_of
from fairlead.model.asks.topology import Level
from fairlead.model.claim_rows import follow_rows
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.claimed.job_claims import NO_CLAIMS, claims_of
from fairlead.model.claimed.job_reaches import Unusable, judge_claims, read_claims, use_claims
from fairlead.model.claimed.volumes import Reaches, VolumeTable, turn_of
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey, gang_of
from fairlead.model.gang.job_users import user_of
from fairlead.model.gang.phase import Phase, is_failing, phase_of
from fairlead.model.health.windows import hold_seconds
from fairlead.model.holdings.claims import claim_of
from fairlead.model.holdings.completion import ends_at
from fairlead.model.holdings.forfeits import Forfeit
from fairlead.model.holdings.held_ends import HeldEnds
from fairlead.model.holdings.ledger import Ledger
from fairlead.model.holdings.quotas import QuotaTable
from fairlead.model.holdings.suspects import SuspectTable
from fairlead.model.holdings.team_use import JobUse, TeamUses
from fairlead.model.inventory.fits import FitTable
from fairlead.model.inventory.nodes import NodeTable
from fairlead.model.inventory.reserved_nodes import NodeReservation, reserved_by
from fairlead.model.inventory.volume_limits import NO_LIMITS, StatedLimits
from fairlead.model.job_entry import JobEntry, JobObserver, use_of
from fairlead.model.pools.balloons import is_balloon
from fairlead.model.pools.consolidation import ConsolidatingPools
from fairlead.model.pools.yielding_tests import is_yielding
from fairlead.model.transaction import Transaction

T = TypeVar("T")


class ClusterState:
    """Nodes, claims, pods and jobs.

    `priorities` resolves the jobs' priorities. Without it their `spec.priority` is taken as it
    stands, which is for clients that explain a cluster and may not list its PriorityClasses.
    `levels` are those of the topology, widest first. `balloon_namespace`: see `pools/balloons.py`.
    """

    def __init__(
        self,
        priorities: PriorityTable | None = None,
        levels: Sequence[Level] = (),
        *,
        balloon_namespace: str = "",
    ) -> None:
        self._priorities = priorities
        self.levels = tuple(levels)
        self.balloon_namespace = balloon_namespace
        self.reader = RequestReader()
        self.table = NodeTable(self.reader)
        self.fits = FitTable(self.table)
        self.terms = TermTable()
        self.ledger = Ledger(self.table, self.reader, self.terms, self._pod_counts)
        self.quotas = QuotaTable()
        self.pools = ConsolidatingPools()
        self.teams = TeamTable()
        self.uses = TeamUses()
        #: What all nodes have of each resource that counts, and the version of the nodes then.
        self._totals: tuple[int, dict[str, int]] = (-1, {})
        self.suspects = SuspectTable()
        self.volumes = VolumeTable()
        self.devices = DeviceTable()
        #: Every job known, finished ones too.
        self.jobs: dict[JobKey, JobEntry] = {}
        self.held_ends = HeldEnds()
        #: Rises with each change of `JobEntry.ends_at`.
        self.ends_version = 0
        self._forfeits: dict[JobKey, Forfeit] = {}
        self._uncertain: dict[JobKey, Placement] = {}  # what `book_uncertain` was called with
        #: Some node has a maintenance window or is reserved: it matters how long jobs may run.
        self._has_windows = False
        self._reserved: tuple[NodeReservation, ...] = ()
        self._job_observers: list[JobObserver] = []

    @classmethod
    def of(
        cls,
        nodes: Iterable[Node] = (),
        jobs: Iterable[Job] = (),
        pods: Iterable[Pod] = (),
        priorities: PriorityTable | None = None,
        *,
        teams: Iterable[Team] = (),
        pools: Iterable[NodePool] = (),
        quotas: Iterable[ResourceQuota] = (),
        claims: Iterable[PersistentVolumeClaim] = (),
        volumes: Iterable[PersistentVolume] = (),
        storage_classes: Iterable[StorageClass] = (),
        limits: StatedLimits = NO_LIMITS,
        devices: DeviceTable | None = None,
        levels: Sequence[Level] = (),
        balloon_namespace: str = "",
        contains: bool = False,
    ) -> ClusterState:
        """Build a state from lists, taken in as a process takes them in (`cluster_world.py`).

        With `contains`, objects that cannot be taken in are left out; without, their errors rise.
        """
        state = cls(priorities, levels, balloon_namespace=balloon_namespace)
        for team in teams:
            state.team_changed(team.metadata.name, team)
        state.volumes = VolumeTable(claims, volumes, storage_classes, limits)
        state.devices = devices or DeviceTable()
        for pool in pools:
            state.pools.set_pool(pool.metadata.name, pool)
            state.devices.pools.put_template(pool.metadata.name, pool.spec.template.devices)
        _take(nodes, state.node_changed, contains=contains)
        _take(jobs, state.job_changed, contains=contains)
        _take(pods, state.pod_changed, contains=contains)
        _take(quotas, state.quotas.put, contains=contains)
        state.follow_claims()
        return state

    def on_job_change(self, observer: JobObserver) -> Callable[[], None]:
        """Call `observer` after each change of a job was taken in; return what ends it."""
        self._job_observers.append(observer)
        return lambda: self._job_observers.remove(observer)

    def moved(self) -> Iterator[tuple[Job, Placement]]:
        """Yield the jobs that another scheduler has put elsewhere, and where they are now."""
        for key, attempt, roles in self.ledger.moved():
            job = self.jobs[key].job
            old = job.status.placement
            if old is not None and attempt == str(old.attempt) == str(job.status.attempt):
                yield job, replace(old, roles=roles)

    def transaction(self) -> Transaction:
        """Begin a what-if; use it in a `with` statement."""
        return Transaction(self.table, self.fits, self.ledger)

    def node_changed(self, node: Node) -> None:
        """Take in a node, new or changed."""
        self.uses.set_owner(node.metadata.name, owner_of(node.spec.taints))
        for resource in self.table.set_node(node):
            self.ledger.book_resource(resource)
        self.suspects.put_node(node)
        self._follow_windows()

    def node_deleted(self, name: str) -> None:
        """Take in that a node is gone."""
        self.uses.set_owner(name, "")
        self.table.remove_node(name)
        self.suspects.remove_node(name)
        self._follow_windows()

    def pod_changed(self, pod: Pod) -> bool:
        """Take in a pod, new or changed; False when nothing follows that a decision could see.

        Balloons, pulls of images and tests that yield use nothing: they leave for every gang.
        """
        own = self.balloon_namespace
        if is_balloon(pod, own) or is_pull(pod) or is_yielding(pod, own):
            return self.pod_deleted(pod.metadata.key)
        versions = self._versions(pod.metadata.namespace)
        is_bound = bool(pod.spec.node_name) and not pod.is_terminal
        if self.terms or states_rules(pod.spec):
            self._hold(("pod", pod.metadata.key), rules_of_pod(pod).terms if is_bound else ())
        self.pools.set_pod(pod)
        is_seen = self.ledger.set_pod(pod)
        if pod.spec.volumes:  # of a pod with a node they do not change
            is_seen |= self.volumes.put_pod(pod.metadata.key, pod)
        if pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None:
            is_seen |= self.devices.put_pod(pod.metadata.key, is_there=is_bound)
        return is_seen or versions != self._versions(pod.metadata.namespace)

    def pod_deleted(self, key: JobKey) -> bool:
        """Take in that a pod is gone; False when nothing follows that a decision could see."""
        versions = self._versions(key[0])
        self.pools.remove_pod(key)
        self._hold(("pod", key), ())
        was_seen = self.volumes.put_pod(key, None) | self.ledger.remove_pod(key)
        was_seen |= key in self.devices.pods and self.devices.put_pod(key, is_there=False)
        return was_seen or versions != self._versions(key[0])

    def _versions(self, namespace: str) -> tuple[int, int, int]:
        """Return what rises when a pod of a namespace matters to decisions besides what it uses."""
        held = self.ledger.held_places.version(namespace) if namespace in self.quotas else 0
        return (self.terms.version, self.pools.version, held)

    def _hold(self, owner: tuple[str, JobKey], terms: tuple[Term, ...]) -> None:
        """Set the terms of a pod or a job, and mark pods and jobs that match new ones.

        Jobs lose the marks of terms that no pod or job has any more. Those of pods stay: there is
        nothing left that they could be in the way of.
        """
        if not (terms or self.terms):
            return
        new, gone = self.terms.hold(owner, terms)
        for term in new:
            self.ledger.mark_pods(term, is_known=True)
        for term in (*new, *gone):
            for entry in list(self.jobs.values()):
                job = entry.job
                is_selected = any(
                    term.selects(job.metadata.namespace, member_labels(job, role))
                    for role in job.spec.roles
                )
                is_owner = ("job", job.metadata.key) == owner
                if is_selected and not job.is_finished and not is_owner:
                    self.job_changed(job)

    def priority_class_changed(self, name: str, found: PriorityClass | None) -> None:
        """Take in a PriorityClass, or that it is gone; walks all jobs, since classes are few."""
        if self._priorities is None:
            return
        if found is None:
            self._priorities.remove(name)
        else:
            self._priorities.put(found)
        self._take_in_again()

    def team_changed(self, name: str, found: Team | None) -> None:
        """Take in a team, or that it is gone; walks all jobs if more than its status changed."""
        if found is not None:
            self.uses.restore(found)
        version = self.teams.namespaces_version
        has_changed = self.teams.remove(name) if found is None else self.teams.put(found)
        if version != self.teams.namespaces_version:
            self.uses.forget_pods()
            for namespace, claim, node in self.ledger.uncovered():
                self._charge_pod(namespace, claim, node, 1)
        if not has_changed:
            return
        reserved = reserved_by(self.teams)
        if reserved != self._reserved:
            self._reserved = reserved
            self.table.reserve(reserved)
            self._has_windows = bool(self.table.windows)
        self._take_in_again()

    def _pod_counts(self, namespace: str, claim: str, node: str, sign: int) -> None:
        self.pools.add_uncovered(node, sign)
        self._charge_pod(namespace, claim, node, sign)

    def _charge_pod(self, namespace: str, claim: str, node: str, sign: int) -> None:
        """Count a pod that no claim covers for the team of its namespace, or with -1 no more."""
        team = self.teams.resolve(claim, namespace) if len(self.teams) else ""
        if isinstance(team, str) and team:
            self.uses.add_pod(team, node, sign)

    def advance_shares(self, now: float) -> None:
        """Take in the time that has passed in what the teams have used of the cluster."""
        if not len(self.teams):
            return
        if self.uses.restored_idle:
            placed = ((key, entry.job.status.placement) for key, entry in self.jobs.items())
            since = ((key, each.placed_at) for key, each in placed if each is not None)
            self.uses.begin_restored(((k, parse_time(at)) for k, at in since if at), now)
        table = self.table
        if self._totals[0] != table.nodes_version:
            owned = {n: int(table.owned(n)[table.exists].sum()) for n in table.resources}
            self._totals = table.nodes_version, {n: owned[n] for n in owned if counts(n)}
        self.uses.advance(now, self._totals[1])

    def _follow_windows(self) -> None:
        """Take in the first maintenance window, or that none is left; walks all jobs."""
        if self._has_windows != bool(self.table.windows):
            self._has_windows = not self._has_windows
            self._take_in_again()

    def follow_claims(self) -> None:
        """Take in what has changed of claims, volumes and devices, once after many changes."""
        if self.devices.resources.pop_changed():
            self._take_in_again()
        for key in follow_rows(self.volumes, self.devices, self.table, self.ledger):
            entry = self.jobs[key]
            found = judge_claims(self.volumes, self.devices, entry.job, entry.claims)
            if found != entry.reaches:
                self.job_changed(entry.job)

    def _take_in_again(self) -> None:
        for entry in list(self.jobs.values()):
            if not entry.job.is_finished:
                self.job_changed(entry.job)

    def job_changed(self, job: Job) -> None:
        """Take in a job, new or changed."""
        job = as_stated(job)
        key = job.metadata.key
        before = self.jobs.get(key)
        self.suspects.put_job(key, job)
        phase, priority = phase_of(job), self._priority_of(job)
        team = self.teams.resolve(job.spec.team, job.metadata.namespace)
        same = before if before is not None and before.job.spec == job.spec else None
        if phase is Phase.FINISHED:
            self._hold(("job", key), ())
        elif same is None:
            self._hold(("job", key), job_terms(job))
        named = self.devices.resources
        claims = same.claims if same and same.version[3] == named.version else claims_of(job, named)
        reaches: Reaches | Unusable = ()
        if claims is not NO_CLAIMS or (before is not None and before.claims is not NO_CLAIMS):
            turn = turn_of(job, phase, priority)
            reaches = use_claims(self.volumes, self.devices, job, claims, turn=turn)
        version = (self.teams.version, self.terms.version, self._has_windows, named.version)
        basis = (priority, team, version, reaches)
        if same is not None and (same.priority, same.team, same.version, same.reaches) == basis:
            gang = same.gang
        elif same is not None and not isinstance(reaches, tuple) and job.status.placement:
            gang = same.gang  # members keep what they have of claims that no new pod could use
        else:
            gang = self._gang_of(job, priority, team, reaches)
            if before is not None and before.gang == gang:
                gang = before.gang
        entry = self.jobs[key] = JobEntry(
            job, gang, priority, team, hold_seconds(job), ends_at(job), phase,
            user_of(job.metadata, job.spec.adopts), version, self._may_preempt(job),
            claims, reaches,
        )  # fmt: skip
        self.ends_version += entry.ends_at != (None if before is None else before.ends_at)
        if key in self._forfeits and self._forfeits[key].is_over(job):
            del self._forfeits[key]
        if key in self._uncertain and before is not None and before.gang is not gang:
            self._book_placement(entry, self._uncertain[key])  # rules about pods are new
        self._claim(key, entry)
        self._notify(key, entry)

    def job_deleted(self, key: JobKey) -> None:
        """Take in that a job is gone; its claim goes with it, its pods are counted as pods."""
        before = self.jobs.pop(key, None)
        if before is None:
            return
        self.ends_version += before.ends_at is not None
        self._forfeits.pop(key, None)
        self._uncertain.pop(key, None)
        self.suspects.put_job(key, None)
        self._hold(("job", key), ())
        if before.claims is not NO_CLAIMS:
            self.volumes.leave(key)
            self.devices.leave(key)
        self.held_ends.put(key, None, has_moved=self.ledger.set_claim(key, None))
        self.ledger.set_nomination(key, None)
        self.uses.set_job(key, None)
        self._notify(key, None)

    def forfeit(self, job: Job, *, is_final: bool) -> None:
        """Count the placement of a job as given back, though the API refuses to record that.

        What pods the job has count as pods. The caller makes sure that no more pods are made for
        the placement. It ends when the placement is gone or its attempt begins; where `is_final`,
        when the job has ended. A job that has changed meanwhile is left as it is.
        """
        key = job.metadata.key
        entry = self.jobs.get(key)
        if entry is None or entry.job.metadata.resource_version != job.metadata.resource_version:
            return
        forfeit = Forfeit(job.metadata.uid, is_final)
        if forfeit.is_over(job) or self._forfeits.get(key) == forfeit:
            return
        self._forfeits[key] = forfeit
        self._claim(key, entry)
        self._notify(key, entry)

    @property
    def forfeited(self) -> dict[JobKey, bool]:
        """The jobs whose placements count as given back, and whether until the job ends."""
        return {key: forfeit.is_final for key, forfeit in self._forfeits.items()}

    @property
    def uncertain(self) -> dict[JobKey, Placement]:
        """The placements that are reserved, as the outcome of their write is not known."""
        return dict(self._uncertain)

    def is_forfeited(self, key: JobKey) -> bool:
        """True for a job whose placement counts as given back."""
        return key in self._forfeits

    def gang_of(self, job: Job) -> GangRequest | InvalidGang:
        """Return what a job asks for, known here or not, with the tolerations of its team."""
        job = as_stated(job)
        team = self.teams.resolve(job.spec.team, job.metadata.namespace)
        reaches = read_claims(self.volumes, self.devices, job)
        return self._gang_of(job, self._priority_of(job), team, reaches)

    def book_uncertain(self, job: Job, placement: Placement) -> bool:
        """Book a placement whose write has an unknown outcome, beside what the job has.

        Its nodes count as the team's until `unbook_uncertain`. False: no such job, or unreadable.
        """
        entry = self.jobs.get(job.metadata.key)
        if entry is None or isinstance(entry.gang, InvalidGang):
            return False
        self._uncertain[job.metadata.key] = placement
        self._book_placement(entry, placement)
        self._claim(job.metadata.key, entry)
        return True

    def _book_placement(self, entry: JobEntry, placement: Placement) -> None:
        if not isinstance(entry.gang, InvalidGang):
            self.ledger.book_uncertain(claim_of(entry.job, entry.gang, placement))

    def unbook_uncertain(self, key: JobKey) -> None:
        """End what `book_uncertain` began."""
        self._uncertain.pop(key, None)
        self.ledger.unbook_uncertain(key)
        if key in self.jobs:
            self._claim(key, self.jobs[key])

    def _claim(self, key: JobKey, entry: JobEntry) -> None:
        job, status = entry.job, entry.job.status
        is_over = entry.phase is Phase.FINISHED
        is_free = is_over or is_failing(job) or key in self._forfeits
        if is_free or isinstance(entry.gang, InvalidGang):
            self.ledger.set_nomination(key, None)
            self.held_ends.put(key, None, has_moved=self.ledger.set_claim(key, None))
            use = JobUse(entry.team_name, user=entry.user, is_finished=is_over)
            self.uses.set_job(key, use)
            return
        priority = entry.priority if isinstance(entry.priority, int) else 0
        claim = kept = None
        if status.placement is not None:
            claim = claim_of(
                job, entry.gang, status.placement, priority=priority, team=entry.team_name
            )
        # A job whose placement is sent has no use for places that are kept for it.
        if status.nomination is not None and not self.ledger.uncertain_nodes(key):
            places = Placement(attempt=status.attempt, roles=status.nomination.roles)
            kept = claim_of(job, entry.gang, places, priority=priority)
        end = None if claim is None else entry.ends_at
        self.held_ends.put(key, end, has_moved=self.ledger.set_claim(key, claim))
        self.ledger.set_nomination(key, kept)
        uncertain, sent = self._uncertain.get(key), self.ledger.uncertain_nodes(key)
        of_sent = None if uncertain is None else claim_of(job, entry.gang, uncertain)
        self.uses.set_job(key, use_of(entry, claim, (sent, of_sent), self.table.resources))

    def _gang_of(
        self, job: Job, priority: int | Unresolved, team: str | UnresolvedTeam,
        reaches: Reaches | Unusable,
    ) -> GangRequest | InvalidGang:  # fmt: skip
        """Return what a job asks for, with the tolerations that its team gives its members."""
        level = priority if isinstance(priority, int) else 0
        name = team if isinstance(team, str) else ""
        return gang_of(
            job.spec, self.reader, partial(self.teams.tolerations, team=name, priority=level),
            partial(self.terms.of_role, job), levels=self.levels,
            hold_seconds=hold_seconds(job) if self._has_windows else None, team=name,
            reaches=reaches if isinstance(reaches, tuple) else (),
        )  # fmt: skip

    def _priority_of(self, job: Job) -> int | Unresolved:
        if self._priorities is None:
            return placed_priority(job, job.spec.priority or 0)
        return placed_priority(job, self._priorities.resolve(job.spec, job.metadata.namespace))

    def _may_preempt(self, job: Job) -> bool:
        return self._priorities is None or self._priorities.may_preempt(job.spec)

    def _notify(self, key: JobKey, entry: JobEntry | None) -> None:
        for observer in self._job_observers:
            observer(key, entry)


def _take(objects: Iterable[T], take: Callable[[T], object], *, contains: bool) -> None:
    for each in objects:
        try:
            take(each)
        except Exception:
            if not contains:
                raise
