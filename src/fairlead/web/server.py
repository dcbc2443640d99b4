"""The page's HTTP server: who may come in, how many at once, and which part answers.

As of the API server (`embedded/http/server.py`), it is aiohttp's low-level server behind
`runtime.connections`: a connection is settled once a request on it has shown a session, so that
connections without one, slow heads among them, are few and short. Requests are answered within a
limit; streams have one of their own. Bodies are bounded and short.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from fairlead.cli.cluster.embedded import LogPart
from fairlead.runtime.clock import Clock
from fairlead.runtime.connections import ConnectionLimits, Connections
from fairlead.runtime.logs import Logger
from fairlead.web.live import Pages, event
from fairlead.web.pages import AskedPath, NoSuchPage
from fairlead.web.pages.change import change_page, changed_work, place_of
from fairlead.web.pages.usage import usage_csv
from fairlead.web.program_text import ProgramText
from fairlead.web.questions import TooManyLogs
from fairlead.web.render import ROOT, Page, environment, render_main, render_whole
from fairlead.web.session import BrowserSession, Sessions, is_own_host, is_own_request, is_token

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
_PATH_MAX, _QUERY_MAX = 1_024, 4_096


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Bounds of the server."""

    requests_max: int = 64
    streams_max: int = 256
    #: A reader of a stream that takes nothing for so long is cut off.
    write_seconds_max: float = 20.0
    keepalive_seconds: float = 60.0
    stop_seconds_max: float = 2.0
    #: Of a form, and for it to come in.
    body_bytes_max: int = 4_096
    body_seconds_max: float = 3.0
    #: Of the log of a job that is sent as a file.
    log_bytes_max: int = 16 << 20
    connections: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(512, 64, stranger_seconds_max=5.0)
    )


class Refused(Exception):
    """A request that is not answered; the message is for the person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WebServer:
    """Serves the pages on a loopback address. `key` is what a new link is asked for with."""

    def __init__(
        self, pages: Pages, *, key: str, clock: Clock, log: Logger, limits: WebLimits | None = None
    ) -> None:
        self.port = 0
        self.limits = limits or WebLimits()
        self.sessions = Sessions()
        self.key = key
        self._pages, self._clock, self._log = pages, clock, log
        self._static = {
            name: (kind, (ROOT / "static" / name).read_bytes()) for name, kind in _STATIC.items()
        }
        digests = b"".join(hashlib.sha256(body).digest() for _, body in self._static.values())
        self._assets = hashlib.sha256(digests).hexdigest()[:12]
        self._requests = 0
        self._streams: set[asyncio.Task[object]] = set()

    @property
    def url(self) -> str:
        """Where a browser of this machine reaches it."""
        return f"http://127.0.0.1:{self.port}"

    def link(self) -> str:
        """Return a new one-time link."""
        return f"{self.url}/login?code={self.sessions.link(self._clock.now())}"

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncGenerator[None]:
        """Serve until the end of the block; 0 takes a free port. OSError."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            transport = request.transport
            with connections.answering(transport):
                return await self._handle(request, lambda: connections.settle(transport))

        protocol = web.Server(
            handle, access_log=None, auto_decompress=False, lingering_time=1.0,
            handler_cancellation=True,
            keepalive_timeout=self.limits.keepalive_seconds,
        )  # fmt: skip
        connections = Connections(protocol, self.limits.connections)
        try:
            async with connections.listening("127.0.0.1", port) as bound:
                self.port = bound
                yield
        finally:
            for stream in self._streams:
                stream.cancel()
            protocol.pre_shutdown()
            await protocol.shutdown(self.limits.stop_seconds_max)

    async def _handle(
        self, request: web.BaseRequest, settle: Callable[[], None]
    ) -> web.StreamResponse:
        """Answer one request, whatever it is: this is the server's top."""
        try:
            answer = await self._answer(request, settle)
        except Refused as error:
            answer = self._error(error.status, str(error))
        except NoSuchPage as error:
            answer = self._error(404, str(error))
        except ConnectionError:
            raise  # the browser has gone
        except Exception as error:  # noqa: BLE001 # the one place where faults of ours are caught
            self._log.error("Fault of the page", path=request.path, exc_info=error)
            answer = self._error(500, "a fault of fairlead; the log of fairlead web says more")
        return answer

    async def _answer(
        self, request: web.BaseRequest, settle: Callable[[], None]
    ) -> web.StreamResponse:
        path, _, raw_query = request.raw_path.partition("?")
        if len(path) > _PATH_MAX or len(raw_query) > _QUERY_MAX:
            raise Refused(414, "the address is too long")
        if not is_own_host(request.headers.get("Host", ""), self.port):
            raise Refused(421, "this server answers to 127.0.0.1 and localhost only")
        asked = _asked(path, raw_query)
        parts = asked.path
        if request.method == "POST" and parts == ("link",):
            return self._new_link(request)
        is_change = parts[:1] == ("change",) and len(parts) == 4
        if request.method not in (("GET", "HEAD", "POST") if is_change else ("GET", "HEAD")):
            raise Refused(405, "accepted: GET")
        if not is_own_request(request.headers):
            raise Refused(403, "requests from pages of other sites are not accepted")
        if len(parts) == 2 and parts[0] == "static" and parts[1] in self._static:
            return self._asset(parts[1])
        if parts == ("login",):
            return self._login(asked.text("code"))
        session = self._session(request)
        settle()
        if parts == ("live",):
            async with self._streaming():
                return await self._live(request, asked)
        if len(parts) == 3 and parts[0] == "logs":
            async with self._streaming():
                return await self._logs(request, asked)
        if self._requests >= self.limits.requests_max:
            raise Refused(503, f"{self.limits.requests_max} requests are being answered")
        self._requests += 1
        try:
            if asked.path[:1] == ("change",) and len(asked.path) == 4:
                return await self._change(request, session, asked)
            if asked.path == ("usage.csv",):
                return _csv(await usage_csv(self._pages.site, asked))
            return await self._page(session, asked)
        finally:
            self._requests -= 1

    # Sessions

    @property
    def _cookie(self) -> str:
        """The cookie's name: ports of one host share their cookies."""
        return f"fairlead-web-{self.port}"

    def _session(self, request: web.BaseRequest) -> BrowserSession:
        cookie = request.cookies.get(self._cookie, "")
        session = self.sessions.find(cookie, self._clock.now())
        if session is None:
            raise Refused(401, "This page is for the person who started it.")
        return session

    def _login(self, code: str) -> web.Response:
        cookie = self.sessions.redeem(code, self._clock.now())
        if cookie is None:
            raise Refused(401, "This link has been used, or it is more than five minutes old.")
        # No redirect: a browser that comes from elsewhere would not send the cookie along.
        answer = self._html(environment().get_template("welcome.html").render(assets=self._assets))
        answer.set_cookie(self._cookie, cookie, httponly=True, samesite="Strict", path="/")
        return answer

    def _new_link(self, request: web.BaseRequest) -> web.Response:
        """Return a new link to a process that can read our record, which a browser cannot."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not is_token(given, self.key) or "Origin" in request.headers:
            raise Refused(403, "the key is wrong")
        return web.Response(text=self.link(), headers=HEADERS)

    # Answers

    async def _page(self, session: BrowserSession, asked: AskedPath) -> web.Response:
        made = await self._pages.make(asked)
        return self._html(render_whole(made.page, made.main, self._frame(made.digest, session)))

    async def _change(
        self, request: web.BaseRequest, session: BrowserSession, asked: AskedPath
    ) -> web.Response:
        """Show what a change would do; once that was confirmed on our page, make it."""
        site, refusal = self._pages.site, ""
        if request.method == "POST":
            if "Origin" not in request.headers or not is_token(
                await self._csrf_of(request), session.csrf
            ):
                raise Refused(403, "this change was not confirmed on a page of yours; go back")
            change, work = changed_work(site, asked)
            namespace, name = work.metadata.key
            refusal = await site.questions.change(change, (namespace, name))
            self._log.info(
                "Change from the page", change=change.verb, namespace=namespace, job=name,
                user=site.user, refusal=refusal,
            )  # fmt: skip
            if not refusal:
                headers = {**HEADERS, "Location": place_of(work)}
                return web.Response(status=303, headers=headers)
        page = change_page(site, asked, session.csrf, refusal)
        return self._html(
            render_whole(page, render_main(page), self._frame("", session)), page.status
        )

    async def _csrf_of(self, request: web.BaseRequest) -> str:
        """Return the token in a form; Refused for a body that is too long, or comes too slowly."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds_max):
                async for piece in request.content.iter_any():
                    body += piece
                    if len(body) > self.limits.body_bytes_max:
                        raise Refused(413, "the form is too long")
        except TimeoutError as error:
            raise Refused(408, "the form did not come in time") from error
        fields = _asked("", body.decode("utf-8", "replace"))
        return fields.text("csrf")

    def _error(self, status: int, message: str) -> web.Response:
        title = "Not found" if status == 404 else "Error"
        values = {"message": message, "status": status}
        page = Page("error.html", title, values, "fairlead web --url", status=status)
        answer = self._html(render_whole(page, render_main(page), self._frame("", None)), status)
        answer.force_close()
        return answer

    def _frame(self, digest: str, session: BrowserSession | None) -> dict[str, object]:
        site = self._pages.site
        return {
            "assets": self._assets, "digest": digest, "user": site.user if session else "",
            "has_session": session is not None,
        }  # fmt: skip

    def _html(self, text: str, status: int = 200) -> web.Response:
        return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)

    def _asset(self, name: str) -> web.Response:
        kind, body = self._static[name]
        headers = {**HEADERS, "Cache-Control": "private, max-age=31536000, immutable"}
        answer = web.Response(body=body, content_type=kind, headers=headers)
        answer.charset = "utf-8"
        return answer

    # Streams

    @asynccontextmanager
    async def _streaming(self) -> AsyncGenerator[None]:
        if len(self._streams) >= self.limits.streams_max:
            raise Refused(503, f"{self.limits.streams_max} pages are open, the server's limit")
        task = asyncio.current_task()
        assert task is not None, "a request is answered in a task"
        self._streams.add(task)
        try:
            yield
        finally:
            self._streams.discard(task)

    async def _live(self, request: web.BaseRequest, asked: AskedPath) -> web.StreamResponse:
        """Send a page's content whenever it has changed, and in between that we are here."""
        path, _, query = asked.text("of", _QUERY_MAX).partition("?")
        shown, seen = _asked(path, query), asked.text("seen")
        cluster, answer = self._pages.site.cluster, _event_stream()
        await answer.prepare(request)
        try:
            async with aclosing(self._pages.changes(shown, seen)) as changes:
                async for made in changes:
                    self._session(request)  # it may have ended
                    if made is not None:
                        await self._write(answer, event("main", made.main))
                    age = cluster.age_seconds
                    text = "" if age is None else f"{age:.0f}"
                    await self._write(answer, event("alive", text))
        except NoSuchPage as error:
            await self._write(answer, event("gone", str(error)))
        except Refused:
            await self._write(answer, event("expired", ""))
        except (TimeoutError, ConnectionError):  # it takes nothing any more, or is gone
            answer.force_close()
        return answer

    async def _logs(self, request: web.BaseRequest, asked: AskedPath) -> web.StreamResponse:
        """Send what a job's members write: lines of HTML as they come, or a file of text."""
        key = asked.path[1], asked.path[2]
        is_file = asked.text("download") != ""
        tail = asked.number("tail", 100_000)
        wanted = LogPart(follow=not is_file, task=asked.text("task") or None, tail=tail or None)
        chunks = self._pages.site.questions.logs(key, wanted)
        answer = _download(key[1]) if is_file else _event_stream()
        try:
            async with aclosing(chunks):
                await answer.prepare(request)
                if is_file:
                    await self._send_file(answer, chunks)
                else:
                    await self._send_lines(answer, chunks)
        except TooManyLogs:
            await self._write(answer, event("gone", "too many logs are being followed"))
        except (TimeoutError, ConnectionError):  # it takes nothing any more, or is gone
            answer.force_close()
        return answer

    async def _send_lines(self, answer: web.StreamResponse, chunks: AsyncGenerator[bytes]) -> None:
        text = ProgramText()
        async for chunk in chunks:
            await self._send(answer, text.feed(chunk))
        await self._send(answer, text.feed(b"", is_last=True))
        await self._write(answer, event("end", ""))

    async def _send(self, answer: web.StreamResponse, lines: Sequence[str]) -> None:
        if lines:
            rows = "".join(f'<span class="line">{line}\n</span>' for line in lines)
            await self._write(answer, event("lines", rows))

    async def _send_file(self, answer: web.StreamResponse, chunks: AsyncGenerator[bytes]) -> None:
        left = self.limits.log_bytes_max
        async for chunk in chunks:
            await self._write(answer, chunk[:left])
            left -= len(chunk)
            if left <= 0:
                await self._write(answer, b"\n[the rest is left out: see fairlead logs]\n")
                return

    async def _write(self, answer: web.StreamResponse, data: bytes) -> None:
        """Write to a reader who takes it in time; TimeoutError."""
        async with asyncio.timeout(self.limits.write_seconds_max):
            await answer.write(data)


def _asked(path: str, query: str) -> AskedPath:
    """Return what a path and a query ask for; Refused for a query of too many parts."""
    try:
        return AskedPath.of(path, query)
    except ValueError as error:
        raise Refused(400, "the query cannot be read") from error


def _event_stream() -> web.StreamResponse:
    answer = web.StreamResponse(headers=HEADERS)
    answer.content_type = "text/event-stream"
    return answer


def _csv(text: str) -> web.Response:
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="usage.csv"'}
    return web.Response(text=text, content_type="text/csv", charset="utf-8", headers=headers)


def _download(name: str) -> web.StreamResponse:
    safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{safe}.log"'}
    answer = web.StreamResponse(headers=headers)
    answer.content_type, answer.charset = "text/plain", "utf-8"
    return answer
