"""Answers: JSON bodies, `Status` errors, plain text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from fairlead.api.status import ApiError
from fairlead.embedded.http.request import PathNotFound

WARNING_LENGTH_MAX = 1024
WARNINGS_MAX = 16
_JSON = "application/json"
_NO_STORE = "no-cache, private"


def json_answer(
    body: bytes, status: int = 200, *, warnings: Sequence[str] = (), content_type: str = _JSON
) -> web.Response:
    """Return encoded JSON; each warning becomes a `Warning: 299` header (KEP-1693)."""
    return web.Response(body=body, status=status, headers=_headers(content_type, warnings))


def _headers(content_type: str, warnings: Sequence[str]) -> CIMultiDict[str]:
    headers = CIMultiDict((("Content-Type", content_type), ("Cache-Control", _NO_STORE)))
    for warning in warnings[:WARNINGS_MAX]:
        headers.add("Warning", f'299 - "{_quoted(warning)}"')
    return headers


def value_answer(value: Any, status: int = 200, *, warnings: Sequence[str] = ()) -> web.Response:
    """Return a JSON value."""
    return json_answer(msgspec.json.encode(value), status, warnings=warnings)


async def begin_json(
    request: web.BaseRequest, *, warnings: Sequence[str] = ()
) -> web.StreamResponse:
    """Begin an answer of JSON in chunks; its head goes out with the first of them."""
    response = web.StreamResponse(headers=_headers(_JSON, warnings))
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def write_pieces(response: web.StreamResponse, pieces: Iterable[bytes]) -> None:
    """Write chunks with back-pressure; a fast reader never makes `write` wait: others get turns."""
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)


def text_answer(text: str, status: int = 200) -> web.Response:
    """Return plain text."""
    return web.Response(text=text, status=status, headers={"X-Content-Type-Options": "nosniff"})


def _quoted(text: str) -> str:
    """The text as the inside of a quoted string: printable ASCII of bounded length."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in text[:WARNING_LENGTH_MAX])
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def error_answer(error: ApiError) -> web.Response:
    """Return the error's Status with its code, and Retry-After when it says how long to wait."""
    if isinstance(error, PathNotFound):
        return text_answer("404 page not found\n", 404)
    status = error.status
    response = json_answer(status.encode(), status.code, warnings=error.warnings)
    if error.retry_after_seconds or status.code == 429:
        response.headers["Retry-After"] = str(max(1, error.retry_after_seconds))
    return response


def success_answer(
    status: int = 200, details: Mapping[str, str] | None = None, *, warnings: Sequence[str] = ()
) -> web.Response:
    """Return the Status that says that all went well."""
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
    }
    if details is not None:
        body["details"] = dict(details)
    if status != 200:
        body["code"] = status
    return value_answer(body, status, warnings=warnings)
