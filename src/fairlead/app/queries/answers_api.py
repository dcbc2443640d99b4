"""Questions to the process that decides, over HTTP:

    POST /fairlead/v1/explain    {"namespace", "name"}    why a job is where it is
    POST /fairlead/v1/fit        {"job"}                  whether a job would fit
    POST /fairlead/v1/teams      {}                       what each team uses

The cluster of `fairlead up` answers them to the holder of its token, a replica on a real cluster to
those that the archive's guard admits (`archive_api.py`); the answers are the same. They are
computed in the loop that decides, one at a time, with pauses in which the loop does its other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.names import GROUP, SUBMITTED_BY
from fairlead.api.resources import JOBS, TEAMS
from fairlead.api.reviews import ResourceAttributes
from fairlead.api.schema import crd
from fairlead.api.status import BadRequest, Invalid, TooLarge, Unavailable
from fairlead.api.validation.validate import validate_job
from fairlead.app.queries.answers import PlannerAnswers, fitted_of_namespace, of_namespace
from fairlead.app.queries.archive_guard import to_read_history
from fairlead.app.queries.messages import (
    EXPLAIN_PATH,
    FIT_PATH,
    NOT_LEADER,
    TEAMS_PATH,
    ExplainQuestion,
    FitQuestion,
    TeamsQuestion,
)
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.schema.schema import Schema, compile_schema
from fairlead.runtime.clock import Clock

#: Of a question. Jobs are a few KiB; a larger one is planned once it is queued.
QUESTION_BYTES_MAX = 256 << 10
#: How many times as long as an answer took the loop is left to others.
PAUSE_RATIO = 4.0
T = TypeVar("T")
Question: TypeAlias = ExplainQuestion | FitQuestion | TeamsQuestion
QUESTIONS: dict[str, type[Question]] = {
    EXPLAIN_PATH: ExplainQuestion, FIT_PATH: FitQuestion, TEAMS_PATH: TeamsQuestion,
}  # fmt: skip


async def read_question(request: web.BaseRequest, kind: type[T]) -> T:
    """Return the question of a request; BadRequest, TooLarge."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > QUESTION_BYTES_MAX:
            raise TooLarge(f"a question has at most {QUESTION_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise BadRequest(f"the question cannot be read: {error}") from error


def right_of(question: Question) -> ResourceAttributes:
    """Return the right that a question takes; BadRequest for one about no namespace."""
    match question:
        case TeamsQuestion():
            return ResourceAttributes("list", TEAMS.plural, group=GROUP)
        case ExplainQuestion():
            namespace = question.namespace
        case FitQuestion():
            metadata: object = question.job.get("metadata")
            namespace = metadata.get("namespace") if isinstance(metadata, dict) else ""
    if not namespace or not isinstance(namespace, str):
        raise BadRequest("the question names no namespace")
    return to_read_history(namespace)


class AnswersApi:
    """Answers one question after the other."""

    def __init__(
        self,
        answers: Callable[[], PlannerAnswers | None],
        *,
        clock: Clock,
        stopwatch: Callable[[], float],
    ) -> None:
        """`answers` returns those of this process's scheduler, None while it has none.

        `stopwatch` returns instants for the durations of answers, in seconds.
        """
        self._answers, self._clock, self._stopwatch = answers, clock, stopwatch
        self._slot = asyncio.Semaphore(1)
        self._schema = _job_schema()

    async def answer(
        self, question: Question, *, user: str | None = None, sees_all: bool = True
    ) -> web.Response:
        """Answer a question. `user` asks, None: who has all rights; without `sees_all` nothing is
        said of other namespaces but what the verdict says.

        Unavailable where this process does not decide; Invalid for a job that cannot be.
        """
        async with self._slot:
            answers = self._answers()
            if answers is None:
                raise Unavailable("another replica decides, or none now", reason=NOT_LEADER)
            began = self._stopwatch()
            match question:
                case ExplainQuestion():
                    key, now = (question.namespace, question.name), self._clock.now()
                    if question.job is None:
                        found = answers.explain(key, now)
                    else:
                        found = answers.suppose(self._wanted(question.job, key, user), now)
                    found = found if sees_all else of_namespace(found, key[0])
                case FitQuestion():
                    job = _asked(question.job, self._schema, user)
                    found = answers.fit(job, self._clock.now())
                    if not sees_all:
                        found = fitted_of_namespace(found, job.metadata.namespace)
                case TeamsQuestion():
                    found = answers.team_uses(self._clock.now())
            body = msgspec.json.encode(found)
            await asyncio.sleep((self._stopwatch() - began) * PAUSE_RATIO)
        return web.Response(body=body, content_type="application/json")

    def _wanted(self, given: Mapping[str, Any], key: ObjectKey, user: str | None) -> Job:
        """Return how a job of this name should have been submitted. Invalid."""
        job = _asked(given, self._schema, user)
        return replace(job, metadata=replace(job.metadata, namespace=key[0], name=key[1]))


def _job_schema() -> Schema:
    """Return what an API server checks of a Job, so that nothing larger is planned here."""
    definitions = (each["spec"] for each in crd.manifests())
    versions = next(each["versions"] for each in definitions if each["names"]["kind"] == JOBS.kind)
    return compile_schema(versions[0]["schema"]["openAPIV3Schema"])


def _asked(given: Mapping[str, Any], schema: Schema, user: str | None) -> Job:
    """Return the job as it would be stored for a user: no decision was made on it. Invalid."""
    body, _, causes = schema.admit(dict(given))
    causes = causes or validate_job(body)
    if causes:
        raise Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in causes))
    try:
        job = msgspec.convert(body, Job)
    except msgspec.ValidationError as error:
        raise Invalid(str(error)) from error
    if job.spec.adopts is not None:
        raise Invalid("spec.adopts: Fairlead writes jobs that stand for other pods")
    metadata = job.metadata
    if user is not None:
        annotations = {**metadata.annotations, SUBMITTED_BY: user}
        metadata = replace(metadata, annotations=annotations)
    return replace(job, metadata=metadata, status=JobStatus())
