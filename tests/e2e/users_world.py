"""The page for the users of a cluster over real sockets with TLS, on an API in a dictionary that
knows tokens and rights.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector
from tests.e2e.web_world import Events, create

from fairlead.api.resources import Resource
from fairlead.api.reviews import (
    AccessReview,
    AccessReviewStatus,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from fairlead.app.configuration.web_settings import WebSettings
from fairlead.kube.kubeconfig import Connection
from fairlead.model.asks.topology import DEFAULT_LEVELS
from fairlead.runtime.client import Request
from fairlead.runtime.clock import Clock, SystemClock
from fairlead.runtime.logs import SILENT
from fairlead.runtime.supervisor import Supervisor
from fairlead.testing.fake_client import FakeClient
from fairlead.web.server import WebLimits, WebServer
from fairlead.web.sources.cluster import WebMirrors
from fairlead.web.sources.questions import QuestionThreads
from fairlead.web.sources.rights import Rights
from fairlead.web.sources.view import ClusterViews
from fairlead.web.users.entrance import COOKIE
from fairlead.web.users.process import (
    LIMITS,
    UserPageOptions,
    keep_certificate,
    reviews_of,
    tls_of,
    user_server,
)
from fairlead.web.users.viewer import ClusterUsers

HOST = "page.example:8443"
URL = f"https://{HOST}"
_CSRF = re.compile(r'name="csrf" value="([\w-]+)"')
#: Listed by resource and namespace, "" for all; "*" is every resource.
Grants = set[tuple[str, str]]


@dataclass
class ReviewingClient(FakeClient):
    """An API that knows tokens (`token-NAME`), and what each user may list."""

    users: dict[str, Grants] = field(default_factory=dict[str, Grants])
    reviews: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()

    async def call(self, request: Request[Any]) -> Any:
        """Answer reviews by the tables, everything else as `FakeClient`."""
        if isinstance(request.body, TokenReview):
            self.reviews.append("token")
            name = request.body.spec.token.removeprefix("token-")
            if name not in self.users:
                return TokenReview()
            return TokenReview(status=TokenReviewStatus(authenticated=True, user=UserInfo(name)))
        if isinstance(request.body, AccessReview):
            self.reviews.append("access")
            spec = request.body.spec
            wanted = spec.resource_attributes
            assert wanted is not None
            assert wanted.verb == "list"
            granted = self.users.get(spec.user, set())
            names, spaces = ("*", wanted.resource), ("", wanted.namespace)
            is_allowed = any((name, space) in granted for name in names for space in spaces)
            return AccessReview(spec, AccessReviewStatus(is_allowed))
        return await super().call(request)


class Listening(Protocol):
    """What listens on a port."""

    @property
    def port(self) -> int: ...


@dataclass
class UserBrowser:
    """A client of the page that keeps cookies as a browser does."""

    server: Listening
    http: ClientSession
    cookies: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"https://127.0.0.1:{self.server.port}"

    def headers(self, **more: str) -> dict[str, str]:
        """Return what the browser sends."""
        own = {"Host": HOST}
        if self.cookies:
            own["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**own, **{name.replace("_", "-"): value for name, value in more.items()}}

    async def ask(
        self, method: str, path: str, form: Mapping[str, str] | None = None, **headers: str
    ) -> tuple[ClientResponse, str]:
        """Return an answer and its text; cookies that come with it are kept."""
        async with self.http.request(
            method, self.address + path, headers=self.headers(**headers), data=form,
            allow_redirects=False,
        ) as answer:  # fmt: skip
            for name, morsel in answer.cookies.items():
                if morsel.value:
                    self.cookies[name] = morsel.value
                else:
                    self.cookies.pop(name, None)
            return answer, await answer.text()

    async def get(self, path: str, **headers: str) -> tuple[ClientResponse, str]:
        """Return an answer and its text."""
        return await self.ask("GET", path, **headers)

    async def post(
        self, path: str, form: Mapping[str, str], **headers: str
    ) -> tuple[ClientResponse, str]:
        """Send a form as a page of the site does."""
        return await self.ask("POST", path, form, **{"Origin": URL, **headers})

    async def sign_in(self, name: str) -> None:
        """Sign in as a user of the dictionary."""
        await self.sign_in_with(f"token-{name}")

    async def sign_in_with(self, token: str) -> None:
        """Sign in with a token."""
        answer, text = await self.post("/login", {"token": token})
        assert answer.status == 303, text
        assert COOKIE in self.cookies

    async def page(self, path: str) -> str:
        """Return the HTML of a page that is there."""
        answer, text = await self.get(path)
        assert answer.status == 200, text
        return text

    async def csrf(self, path: str) -> str:
        """Return the token in a form of a page."""
        found = _CSRF.search(await self.page(path))
        assert found is not None
        return found[1]

    @asynccontextmanager
    async def events(self, path: str) -> AsyncIterator[Events]:
        """Yield the events of a stream."""
        async with self.http.get(self.address + path, headers=self.headers()) as answer:
            yield Events(answer)


@dataclass
class UserPage:
    """The page, its API, and browsers for it."""

    server: WebServer
    client: ReviewingClient
    http: ClientSession

    def browser(self) -> UserBrowser:
        """Return a browser that has not signed in."""
        return UserBrowser(self.server, self.http)

    async def signed_in(self, name: str) -> UserBrowser:
        """Return the browser of a user."""
        browser = self.browser()
        await browser.sign_in(name)
        return browser


@asynccontextmanager
async def page_for_users(
    users: dict[str, Grants],
    objects: Iterable[tuple[Resource[Any], Any]] = (),
    *,
    settings: WebSettings | None = None,
    secrets: Path | None = None,
    limits: WebLimits = LIMITS,
    clock: Clock | None = None,
    client_tls: ssl.SSLContext | None = None,
    api: str = "http://127.0.0.1:1",
) -> AsyncIterator[UserPage]:
    """Yield the page of a cluster with these users and objects. `api` answers what the mirrors do
    not.
    """
    clock, client = clock or SystemClock(), ReviewingClient(users)
    for resource, each in objects:
        await create(client, resource, each)
    rng = random.Random(1)
    mirrors = WebMirrors(client, Rights(), clock=clock, rng=rng)
    threads = QuestionThreads()
    shared = ClusterUsers(
        reviews_of(client, clock), ClusterViews(mirrors), Connection(api, source="a test"),
        threads, clock=clock, levels=DEFAULT_LEVELS,
    )  # fmt: skip
    options = UserPageOptions(
        "127.0.0.1", 0, settings or WebSettings(url=URL), DEFAULT_LEVELS, secrets=secrets
    )
    context = tls_of(options)
    server = user_server(shared, options, clock=clock, log=SILENT, limits=limits)
    supervisor = Supervisor(mirrors.services(), clock=clock, rng=rng)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(supervisor.run())
        keeping = group.create_task(keep_certificate(context, options, SILENT))
        await mirrors.ready()
        connector = TCPConnector(limit=0, ssl=cast("Any", client_tls or False))
        async with (
            server.listening(0, tls=context),
            ClientSession(connector=connector, timeout=ClientTimeout(total=30)) as http,
        ):
            yield UserPage(server, client, http)
        keeping.cancel()
        supervisor.stop()
        await running
    await threads.close()
