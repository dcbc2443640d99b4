"""What happened in a simulated run, as users and operators would measure it.

`RunRecorder` is fed with every committed write of a Job, Pod or Node and keeps one small record per
job, exact integrals of the GPU use, and samples on a fixed grid for the plots. Its memory grows
with the number of jobs and of samples, not with the number of writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import GPU, resources_to_base
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.actors.replicas import DecisionTimes
from fairlead.sim.observers.observer import Observer

#: Verdict reasons that the report tells apart; the rest is summed up.
REASONS_MAX = 32


@dataclass(slots=True)
class SimulatedJob:
    """One job. Instants are seconds since the start of the run; None: it did not happen."""

    name: str
    tenant: str
    members: int
    gpus: int  # of all members together, as `gpu_count` says now
    submitted: float
    placed: float | None = None
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    outcome: str = ""
    lost_gpu_seconds: float = 0.0
    #: Its GPUs over the time in which all its members ran.
    busy_gpu_seconds: float = 0.0
    #: Since when it has run without a break.
    runs_since: float = 0.0
    #: GPUs held now: those of the placement.
    holds: bool = False
    runs: bool = False
    reason: str = ""
    attempts_seen: int = 0
    #: Where it runs now, each node once; () where it asks for no GPUs.
    nodes: tuple[str, ...] = ()

    @property
    def wait_seconds(self) -> float | None:
        """Time from submission until all members ran for the first time."""
        return None if self.started is None else self.started - self.submitted


@dataclass(slots=True)
class ClusterSample:
    """The state of the cluster at one point of the grid."""

    at: float
    gpus: int
    busy_gpus: int
    held_gpus: int
    running_jobs: int
    waiting_jobs: int
    waiting_gpus: int
    nodes_out: int
    waiting_gpus_by_reason: dict[str, int] = field(default_factory=dict)


class RunRecorder(Observer):
    """Feed it with `job` and `node`; read `jobs`, `samples` and the integrals at the end."""

    def __init__(self, epoch: float, *, sample_seconds: float, tenants: dict[str, str]) -> None:
        """`tenants` maps the name of a job to its tenant; `epoch` is the instant of second 0."""
        self.jobs: dict[str, SimulatedJob] = {}
        self.samples: list[ClusterSample] = []
        self.lost_by_cause: Counter[str] = Counter()
        self.writes_by_kind: Counter[str] = Counter()
        #: Set at the end: calls by (service, verb and kind), and decisions by controller.
        self.requests: dict[tuple[str, str], int] = {}
        self.decision_times: dict[str, DecisionTimes] = {}
        self.busy_gpu_seconds = 0.0
        self.capacity_gpu_seconds = 0.0
        #: Of the nodes on which any job with GPUs runs.
        self.used_gpu_seconds = 0.0
        self.last_end = 0.0
        self._epoch = epoch
        self._sample_seconds = sample_seconds
        self._tenants = tenants
        self._at = 0.0
        self._next_sample = 0.0
        self._node_gpus: dict[str, int] = {}
        self._nodes_out: set[str] = set()
        self._gpus = 0
        self._busy = 0
        self._used = 0
        #: Jobs with GPUs that run on each node, and the GPUs that it counts with.
        self._node_jobs: Counter[str] = Counter()
        self._used_nodes: dict[str, int] = {}
        self._held = 0
        self._running = 0
        self._waiting: dict[str, SimulatedJob] = {}
        self._waiting_gpus: defaultdict[str, int] = defaultdict(int)

    # Changes

    def wrote(self, kind: str) -> None:
        """Count a write of an object of this kind."""
        self.writes_by_kind[kind] += 1

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in a node, new, changed or (None) removed."""
        self._advance(now)
        before = self._node_gpus.pop(name, 0)
        after = 0
        self._nodes_out.discard(name)
        if new is not None:
            after = resources_to_base(new.status.allocatable).get(GPU, 0)
            self._node_gpus[name] = after
            is_ready = any(c.type == "Ready" and c.status == "True" for c in new.status.conditions)
            if not is_ready or new.spec.unschedulable:
                self._nodes_out.add(name)
        self._gpus += after - before

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Take in a job, new, changed or (None) removed."""
        self._advance(now)
        name = key[1]
        if new is None:
            record = self.jobs.get(name)
            if record is not None:
                self._hold(record, holds=False, runs=False, reason="")
                self._occupy(record, ())
            return
        record = self.jobs.get(name)
        if record is None:
            record = self.jobs[name] = self._new(new, name)
        self._attempts(record, new)
        gpus, at = gpu_count(new), self._at
        if gpus != record.gpus:  # elastic roles: of another size than before
            self._hold(record, holds=False, runs=False, reason="")
            record.gpus = gpus
        placed = new.status.placement is not None and not new.is_finished
        runs = placed and new.status.state == "Running"
        if placed and record.placed is None:
            record.placed = at
        if runs and record.started is None:
            record.started = at
        record.attempts = max(record.attempts, new.status.attempt)
        if new.is_finished and record.ended is None:
            record.ended, record.outcome = at, new.status.state
            self._started_of(record, new)
            self.last_end = at
        verdict = new.status.verdict
        reason = verdict.reason if verdict is not None else "NotAdmitted"
        waits = not new.is_finished and not placed
        self._hold(record, holds=placed, runs=runs, reason=reason if waits else "")
        placement = new.status.placement
        on = set(nodes_of(placement)) if runs and gpus and placement is not None else ()
        self._occupy(record, tuple(sorted(on)))

    def _new(self, job: Job, name: str) -> SimulatedJob:
        members, gpus = job.member_count, gpu_count(job)
        return SimulatedJob(name, self._tenants.get(name, ""), members, gpus, submitted=self._at)

    def _started_of(self, record: SimulatedJob, job: Job) -> None:
        """Take the start from the status when no write showed the job running."""
        begins = [a.started_at for a in job.status.attempts if a.started_at]
        if record.started is None and begins:
            record.started = max(parse_time(begins[0]) - self._epoch, record.submitted)

    def _attempts(self, record: SimulatedJob, job: Job) -> None:
        """Count the work of attempts that ended without success as lost."""
        for attempt in job.status.attempts:
            if attempt.number <= record.attempts_seen or attempt.finished_at is None:
                continue
            record.attempts_seen = attempt.number
            if attempt.reason == "Succeeded" or attempt.begun_at is None:
                continue
            held = parse_time(attempt.finished_at) - parse_time(attempt.begun_at)
            lost = max(0.0, held) * gpu_count(job, attempt.sizes)
            record.lost_gpu_seconds += lost
            cause = attempt.cause.value if attempt.cause is not None else attempt.reason
            self.lost_by_cause[cause or "Unknown"] += round(lost)

    def _hold(self, record: SimulatedJob, *, holds: bool, runs: bool, reason: str) -> None:
        if record.holds != holds:
            self._held += record.gpus if holds else -record.gpus
            record.holds = holds
        if record.runs != runs:
            self._busy += record.gpus if runs else -record.gpus
            self._running += 1 if runs else -1
            self._count_busy(record)
            record.runs = runs
        if record.reason != reason:
            if record.reason:
                self._waiting_gpus[record.reason] -= record.gpus
            if reason:
                self._waiting[record.name] = record
                self._waiting_gpus[reason] += record.gpus
            else:
                self._waiting.pop(record.name, None)
            record.reason = reason

    def _count_busy(self, record: SimulatedJob) -> None:
        """Add the time since a running job was counted last, and count from now on."""
        if record.runs:
            record.busy_gpu_seconds += record.gpus * (self._at - record.runs_since)
        record.runs_since = self._at

    def _occupy(self, record: SimulatedJob, nodes: tuple[str, ...]) -> None:
        """Count the nodes on which a job runs as used."""
        if record.nodes == nodes:
            return
        for node in record.nodes:
            self._node_jobs[node] -= 1
            if not self._node_jobs[node]:
                self._used -= self._used_nodes.pop(node)
        for node in nodes:
            if not self._node_jobs[node]:
                self._used_nodes[node] = self._node_gpus.get(node, 0)
                self._used += self._used_nodes[node]
            self._node_jobs[node] += 1
        record.nodes = nodes

    # Time

    def _advance(self, now: float) -> None:
        """Integrate up to `now` (an instant of the world's clock), and fill the grid."""
        at = now - self._epoch
        while self._next_sample <= at:
            self.samples.append(self._sample(self._next_sample))
            self._next_sample += self._sample_seconds
        passed = at - self._at
        if passed > 0:
            self.busy_gpu_seconds += passed * self._busy
            self.capacity_gpu_seconds += passed * self._gpus
            self.used_gpu_seconds += passed * self._used
            self._at = at

    def finish(self, now: float) -> None:
        """End the record at `now`."""
        self._advance(now)
        for record in self.jobs.values():
            self._count_busy(record)

    def _sample(self, at: float) -> ClusterSample:
        reasons = {reason: gpus for reason, gpus in self._waiting_gpus.items() if gpus > 0}
        return ClusterSample(
            at=at, gpus=self._gpus, busy_gpus=self._busy, held_gpus=self._held,
            running_jobs=self._running, waiting_jobs=len(self._waiting),
            waiting_gpus=sum(reasons.values()), nodes_out=len(self._nodes_out),
            waiting_gpus_by_reason=dict(sorted(reasons.items())[:REASONS_MAX]),
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """Simulated time that the record covers."""
        return self._at

    @property
    def waiting_jobs(self) -> int:
        """Jobs that wait now."""
        return len(self._waiting)

    @property
    def running_jobs(self) -> int:
        """Jobs of which all members run now."""
        return self._running

    @property
    def busy_share(self) -> float:
        """Share of the GPUs that run jobs now, 0 to 1."""
        return self._busy / self._gpus if self._gpus else 0.0
