"""A job whose pods the API server refuses: it waits without nodes, and tries again by itself.

A full quota, or a policy, is no failure of the job, and no reason to hold nodes that others could
use. So the attempt ends, its pods are deleted, the condition Admitted becomes False with the
server's words, and the scheduler takes the placement back. The next attempt begins only after a
dry run of one pod per role was accepted; the delay between two tries is as long as the refusals
have lasted so far, up to a bound, for as long as the job exists.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import Attempt, JobState, JobStatus, MemberCounts
from fairlead.api.meta import Condition, find_condition
from fairlead.api.times import parse_time
from fairlead.decide.attempts.job_status import (
    refusal_verdict,
    stamp,
    with_condition,
    with_state,
    write,
)
from fairlead.decide.jobs import members
from fairlead.decide.jobs.actions import Action, ProbePods
from fairlead.decide.jobs.cleanup import sweep
from fairlead.decide.jobs.failure_cause import EndReason
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import JobView
from fairlead.decide.verdict import Decision

#: Ends of an attempt whose pods were refused by the API server for what may change.
REFUSED = frozenset(
    reason.value
    for reason in (EndReason.QUOTA_EXCEEDED, EndReason.POLICY_REFUSED, EndReason.POD_HELD_BACK)
)
_DELAY_SECONDS_MIN = 1.0
#: How long after a dry run its answer is looked at.
_LOOK_AGAIN_SECONDS = 1.0


def delay_seconds(status: JobStatus, policy: JobsPolicy, now: float) -> float:
    """Return the wait before the next try: as long as the refusals have lasted so far.

    They have lasted since the first of the latest attempts that all ended by a refusal.
    """
    since = now
    for attempt in reversed(status.attempts):
        if attempt.finished_at is not None and attempt.reason not in REFUSED:
            break
        since = parse_time(attempt.begun_at) if attempt.begun_at else since
    return min(max(now - since, _DELAY_SECONDS_MIN), policy.refused_backoff_seconds_max)


def wait_refused(
    view: JobView, policy: JobsPolicy, now: float, *, ended: Attempt, status: JobStatus
) -> Decision[Action] | None:
    """Decide about a job whose latest attempt was refused; None once the next one may begin."""
    reason, message = ended.reason, ended.message
    told = find_condition(status.conditions, names.ADMITTED)
    if told is not None and told.status == "False" and told.reason in REFUSED:
        reason, message = told.reason, told.message  # of a later dry run, perhaps
    wait_until = parse_time(status.restart_at) if status.restart_at else now
    probe = view.probe if view.probe is not None and view.probe.at >= wait_until else None
    if probe is not None and probe.refusal is not None:
        reason, message = probe.refusal.value, probe.message
        wait_until = probe.at + delay_seconds(status, policy, probe.at)
    new = replace(status, restart_at=stamp(wait_until), members=MemberCounts(view.job.member_count))
    condition = Condition(names.ADMITTED, "False", reason, message)
    new = with_state(with_condition(view.job, new, now, condition), JobState.WAITING)
    actions: list[Action] = [*write(view.job, new), *sweep(view, keep_attempt=-1)]
    verdict = refusal_verdict(new)
    verdicts = {} if verdict is None else {view.job.metadata.key: verdict}
    if actions or new.placement is not None:  # the scheduler takes the placement back
        return Decision(tuple(actions), verdicts)
    if now < wait_until:
        return Decision((), verdicts, wake_at=wait_until)
    if probe is not None:
        return None
    pods = members.probe_pods(view.job, policy)
    return Decision((ProbePods(view.job, pods),), verdicts, wake_at=now + _LOOK_AGAIN_SECONDS)
