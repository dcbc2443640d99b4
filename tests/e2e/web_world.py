"""The page's server over real sockets, on an API in a dictionary."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector
from tests.patience import PATIENCE_SECONDS

from fairlead.api.cluster.team import TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.meta import to_wire
from fairlead.api.resources import Resource
from fairlead.api.reviews import ResourceAttributes
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.job_request.jobspec import Origin
from fairlead.decide.verdict import ObjectKey
from fairlead.input.errors import Code, fail
from fairlead.model.asks.topology import DEFAULT_LEVELS
from fairlead.runtime.clock import Clock, SystemClock
from fairlead.runtime.logs import SILENT
from fairlead.runtime.supervisor import Supervisor
from fairlead.testing.fake_client import FakeClient
from fairlead.web.entrance import LinkEntrance
from fairlead.web.live import Pages
from fairlead.web.pages import Site
from fairlead.web.process import OnlyViewer, OwnPage
from fairlead.web.server import WebLimits, WebServer
from fairlead.web.simulator import Simulations
from fairlead.web.sources.changes import ChangeOrder
from fairlead.web.sources.cluster import WebMirrors
from fairlead.web.sources.drafts import DraftAnswer, JobDraft
from fairlead.web.sources.history_reads import (
    ClusterUse,
    JobUseAnswer,
    LatestDecisions,
    NodeKey,
    NodePast,
    OpenedDecision,
    PastJob,
    PastRuns,
    RunsQuestion,
    UsageQuestion,
    UsageSums,
)
from fairlead.web.sources.questions import Answered, ChangeResult, TooManyLogs
from fairlead.web.sources.rights import Rights
from fairlead.web.sources.view import ClusterView

KEY = "key-of-the-record"
_CODE = re.compile(r"code=([\w-]+)")


@dataclass
class ScriptedQuestions:
    """What blocks in the real world: answers are given, logs are written by the test."""

    text: str = "Job waits"
    logs_max: int = 2
    asked: list[ObjectKey] = field(default_factory=list)
    queries: list[LogPart] = field(default_factory=list)
    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    open_logs: int = 0
    changes: list[ChangeOrder] = field(default_factory=list)
    refusal: str = ""
    #: The name of what a change makes.
    made: str = ""
    rights: list[ResourceAttributes] = field(default_factory=list)
    #: Why the person may not, by verb and resource.
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    classes: Sequence[PriorityClass] = ()
    #: Jobs that were written on the page, each with whether it was to be stored, and from where.
    drafts: list[tuple[JobDraft, bool]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    drafted: DraftAnswer = field(default_factory=DraftAnswer)
    used: UsageSums | None = None
    usages: list[UsageQuestion] = field(default_factory=list)
    uses: dict[str, TeamUse] | None = None
    decided: LatestDecisions | None = None
    past: PastRuns | None = None
    runs_asked: list[RunsQuestion] = field(default_factory=list)
    past_jobs: dict[ObjectKey, PastJob] = field(default_factory=dict)
    opened: OpenedDecision | None = None
    used_by_job: JobUseAnswer | None = None
    used_now: ClusterUse | None = None
    nodes: dict[str, NodePast] = field(default_factory=dict)
    #: A token for each log that has begun, and for each that has ended.
    begun: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def why(self, key: ObjectKey, *, patience_seconds: float | None) -> Answered:
        """Return the text."""
        self.asked.append(key)
        return Answered(self.text, 0.0)

    async def team_uses(self, *, patience_seconds: float | None) -> dict[str, TeamUse] | None:
        """Return what the test has set: None where no process answers."""
        return self.uses

    async def usage(
        self, question: UsageQuestion, *, patience_seconds: float | None = None
    ) -> UsageSums | None:
        """Return what the test has set: None while the history is being read."""
        self.usages.append(question)
        return self.used

    async def runs(
        self, question: RunsQuestion, *, patience_seconds: float | None = None
    ) -> PastRuns | None:
        """Return what the test has set: None while the history is being read."""
        self.runs_asked.append(question)
        return self.past

    async def past_job(
        self, key: ObjectKey, *, patience_seconds: float | None = None
    ) -> PastJob | None:
        """Return what the test has set: None while the history is being read."""
        return self.past_jobs.get(key)

    async def decisions(self, *, patience_seconds: float | None = None) -> LatestDecisions | None:
        """Return what the test has set: None while the scheduler is being asked."""
        return self.decided

    async def decision(
        self, cycle: int, *, patience_seconds: float | None = None
    ) -> OpenedDecision | None:
        """Return what the test has set: None while it is being read."""
        return self.opened

    async def job_use(
        self, key: ObjectKey, *, patience_seconds: float | None = None
    ) -> JobUseAnswer | None:
        """Return what the test has set: None while nodes are being asked."""
        return self.used_by_job

    async def cluster_use(
        self, jobs: Sequence[Job], *, patience_seconds: float | None = None
    ) -> ClusterUse | None:
        """Return what the test has set: None while nodes are being asked."""
        return self.used_now

    async def node_past(
        self, node: NodeKey, *, patience_seconds: float | None = None
    ) -> NodePast | None:
        """Return what the test has set: None while the history is being read."""
        return self.nodes.get(node[0])

    async def decision_file(self, cycle: int) -> bytes:
        """Return a file, of the decisions that the test has set."""
        if self.decided is None or cycle not in {line.cycle for line in self.decided.lines}:
            raise fail(Code.NO_SUCH_DECISION, f"decision {cycle} is not kept")
        return b'{"cycle": 7}\n'

    async def why_not(self, right: ResourceAttributes) -> str:
        """Note what is asked for, and return what the test has set for the verb and the kind."""
        self.rights.append(right)
        return self.refused.get((right.verb, right.resource), "")

    async def priority_classes(self) -> Sequence[PriorityClass]:
        """Return the classes that the test has set."""
        return self.classes

    async def supposed(self, key: ObjectKey, class_name: str) -> str:
        """Return the class, and what the planner says of it."""
        return f"{'/'.join(key)} with {class_name}: {self.text}"

    async def change(self, order: ChangeOrder) -> ChangeResult:
        """Note it, and refuse it with the text that the test has set."""
        self.changes.append(order)
        return ChangeResult(self.made, self.refusal)

    async def draft(self, draft: JobDraft, origin: Origin, *, stores: bool) -> DraftAnswer:
        """Note it, and return what the test has set."""
        self.drafts.append((draft, stores))
        self.origins.append(origin)
        return self.drafted

    async def logs(self, _key: ObjectKey, query: LogPart) -> AsyncGenerator[bytes]:
        """Yield what the test puts."""
        if self.open_logs >= self.logs_max:
            raise TooManyLogs
        self.queries.append(query)
        self.open_logs += 1
        self.begun.put_nowait(None)
        try:
            while (piece := await self.pieces.get()) is not None:
                yield piece
        finally:
            self.open_logs -= 1
            self.ended.put_nowait(None)


@dataclass
class Browser:
    """A client of the page that is signed in once it has used a link."""

    own: OwnPage
    session: ClientSession
    client: FakeClient
    cluster: WebMirrors
    questions: ScriptedQuestions
    simulations: Simulations
    site: Site
    cookie: str = ""

    @property
    def server(self) -> WebServer:
        """What answers."""
        return self.own.server

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.own.url

    def link(self) -> str:
        """Return a new one-time link."""
        return self.own.link()

    async def sign_in(self) -> None:
        """Use a new link, and keep the cookie as a browser does."""
        answer, _ = await self.get(self.link().removeprefix(self.url))
        assert answer.status == 200
        morsel = answer.cookies[f"fairlead-web-{self.server.port}"]
        self.cookie = f"{morsel.key}={morsel.value}"

    def headers(self, **more: str) -> dict[str, str]:
        """Return what the browser sends."""
        own = {"Cookie": self.cookie} if self.cookie else {}
        return {**own, **{name.replace("_", "-"): value for name, value in more.items()}}

    async def get(self, path: str, **headers: str) -> tuple[ClientResponse, str]:
        """Return an answer and its text."""
        async with self.session.get(self.url + path, headers=self.headers(**headers)) as answer:
            return answer, await answer.text()

    async def page(self, path: str) -> str:
        """Return the HTML of a page that is there."""
        answer, text = await self.get(path)
        assert answer.status == 200, text
        return text

    @asynccontextmanager
    async def events(self, path: str) -> AsyncIterator[Events]:
        """Yield the events of a stream."""
        timeout = ClientTimeout(total=4 * PATIENCE_SECONDS)
        url, headers = self.url + path, self.headers()
        async with self.session.get(url, headers=headers, timeout=timeout) as answer:
            yield Events(answer)


class Events:
    """Server-sent events as they come."""

    def __init__(self, answer: ClientResponse) -> None:
        self.answer = answer

    async def next(self, *names: str) -> tuple[str, str]:
        """Return the next event with one of these names, as (name, data)."""
        while True:
            name, data = "", list[str]()
            async for raw in self.answer.content:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data.append(line[6:])
                elif not line and name:
                    break
            else:
                return "closed", ""
            if not names or name in names:
                return name, "\n".join(data)


def code_of(link: str) -> str:
    """Return the one-time code in a link."""
    found = _CODE.search(link)
    assert found is not None, link
    return found[1]


async def create(client: FakeClient, resource: Resource[Any], each: Any) -> None:
    """Put an object with its status."""
    await client.create(resource, to_wire(each), namespace=each.metadata.namespace)


@asynccontextmanager
async def page_of(
    objects: Iterable[tuple[Resource[Any], Any]] = (),
    *,
    user: str = "ada",
    rights: Rights | None = None,
    limits: WebLimits | None = None,
    clock: Clock | None = None,
    answers: Any = None,
) -> AsyncIterator[Browser]:
    """Yield a browser that is not signed in, on the page of a cluster with these objects;
    `answers` are given instead of those that the test scripts.
    """
    clock, client, questions = clock or SystemClock(), FakeClient(), ScriptedQuestions()
    for resource, each in objects:
        await create(client, resource, each)
    rng = random.Random(1)
    cluster = WebMirrors(client, rights or Rights(), clock=clock, rng=rng)
    view = ClusterView(cluster, rights or Rights())
    simulations = Simulations((), clock, SILENT, changed=cluster.touch)
    site = Site(
        view, cast("Any", answers or questions), user, "default", "", DEFAULT_LEVELS, is_up=True,
        simulations=simulations,
    )  # fmt: skip
    pages = Pages(stopwatch=asyncio.get_running_loop().time, cpu=time.thread_time)
    entrance = LinkEntrance(OnlyViewer(site), key=KEY, clock=clock)
    server = WebServer(pages, entrance, clock=clock, log=SILENT, limits=limits)
    supervisor = Supervisor(cluster.services(), clock=clock, rng=rng)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(supervisor.run())
        simulating = group.create_task(simulations.run())
        await cluster.ready()
        timeout = ClientTimeout(total=30)
        async with (
            server.listening(0),
            ClientSession(connector=TCPConnector(limit=0), timeout=timeout) as session,
        ):
            own = OwnPage(server, entrance)
            yield Browser(own, session, client, cluster, questions, simulations, site)
        simulating.cancel()
        supervisor.stop()
        await running
