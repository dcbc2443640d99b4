"""The page's HTTP server: who may come in, how many at once, and which part answers.

As of the API server (`embedded/http/server.py`), it is aiohttp's low-level server behind
`runtime.connections`: a connection is settled once a request on it has shown a session, so that
connections without one, slow heads among them, are few and short. Requests are answered within a
limit; streams have one of their own. Bodies are bounded and short.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from fairlead.api.status import ApiError, TooManyRequests
from fairlead.app.queries.access_reviews import Rate, RateBucket
from fairlead.cli.cluster.embedded import LogPart
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger
from fairlead.runtime.outside.connections import ConnectionLimits, Connections
from fairlead.web.boards import BoardLink
from fairlead.web.entrance import Entrance
from fairlead.web.forms import FormLimits, asked_path, confirmed_form
from fairlead.web.live import Pages, SessionEnded, event
from fairlead.web.pages import AskedPath, NoSuchPage, Site
from fairlead.web.pages.change import change_page, order_of, place_of
from fairlead.web.pages.decisions import decision_file
from fairlead.web.pages.simulator import act_on_simulation, simulation_page
from fairlead.web.pages.submit import answered, draft_of, draft_page
from fairlead.web.pages.usage import usage_csv
from fairlead.web.program_text import ProgramText
from fairlead.web.render import Page, link, render_main, render_whole
from fairlead.web.responses import HEADERS, Refused, assets, html, static_file, text_file
from fairlead.web.session import BrowserSession, is_own_request
from fairlead.web.sources.drafts import TEXT_MAX
from fairlead.web.sources.questions import TooManyLogs

LOOPBACK = "127.0.0.1"
#: What probes ask; it says that the process answers, and nothing else.
HEALTH_PATH = "/healthz"
#: What an entrance may answer to a POST.
_ENTRY = (("link",), ("login",), ("logout",))
#: Where a simulation is confirmed, and its end.
_SIMULATION = (("simulator", "run"), ("simulator", "stop"))
#: Where a job is written.
_SUBMIT = ("submit",)
#: What was made is shown once the mirrors have it, or after so long a list of what there is.
_APPEARS_SECONDS_MAX, _APPEARS_STEP = 2.0, 0.05
_PATH_MAX, _QUERY_MAX = 1_024, 4_096
_RATES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Bounds of the server."""

    requests_max: int = 64
    streams_max: int = 256
    #: A reader of a stream that takes nothing for so long is cut off.
    write_seconds_max: float = 20.0
    keepalive_seconds: float = 60.0
    stop_seconds_max: float = 2.0
    #: Of one person: requests being answered, in a time, and open pages and logs.
    own_requests_max: int = 64
    own_rate: Rate = field(default_factory=lambda: Rate(500.0, 100.0))
    own_streams_max: int = 256
    #: A page is followed for so long; then its browser comes again, and shows who it is.
    stream_seconds_max: float = math.inf
    body: FormLimits = field(default_factory=FormLimits)
    #: Of a job that is written on the page; a form makes three bytes of most that are not letters.
    draft: FormLimits = field(default_factory=lambda: FormLimits(4 * TEXT_MAX, 10.0))
    #: Of the log of a job that is sent as a file.
    log_bytes_max: int = 16 << 20
    connections: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(512, 64, stranger_seconds_max=5.0)
    )


class WebServer:
    """Serves the pages to users that an entrance lets in."""

    def __init__(
        self, pages: Pages, entrance: Entrance, *, clock: Clock, log: Logger,
        limits: WebLimits | None = None, boards: Sequence[BoardLink] = (),
    ) -> None:  # fmt: skip
        """`boards` are linked from each page."""
        self.port, self.boards = 0, boards
        self.limits = limits or WebLimits()
        self._entrance = entrance
        self._pages, self._clock, self._log = pages, clock, log
        self._requests: Counter[str] = Counter()
        #: Those who asked last at the end.
        self._rates: OrderedDict[str, RateBucket] = OrderedDict()
        self._streams: dict[asyncio.Task[object], str] = {}

    @asynccontextmanager
    async def listening(
        self, port: int, *, host: str = LOOPBACK, tls: ssl.SSLContext | None = None
    ) -> AsyncGenerator[None]:
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
        connections = Connections(protocol, self.limits.connections, tls)
        try:
            async with connections.listening(host, port) as bound:
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
            answer = self._error(error.status, str(error), request)
        except SessionEnded as error:
            answer = self._error(401, str(error), request)
        except ApiError as error:
            status = 429 if isinstance(error, TooManyRequests) else 503
            answer = self._error(status, str(error), request)
        except NoSuchPage as error:
            answer = self._error(404, str(error), request)
        except ConnectionError:
            raise  # the browser has gone
        except Exception as error:  # noqa: BLE001 # the one place where faults of ours are caught
            self._log.error("Fault of the page", path=request.path, exc_info=error)
            text = "a fault of fairlead; the log of fairlead web says more"
            answer = self._error(500, text, request)
        return answer

    async def _answer(
        self, request: web.BaseRequest, settle: Callable[[], None]
    ) -> web.StreamResponse:
        path, _, raw_query = request.raw_path.partition("?")
        if len(path) > _PATH_MAX or len(raw_query) > _QUERY_MAX:
            raise Refused(414, "the address is too long")
        if path == HEALTH_PATH:
            return web.Response(text="ok\n", headers=HEADERS)
        if not self._entrance.is_own_host(request.headers.get("Host", ""), self.port):
            raise Refused(421, "this server does not answer to that name")
        asked = asked_path(path, raw_query)
        parts = asked.path
        is_change = _is_change(parts) or parts in (*_SIMULATION, _SUBMIT)
        methods = ("GET", "HEAD", "POST") if is_change or parts[:1] in _ENTRY else ("GET", "HEAD")
        if request.method not in methods:
            raise Refused(405, "accepted: GET")
        if parts != ("link",) and not is_own_request(request.headers):
            raise Refused(403, "requests from pages of other sites are not accepted")
        if len(parts) == 2 and parts[0] == "static" and (file := static_file(parts[1])):
            return file
        if (entered := await self._entrance.answer(request, asked, self.port)) is not None:
            return entered
        session = await self._entrance.session(request, self.port)
        self._admit(session.viewer.name)
        settle()
        return await self._served(request, session, asked)

    async def _served(
        self, request: web.BaseRequest, session: BrowserSession, asked: AskedPath
    ) -> web.StreamResponse:
        """Answer somebody who has signed in."""
        if asked.path == ("live",):
            async with self._streaming(session):
                return await self._live(request, session, asked)
        if len(asked.path) == 3 and asked.path[0] == "logs":
            async with self._streaming(session):
                return await self._logs(request, session, asked)
        name, limits = session.viewer.name, self.limits
        if self._requests.total() >= limits.requests_max:
            raise Refused(503, f"{limits.requests_max} requests are being answered")
        if self._requests[name] >= limits.own_requests_max:
            raise Refused(429, f"{limits.own_requests_max} requests of yours are being answered")
        self._requests[name] += 1
        try:
            site = await session.viewer.site()
            if _is_change(asked.path):
                return await self._change(request, session, site, asked)
            if asked.path in _SIMULATION:
                return await self._simulate(request, session, site, asked)
            if asked.path == _SUBMIT:
                return await self._submit(request, session, site, asked)
            if asked.path == ("usage.csv",):
                return text_file(await usage_csv(site, asked), "usage.csv", "text/csv")
            if asked.path[:1] == ("decisions",) and asked.path[2:] == ("file",):
                return text_file(*await decision_file(site, asked), "application/jsonl")
            made = await self._pages.make(site, asked)
            frame = self._frame(session, made.digest, site.user)
            return html(render_whole(made.page, made.main, frame))
        finally:
            self._requests[name] -= 1
            if not self._requests[name]:
                del self._requests[name]

    def _admit(self, name: str) -> None:
        """Take one request of a person's rate; Refused beyond it."""
        rate, now = self.limits.own_rate, self._clock.now()
        bucket = self._rates.pop(name, None) or RateBucket(rate, now)
        self._rates[name] = bucket
        if len(self._rates) > _RATES_MAX:
            self._rates.popitem(last=False)
        if not bucket.take(now):
            raise Refused(429, "too many requests of yours came: try again in some seconds")

    # Answers

    async def _change(
        self, request: web.BaseRequest, session: BrowserSession, site: Site, asked: AskedPath
    ) -> web.Response:
        """Show what a change would do; once that was confirmed on our page, make it."""
        form, refusal = asked, ""
        if request.method == "POST":
            form = await confirmed_form(request, session, self.limits.body)
        order = order_of(site, asked, form)
        if request.method == "POST":
            result = await site.questions.change(order)
            refusal = result.refusal
            self._log.info(
                "Change from the page", change=order.change.verb, kind=order.kind,
                namespace=order.namespace, name=order.name, fields=dict(order.fields),
                made=result.made, user=session.viewer.name or site.user,
                source=request.remote or "", refusal=refusal,
            )  # fmt: skip
            if not refusal:
                headers = {**HEADERS, "Location": place_of(order, result.made)}
                return web.Response(status=303, headers=headers)
        page = await change_page(site, order, session.csrf, refusal)
        frame = self._frame(session, "", site.user)
        return html(render_whole(page, render_main(page), frame), page.status)

    async def _submit(
        self, request: web.BaseRequest, session: BrowserSession, site: Site, asked: AskedPath
    ) -> web.Response:
        """Show the form of a job, and what would become of it; once confirmed, submit it."""
        answer, draft = None, draft_of(site, asked)
        if request.method == "POST":
            form = await confirmed_form(request, session, self.limits.draft)
            draft, stores = draft_of(site, form), form.text("act") == "submit"
            answer = await answered(site, draft, stores=stores)
            if stores:
                self._log.info(
                    "Job from the page", namespace=draft.namespace, form=draft.form,
                    made=answer.made, user=session.viewer.name or site.user,
                    source=request.remote or "", refusal=answer.problem,
                )  # fmt: skip
            if stores and not answer.problem:
                place = "/jobs" if answer.made is None else await _place(site, *answer.made)
                return web.Response(status=303, headers={**HEADERS, "Location": place})
        page = draft_page(site, draft, session.csrf, answer)
        frame = self._frame(session, "", site.user)
        return html(render_whole(page, render_main(page), frame), page.status)

    async def _simulate(
        self, request: web.BaseRequest, session: BrowserSession, site: Site, asked: AskedPath
    ) -> web.Response:
        """Show what a simulation would run; once that was confirmed on our page, start it."""
        refusal = ""
        if request.method == "POST":
            form = await confirmed_form(request, session, self.limits.body)
            asked, refusal = AskedPath(asked.path, form.query), act_on_simulation(site, asked, form)
            if not refusal:
                headers = {**HEADERS, "Location": "/simulator"}
                return web.Response(status=303, headers=headers)
        page = simulation_page(site, asked, session.csrf, refusal)
        frame = self._frame(session, "", site.user)
        return html(render_whole(page, render_main(page), frame), page.status)

    def _error(self, status: int, message: str, request: web.BaseRequest) -> web.Response:
        if status == 401:
            page = self._entrance.sign_in_page(message, request.raw_path)
        else:
            title = "Not found" if status == 404 else "Error"
            values = {"message": message, "status": status}
            page = Page("error.html", title, values, "fairlead web --url", status=status)
        answer = html(render_whole(page, render_main(page), self._frame(None, "")), status)
        answer.force_close()
        return answer

    def _frame(
        self, session: BrowserSession | None, digest: str, user: str = ""
    ) -> dict[str, object]:
        can_leave = session is not None and self._entrance.can_leave
        return {
            "assets": assets(), "digest": digest, "has_session": session is not None,
            "user": user or (session.viewer.name if session is not None else ""),
            "leave": session.csrf if session is not None and can_leave else "",
            "boards": self.boards if session is not None else (),
        }  # fmt: skip

    # Streams

    @asynccontextmanager
    async def _streaming(self, session: BrowserSession) -> AsyncGenerator[None]:
        limits, name = self.limits, session.viewer.name
        if len(self._streams) >= limits.streams_max:
            raise Refused(503, f"{limits.streams_max} pages are open, the server's limit")
        if sum(1 for each in self._streams.values() if each == name) >= limits.own_streams_max:
            raise Refused(429, f"{limits.own_streams_max} pages of yours are open, the limit")
        task = asyncio.current_task()
        assert task is not None, "a request is answered in a task"
        self._streams[task] = name
        try:
            yield
        finally:
            self._streams.pop(task, None)

    async def _live(
        self, request: web.BaseRequest, session: BrowserSession, asked: AskedPath
    ) -> web.StreamResponse:
        """Send a page's content whenever it has changed, and in between that we are here."""
        path, _, query = asked.text("of", _QUERY_MAX).partition("?")
        shown, seen = asked_path(path, query), asked.text("seen")
        cluster, answer = (await session.viewer.site()).cluster, _event_stream()
        await answer.prepare(request)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self.limits.stream_seconds_max
        try:
            async with aclosing(self._pages.changes(session.viewer, shown, seen)) as changes:
                async for made in changes:
                    if loop.time() >= ends_at:
                        break
                    await self._entrance.session(request, self.port)  # it may have ended
                    if made is not None:
                        await self._write(answer, event("main", made.main))
                    age = cluster.age_seconds
                    text = "" if age is None else f"{age:.0f}"
                    await self._write(answer, event("alive", text))
        except NoSuchPage as error:
            await self._write(answer, event("gone", str(error)))
        except ApiError:
            answer.force_close()  # the browser tries again
        except (Refused, SessionEnded):
            await self._write(answer, event("expired", ""))
        except (TimeoutError, ConnectionError):  # it takes nothing any more, or is gone
            answer.force_close()
        return answer

    async def _logs(
        self, request: web.BaseRequest, session: BrowserSession, asked: AskedPath
    ) -> web.StreamResponse:
        """Send what a job's members write: lines of HTML as they come, or a file of text."""
        key = asked.path[1], asked.path[2]
        is_file = asked.text("download") != ""
        tail = asked.number("tail", 100_000)
        wanted = LogPart(follow=not is_file, task=asked.text("task") or None, tail=tail or None)
        chunks = self._seen(request, (await session.viewer.site()).questions.logs(key, wanted))
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
        except (Refused, SessionEnded, ApiError):  # the session has ended, or is not known to last
            await self._write(answer, event("gone", "sign in again to see more"))
        except (TimeoutError, ConnectionError):  # it takes nothing any more, or is gone
            answer.force_close()
        return answer

    async def _seen(
        self, request: web.BaseRequest, chunks: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """Yield what is written for as long as the session lasts; Refused, SessionEnded."""
        async with aclosing(chunks):
            async for chunk in chunks:
                session = await self._entrance.session(request, self.port)
                await session.viewer.site()
                yield chunk

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


def _is_change(path: tuple[str, ...]) -> bool:
    """True for the address of a change: of a node, or of what is in a namespace."""
    return path[:1] == ("change",) and len(path) in (3, 4)


def _event_stream() -> web.StreamResponse:
    answer = web.StreamResponse(headers=HEADERS)
    answer.content_type = "text/event-stream"
    return answer


def _download(name: str) -> web.StreamResponse:
    safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{safe}.log"'}
    answer = web.StreamResponse(headers=headers)
    answer.content_type, answer.charset = "text/plain", "utf-8"
    return answer


async def _place(site: Site, kind: str, namespace: str, name: str) -> str:
    """Return the page of what was just made, once it can be seen."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + _APPEARS_SECONDS_MAX
    mirror = site.cluster.arrays if kind == "arrays" else site.cluster.jobs
    while mirror.get(namespace, name) is None:
        if loop.time() >= ends:
            return link("jobs", q=name)
        await asyncio.sleep(_APPEARS_STEP)
    return link(kind, namespace, name)
