"""What a replica on a real cluster answers about jobs and members that are gone, read-only:

    /fairlead/v1/history?namespace&name&uid&user&state&since&limit     JSON lines, latest end first
    /fairlead/v1/fleet/history?pool&action&since&limit                 JSON lines, latest first
    /fairlead/v1/audit?after&kind&since&limit&order    JSON lines, in the order of the chain
    /fairlead/v1/namespaces/{namespace}/jobs/{job}/logs?attempt&uid    JSON lines, one per member
    /fairlead/v1/decisions?limit                    decisions of the scheduler, the latest first
    /fairlead/v1/decisions/{cycle}                  one, with all that it was made on: a file

and the questions to the process that decides (`answers_api.py`), which are POSTs.

Each request carries a bearer token, and `archive_guard.py` has the API server say what its user may
read. It is served on the webhook's port, over TLS, and reached through the API server's service
proxy (docs/design/history-and-logs.md). Records that are in the memory of the leader alone are
answered by it alone; another replica says so, and the client asks again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from fairlead.api.reviews import ResourceAttributes
from fairlead.api.status import (
    ApiError,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Timeout,
    TooManyRequests,
    Unavailable,
)
from fairlead.app.queries.answers_api import (
    QUESTIONS,
    AnswersApi,
    Question,
    read_question,
    right_of,
)
from fairlead.app.queries.archive_guard import (
    ArchiveGuard,
    to_read_fleet,
    to_read_history,
    to_read_logs,
    token_of,
)
from fairlead.app.queries.archive_query import (
    ANSWER_BYTES_MAX,
    audit_query,
    fleet_query,
    history_query,
    log_lines,
    log_query,
    record_lines,
    run_query,
    use_query,
)
from fairlead.app.queries.decision_query import decision_file, decision_lines
from fairlead.app.queries.messages import NOT_LEADER, Book
from fairlead.controllers.placing.decision_log import DecisionLog
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.history import History, HistoryError, LogQuery, LogStore

#: Under way, most of them waiting.
REQUESTS_MAX = 64
#: Of which a few rows are in memory at a time, and what identifies the others.
HISTORIES_MAX = 2
LOGS_MAX = 1
#: Of one user, to the process that decides.
QUESTIONS_MAX = 8
#: For a whole answer: a reader that is slower makes others wait.
ANSWER_SECONDS_MAX = 60.0
LINES = "application/x-ndjson"


class ArchiveApi:
    """Answers requests, REQUESTS_MAX at a time, of which a few read and the others wait.

    `logs` is None where none are kept. `is_here` says whether this replica has the records.
    """

    def __init__(
        self,
        client: Client,
        history: History,
        logs: LogStore | None,
        *,
        is_here: Callable[[], bool] = lambda: True,
        decisions: Callable[[], DecisionLog | None] = lambda: None,
        questions: AnswersApi | None = None,
        clock: Clock,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        """`decisions` returns the log of this replica's scheduler, None while it has none."""
        self._guard = ArchiveGuard(client, clock)
        self._history = history
        self._logs = logs
        self._is_here = is_here
        self._decisions = decisions
        self._questions = questions
        #: Questions under way, by user.
        self._asking: Counter[str] = Counter()
        self._answer_bytes_max = answer_bytes_max
        self._history_slots = asyncio.Semaphore(HISTORIES_MAX)
        self._log_slots = asyncio.Semaphore(LOGS_MAX)
        self._under_way = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; what cannot be answered is a Status, as of an API server."""
        if self._under_way >= REQUESTS_MAX:
            return _refusal(TooManyRequests(f"{REQUESTS_MAX} questions to the archive at a time"))
        self._under_way += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._answer(request)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # half of an answer may be on its way
            return _refusal(Timeout(f"no whole answer within {ANSWER_SECONDS_MAX:g} s"))
        finally:
            self._under_way -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            kind = QUESTIONS.get(request.path)
            if kind is not None:
                return await self._answer_question(request, kind)
            if request.method != "GET":
                raise MethodNotAllowed(f"{request.method} is not supported here: only GET is")
            match request.path.strip("/").split("/"):
                case ["fairlead", "v1", "history"]:
                    history_query(request.query)
                    right = to_read_history(request.query.get("namespace", ""))
                    return await self._answer_records(request, Book.JOBS, right)
                case ["fairlead", "v1", "use"]:
                    use_query(request.query)
                    right = to_read_history(request.query.get("namespace", ""))
                    return await self._answer_records(request, Book.USE, right)
                case ["fairlead", "v1", "runs"]:
                    run_query(request.query)
                    right = to_read_history(request.query.get("namespace", ""))
                    return await self._answer_records(request, Book.RUNS, right)
                case ["fairlead", "v1", "fleet", "history"]:
                    fleet_query(request.query)
                    return await self._answer_records(request, Book.FLEET, to_read_fleet())
                case ["fairlead", "v1", "audit"]:  # of jobs of all namespaces, and of nodes
                    audit_query(request.query)
                    await self._check(request, to_read_fleet())
                    return await self._answer_records(request, Book.AUDIT, to_read_history(""))
                case ["fairlead", "v1", "namespaces", namespace, "jobs", job, "logs"]:
                    query = log_query(namespace, job, request.query)
                    await self._admit(request, to_read_logs(namespace))
                    return await self._answer_logs(request, query)
                case ["fairlead", "v1", "decisions", *rest] if len(rest) <= 1:
                    return await self._answer_decisions(request, "".join(rest))
                case _:
                    raise NotFound("404 page not found")
        except (ApiError, HistoryError) as error:
            return _refusal(error)

    async def _answer_question(
        self, request: web.BaseRequest, kind: type[Question]
    ) -> web.StreamResponse:
        token, source = token_of(request.headers), request.remote or ""
        user = (await self._guard.user_of(token, source=source)).username
        if self._questions is None:
            raise NotFound("404 page not found")
        if self._asking[user] >= QUESTIONS_MAX:
            raise TooManyRequests(f"{QUESTIONS_MAX} questions of {user} at a time")
        self._asking[user] += 1
        try:
            question = await read_question(request, kind)
            await self._check(request, right_of(question))
            sees_all = await self._may(request, to_read_history(""))
            return await self._questions.answer(question, user=user, sees_all=sees_all)
        finally:
            self._asking[user] -= 1
            if not self._asking[user]:
                del self._asking[user]

    async def _may(self, request: web.BaseRequest, wanted: ResourceAttributes) -> bool:
        try:
            await self._check(request, wanted)
        except Forbidden:
            return False
        return True

    async def _check(self, request: web.BaseRequest, wanted: ResourceAttributes) -> None:
        token, source = token_of(request.headers), request.remote or ""
        await self._guard.check(token, wanted, source=source)

    async def _admit(self, request: web.BaseRequest, wanted: ResourceAttributes) -> None:
        await self._check(request, wanted)
        if not self._is_here():
            raise Unavailable("another replica has the records", reason=NOT_LEADER)

    async def _answer_records(
        self, request: web.BaseRequest, book: Book, right: ResourceAttributes
    ) -> web.StreamResponse:
        await self._admit(request, right)
        async with self._history_slots:
            lines = record_lines(
                self._history,
                book,
                request.query,
                runner=asyncio.to_thread,
                bytes_max=self._answer_bytes_max,
            )
            return await stream(request, lines)

    async def _answer_decisions(self, request: web.BaseRequest, number: str) -> web.StreamResponse:
        # They show jobs of all namespaces.
        await self._check(request, to_read_history(""))
        async with self._log_slots:  # a file may be as large as logs
            log = self._decisions()
            if number:
                return await stream(request, decision_file(log, number, asyncio.to_thread))
            body = await decision_lines(log, request.query, asyncio.to_thread)
            return web.Response(body=body, headers={"Content-Type": LINES})

    async def _answer_logs(self, request: web.BaseRequest, query: LogQuery) -> web.StreamResponse:
        if self._logs is None:
            raise NotFound(
                f"no log of job {query.job} is kept: this installation keeps none (history.kind is "
                "memory; sqlite and postgres keep logs)"
            )
        async with self._log_slots:
            lines = log_lines(
                self._logs, query, runner=asyncio.to_thread, bytes_max=self._answer_bytes_max
            )
            none = f"no log of job {query.job} is kept in namespace {query.namespace}"
            return await stream(request, lines, none=none)


async def stream(
    request: web.BaseRequest, pieces: AsyncIterator[bytes], *, none: str = ""
) -> web.StreamResponse:
    """Answer with pieces as they come; NotFound with `none`, if it is given, without any.

    What goes wrong before the first piece is raised. After it the connection is cut, so that
    nobody takes what came for the whole.
    """
    first = await anext(pieces, b"")
    if none and not first:
        raise NotFound(none)
    response = web.StreamResponse(headers={"Content-Type": LINES})
    await response.prepare(request)
    try:
        await response.write(first)
        async for piece in pieces:
            await response.write(piece)
    except (ApiError, HistoryError):
        if request.transport is not None:
            request.transport.abort()
    return response


def _refusal(error: ApiError | HistoryError) -> web.Response:
    shown = error if isinstance(error, ApiError) else Unavailable(str(error))
    return web.Response(
        body=shown.status.encode(), status=shown.status.code, content_type="application/json"
    )
