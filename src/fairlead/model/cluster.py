"""The cluster as a decision sees it: nodes, who uses them, who waits. Kept per event, in
O(change).

    state = ClusterState()
    state.node_changed(node); state.pod_changed(pod); state.job_changed(job)      # in any order
    with state.transaction() as tx:       # what if? the same columns, put back at the end
        tx.take(slots, counts, member)

Events may come in any order and repeatedly; the state depends only on the latest version of each
object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from fairlead.api.core import Node, Pod, PriorityClass
from fairlead.api.job import Job, Placement
from fairlead.api.times import parse_time
from fairlead.model.fits import FitTable
from fairlead.model.gangs import InvalidGang, JobKey, gang_of
from fairlead.model.ledger import Ledger, claim_of
from fairlead.model.nodes import Ints, NodeTable
from fairlead.model.phase import RELEASABLE, Phase, phase_of
from fairlead.model.priorities import PriorityTable, Unresolved
from fairlead.model.queue import JobEntry, OrderKey, WaitQueue
from fairlead.model.quotas import QuotaTable
from fairlead.model.requests import MemberClass, RequestReader


class Transaction:
    """Changes to the columns that are undone unless committed. One at a time, no events inside."""

    def __init__(self, table: NodeTable, fits: FitTable) -> None:
        self._table = table
        self._fits = fits
        self._undo: list[tuple[Ints, Ints, MemberClass]] = []
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_open:
            self.rollback()

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put `counts[i]` members on each of the distinct slots; a negative count gives back."""
        self._table.add(slots, counts, self._table.vector(member.request))
        self._undo.append((slots, counts, member))

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self._undo)

    def rollback_to(self, mark: int) -> None:
        """Undo everything since the mark."""
        while len(self._undo) > mark:
            slots, counts, member = self._undo.pop()
            self._table.add(slots, -counts, self._table.vector(member.request))

    def rollback(self) -> None:
        """Undo everything; the columns are exactly as before."""
        self.rollback_to(0)
        self._close()

    def commit(self) -> None:
        """Keep everything."""
        self._close()
        self._fits.count_change()

    def _close(self) -> None:
        self._fits.sync()
        self._fits.is_tentative = False
        self._is_open = False


class ClusterState:
    """Nodes, claims, pods and waiting jobs.

    `priorities` resolves the jobs' priorities. Without it their `spec.priority` is taken as it
    stands, which is for clients that explain a cluster and may not list its PriorityClasses.
    """

    def __init__(self, priorities: PriorityTable | None = None) -> None:
        self._priorities = priorities
        self.reader = RequestReader()
        self.table = NodeTable(self.reader)
        self.fits = FitTable(self.table)
        self.ledger = Ledger(self.table, self.reader)
        self.queue = WaitQueue(self.fits)
        self.quotas = QuotaTable()
        #: Every job known, finished ones too.
        self.jobs: dict[JobKey, JobEntry] = {}
        #: Jobs whose placement must be given back.
        self.releasable: dict[JobKey, None] = {}
        #: Jobs that were admitted, have no placement and are held.
        self.held: dict[JobKey, None] = {}
        #: Admitted jobs without a placement whose PriorityClass gives them no priority, and why.
        self.unresolved: dict[JobKey, Unresolved] = {}
        #: Jobs that are left alone for now: writing on them keeps failing.
        self.set_aside: dict[JobKey, None] = {}
        #: Jobs with a placement of an earlier attempt, to confirm or repair.
        self.repairable: dict[JobKey, None] = {}

    @classmethod
    def of(
        cls, nodes: Iterable[Node] = (), jobs: Iterable[Job] = (), pods: Iterable[Pod] = ()
    ) -> ClusterState:
        """Build a state from lists."""
        state = cls()
        for node in nodes:
            state.node_changed(node)
        for job in jobs:
            state.job_changed(job)
        for pod in pods:
            state.pod_changed(pod)
        return state

    def strayed(self) -> Iterator[tuple[Job, Placement]]:
        """Yield the jobs that another scheduler has put elsewhere, and where they are now."""
        for key, attempt, roles in self.ledger.strayed():
            job = self.jobs[key].job
            old = job.status.placement
            if old is not None and attempt == str(old.attempt) == str(job.status.attempt):
                yield job, replace(old, roles=roles)

    def transaction(self) -> Transaction:
        """Begin a what-if; use it in a `with` statement."""
        assert not self.fits.is_tentative, "transactions do not nest"
        self.fits.sync()
        self.fits.is_tentative = True
        return Transaction(self.table, self.fits)

    def node_changed(self, node: Node) -> None:
        """Take in a node, new or changed."""
        for resource in self.table.set_node(node):
            self.ledger.book_resource(resource)

    def node_deleted(self, name: str) -> None:
        """Take in that a node is gone."""
        self.table.remove_node(name)

    def pod_changed(self, pod: Pod) -> None:
        """Take in a pod, new or changed."""
        self.ledger.set_pod(pod)

    def pod_deleted(self, key: JobKey) -> None:
        """Take in that a pod is gone."""
        self.ledger.remove_pod(key)

    def priority_class_changed(self, name: str, found: PriorityClass | None) -> None:
        """Take in a PriorityClass, or that it is gone; walks all jobs, since classes are few."""
        if self._priorities is None:
            return
        if found is None:
            self._priorities.remove(name)
        else:
            self._priorities.put(found)
        for entry in list(self.jobs.values()):
            if not entry.job.is_finished:
                self.job_changed(entry.job)

    def job_changed(self, job: Job) -> None:
        """Take in a job, new or changed."""
        key = job.metadata.key
        before = self.jobs.get(key)
        if before is not None and before.job.spec == job.spec:
            gang = before.gang
        else:
            gang = gang_of(job.spec, self.reader)
        priority = self._priority_of(job)
        unresolved = None if isinstance(priority, int) else priority
        entry = JobEntry(job, gang, order_of(job, priority if isinstance(priority, int) else 0))
        self.jobs[key] = entry
        self._claim(entry)
        phase = phase_of(job)
        waits = phase is Phase.QUEUED
        self._enqueue(before, entry, waits=waits and unresolved is None)
        self.unresolved.pop(key, None)
        if waits and unresolved is not None:
            self.unresolved[key] = unresolved
        has_place = job.status.placement is not None
        _put(self.releasable, key, present=_is_releasable(job, phase))
        _put(self.repairable, key, present=phase is Phase.REPAIRING)
        is_held = phase is Phase.HELD and job.status.attempt > 0
        _put(self.held, key, present=is_held and not has_place)

    def job_deleted(self, key: JobKey) -> None:
        """Take in that a job is gone; its claim goes with it, its pods are counted as pods."""
        before = self.jobs.pop(key, None)
        if before is None:
            return
        self.queue.remove(before)
        self.ledger.set_claim(key, None)
        self.unresolved.pop(key, None)
        for keys in (self.releasable, self.repairable, self.held, self.set_aside):
            keys.pop(key, None)

    def hold(self, job: Job, placement: Placement) -> None:
        """Keep the room of a placement that was sent and may be written yet, or be so already.

        Until `let_go`; the job is left alone meanwhile (`set_aside`).
        """
        key = job.metadata.key
        entry = self.jobs.get(key)
        if entry is None or isinstance(entry.gang, InvalidGang):
            return
        self.set_aside[key] = None
        self.ledger.hold(claim_of(job, entry.gang, placement))

    def let_go(self, key: JobKey) -> None:
        """End what `hold` began."""
        self.set_aside.pop(key, None)
        self.ledger.let_go(key)

    def _claim(self, entry: JobEntry) -> None:
        job = entry.job
        placement = job.status.placement
        if placement is None or job.is_finished or isinstance(entry.gang, InvalidGang):
            self.ledger.set_claim(job.metadata.key, None)
            return
        claim = claim_of(job, entry.gang, placement)
        self.ledger.set_claim(job.metadata.key, claim)

    def _priority_of(self, job: Job) -> int | Unresolved:
        if self._priorities is None:
            return job.spec.priority or 0
        return self._priorities.resolve(job.spec, job.metadata.namespace)

    def _enqueue(self, before: JobEntry | None, entry: JobEntry, *, waits: bool) -> None:
        if before is not None and before.group is not None:
            if waits and before.gang is entry.gang and before.order == entry.order:
                entry.group = before.group
                self.queue.mark_written(entry)
                return
            self.queue.remove(before)
        if waits:
            self.queue.add(entry)


def order_of(job: Job, priority: int) -> OrderKey:
    """Return the place in the queue of a job with this priority."""
    created = job.metadata.creation_timestamp
    return OrderKey(
        -priority,
        parse_time(created) if created else 0.0,
        job.metadata.namespace,
        job.metadata.name,
    )


def _is_releasable(job: Job, phase: Phase) -> bool:
    """True for a job that has a placement, or a verdict at its end, and no more use for it.

    Not while the record of an attempt is open: its pods may still be on their way to the API, and
    the nodes that a release frees would be given away before they arrive (docs/design/jobs.md,
    "The hand-over"). Opening the record and releasing are compare-and-swaps on the same status, so
    exactly one of them wins. The claim of a deleted job goes with the job.
    """
    if phase not in RELEASABLE or job.metadata.deletion_timestamp is not None:
        return False
    is_over = phase is Phase.FINISHED
    return job.status.placement is not None or (is_over and job.status.verdict is not None)


def _put(keys: dict[JobKey, None], key: JobKey, *, present: bool) -> None:
    if present:
        keys[key] = None
    else:
        keys.pop(key, None)
