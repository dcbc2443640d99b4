"""Answering /fairlead/v1/namespaces/{namespace}/jobs/{job}/logs from the archive."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from fairlead.api.status import BadRequest
from fairlead.embedded.http.streams.podlogs import stream_text
from fairlead.embedded.logs.archive import LogArchive, parse_query


async def answer_job_logs(
    archive: LogArchive,
    request: web.BaseRequest,
    key: tuple[str, str],
    parameters: Mapping[str, str],
) -> web.StreamResponse:
    """Stream a job's logs as text, or, with `list=1`, say as JSON what there is.

    `key` is (namespace, job). Raises ApiError before the first byte is sent.
    """
    namespace, job = key
    query = parse_query(parameters)
    wants_list = parameters.get("list", "0").lower()
    if wants_list not in ("0", "1", "true", "false"):
        raise BadRequest(f"invalid log query: list={wants_list!r}, accepted: 0, 1, true, false")
    if wants_list in ("1", "true"):
        body = msgspec.json.encode(await archive.describe_job(namespace, job))
        return web.Response(body=body, content_type="application/json")
    pieces = await archive.read_job(namespace, job, query)
    return await stream_text(request, pieces, content_type="text/plain; charset=utf-8")
