"""The doctor as a controller: examines the control plane from time to time, and reports.

An examination is an action like a write: it is awaited, it may fail, and the process may end in the
middle of it. What it finds goes into the ClusterReport, into Events when a finding begins or ends,
and into metrics. The checks come from outside, as a function: controllers know no check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, assert_never

from fairlead.api.cluster.cluster_report import REPORT_NAME, ClusterReport, FindingSeverity
from fairlead.api.meta import ObjectMeta, merge_diff, to_wire
from fairlead.api.resources import CLUSTER_REPORTS
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.api.values.times import parse_time
from fairlead.decide.doctor.actions import (
    Action,
    ChangeKind,
    CreateReport,
    Examine,
    FindingChange,
    WriteReport,
)
from fairlead.decide.doctor.decide import decide_report
from fairlead.decide.doctor.examination import Examination
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

_KEY: ObjectKey = ("", REPORT_NAME)
_EXAMINATION: ObjectKey = ("", "examination")


class DoctorController:
    """One per process and leader. After a crash, create a new one: its state is in the report."""

    name = "doctor"

    def __init__(
        self,
        client: Client,
        reports: Mirror[ClusterReport],
        examine: Callable[[], Awaitable[Examination]],
        *,
        events: EventSink,
        clock: Clock,
        policy: DoctorPolicy | None = None,
        reader: MirrorReader | None = None,
    ) -> None:
        """`examine` runs the checks."""
        #: The latest one, for the metrics.
        self.examination: Examination | None = None
        self._client = client
        self._objects = ObjectWriter(client)
        self._reports = reports
        self._examine = examine
        self._events = events
        self._clock = clock
        self._policy = policy or DoctorPolicy()
        self._set_aside = set_aside_of(reader)
        #: Whether the latest examination is still to be compared with the report.
        self._is_pending = False
        #: The instant of the loop at which the next examination begins; None: not known yet.
        self._next_at: float | None = None

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._reports,)

    def close(self) -> None:
        """Nothing to detach: it has no handlers."""

    def due_at(self) -> float | None:
        """Return when to decide again: at once with an examination, else when the next is due."""
        if self._is_pending or self._next_at is None:
            return 0.0
        return self._clock.now() + max(0.0, self._next_at - loop_time())

    def decide(self, now: float) -> Decision[Action]:
        """Compare the latest examination with the report, or begin the next one."""
        report, instant = self._reports.get("", REPORT_NAME), loop_time()
        if self._next_at is None:
            self._next_at = instant + self._first_wait(report, now)
        if self._is_pending and self.examination is not None:
            self._is_pending = False
            if not self._reports.is_undefined:
                actions = decide_report(report, self.examination, self._policy)
                if actions:
                    return Decision(actions, wake_at=self.due_at())
        if instant >= self._next_at:
            # Also if it fails: a check that raises must not be run again and again.
            self._next_at = instant + self._policy.interval_seconds
            return Decision((Examine(),), wake_at=self.due_at())
        return Decision(wake_at=self.due_at())

    def _first_wait(self, report: ClusterReport | None, now: float) -> float:
        """Return the time to the first examination: no process examines sooner than its turn."""
        least, most = self._policy.start_seconds, float(self._policy.interval_seconds)
        if report is None or report.status.observed_at is None:
            return least
        return min(max(parse_time(report.status.observed_at) + most - now, least), most)

    def key_of(self, action: Action) -> ObjectKey:
        """Return the key of the report; examinations go on while it cannot be written."""
        return _EXAMINATION if isinstance(action, Examine) else _KEY

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case Examine():
                self.examination = await self._examine()
                self._next_at = loop_time() + self._policy.interval_seconds
                self._is_pending = True
                self._set_aside.clear(CLUSTER_REPORTS, _KEY, AsideStage.ACT)
                return None
            case CreateReport():
                self._is_pending = True
                return await self._create()
            case WriteReport(report, status, changes):
                diff = merge_diff(to_wire(report.status), to_wire(status))
                written = await self._objects.patch_status(CLUSTER_REPORTS, report.metadata, diff)
                for change in changes:
                    self._record(report.metadata, change)
                return written
            case _:
                assert_never(action)

    async def _create(self) -> Written | None:
        try:
            made = await self._client.create(CLUSTER_REPORTS, {"metadata": {"name": REPORT_NAME}})
        except AlreadyExists:
            return None
        return Written.of(CLUSTER_REPORTS, made)

    def _record(self, metadata: ObjectMeta, change: FindingChange) -> None:
        finding = change.finding
        is_bad = change.kind is ChangeKind.BEGAN and finding.severity is not FindingSeverity.INFO
        text = f"{finding.check} {finding.subject}: {finding.title}"
        if change.kind is ChangeKind.BEGAN and finding.evidence:
            text = f"{text} ({finding.evidence})"
        self._events.record(
            CLUSTER_REPORTS, metadata, EventKind.WARNING if is_bad else EventKind.NORMAL,
            reason=change.kind.value, message=text,
        )  # fmt: skip

    def changed(self, key: ObjectKey) -> None:
        """Compare again with the report as it is now."""
        self._is_pending = self.examination is not None

    def failed(self, action: Action, error: ApiError) -> None:
        """An answer that no retry can mend; the loop comes back to the report ever more rarely."""

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised: note it; the next examination is at its time."""
        self._set_aside.note(CLUSTER_REPORTS, ObjectMeta(REPORT_NAME), AsideStage.ACT, error)
