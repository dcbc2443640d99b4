"""What comes in from a browser: addresses, and forms within bounds.

A form that changes something was confirmed on a page of the session: it has the session's token,
and the browser says that the page is ours.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from fairlead.web.pages import AskedPath
from fairlead.web.responses import Refused
from fairlead.web.session import BrowserSession, is_token

#: Of a token of ours in a form.
_TOKEN_MAX = 128


@dataclass(frozen=True, slots=True)
class FormLimits:
    """Of a form, and for it to come in."""

    bytes_max: int = 4_096
    seconds_max: float = 3.0


def asked_path(path: str, query: str) -> AskedPath:
    """Return what a path and a query ask for; Refused for a query of too many parts."""
    try:
        return AskedPath.of(path, query)
    except ValueError as error:
        raise Refused(400, "the query cannot be read") from error


async def read_form(request: web.BaseRequest, limits: FormLimits) -> AskedPath:
    """Return the fields of a form of ours; Refused for one that is too long, comes too slowly, or
    from elsewhere.
    """
    if "Origin" not in request.headers:  # that it is ours, `is_own_request` has said
        raise Refused(403, "a form must come from a page of this site")
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds_max):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limits.bytes_max:
                    raise Refused(413, "the form is too long")
    except TimeoutError as error:
        raise Refused(408, "the form did not come in time") from error
    return asked_path("", body.decode("utf-8", "replace"))


async def confirmed_form(
    request: web.BaseRequest, session: BrowserSession, limits: FormLimits
) -> AskedPath:
    """Return the fields of a form that a page of the session has sent; Refused for any other."""
    form = await read_form(request, limits)
    if not is_token(form.text("csrf", _TOKEN_MAX), session.csrf):
        raise Refused(403, "this change was not confirmed on a page of yours; go back")
    return form
