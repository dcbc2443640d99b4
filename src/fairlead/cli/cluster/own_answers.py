"""The planner's answers on the objects that the API shows, for a cluster whose controllers do not
answer: one that is stopped, or from before they did.

The code is that of the controllers (`app/queries/answers.py`), on a state that this process
assembles.
"""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.app.queries.answers import KnownState, PlannerAnswers
from fairlead.app.queries.messages import Explained, Fitted
from fairlead.cli.cluster.cluster_settings import read_settings
from fairlead.cli.cluster.embedded import read_status
from fairlead.cli.cluster.objects import read_objects, read_state
from fairlead.cli.connection.transport import Api
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.health.node_health import NodeHealth

#: The expected start is left out where it takes longer: in queues of thousands of different jobs.
#: Of the processor: neither a slow API server nor a busy machine takes an answer away.
EXPECTED_SECONDS_MAX = 3.0


class OwnAnswers:
    """Why jobs are where they are; what that needs of the cluster is read once."""

    def __init__(self, api: Api, settings: ControllerSettings, now: float) -> None:
        """Read it. Forbidden for a user who may not see the cluster."""
        self._now = now
        give_up_at = time.thread_time() + EXPECTED_SECONDS_MAX
        objects = read_objects(api)
        cluster = read_state(objects, settings.levels(), now)
        health = NodeHealth()
        for node in objects.nodes:
            health.put(node, now)
        jobs = replace(JobsPolicy(), **msgspec.structs.asdict(settings.jobs))
        self._answers = PlannerAnswers(
            PlacementState(cluster),
            KnownState(lambda: objects.nodes, lambda: objects.pools, health),
            settings.placement_policy(), jobs, stopwatch=time.thread_time,
            seconds=lambda: give_up_at - time.thread_time(),
        )  # fmt: skip

    def explain(self, job: Job) -> Explained:
        """Return why a job is where it is."""
        return self._answers.explain(job.metadata.key, self._now)

    def suppose(self, job: Job) -> Explained:
        """Return what a decision would do with a waiting job that is as it says here."""
        return self._answers.suppose(job, self._now)

    def fit(self, job: Job) -> Fitted:
        """Return what a decision would do with a job that is submitted now."""
        return self._answers.fit(job, self._now)


def own_answers(api: Api, now: float) -> OwnAnswers:
    """Return answers with the settings of the controllers, or the defaults where these cannot be
    read. Forbidden as above.
    """
    return OwnAnswers(api, read_settings(api, read_status(api)) or ControllerSettings(), now)
