"""What the cluster's server answers beside the Kubernetes API:

    /metrics                                          Prometheus text
    /fairlead/v1/status                               the process, its nodes, jobs and services
    /fairlead/v1/history?namespace&name&user&state&since&limit     JSON lines, the latest end first
    /fairlead/v1/use?namespace&job&uid&attempt                     JSON lines, a member each
    /fairlead/v1/runs?namespace&tag&since&limit                    JSON lines, a run each
    /fairlead/v1/audit?after&kind&since&limit&order                JSON lines, in order
    /fairlead/v1/fleet/history?pool&action&since&limit             JSON lines, the latest first
    /fairlead/v1/namespaces/{namespace}/jobs/{job}/logs            a job's logs, from the archive
    /fairlead/v1/decisions?limit                      decisions of the scheduler, the latest first
    /fairlead/v1/decisions/{cycle}                    one, with all that it was made on
    /fairlead/v1/explain, /fairlead/v1/fit            POST: questions to the scheduler's process

All behind the same token as the API.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from fairlead import __version__
from fairlead.api import names
from fairlead.api.jobs.job import JobState
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.status import MethodNotAllowed
from fairlead.app.configuration.settings import Settings
from fairlead.app.queries.answers import PlannerAnswers
from fairlead.app.queries.answers_api import QUESTIONS, AnswersApi, read_question
from fairlead.app.queries.archive_api import stream
from fairlead.app.queries.archive_query import record_lines
from fairlead.app.queries.decision_query import decision_file, decision_lines
from fairlead.app.queries.messages import Book, ClusterStatus, NodeCounts, PartHealth
from fairlead.controllers.placing.decision_log import DecisionLog
from fairlead.embedded.http.request import PathNotFound, Query, split_path
from fairlead.embedded.http.server import Handler
from fairlead.embedded.logs.answer import answer_job_logs
from fairlead.embedded.logs.archive import LogArchive
from fairlead.embedded.storage.store import Store
from fairlead.input.sections import plain
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.metrics import CONTENT_TYPE, Metrics
from fairlead.runtime.kept.history import History
from fairlead.runtime.supervisor import Supervisor

_ROOT_SEGMENTS = 2  # fairlead, v1


@dataclass(frozen=True, slots=True)
class Parts:
    """What the extensions speak of."""

    settings: Settings
    client: Client
    store: Store
    history: History
    metrics: Metrics
    supervisor: Supervisor
    archive: LogArchive
    #: Returns the log of the scheduler's decisions, None while no scheduler runs.
    decisions: Callable[[], DecisionLog | None]
    answers: Callable[[], PlannerAnswers | None]


class Extensions:
    """The handlers; one object per cluster."""

    def __init__(self, parts: Parts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._started_at = clock.now()
        self._questions = AnswersApi(parts.answers, clock=clock, stopwatch=time.thread_time)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by the prefix of their paths."""
        return {"/fairlead/v1": self._route, "/metrics": self._metrics}

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        _only_get(request)
        return _body(self._parts.metrics.render(), CONTENT_TYPE)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, raw_query = request.raw_path.partition("?")
        if (kind := QUESTIONS.get(path)) is not None:
            return await self._questions.answer(await read_question(request, kind))
        _only_get(request)
        Query(raw_query)  # refuses what is no query
        match split_path(path)[_ROOT_SEGMENTS:]:
            case ["status"]:
                return _body(msgspec.json.encode(await self.status()), "application/json")
            case ["history"]:
                return await self._records(request, Book.JOBS)
            case ["use"]:
                return await self._records(request, Book.USE)
            case ["runs"]:
                return await self._records(request, Book.RUNS)
            case ["audit"]:
                return await self._records(request, Book.AUDIT)
            case ["fleet", "history"]:
                return await self._records(request, Book.FLEET)
            case ["namespaces", namespace, "jobs", job, "logs"]:
                parameters = dict(request.query)
                archive = self._parts.archive
                return await answer_job_logs(archive, request, (namespace, job), parameters)
            case ["decisions"]:
                log = self._parts.decisions()
                return _body(await decision_lines(log, dict(request.query), asyncio.to_thread))
            case ["decisions", number]:
                log = self._parts.decisions()
                return await stream(request, decision_file(log, number, asyncio.to_thread))
            case _:
                raise PathNotFound("404 page not found")

    async def status(self) -> ClusterStatus:
        """Return what `fairlead status` shows."""
        parts = self._parts
        nodes = (await parts.client.list(NODES)).items
        types = [node.metadata.labels.get(names.NODE_TYPE, "") for node in nodes]
        local, virtual = types.count("local"), types.count("virtual")
        return ClusterStatus(
            version=__version__,
            pid=os.getpid(),
            started_at=self._started_at,
            data=str(parts.settings.data),
            nodes=NodeCounts(local, virtual, len(types) - local - virtual),
            jobs=await self._job_counts(),
            pods=parts.store.count(PODS.name),
            services=tuple(
                PartHealth(s.name, s.state.value, s.ready, s.crash_count, s.last_error)
                for s in parts.supervisor.health().services
            ),
            settings=plain(parts.settings.controllers),
        )

    async def _job_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for job in (await self._parts.client.list(JOBS)).items:
            state = job.status.state or JobState.WAITING.value
            counts[state] = counts.get(state, 0) + 1
        return counts

    async def _records(self, request: web.BaseRequest, book: Book) -> web.StreamResponse:
        lines = record_lines(
            self._parts.history, book, dict(request.query), runner=asyncio.to_thread
        )
        return await stream(request, lines)


def _body(body: bytes, content_type: str = "application/x-ndjson") -> web.Response:
    return web.Response(body=body, headers={"Content-Type": content_type})


def _only_get(request: web.BaseRequest) -> None:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{request.method} is not supported here: only GET is")
