"""What a replica on a real cluster answers about jobs and members that are gone, read-only:

    /fairlead/v1/history?namespace&name&user&state&since&limit     JSON lines, the latest end first
    /fairlead/v1/namespaces/{namespace}/jobs/{job}/logs?attempt&task     JSON lines, one per member

It knows no users: whoever reaches the port reads all namespaces. So it is answered only when
`--share-archive` is given, for clusters where the API server's service proxy (whose RBAC rule is
`get` on `services/proxy`) is the only way to the port, by a NetworkPolicy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec
from aiohttp import web

from fairlead.api.status import ApiError, BadRequest, NotFound, Unavailable
from fairlead.cli.archive import ArchivedLog
from fairlead.cli.cluster.extensions import (
    HISTORY_LIMIT_DEFAULT,
    HISTORY_LIMIT_MAX,
    history_line,
)
from fairlead.runtime.history import History, HistoryError, HistoryQuery
from fairlead.runtime.memberlogs import LogQuery, LogStore

ANSWERS_MAX = 4
ANSWER_BYTES_MAX = 256 << 20
LINES = "application/x-ndjson"


class ArchiveApi:
    """The handlers; at most ANSWERS_MAX are at work at a time, the others wait."""

    def __init__(self, history: History, logs: LogStore) -> None:
        self._history = history
        self._logs = logs
        self._slots = asyncio.Semaphore(ANSWERS_MAX)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/fairlead/v1/history", self._answer_history)
        app.router.add_get("/fairlead/v1/namespaces/{namespace}/jobs/{job}/logs", self._answer_logs)

    async def _answer_history(self, request: web.Request) -> web.StreamResponse:
        async with self._slots:
            try:
                records = await self._history.query(history_query(request.query))
            except (ApiError, HistoryError) as error:
                return _refusal(error)
        body = b"".join(msgspec.json.encode(history_line(record)) + b"\n" for record in records)
        return web.Response(body=body, headers={"Content-Type": LINES})

    async def _answer_logs(self, request: web.Request) -> web.StreamResponse:
        namespace, job = (unquote(request.match_info[key]) for key in ("namespace", "job"))
        async with self._slots:
            try:
                attempt = _whole(request.query, "attempt") or None
                found = await self._logs.logs(LogQuery(namespace, job, attempt))
            except (ApiError, HistoryError) as error:
                return _refusal(error)
            if not found:
                return _refusal(NotFound(f"no log of job {job} is kept in namespace {namespace}"))
            response = web.StreamResponse(headers={"Content-Type": LINES})
            await response.prepare(request)
            byte_count = 0
            for log in found:
                byte_count += len(log.text)
                if byte_count > ANSWER_BYTES_MAX:
                    break
                await response.write(msgspec.json.encode(ArchivedLog.of(log)) + b"\n")
            return response


def history_query(parameters: Mapping[str, str]) -> HistoryQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    since: float | None = None
    if text := parameters.get("since", ""):
        try:
            since = float(text)
        except ValueError:
            raise BadRequest(f"query parameter since: '{text[:40]}' is not a number") from None
    limit = _whole(parameters, "limit") or HISTORY_LIMIT_DEFAULT
    return HistoryQuery(
        namespace=parameters.get("namespace", ""), name=parameters.get("name", ""),
        uid=parameters.get("uid", ""), user=parameters.get("user", ""),
        state=parameters.get("state", ""), since=since, limit=min(limit, HISTORY_LIMIT_MAX),
    )  # fmt: skip


def _whole(parameters: Mapping[str, str], name: str) -> int:
    text = parameters.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadRequest(f"query parameter {name}: '{text[:40]}' is not a whole number")
    return int(text)


def _refusal(error: ApiError | HistoryError) -> web.Response:
    shown = error if isinstance(error, ApiError) else Unavailable(str(error))
    body = msgspec.json.encode(shown.status)
    return web.Response(body=body, status=shown.status.code, content_type="application/json")
