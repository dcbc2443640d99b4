"""What all answers of the page's server share: their headers, and how a refusal is raised."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

from aiohttp import web

from fairlead.web.render import ROOT, environment

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STATIC = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Refused(Exception):
    """A request that is not answered; the message is for the person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@cache
def _files() -> Mapping[str, tuple[str, bytes]]:
    return {name: (kind, (ROOT / "static" / name).read_bytes()) for name, kind in _STATIC.items()}


@cache
def assets() -> str:
    """Return what differs whenever a static file does."""
    digests = b"".join(hashlib.sha256(body).digest() for _, body in _files().values())
    return hashlib.sha256(digests).hexdigest()[:12]


def static_file(name: str) -> web.Response | None:
    """Return a static file, which a browser may keep for ever under its address."""
    if name not in _files():
        return None
    kind, body = _files()[name]
    headers = {**HEADERS, "Cache-Control": "private, max-age=31536000, immutable"}
    answer = web.Response(body=body, content_type=kind, headers=headers)
    answer.charset = "utf-8"
    return answer


def html(text: str, status: int = 200) -> web.Response:
    """Return a page."""
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def text_file(text: str, name: str, kind: str) -> web.Response:
    """Return a file to keep."""
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=headers)


def welcome(to: str = "/") -> web.Response:
    """Return a page that leads on.

    No redirect: a browser that comes from elsewhere would not send a strict cookie along.
    """
    template = environment().get_template("welcome.html")
    return html(template.render(assets=assets(), to=to))
