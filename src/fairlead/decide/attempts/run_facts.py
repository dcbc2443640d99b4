"""What programs report of their runs, as it reaches the status of their jobs.

The lines of `fairlead.run` are in the file of progress (`decide/jobs/following/progress.py`): the
embedded node follows it and writes a summary into an annotation of the pod, a kubelet copies its
last 4 KiB into the pod's status when the container ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.run_facts import (
    FACTS_BYTES_MAX,
    LISTED_LENGTH_MAX,
    LISTED_MAX,
    ListedMetric,
    RunFacts,
    RunSummary,
    note_of,
    parameters_of,
    source_of,
    tags_of,
)
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.usage import account_of
from fairlead.run import RunFold

#: What a kubelet keeps of a message, at most.
_MESSAGE_BYTES_MAX = 4_096


def read_run(pod: Pod) -> RunFacts | None:
    """Return what a pod's program reported; None when nothing, or nothing readable."""
    text = pod.metadata.annotations.get(names.RUN)
    if text:
        return _annotated(text)
    ends = [each.state.terminated for each in pod.status.container_statuses]
    messages = [each.message for each in ends if each is not None and each.message]
    return _last_facts(messages) if messages else None


def _last_facts(messages: Sequence[str]) -> RunFacts | None:
    """Return what termination messages say; None when nothing."""
    fold = RunFold()
    is_known = False
    for message in messages:
        raw = message.encode(errors="replace")
        found = [line for line in map(fold.take, raw.splitlines()) if line is not None]
        is_known = is_known or bool(found)
        # A summary has all; of single facts, those before the message's begin are not known.
        if len(raw) >= _MESSAGE_BYTES_MAX and any("run" not in line for line in found):
            fold.is_partial = True
    return facts_of(fold) if is_known else None


def _annotated(text: str) -> RunFacts | None:
    if len(text) > FACTS_BYTES_MAX:
        return None
    fold = RunFold()
    try:
        is_known = fold.take_facts(msgspec.json.decode(text))
    except (ValueError, RecursionError):
        return None
    return facts_of(fold) if is_known else None


def facts_of(fold: RunFold) -> RunFacts | None:
    """Return what a fold knows; None when it knows nothing."""
    facts = fold.facts(FACTS_BYTES_MAX)
    return msgspec.convert(facts, RunFacts) if facts else None


def encode_run(fold: RunFold) -> str:
    """Return the text of the annotation, of at most `FACTS_BYTES_MAX` bytes; "" for nothing."""
    facts = fold.facts(FACTS_BYTES_MAX)
    return msgspec.json.encode(facts).decode() if facts else ""


def fold_run(old: RunFacts | None, new: RunFacts | None) -> RunFacts | None:
    """Return both; of what both have, the new one. To fold the same again changes nothing."""
    if old is None or new is None or new == old:
        return new or old
    fold = RunFold()
    fold.take_facts(to_wire(old))
    fold.take_facts(to_wire(new))
    found = facts_of(fold)
    return old if found == old else found


def run_summary(job: Job) -> RunSummary | None:
    """Return what lists show of a job as a run; None where nothing was recorded of one."""
    facts = job.status.run or RunFacts()
    containers = [each for role in job.spec.roles for each in role.template.spec.containers]
    source = source_of(job.metadata)
    summary = RunSummary(
        tags=tags_of(job.metadata),
        params=_shortened({**parameters_of(containers), **facts.params}),
        metrics={
            name: ListedMetric(last=each.last, min=each.min, max=each.max)
            for name, each in list(facts.metrics.items())[:LISTED_MAX]
        },
        note=_short(facts.note or note_of(job.metadata), LISTED_LENGTH_MAX),
        commit=source.commit[:40] if source is not None else "",
    )
    if summary == RunSummary():
        return None
    ended = job.status.finished_at if job.is_finished else None
    hours, cost = account_of(job, parse_time(ended)) if ended else (0.0, None)
    if not hours:
        return summary
    return replace(
        summary, gpu_hours=round(hours, 4), cost=None if cost is None else round(cost, 4)
    )


def _short(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else text[: length_max - 3] + "..."


def _shortened(params: dict[str, str]) -> dict[str, str]:
    kept = list(params.items())[:LISTED_MAX]
    return {name: _short(value, LISTED_LENGTH_MAX) for name, value in kept}


def run_text(job: Job) -> str | None:
    """Return the summary as JSON; None where nothing was recorded."""
    summary = run_summary(job)
    return None if summary is None else msgspec.json.encode(summary).decode()
