"""What programs on virtual nodes report of their steps, as annotations of their pods."""

from __future__ import annotations

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Progress
from fairlead.api.values.times import format_time
from fairlead.decide.jobs.following.own_work import OwnWork, encode_work
from fairlead.embedded.virtual.hardware import Hardware
from fairlead.embedded.virtual.profile import ProgressSpec
from fairlead.embedded.virtual.stages.records import PodRecord
from fairlead.runtime.clock import Clock


def step_reports(
    record: PodRecord, spec: ProgressSpec | None, hardware: Hardware, clock: Clock
) -> dict[str, str]:
    """Return that a step was done and saved, and how long the member's own part of a step takes."""
    now = clock.now()
    progress = Progress(record.step, record.step, format_time(now))
    found = {names.PROGRESS: msgspec.json.encode(progress).decode()}
    span = now - record.started_at
    if spec is None or not spec.own_work_seconds or span < spec.step_seconds:
        return found
    seconds = hardware.own_work(record.node.name, spec.own_work_seconds)
    work = OwnWork(float(f"{seconds:.6g}"), int(span / spec.step_seconds), round(span, 1))
    return found | {names.WORK: encode_work(work)}
