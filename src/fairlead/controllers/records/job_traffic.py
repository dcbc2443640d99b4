"""Keeps in the history what members of jobs had sent and received, once they have ended.

Nodes report the final counts of their pods by uid (`NodeReport.status.traffic.ended`). The pod says
on which node it was and its job which member it is, as for logs
(`decide/attempts/logged_members.py`), so a node adds to jobs that it had members of and to no
others. Report and end of a pod may come in either order. Keeping again is harmless; while the
history cannot be written, records wait, at most `waiting_max` of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from fairlead.api import names
from fairlead.api.cluster.node_report import REPORTED_CLASSES_MAX, NodeReport, ReportedFlow
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.decide.attempts.logged_members import LoggedMember, claimed_job, logged_member
from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.history import History, TrafficRecord, answered
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror

_BACKOFF = BackoffOptions(1.0, 60.0)
#: The largest number that a database holds.
_BYTES_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TrafficKeeperOptions:
    """Limits: members that have ended and may still be reported, and records, waiting and written
    at a time.
    """

    ended_max: int = 50_000
    waiting_max: int = 20_000
    batch_max: int = 256


@dataclass(slots=True)
class _Ended:
    """A member that has ended, and what was kept of it, by class."""

    node: str
    member: LoggedMember
    kept: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


class TrafficKeeper:
    """One per process that runs the controllers."""

    def __init__(
        self,
        history: History,
        pods: Mirror[Pod],
        jobs: Mirror[Job],
        reports: Mirror[NodeReport],
        *,
        clock: Clock,
        rng: random.Random,
        options: TrafficKeeperOptions | None = None,
        log: Logger = SILENT,
    ) -> None:
        self._history = history
        self._pods = pods
        self._jobs = jobs
        self._reports = reports
        self._clock = clock
        self._options = options or TrafficKeeperOptions()
        self._log = log
        self._backoff = Backoff(rng, _BACKOFF)
        #: By uid, in the order in which they ended.
        self._ended: dict[str, _Ended] = {}
        self._waiting: dict[str, TrafficRecord] = {}
        self._has_work = asyncio.Event()
        self.missed_count = 0

    async def run(self) -> None:
        """Keep traffic as it is reported, until cancelled."""
        for mirror in (self._pods, self._jobs, self._reports):
            await mirror.wait_synced()
        undo = (self._pods.on_change(self._pod_changed),
                self._reports.on_change(self._report_changed))  # fmt: skip
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while self._waiting:
                    await self._keep()
        finally:
            for each in undo:
                each()

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        if pod is None or names.ATTEMPT not in pod.metadata.labels:
            return
        uid, node = pod.metadata.uid, pod.spec.node_name
        has_ended = change.new is None or pod.is_terminal
        if not (has_ended and node) or uid in self._ended:
            return
        member = logged_member(pod, self._jobs.get(*claimed_job(pod)))
        if member is None:
            return
        self._ended[uid] = _Ended(node, member)
        if len(self._ended) > self._options.ended_max:
            del self._ended[next(iter(self._ended))]
        report = self._reports.get("", node)
        self._take(node, (each for each in _flows(report) if each.pod == uid))

    def _report_changed(self, change: Change[NodeReport]) -> None:
        self._take(change.key[1], _flows(change.new))

    def _take(self, node: str, flows: Iterable[ReportedFlow]) -> None:
        """Let what a node says of its own members be written, where it is not known yet."""
        for flow in flows:
            ended = self._ended.get(flow.pod)
            if ended is None or (ended.node, ended.member.namespace) != (node, flow.namespace):
                continue
            name = flow.traffic_class
            figures = min(flow.sent, _BYTES_MAX), min(flow.received, _BYTES_MAX)
            is_new = name not in ended.kept and len(ended.kept) < REPORTED_CLASSES_MAX
            if not is_new and ended.kept.get(name, figures) == figures:
                continue
            ended.kept[name] = figures
            record = TrafficRecord(
                f"{flow.pod}/{name}", flow.pod, flow.namespace, ended.member.job_uid, name,
                round(self._clock.now() * 1000), *figures,
            )  # fmt: skip
            self._waiting[record.id] = record
            if len(self._waiting) > self._options.waiting_max:
                del self._waiting[next(iter(self._waiting))]
                self.missed_count += 1
            self._has_work.set()

    async def _keep(self) -> None:
        """Write the records that wait longest, for as long as it takes."""
        ids = list(self._waiting)[: self._options.batch_max]
        records = [self._waiting.pop(each) for each in ids]
        write = partial(self._history.record_traffic, records)
        await answered(write, self._backoff, self._log, "Traffic of members not kept yet")


def _flows(report: NodeReport | None) -> tuple[ReportedFlow, ...]:
    traffic = report.status.traffic if report is not None else None
    return traffic.ended if traffic is not None else ()
