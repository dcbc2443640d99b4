"""How somebody comes in: what the server asks of the way in that it was given.

`LinkEntrance` is that of a page on the loopback address, for the one person who started it: a link
that is good once and within minutes. `users/` has those of a page for the users of a cluster.
"""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from fairlead.runtime.clock import Clock
from fairlead.web.live import Viewer
from fairlead.web.pages import AskedPath
from fairlead.web.render import Page
from fairlead.web.responses import HEADERS, Refused, welcome
from fairlead.web.session import BrowserSession, Links, Sessions, is_token


class Entrance(Protocol):
    """A way in."""

    #: Whether a session may be ended by its owner.
    can_leave: bool

    def is_own_host(self, host: str, port: int) -> bool:
        """Return whether a `Host` means this server, which listens on a port."""
        ...

    async def answer(
        self, request: web.BaseRequest, asked: AskedPath, port: int
    ) -> web.Response | None:
        """Answer a request that is about coming in or going; None for any other. Refused."""
        ...

    async def session(self, request: web.BaseRequest, port: int) -> BrowserSession:
        """Return the session of a request; Refused with 401 without one."""
        ...

    def sign_in_page(self, message: str, to: str) -> Page:
        """Return what is shown where the session of a request for `to` is missing."""
        ...


class LinkEntrance:
    """For one person, by one-time links. `key` is what a new link is asked for with."""

    can_leave = False

    def __init__(self, viewer: Viewer, *, key: str, clock: Clock) -> None:
        self.key = key
        self._viewer, self._clock = viewer, clock
        self._links, self._sessions = Links(), Sessions()

    def link(self, port: int) -> str:
        """Return a new one-time link."""
        return f"{url_of(port)}/login?code={self._links.make(self._clock.now())}"

    def is_own_host(self, host: str, port: int) -> bool:
        """Return True for a `Host` that means this server on the loopback address."""
        return host.lower() in {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def answer(
        self, request: web.BaseRequest, asked: AskedPath, port: int
    ) -> web.Response | None:
        """See `Entrance`."""
        if asked.path == ("link",) and request.method == "POST":
            return self._new_link(request, port)
        if asked.path == ("login",) and request.method in ("GET", "HEAD"):
            return self._login(asked.text("code"), port)
        return None

    async def session(self, request: web.BaseRequest, port: int) -> BrowserSession:
        """See `Entrance`."""
        cookie = request.cookies.get(_cookie(port), "")
        session = self._sessions.find(cookie, self._clock.now())
        if session is None:
            raise Refused(401, "This page is for the person who started it.")
        return session

    def sign_in_page(self, message: str, to: str) -> Page:
        """See `Entrance`."""
        values = {"message": message, "status": 401}
        return Page("error.html", "Error", values, "fairlead web --url", status=401)

    def _login(self, code: str, port: int) -> web.Response:
        now = self._clock.now()
        if not self._links.redeem(code, now):
            raise Refused(401, "This link has been used, or it is more than five minutes old.")
        answer, cookie = welcome(), self._sessions.begin(self._viewer, now)
        answer.set_cookie(_cookie(port), cookie, httponly=True, samesite="Strict", path="/")
        return answer

    def _new_link(self, request: web.BaseRequest, port: int) -> web.Response:
        """Return a new link to a process that can read our record, which a browser cannot."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not is_token(given, self.key) or "Origin" in request.headers:
            raise Refused(403, "the key is wrong")
        return web.Response(text=self.link(port), headers=HEADERS)


def url_of(port: int) -> str:
    """Return where a browser of this machine reaches a page on the loopback address."""
    return f"http://127.0.0.1:{port}"


def _cookie(port: int) -> str:
    """Return the cookie's name: ports of one host share their cookies."""
    return f"fairlead-web-{port}"
