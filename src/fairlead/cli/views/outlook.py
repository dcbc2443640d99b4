"""What `submit` says will happen to a job, in words (pure)."""

from __future__ import annotations

from fairlead.api.jobs.job import Job
from fairlead.app.queries.messages import Fitted
from fairlead.cli.views.words import message_of
from fairlead.decide.answers.explanation import Forecast, PreemptionAhead
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.decide.words import duration, plural, some_of

VICTIMS_SHOWN_MAX = 5


def outlook_text(job: Job, found: Fitted, now: float) -> str:
    """Return what a decision would do with a job that is submitted now, in words."""
    is_moving = found.verdict.reason is Reason.DEFRAGMENTING
    if isinstance(found.forecast, PreemptionAhead) and found.forecast.victims and not is_moving:
        return _preempts(job, found.forecast, now)
    text = _verdict_text(found.verdict, is_elastic=job.is_elastic)
    if isinstance(found.forecast, Forecast):
        text += f"; starts within {duration(max(found.forecast.may_start_by - now, 0.0))}"
        text += " if the jobs ahead use their whole time limits" if found.forecast.waits_for else ""
    return text


def _verdict_text(verdict: Verdict, *, is_elastic: bool) -> str:
    """Return e.g. "fits now, on 2 nodes" or "waits: needs 8 GPUs, ..."."""
    if verdict.reason is Reason.PLACED:
        nodes = plural(int(verdict.facts["nodes_used"]), "node")
        members = plural(int(verdict.facts["members"]), "member")
        return f"fits now{' with ' + members if is_elastic else ''}, on {nodes}"
    words = message_of(verdict)
    return words if words.startswith("waits ") else f"waits: {words}"


def _preempts(job: Job, found: PreemptionAhead, now: float) -> str:
    """Return e.g. "starts by taking 2 nodes back from a/big, which borrows them, in about 30s"."""
    namespace = job.metadata.namespace
    counts = found.borrowed or (0,) * len(found.victims)
    names = [(name if space == namespace else f"{space}/{name}", count)
             for (space, name), count in zip(found.victims, counts, strict=True)]  # fmt: skip
    parts = [
        f"taking {plural(count, 'node')} back from {name}, which borrows "
        f"{'it' if count == 1 else 'them'}"
        for name, count in names if count
    ]  # fmt: skip
    if others := [name for name, count in names if not count]:
        parts.append(f"preempting {some_of(others, VICTIMS_SHOWN_MAX)}")
    text = f"starts by {' and '.join(parts[:VICTIMS_SHOWN_MAX])}"
    wait = found.begins_at - now
    if found.ends_by is not None:
        text += f", in about {duration(found.ends_by - now)}"
    elif wait > 0:
        text += f", from {duration(wait)} from now on"
    return f"{text}, unless there is room before" if wait > 0 else text
