"""A job whose pods the API server refuses: it waits without nodes, and tries again by itself.

A full quota, or a policy, is no failure of the job, and no reason to hold nodes that others could
use. So the attempt ends, its pods are deleted, the condition Admitted becomes False with the
server's words, and the scheduler takes the placement back. The next attempt begins only after a
dry run of one pod per role was accepted; the delay between two tries is as long as the refusals
have lasted so far, up to a bound, for as long as the job exists.
"""

from __future__ import annotations

from fairlead.api.jobs.job import JobState, JobStatus, MemberCounts
from fairlead.api.values.times import format_micro_time, parse_time
from fairlead.decide.attempts.backoff import last_attempts
from fairlead.decide.attempts.status import StatusDraft, refusal_verdict
from fairlead.decide.jobs.actions import Action, ProbePods
from fairlead.decide.jobs.cleanup import delete_stale_objects
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering import members
from fairlead.decide.jobs.view import JobView
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision

_DELAY_SECONDS_MIN = 1.0
#: How long after a dry run its answer is looked at.
_LOOK_AGAIN_SECONDS = 1.0


def delay_seconds(status: JobStatus, policy: JobsPolicy, now: float) -> float:
    """Return the wait before the next try: as long as the refusals have lasted so far.

    They have lasted since the first of the latest attempts that all ended by a refusal.
    """
    since = now
    refused = last_attempts(status.attempts, lambda end: end.refused is not None)
    if refused and refused[0].begun_at:
        since = parse_time(refused[0].begun_at)
    return min(max(now - since, _DELAY_SECONDS_MIN), policy.refused_backoff_seconds_max)


def wait_refused(
    view: JobView, draft: StatusDraft, reason: Reason, message: str
) -> Decision[Action] | None:
    """Decide about a job whose latest attempt was refused; None once the next one may begin."""
    status = draft.status
    said = refusal_verdict(status)
    if said is not None:  # of a later dry run, perhaps
        reason, message = said.reason, str(said.facts["message"])
    wait_until = parse_time(status.restart_at) if status.restart_at else view.now
    probe = view.probe if view.probe is not None and view.probe.at >= wait_until else None
    if probe is not None and probe.waits_for is not None:
        reason, message = probe.waits_for, probe.message
        wait_until = probe.at + delay_seconds(status, view.policy, probe.at)
    draft = (
        draft.not_admitted(reason, message)
        .state(JobState.WAITING)
        .set(restart_at=format_micro_time(wait_until), members=MemberCounts(view.job.member_count))
    )
    actions: list[Action] = [*draft.write(), *delete_stale_objects(view, keep_attempt=-1)]
    verdict = refusal_verdict(draft.status)
    verdicts = {} if verdict is None else {view.job.metadata.key: verdict}
    if actions or status.placement is not None:  # the scheduler takes the placement back
        return Decision(tuple(actions), verdicts)
    if view.now < wait_until:
        return Decision((), verdicts, wake_at=wait_until)
    if probe is not None:
        return None
    pods = members.probe_pods(view.job, view.policy)
    wake_at = view.now + _LOOK_AGAIN_SECONDS
    return Decision((ProbePods(view.job, pods),), verdicts, wake_at=wake_at)
