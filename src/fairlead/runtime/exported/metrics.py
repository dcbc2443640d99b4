"""Metrics in Prometheus format, on a registry of our own: two clusters fit into one process.

Names after prometheus.io/docs/practices/naming: one prefix, base units, labels from closed sets
(controller, action, result, kind, state, reason, team), never a job's or a node's name. What can be
read when asked (mirrors, queues, jobs) is collected at the scrape; what happens is counted when it
happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job, JobState
from fairlead.decide.notices import TryReason
from fairlead.decide.reasons import Reason, Trait
from fairlead.runtime.events import Recorder
from fairlead.runtime.exported.doctor_metrics import DoctorMetrics
from fairlead.runtime.exported.export_metrics import ExportMetrics
from fairlead.runtime.exported.fleet_metrics import FleetMetrics
from fairlead.runtime.exported.health_metrics import HealthMetrics, SilenceMetrics, TicketMetrics
from fairlead.runtime.exported.traffic_metrics import TrafficMetrics
from fairlead.runtime.exported.use_metrics import UseMetrics
from fairlead.runtime.loop import ActionResult
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.set_aside import SetAside

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_DECIDE_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_STATES = frozenset(state.value for state in JobState)
_WAITING = frozenset(
    state.value for state in (JobState.WAITING, JobState.HELD, JobState.RESTARTING)
)
#: Teams with series of their own; administrators name them, so there are few.
_TEAMS_MAX = 500


def _cell(job: Job) -> tuple[str, str]:
    """Return a job's state and reason, both from closed sets whatever its status says."""
    state = job.status.state if job.status.state in _STATES else JobState.WAITING.value
    verdict = job.status.verdict
    if state not in _WAITING or verdict is None or Reason.of(verdict.reason) is None:
        return state, ""
    return state, verdict.reason


def _notices(registry: CollectorRegistry) -> Counter:
    return Counter(
        "fairlead_notice_tries_total",
        "Tries to send a notice of a job or a ticket of a node, by how they ended.",
        ["reason"],
        registry=registry,
    )


def _audit(registry: CollectorRegistry) -> tuple[Gauge, Counter]:
    return Gauge(
        "fairlead_audit_targets_failing",
        "Targets of the export that take no audit records.",
        registry=registry,
    ), Counter(
        "fairlead_audit_breaks_total",
        "Times that audit records were gone which this process had written.",
        registry=registry,
    )


class Metrics(Collector):
    """Everything Fairlead measures of itself. Also the loops' `LoopObserver`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        version: str,
        commit: str = "",
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Register all series on `registry`, which must not have them yet.

        `stopwatch` returns instants for durations, in seconds.
        """
        self._registry, self._stopwatch = registry, stopwatch
        self._mirrors: list[Mirror[Any]] = []
        self._depths: dict[str, Callable[[], int]] = {}
        self._set_aside: dict[str, SetAside] = {}
        self._read_jobs: Callable[[], Iterable[Job]] | None = None
        self._read_teams: Callable[[], Iterable[Team]] | None = None
        self._events: Recorder | None = None
        registry.register(self)
        self.fleet, self.doctor = FleetMetrics(registry), DoctorMetrics(registry)
        self.health, self.exports = HealthMetrics(registry), ExportMetrics(registry)
        self.silence, self.traffic = SilenceMetrics(registry), TrafficMetrics(registry)
        self.tickets = TicketMetrics(registry)
        self.use, self._notices = UseMetrics(registry), _notices(registry)
        info = Gauge(
            "fairlead_build_info",
            "1, labelled with what runs.",
            ["version", "commit"],
            registry=registry,
        )
        info.labels(version, commit).set(1)
        self._decide_seconds = Histogram(
            "fairlead_decide_duration_seconds",
            "Time that one decision took.",
            ["controller"],
            buckets=_DECIDE_SECONDS,
            registry=registry,
        )
        self._actions = Counter(
            "fairlead_actions_total",
            "Attempts at actions, by how they ended.",
            ["controller", "action", "result"],
            registry=registry,
        )
        #: `labels` looks its child up under a lock, for each action of each gang.
        self._action_counters: dict[tuple[str, str, ActionResult], Counter] = {}
        self._decide_histograms: dict[str, Histogram] = {}
        self._crashes = Counter(
            "fairlead_service_crashes_total",
            "Services that were restarted after a fault.",
            ["service"],
            registry=registry,
        )
        self.audit_targets_failing, self.audit_breaks = _audit(registry)
        self._compaction_failing = Gauge(
            "fairlead_store_compaction_failing",
            "1 while the log of the embedded store cannot be compacted, so that it grows.",
            registry=registry,
        )

    def compacted(self, *, is_failing: bool) -> None:
        """Note how the latest compaction of the embedded store ended."""
        self._compaction_failing.set(is_failing)

    def watch_events(self, recorder: Recorder) -> None:
        """Report at each scrape how many events this recorder dropped."""
        self._events = recorder

    def stopwatch(self) -> float:
        """Return an instant for durations."""
        return self._stopwatch()

    def decided(self, controller: str, seconds: float) -> None:
        """Note one decision."""
        histogram = self._decide_histograms.get(controller)
        if histogram is None:
            histogram = self._decide_histograms[controller] = self._decide_seconds.labels(
                controller
            )
        histogram.observe(seconds)

    def acted(self, controller: str, action: str, result: ActionResult) -> None:
        """Note one attempt of an action."""
        counter = self._action_counters.get((controller, action, result))
        if counter is None:
            counter = self._actions.labels(controller, action, result.value)
            self._action_counters[controller, action, result] = counter
        counter.inc()

    def crashed(self, service: str, _error: BaseException) -> None:
        """Note a crash; fits the supervisor's `crashed`."""
        self._crashes.labels(service).inc()

    def notified(self, reason: TryReason) -> None:
        """Note how a try to send a notice or a ticket ended."""
        self._notices.labels(reason.value).inc()

    def watch_jobs(self, read: Callable[[], Iterable[Job]] | None) -> None:
        """Count these jobs at each scrape; None: no more (this replica does not lead)."""
        self._read_jobs = read

    def watch_teams(self, read: Callable[[], Iterable[Team]] | None) -> None:
        """Report these teams at each scrape; None: no more (this replica does not lead)."""
        self._read_teams = read

    def watch_mirror(self, mirror: Mirror[Any]) -> None:
        """Report this mirror's lag and size at each scrape."""
        self._mirrors.append(mirror)

    def forget_mirrors(self, mirrors: Iterable[Mirror[Any]]) -> None:
        """Report these no more (their controller was restarted)."""
        gone = list(mirrors)
        self._mirrors = [m for m in self._mirrors if m not in gone]

    def watch_queue(self, controller: str, depth: Callable[[], int]) -> None:
        """Report a queue's depth at each scrape."""
        self._depths[controller] = depth

    def watch_set_aside(self, set_aside: SetAside) -> None:
        """Report what this reader sets aside at each scrape, in place of one of its name."""
        self._set_aside[set_aside.name] = set_aside

    def forget_queue(self, controller: str) -> None:
        """Report this queue no more."""
        self._depths.pop(controller, None)

    def render(self) -> bytes:
        """Return all series as text of CONTENT_TYPE."""
        return generate_latest(self._registry) + self.exports.text

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape. Reading must not wait."""
        lag = GaugeMetricFamily(
            "fairlead_mirror_lag_seconds",
            "Seconds since the API last said anything about this kind.",
            labels=["kind"],
        )
        objects = GaugeMetricFamily(
            "fairlead_mirror_objects", "Objects held of this kind.", labels=["kind"]
        )
        by_kind: dict[str, Mirror[Any]] = {}
        undefined = GaugeMetricFamily(
            "fairlead_kind_undefined",
            "1 while the cluster has no definition of this kind, and so no such objects.",
            labels=["kind"],
        )
        for mirror in self._mirrors:  # of several of one kind, the one that lags most
            seen = by_kind.setdefault(mirror.kind, mirror)
            if (mirror.seconds_since_contact or 0.0) > (seen.seconds_since_contact or 0.0):
                by_kind[mirror.kind] = mirror
        for kind, mirror in sorted(by_kind.items()):
            seconds = mirror.seconds_since_contact
            if seconds is not None:
                lag.add_metric([kind], seconds)
            objects.add_metric([kind], len(mirror))
            if mirror.is_undefined:
                undefined.add_metric([kind], 1)
        depth = GaugeMetricFamily(
            "fairlead_workqueue_depth", "Keys that wait to be looked at.", labels=["controller"]
        )
        for controller, read in sorted(self._depths.items()):
            depth.add_metric([controller], read())
        aside = GaugeMetricFamily(
            "fairlead_objects_set_aside",
            "Objects left alone because reading them or acting on them failed in our own code.",
            labels=["reader", "kind"],
        )
        for reader, set_aside in sorted(self._set_aside.items()):
            for kind, count in sorted(set_aside.counts().items()):
                aside.add_metric([reader, kind], count)
        dropped = CounterMetricFamily(
            "fairlead_events_dropped", "Events that could not be written to the API."
        )
        if self._events is not None:
            dropped.add_metric((), self._events.dropped_count)
        return (lag, objects, undefined, depth, aside, dropped, *self._jobs(), *self._teams())

    def _jobs(self) -> Iterable[Metric]:
        """Yield the jobs by state and by the verdict of those that wait; a walk over all jobs."""
        if self._read_jobs is None:
            return
        counts = {(state.value, ""): 0 for state in JobState}
        for job in self._read_jobs():
            cell = _cell(job)
            counts[cell] = counts.get(cell, 0) + 1
        jobs = GaugeMetricFamily(
            "fairlead_jobs",
            "Jobs by state; of jobs that wait or are held, also by the reason of the verdict.",
            labels=["state", "reason"],
        )
        for cell, count in sorted(counts.items()):
            jobs.add_metric(cell, count)
        yield jobs
        yield GaugeMetricFamily(
            "fairlead_jobs_waiting_with_room",
            "Jobs that wait although enough of what they ask for is free.",
            value=sum(
                count
                for (_, value), count in counts.items()
                if (reason := Reason.of(value)) is not None and reason.has(Trait.HAS_ROOM)
            ),
        )

    def _teams(self) -> Iterable[Metric]:
        """Yield what each team has and uses, as the status of each Team says."""
        if self._read_teams is None:
            return
        nodes = GaugeMetricFamily(
            "fairlead_team_nodes",
            "Nodes by team: owned and healthy, missing, used by itself, lent, borrowed.",
            labels=["team", "kind"],
        )
        intruders = GaugeMetricFamily(
            "fairlead_team_intruders", "Pods on its nodes that may not be there.", labels=["team"]
        )
        gpus = GaugeMetricFamily("fairlead_team_gpus", "GPUs that its jobs hold.", labels=["team"])
        gpu_hours = GaugeMetricFamily(
            "fairlead_team_gpu_hours",
            "GPU-hours that its jobs have held, halved every half-life of its budget.",
            labels=["team"],
        )
        jobs = GaugeMetricFamily(
            "fairlead_team_jobs",
            "Jobs by team: placed, waiting, submitted (not ended).",
            labels=["team", "kind"],
        )
        limits = GaugeMetricFamily(
            "fairlead_team_limit",
            "Limits of a team's jobs: running, waiting, submitted, gpus; its budget: gpu_hours.",
            labels=["team", "kind"],
        )
        for team in sorted(self._read_teams(), key=lambda team: team.metadata.name)[:_TEAMS_MAX]:
            name, status, use = team.metadata.name, team.status, team.status.use
            for kind, count in (
                ("owned", status.nodes), ("missing", status.nodes_missing),
                ("used", use.nodes_used), ("lent", use.nodes_lent),
                ("borrowed", use.nodes_borrowed),
            ):  # fmt: skip
                nodes.add_metric([name, kind], count)
            gpus.add_metric([name], use.gpus)
            intruders.add_metric([name], use.intruders)
            gpu_hours.add_metric([name], use.gpu_hours)
            jobs.add_metric([name, "placed"], use.jobs_placed)
            jobs.add_metric([name, "waiting"], use.jobs_waiting)
            jobs.add_metric([name, "submitted"], use.jobs_submitted)
            stated = asdict(team.spec.limits)
            for kind, limit in {**stated, "gpu_hours": team.spec.budget.gpu_hours}.items():
                if limit is not None:
                    limits.add_metric([name, kind], limit)
        yield from (nodes, intruders, gpus, gpu_hours, jobs, limits)
