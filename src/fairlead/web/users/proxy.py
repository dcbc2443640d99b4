"""Sign-in by a proxy: it shows a certificate, and names its user in headers.

The headers count on connections that have shown a certificate of the authority that the
installation names, made out to the proxy's own name; everybody else may only ask whether the
process answers. The proxy signs its users in, so there is no cookie of ours; what changes something
carries a token of the user's, as elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

from aiohttp import web

from fairlead.app.configuration.web_settings import WebSettings
from fairlead.runtime.clock import Clock
from fairlead.web.pages import AskedPath
from fairlead.web.render import Page
from fairlead.web.responses import Refused
from fairlead.web.session import BrowserSession, new_token
from fairlead.web.users.identity import named_user
from fairlead.web.users.viewer import ClusterUsers, UserIdentity, UserViewer


class ProxyEntrance:
    """Lets in users that a proxy names."""

    can_leave = False

    def __init__(self, users: ClusterUsers, settings: WebSettings, *, clock: Clock) -> None:
        self._users, self._settings, self._clock = users, settings, clock
        #: By the user's name, the one who asked last at the end.
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()

    def is_own_host(self, host: str, port: int) -> bool:  # it is behind a Service
        """See `Entrance`."""
        return host.lower() == self._settings.host

    async def answer(
        self, request: web.BaseRequest, asked: AskedPath, port: int
    ) -> web.Response | None:  # fmt: skip
        """See `Entrance`: the proxy has pages of its own for that."""
        return None

    async def session(self, request: web.BaseRequest, port: int) -> BrowserSession:
        """See `Entrance`."""
        proxy = self._settings.proxy
        if not _is_shown(request, proxy.name):
            raise Refused(401, "This page takes requests of its proxy only.")
        users = request.headers.getall(proxy.user_header, [])
        if len(users) != 1:
            raise Refused(401, f"The proxy has sent {len(users)} headers {proxy.user_header}.")
        listed = ",".join(request.headers.getall(proxy.groups_header, []))
        groups = (each.strip() for each in listed.split(","))
        user = named_user(
            users[0].strip(), filter(None, groups), prefix=proxy.prefix, groups_prefix=proxy.prefix
        )
        return self._session_of(UserIdentity(user))

    def _session_of(self, identity: UserIdentity) -> BrowserSession:
        name = identity.user.username
        session = self._sessions.pop(name, None)
        if session is None:
            csrf, now = new_token(), self._clock.now()
            session = BrowserSession(csrf, self._users.viewer(identity), now)
        elif cast("UserViewer", session.viewer).identity != identity:  # other groups than before
            session.viewer = self._users.viewer(identity)
        self._sessions[name] = session
        if len(self._sessions) > self._settings.sessions_max:
            self._sessions.popitem(last=False)
        return session

    def sign_in_page(self, message: str, to: str) -> Page:
        """See `Entrance`."""
        values = {
            "message": message, "is_failure": True, "to": "/", "tokens": False, "provider": "",
        }  # fmt: skip
        return Page("sign_in.html", "Sign in", values, "fairlead web", status=401)


def _is_shown(request: web.BaseRequest, name: str) -> bool:
    """Return whether the connection has shown a certificate of this name; that its authority is the
    right one, the handshake has found out.
    """
    transport = request.transport
    found: dict[str, Any] = (transport and transport.get_extra_info("peercert")) or {}
    shown = cast("tuple[tuple[str, str], ...]", found.get("subjectAltName", ()))
    return ("DNS", name) in shown
