"""What the API server does not take of a job, and whether it would take it now.

Kept by uid of the job, lost with the process and found out again by trying.
"""

from __future__ import annotations

import re

from fairlead.api.jobs.job import Job
from fairlead.api.resources import PODS
from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    InternalError,
    Invalid,
    TooLarge,
    Unauthorized,
)
from fairlead.controllers.pods.pod_renderer import PodRenderer
from fairlead.decide.jobs.actions import ProbePods
from fairlead.decide.jobs.view import PodRefusal, Probe, Refusal
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock

#: Characters of a server's message that are kept.
MESSAGE_MAX = 1000
#: First and longest delay before the API is asked again to take what it held back.
_RETRY_SECONDS = 0.25
_RETRY_SECONDS_MAX = 5.0
#: apiserver `endpoints/handlers/responsewriters/errors.go`, forbiddenMessage.
_QUOTA = re.compile("exceeded quota|failed quota|insufficient quota|status unknown for quota")
#: Admission webhooks and ValidatingAdmissionPolicies; their answers may have any code.
_DENIED = re.compile(r" denied (the )?request")
_PASSING = re.compile("looking up service account|being terminated")
_LACKS_RIGHTS = re.compile(r" cannot [a-z]+ resource ")


def is_denial(error: ApiError) -> bool:
    """True for a refusal that the same write would get again: by a policy, or for what it is."""
    return refusal_of(error) in (Refusal.POLICY_REFUSED, Refusal.POD_REJECTED)


class PodRefusals:
    """The refusals in effect.

    A thing that is held back is tried again with growing delays, so that a job with a thousand
    members asks once in a while and not a thousand times; a success ends it.
    """

    def __init__(self) -> None:
        self._held: dict[str, PodRefusal] = {}

    def get(self, uid: str) -> PodRefusal | None:
        """Return the refusal of a job's parts, or None."""
        return self._held.get(uid)

    def note(self, job: Job, refusal: Refusal, message: str, now: float) -> None:
        """Keep a refusal; of several in one attempt the final one stays."""
        uid, attempt = job.metadata.uid, job.status.attempt
        message = message[:MESSAGE_MAX]
        before = self._held.get(uid)
        since = now
        if before is not None and before.attempt == attempt:
            is_old = refusal is Refusal.POD_HELD_BACK and now < before.retry_at
            if is_old or before.refusal is not Refusal.POD_HELD_BACK:
                return
            since = before.since
        delay = min(max(now - since, _RETRY_SECONDS), _RETRY_SECONDS_MAX)
        self._held[uid] = PodRefusal(attempt, refusal, message, since, now + delay)

    def clear(self, uid: str) -> None:
        """Note that the API takes parts of this job again."""
        before = self._held.get(uid)
        if before is not None and before.refusal is Refusal.POD_HELD_BACK:
            del self._held[uid]

    def forget(self, uid: str) -> None:
        """Drop what is kept of a job that is gone."""
        self._held.pop(uid, None)


class PodProbes:
    """Dry runs of pods: the latest answer for each job, by uid."""

    def __init__(self, client: Client, renderer: PodRenderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock
        self._answers: dict[str, Probe] = {}

    def get(self, uid: str) -> Probe | None:
        """Return the latest answer."""
        return self._answers.get(uid)

    def forget(self, uid: str) -> None:
        """Drop what is kept of a job that is gone."""
        self._answers.pop(uid, None)

    async def ask(self, action: ProbePods) -> None:
        """Ask for each pod; ApiError when the server gives no answer.

        A pod that would fail for what it is counts as taken: the attempt then ends the job.
        """
        job, refusal, message = action.job, None, ""
        for pod in action.pods:
            body = await self._renderer.body(job, pod)
            try:
                await self._client.create(
                    PODS.only_metadata, body, namespace=job.metadata.namespace, dry_run=True
                )
            except AlreadyExists:
                continue
            except ApiError as error:
                refusal, message = refusal_of(error), error.message[:MESSAGE_MAX]
                if refusal is None or (error.retryable and not isinstance(error, InternalError)):
                    raise
                break
        waits_for = refusal.value.refused if refusal is not None else None
        self._answers[job.metadata.uid] = Probe(self._clock.now(), waits_for, message)


def refusal_of(error: ApiError) -> Refusal | None:
    """Return why a pod was refused: for good, or until there is room or a person acts.

    A full quota, a service account that does not exist yet and missing rights are all Forbidden;
    only the message distinguishes them (kubernetes `plugin/pkg/admission`, apiserver
    `endpoints/handlers`). A server that has just started lacks all roles for a moment, and answers
    with the same message. None: our credentials are not accepted (401), which says nothing about
    the pod.
    """
    if isinstance(error, Unauthorized):
        return None
    if _DENIED.search(error.message):
        return Refusal.POLICY_REFUSED
    if isinstance(error, Forbidden):
        if _QUOTA.search(error.message):
            return Refusal.QUOTA_EXCEEDED
        is_passing = _LACKS_RIGHTS.search(error.message) or _PASSING.search(error.message)
        return Refusal.POD_HELD_BACK if is_passing else Refusal.POLICY_REFUSED
    is_lasting = isinstance(error, BadRequest | Invalid | TooLarge)
    return Refusal.POD_REJECTED if is_lasting else Refusal.POD_HELD_BACK
