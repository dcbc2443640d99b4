"""Sign-in of users with a token of the cluster, or at an OpenID provider.

A session's cookie has the prefix `__Host-`, so no other host and no plain connection can set it,
and each sign-in begins a new one, so none can be given to a browser beforehand. The cookie of a
sign-in at a provider is lax, since the browser comes back from there; it carries nothing that a
session has. To where somebody goes on is a path of this site, put together from its parts.
"""

from __future__ import annotations

import math

from aiohttp import web

from fairlead.api.status import ApiError, Unauthorized
from fairlead.app.configuration.web_settings import WebSettings
from fairlead.app.queries.access_reviews import checked_token
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger
from fairlead.web.forms import FormLimits, asked_path, confirmed_form, read_form
from fairlead.web.pages import AskedPath
from fairlead.web.render import Page, link, render_main, render_whole
from fairlead.web.responses import HEADERS, Refused, assets, html, welcome
from fairlead.web.session import BrowserSession, Sessions
from fairlead.web.users.oidc import ATTEMPT_SECONDS, OidcProvider
from fairlead.web.users.viewer import ClusterUsers, UserIdentity

COOKIE, ATTEMPT_COOKIE = "__Host-fairlead", "__Host-fairlead-sign-in"
#: Browsers of one user.
OWN_SESSIONS_MAX = 16
#: A token with its name in a form, escaped.
_FORM = FormLimits(bytes_max=64 << 10, seconds_max=5.0)
_TOKEN_MAX = 20_000
_TO_MAX = 2_000
#: What is no failure.
_ASK = "You see of the cluster what your rights allow."


class UserEntrance:
    """Lets users in, by the ways that the settings name."""

    can_leave = True

    def __init__(
        self, users: ClusterUsers, settings: WebSettings, provider: OidcProvider | None, *,
        clock: Clock, log: Logger,
    ) -> None:  # fmt: skip
        self._users, self._settings, self._provider = users, settings, provider
        self._clock, self._log = clock, log
        self._sessions = Sessions(sessions_max=settings.sessions_max, own_max=OWN_SESSIONS_MAX)

    def is_own_host(self, host: str, port: int) -> bool:  # it is behind a Service
        """See `Entrance`."""
        return host.lower() == self._settings.host

    async def answer(
        self, request: web.BaseRequest, asked: AskedPath, port: int
    ) -> web.Response | None:
        """See `Entrance`."""
        is_post = request.method == "POST"
        match asked.path:
            case ("login",):
                return await self._by_token(request) if is_post else self._shown("", asked)
            case ("login", "oidc") if self._provider is not None and not is_post:
                return await self._begin(self._provider, path_within(asked.text("to", _TO_MAX)))
            case ("login", "oidc", "return") if self._provider is not None and not is_post:
                return await self._finish(self._provider, request, asked)
            case ("logout",) if is_post:
                return await self._leave(request, port)
            case _:
                return None

    async def session(self, request: web.BaseRequest, port: int) -> BrowserSession:
        """See `Entrance`."""
        session = self._sessions.find(request.cookies.get(COOKIE, ""), self._clock.now())
        if session is None:
            raise Refused(401, _ASK)
        return session

    def sign_in_page(self, message: str, to: str) -> Page:
        """See `Entrance`."""
        values = {
            "message": message, "is_failure": message != _ASK, "to": path_within(to),
            "tokens": self._settings.tokens,
            "provider": link("login", "oidc", to=path_within(to)) if self._provider else "",
        }  # fmt: skip
        command = "kubectl -n NAMESPACE create token SERVICE-ACCOUNT"
        return Page("sign_in.html", "Sign in", values, command, status=401)

    def _shown(self, message: str, asked: AskedPath) -> web.Response:
        """Return the page for signing in, as somebody asked for it or has just failed."""
        page = self.sign_in_page(message, asked.text("to", _TO_MAX))
        frame = {
            "assets": assets(), "digest": "", "has_session": False, "user": "", "leave": "",
            "boards": (),
        }  # fmt: skip
        status = page.status if message else 200
        return html(render_whole(page, render_main(page), frame), status)

    # Ways in

    async def _by_token(self, request: web.BaseRequest) -> web.Response:
        if not self._settings.tokens:
            raise Refused(405, "the settings of this page allow no sign-in with a token")
        form = await read_form(request, _FORM)
        token = "".join(form.text("token", _TOKEN_MAX).split())  # as a terminal has broken it
        source = request.remote or ""
        try:
            user = await self._users.reviews.user_of(checked_token(token), source=source)
        except Unauthorized as error:
            self._log.warning("Sign-in refused", way="token", source=source, why=str(error))
            return self._shown(f"You are not signed in: {error}.", form)
        cookie = self._let_in(request, UserIdentity(user, token), "token", math.inf)
        headers = {**HEADERS, "Location": path_within(form.text("to", _TO_MAX))}
        return _with_cookie(web.Response(status=303, headers=headers), COOKIE, cookie)

    async def _begin(self, provider: OidcProvider, to: str) -> web.Response:
        url, attempt = await provider.begin(to)
        answer = web.Response(status=303, headers={**HEADERS, "Location": url})
        answer.set_cookie(
            ATTEMPT_COOKIE, attempt, httponly=True, secure=True, samesite="Lax", path="/",
            max_age=ATTEMPT_SECONDS,
        )  # fmt: skip
        return answer

    async def _finish(
        self, provider: OidcProvider, request: web.BaseRequest, asked: AskedPath
    ) -> web.Response:
        source = request.remote or ""
        try:
            found = await provider.finish(
                asked.text("code", _TO_MAX), asked.text("state"),
                request.cookies.get(ATTEMPT_COOKIE, ""),
                error=asked.text("error"),
            )  # fmt: skip
        except Refused as error:
            self._log.warning("Sign-in refused", way="oidc", source=source, why=str(error))
            raise
        identity, ends_at = UserIdentity(found.user), self._clock.now()
        ends_at += self._settings.session_seconds_max
        try:  # An API server that takes the token knows its user better than we do.
            user = await self._users.reviews.user_of(found.token, source=source)
            identity, ends_at = UserIdentity(user, found.token), math.inf
        except ApiError:
            pass
        cookie = self._let_in(request, identity, "oidc", ends_at)
        answer = _with_cookie(welcome(path_within(found.to)), COOKIE, cookie)
        answer.set_cookie(
            ATTEMPT_COOKIE, "", httponly=True, secure=True, samesite="Lax", path="/", max_age=0
        )
        return answer

    def _let_in(
        self, request: web.BaseRequest, identity: UserIdentity, way: str, ends_at: float
    ) -> str:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        viewer = self._users.viewer(identity)
        cookie = self._sessions.begin(viewer, self._clock.now(), ends_at=ends_at)
        self._log.info("Signed in", user=viewer.name, way=way, source=request.remote or "")
        return cookie

    async def _leave(self, request: web.BaseRequest, port: int) -> web.Response:
        session = await self.session(request, port)
        await confirmed_form(request, session, _FORM)
        self._sessions.end(request.cookies.get(COOKIE, ""))
        self._log.info("Signed out", user=session.viewer.name)
        answer = web.Response(status=303, headers={**HEADERS, "Location": "/login"})
        return _with_cookie(answer, COOKIE, "", max_age=0)


def path_within(to: str) -> str:
    """Return a path of this site, whatever was asked for: its parts, put together again."""
    path, _, query = to.partition("?")
    try:
        asked = asked_path(path, query.partition("#")[0])
    except Refused:
        return "/"
    if not asked.path or asked.path[0] in ("login", "logout", "live", "logs", "static"):
        return "/"
    return link(*asked.path, **dict(asked.query))


def _with_cookie(
    answer: web.Response, name: str, value: str, *, max_age: int | None = None
) -> web.Response:
    answer.set_cookie(
        name, value, httponly=True, secure=True, samesite="Strict", path="/", max_age=max_age
    )
    return answer
