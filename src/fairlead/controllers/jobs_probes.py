"""Dry runs of pods: would the API server take the pods of a job that it refused before?"""

from __future__ import annotations

from fairlead.api.resources import PODS
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.controllers.jobs_state import MESSAGE_MAX, refusal_of
from fairlead.controllers.jobs_templates import PodBodies
from fairlead.decide.jobs.actions import ProbePods
from fairlead.decide.jobs.view import Probe, Refusal
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock


class PodProbes:
    """The latest answer for each job, by uid; forgotten with the process, and asked for again."""

    def __init__(self, client: Client, bodies: PodBodies, clock: Clock) -> None:
        self._client = client
        self._bodies = bodies
        self._clock = clock
        self._answers: dict[str, Probe] = {}

    def get(self, uid: str) -> Probe | None:
        """Return the latest answer."""
        return self._answers.get(uid)

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._answers.pop(uid, None)

    async def ask(self, action: ProbePods) -> None:
        """Ask for each pod; ApiError when the server gives no answer.

        A pod that would fail for what it is counts as taken: the attempt then ends the job.
        """
        job, refusal, message = action.job, None, ""
        for pod in action.pods:
            body = await self._bodies.body(job, pod)
            try:
                await self._client.create(
                    PODS.only_metadata, body, namespace=job.metadata.namespace, dry_run=True
                )
            except AlreadyExists:
                continue
            except ApiError as error:
                refusal, message = refusal_of(error), error.message[:MESSAGE_MAX]
                if error.retryable or refusal is None:
                    raise
                break
        if refusal in (Refusal.POD_REJECTED, Refusal.NAME_TAKEN):
            refusal, message = None, ""
        self._answers[job.metadata.uid] = Probe(self._clock.now(), refusal, message)
