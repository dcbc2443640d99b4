"""Says of a plain pod that nothing here will ever give it a node: an event, as a scheduler's is.

There is no kube-scheduler on an embedded cluster. Fairlead places the members of its jobs; a pod
that somebody made without one waits for ever unless somebody binds it.
"""

from __future__ import annotations

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader

REASON = "FailedScheduling"
MESSAGE = (
    "nothing on this embedded cluster schedules plain pods: queue the work as a Job of "
    "fairlead.dev (fairlead submit), or set spec.nodeName"
)
_DEFAULT_SCHEDULER = ("", "default-scheduler")


def report_unscheduled(pods: Mirror[Pod], events: EventSink, reader: MirrorReader) -> None:
    """Watch a mirror of pods; again, with a new reader, after a fault."""

    def changed(change: Change[Pod]) -> None:
        pod = change.new
        if pod is None or pod.spec.node_name or not _waits(pod):
            return
        if change.old is None or not _waits(change.old):
            events.record(PODS, pod.metadata, EventKind.WARNING, reason=REASON, message=MESSAGE)

    reader.follow(pods, changed)


def _waits(pod: Pod) -> bool:
    """Return True for a pod that is open to the default scheduler, which is not there."""
    spec = pod.spec
    is_open = not spec.scheduling_gates and pod.metadata.deletion_timestamp is None
    return is_open and not pod.is_terminal and spec.scheduler_name in _DEFAULT_SCHEDULER
