"""What the archive answers on a cluster: to the users that the API server names, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.patience import PATIENCE_SECONDS

from fairlead.api.reviews import (
    AccessReview,
    AccessReviewStatus,
    ResourceAttributes,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from fairlead.api.status import (
    ApiError,
    BadRequest,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from fairlead.app.queries import archive_api
from fairlead.app.queries.access_reviews import (
    KEEP_SECONDS,
    KEPT_MAX,
    REVIEW_SECONDS_MAX,
    REVIEWS_MAX,
    SOURCE_RATE,
    SOURCES_MAX,
    TOTAL_RATE,
)
from fairlead.app.queries.archive_api import REQUESTS_MAX, ArchiveApi
from fairlead.app.queries.archive_guard import (
    ArchiveGuard,
    to_read_fleet,
    to_read_history,
    to_read_logs,
    token_of,
)
from fairlead.app.queries.archive_query import history_query, log_query
from fairlead.app.queries.messages import Book
from fairlead.cli.cluster.archive import (
    NOT_LEADER,
    TOKEN_HEADER,
    TRIES_MAX,
    Archive,
    NoArchive,
    proxy_path,
    token_path,
)
from fairlead.cli.cluster.installation import BINDING_PATH
from fairlead.cli.connection.transport import Api
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.placing.decision_log import Cycle, DecisionLog
from fairlead.decide.placement.desk.memory import Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.snapshot import CarriedState
from fairlead.history.memory import MemoryHistory, MemoryLogs
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import Client
from fairlead.runtime.clock import LoopClock, SystemClock
from fairlead.runtime.kept.history import FleetRecord, JobRecord, MemberLog
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

#: The rights of each user.
RIGHTS = {
    "ann": {to_read_logs("a"), to_read_history("a")},
    "root": {
        to_read_logs("a"),
        to_read_logs("b"),
        to_read_history("a"),
        to_read_history(""),
        to_read_fleet(),
    },
}


@dataclass
class Reviewer:
    """An API server that is asked about tokens, `token-USER`, and rights."""

    asked: list[TokenReview | AccessReview] = field(default_factory=list[Any])
    rights: dict[str, set[ResourceAttributes]] = field(default_factory=lambda: dict(RIGHTS))
    error: ApiError | None = None
    is_silent: bool = False
    #: No question is answered before it is set; None: at once.
    gate: asyncio.Event | None = None

    async def create(self, _: Any, review: TokenReview | AccessReview) -> Any:
        self.asked.append(review)
        if self.is_silent:
            await asyncio.sleep(3600)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if isinstance(review, TokenReview):
            name = review.spec.token.removeprefix("token-")
            is_known = name in self.rights
            user = UserInfo(name, groups=("people",), extra={"k": ("v",)})
            return TokenReview(status=TokenReviewStatus(is_known, user if is_known else UserInfo()))
        spec = review.spec
        assert (spec.groups, spec.extra) == (("people",), {"k": ("v",)})
        is_allowed = spec.resource_attributes in self.rights[spec.user]
        return AccessReview(review.spec, AccessReviewStatus(is_allowed))

    def client(self) -> Client:
        return cast("Client", self)


# Who may


def test_the_user_of_a_token_may_what_the_api_server_says() -> None:
    async def main() -> None:
        guard = ArchiveGuard(Reviewer().client(), LoopClock(0.0))
        await guard.check("token-ann", to_read_logs("a"))
        with pytest.raises(Forbidden, match=r"ann may not get pods/log in namespace b"):
            await guard.check("token-ann", to_read_logs("b"))
        with pytest.raises(Forbidden, match=r"ann may not list jobs\.fairlead\.dev in all namesp"):
            await guard.check("token-ann", to_read_history(""))
        await guard.check("token-root", to_read_history(""))
        with pytest.raises(Unauthorized, match="knows no user of this token"):
            await guard.check("token-nobody", to_read_logs("a"))

    run(main())


@pytest.mark.parametrize("error", [Forbidden("no"), Unavailable("down"), None])
def test_without_an_answer_of_the_api_server_nothing_is_shown(error: ApiError | None) -> None:
    async def main() -> None:
        reviewer = Reviewer(error=error, is_silent=error is None)
        guard = ArchiveGuard(reviewer.client(), LoopClock(0.0))
        with pytest.raises(Unavailable, match="does not say who may see this"):
            await guard.check("token-root", to_read_logs("a"))
        assert len(reviewer.asked) == 1
        assert asyncio.get_running_loop().time() == (0.0 if error else REVIEW_SECONDS_MAX)
        reviewer.error, reviewer.is_silent = None, False
        await guard.check("token-root", to_read_logs("a"))  # a failure is not kept

    run(main())


def test_answers_are_kept_for_a_short_time_and_a_right_ends_with_it() -> None:
    async def main() -> None:
        reviewer = Reviewer()
        guard = ArchiveGuard(reviewer.client(), LoopClock(0.0))
        for _ in range(5):
            await guard.check("token-ann", to_read_logs("a"))
        assert len(reviewer.asked) == 2
        del reviewer.rights["ann"]
        await asyncio.sleep(KEEP_SECONDS)
        with pytest.raises(Unauthorized):
            await guard.check("token-ann", to_read_logs("a"))

    run(main())


def test_tokens_that_are_made_up_cost_few_questions_and_evict_no_answer() -> None:
    async def main() -> None:
        reviewer = Reviewer()
        guard = ArchiveGuard(reviewer.client(), LoopClock(0.0))
        await guard.check("token-ann", to_read_logs("a"), source="proxy")
        asked, refused = len(reviewer.asked), 0
        for number in range(5 * KEPT_MAX):
            try:
                await guard.check(f"token-{number}", to_read_logs("a"), source="attacker")
            except TooManyRequests:
                refused += 1
            except Unauthorized:
                pass
        assert len(reviewer.asked) - asked == SOURCE_RATE.burst
        assert refused == 5 * KEPT_MAX - SOURCE_RATE.burst
        await guard.check("token-ann", to_read_logs("a"), source="attacker")
        assert len(reviewer.asked) - asked == SOURCE_RATE.burst, "the answer is still kept"
        await guard.check("token-root", to_read_logs("b"), source="proxy")
        await asyncio.sleep(KEEP_SECONDS)
        for number in range(5 * KEPT_MAX):  # from everywhere
            with contextlib.suppress(TooManyRequests, Unauthorized):
                await guard.check(f"new-{number}", to_read_logs("a"), source=f"attacker{number}")
        before = len(reviewer.asked)
        assert before - asked <= SOURCE_RATE.burst + TOTAL_RATE.burst + 10 * KEEP_SECONDS
        await guard.check("token-ann", to_read_logs("a"), source="proxy")
        assert len(reviewer.asked) == before + 2, "who was known is asked about again"
        with pytest.raises(TooManyRequests):
            await guard.check("token-none", to_read_logs("a"), source="new")
        await asyncio.sleep(1 / TOTAL_RATE.per_second)
        with pytest.raises(Unauthorized):
            await guard.check("token-none", to_read_logs("a"), source="new")
        with pytest.raises(Unauthorized):  # which is remembered
            await guard.check("token-none", to_read_logs("a"), source="new")

    run(main())


def test_what_is_kept_is_bounded_and_holds_no_token() -> None:
    async def main() -> None:
        guard = ArchiveGuard(Reviewer().client(), LoopClock(0.0))
        for number in range(KEPT_MAX + 500):
            with pytest.raises(Unauthorized):
                await guard.check(f"token-{number}", to_read_logs("a"), source=f"source-{number}")
            await asyncio.sleep(0.1)
        attributes = vars(guard)
        assert len(attributes["_sources"]) == SOURCES_MAX
        kept = vars(attributes["_strangers"])["_answers"]
        assert len(kept) == KEPT_MAX
        assert not any(b"token" in key for key in kept)

    run(main())


@pytest.mark.parametrize("token", ["a b", "a\tb", "päss", "a,b", "=", "{}", "x" * 16_385, "a\x00b"])
def test_what_is_no_bearer_token_costs_no_question(token: str) -> None:
    with pytest.raises(Unauthorized):
        token_of({TOKEN_HEADER: token})


@pytest.mark.parametrize(
    "token", ["eyJhbGciOi.eyJhdWQiOls.sig-na_ture", "k8s-aws-v1.aHR0cHM6Ly9zdHM", "ya29.a0AfH6",
              "sha256~Zy-x_1", "31ada4fd-adec-460c-809a-9e56ceb75269", "c2VjcmV0=="],
)  # fmt: skip
def test_bearer_tokens_of_all_kinds_are_asked_about(token: str) -> None:
    assert token_of({"Authorization": f"Bearer {token}"}) == token


# What is answered


def _record(namespace: str, name: str) -> JobRecord:
    return JobRecord(
        uid=f"{namespace}-{name}", namespace=namespace, name=name, state="Failed", user="", team="",
        reason="", message="", priority=0, member_count=1, attempt_count=1, submitted_at_ms=0,
        started_at_ms=0, finished_at_ms=1, document="{}", run='{"tags":["x"]}',
    )  # fmt: skip


@asynccontextmanager
async def archive(reviewer: Reviewer, **options: Any) -> AsyncIterator[str]:
    history, logs = MemoryHistory(), MemoryLogs()
    for namespace in ("a", "b"):
        await history.record(_record(namespace, "train"))
        await logs.keep(
            MemberLog("uid-" + namespace, namespace, "train", "u", 2, "worker-0",
                      is_cut=False, kept_at_ms=0, text=b"of " + namespace.encode())
        )  # fmt: skip
    await history.record_fleet([
        FleetRecord(f"uid/{n}", n, "h100", action, "Demand", "why", "{}")
        for n, action in enumerate(("Launch", "Remove"))
    ])  # fmt: skip
    options = {"clock": SystemClock(), **options}
    api = ArchiveApi(reviewer.client(), history, options.pop("logs", logs), **options)
    server = web.Server(api.answer)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/fairlead/v1"
    await runner.cleanup()


async def get(
    url: str, user: str = "", headers: Mapping[str, str] | None = None
) -> tuple[int, list[Any]]:
    given = {TOKEN_HEADER: f"token-{user}"} if user else dict(headers or {})
    async with aiohttp.ClientSession() as session, session.get(url, headers=given) as answer:
        return answer.status, [msgspec.json.decode(x) for x in (await answer.read()).splitlines()]


async def test_each_user_reads_what_it_could_read_in_the_api() -> None:
    async with archive(Reviewer()) as url:
        logs_a, logs_b = (f"{url}/namespaces/{n}/jobs/train/logs" for n in ("a", "b"))
        assert (await get(logs_a))[0] == 401
        assert (await get(logs_a, "nobody"))[0] == 401
        assert (await get(logs_b, "ann"))[0] == 403
        assert (await get(f"{url}/history", "ann"))[0] == 403
        assert (await get(f"{url}/history?namespace=b", "ann"))[0] == 403
        status, [log] = await get(logs_a, "ann")
        assert (status, log["text"]) == (200, "b2YgYQ==")
        status, [record] = await get(f"{url}/history?namespace=a", "ann")
        assert (status, record["namespace"]) == (200, "a")
        assert len((await get(f"{url}/history", "root"))[1]) == 2
        assert (await get(logs_a, headers={"Authorization": "Bearer token-ann"}))[0] == 200
        assert (await get(logs_a, headers={"Authorization": "Basic token-ann"}))[0] == 401
        assert (await get(f"{url}/history/", headers={"X-Remote-User": "root"}))[0] == 401


async def test_runs_are_shown_to_those_who_may_list_the_jobs() -> None:
    async with archive(Reviewer()) as url:
        assert (await get(f"{url}/runs?namespace=a"))[0] == 401
        assert (await get(f"{url}/runs?namespace=b", "ann"))[0] == 403
        assert (await get(f"{url}/runs", "ann"))[0] == 403
        status, [line] = await get(f"{url}/runs?namespace=a&tag=x", "ann")
        assert (status, line["name"], line["run"]) == (200, "train", {"tags": ["x"]})
        assert len((await get(f"{url}/runs", "root"))[1]) == 2
        assert (await get(f"{url}/runs?namespace=a&tag=y", "ann")) == (200, [])
        status, [refusal] = await get(f"{url}/runs?namespace=a&tag=%22", "ann")
        assert (status, refusal["reason"]) == (400, "BadRequest")
        assert "query parameter tag" in refusal["message"]


async def test_a_namespace_is_the_one_that_was_checked_however_it_is_written() -> None:
    async with archive(Reviewer()) as url:
        for path in ("a%2F..%2Fb", "a/../b", "%62"):
            assert (await get(f"{url}/namespaces/{path}/jobs/train/logs", "ann"))[0] in (403, 404)
        assert (await get(f"{url}/history?namespace=a&namespace=b", "ann"))[0] == 200
        _, records = await get(f"{url}/history?namespace=a&namespace=b", "ann")
        assert [record["namespace"] for record in records] == ["a"]


async def test_what_only_the_leader_knows_is_answered_by_it_alone() -> None:
    async with archive(Reviewer(), is_here=lambda: False) as url:
        status, [refused] = await get(f"{url}/history?namespace=a", "ann")
        assert (status, refused["reason"]) == (503, "NotLeader")
    async with archive(Reviewer(), logs=None) as url:
        status, [refused] = await get(f"{url}/namespaces/a/jobs/train/logs", "ann")
        assert status == 404
        assert "history.kind is memory" in refused["message"]


async def test_decisions_are_shown_to_those_who_may_list_the_jobs_of_all_namespaces() -> None:
    world = ClusterWorld.make(FakeClient(), clock=LoopClock(0.0), rng=random.Random(1))
    log = DecisionLog(world, PlacementPolicy(), None)
    log.note(Cycle(1.0, 0.5, 3, False, (), Recall(), CarriedState()))
    async with archive(Reviewer(), decisions=lambda: log) as url:
        for path in ("decisions", "decisions/1", "decisions?namespace=a"):
            assert (await get(f"{url}/{path}"))[0] == 401
            assert (await get(f"{url}/{path}", "nobody"))[0] == 401
            status, [refused] = await get(f"{url}/{path}", "ann")
            assert status == 403
            assert "may not list jobs.fairlead.dev in all namespaces" in refused["message"]
        status, [line] = await get(f"{url}/decisions", "root")
        assert (status, line["cycle"], line["waiting"]) == (200, 1, 3)
        status, [header] = await get(f"{url}/decisions/1", "root")
        assert (status, header["format"]) == (200, "fairlead.dev/decision")
        assert (await get(f"{url}/decisions/2", "root"))[0] == 410
        for number in ("x", "-1", "٣", "1" * 50):
            assert (await get(f"{url}/decisions/{number}", "root"))[0] == 400
        assert (await get(f"{url}/decisions?limit=0", "root"))[0] == 400
        assert (await get(f"{url}/decisions/1/2", "root"))[0] == 404
    async with archive(Reviewer()) as url:  # a replica that does not lead
        status, [refused] = await get(f"{url}/decisions", "root")
        assert (status, refused["reason"]) == (503, "NotLeader")


async def test_questions_under_way_are_bounded() -> None:
    gate = asyncio.Event()
    reviewer = Reviewer(gate=gate)
    async with archive(reviewer) as url, asyncio.timeout(PATIENCE_SECONDS):
        asking = {
            asyncio.create_task(get(f"{url}/history?namespace=a", f"stranger{number}"))
            for number in range(REQUESTS_MAX + 5)
        }
        refused: list[int] = []
        while len(refused) < 5:
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            refused += [task.result()[0] for task in done]
        assert refused == [429] * 5
        assert 0 < len(reviewer.asked) <= REVIEWS_MAX
        gate.set()
        assert {(await task)[0] for task in asking} == {401}
        assert (await get(f"{url}/history?namespace=a", "ann"))[0] == 200


async def test_a_question_that_takes_too_long_keeps_no_later_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_api, "REQUESTS_MAX", 1)
    reviewer = Reviewer(gate=asyncio.Event())
    async with archive(reviewer) as url, asyncio.timeout(PATIENCE_SECONDS):
        with monkeypatch.context() as patched:
            patched.setattr(archive_api, "ANSWER_SECONDS_MAX", 0.01)
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await get(f"{url}/history?namespace=a", "ann")
        assert reviewer.gate is not None
        reviewer.gate.set()
        assert (await get(f"{url}/history?namespace=a", "ann"))[0] == 200


MANY = "9" * 5_000


@pytest.mark.parametrize("text", [MANY, "-1", "0", "1000001", "1e3", "٣", " 1", "0x1", "1" * 20])
def test_an_attempt_is_a_small_number(text: str) -> None:
    assert log_query("a", "train", {"attempt": "1000000"}).attempt == 1_000_000
    assert log_query("a", "train", {}).attempt is None
    with pytest.raises(BadRequest, match="query parameter attempt"):
        log_query("a", "train", {"attempt": text})


@pytest.mark.parametrize(
    ("name", "text"),
    [("limit", MANY), ("limit", "0"), ("limit", "100001"), ("since", MANY), ("since", "nan"),
     ("since", "inf"), ("since", "-1"), ("since", "1e300"), ("since", "x")],
)  # fmt: skip
def test_the_numbers_of_a_history_query_are_bounded(name: str, text: str) -> None:
    query = history_query({"since": "1.5", "limit": "7"})
    assert (query.since, query.limit) == (1.5, 7)
    with pytest.raises(BadRequest, match=f"query parameter {name}") as caught:
        history_query({name: text})
    assert len(caught.value.message) < 200


# How the command asks


@dataclass
class Proxy:
    """An API server in front of the archive: takes credentials off what it passes on."""

    archive: str
    #: Where Fairlead is installed.
    namespace: str = "ml-platform"
    #: How many answers come from replicas that do not lead.
    elsewhere: int = 0
    may_create_tokens: bool = True
    asked: list[str] = field(default_factory=list[str])

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == BINDING_PATH:
            return web.json_response({"subjects": [{"namespace": self.namespace}]})
        self.asked.append(f"{request.method} {request.path}")
        if request.path == token_path(self.namespace):
            if not self.may_create_tokens:
                status = Forbidden("may not create serviceaccounts/token").status
                return web.Response(status=403, body=status.encode())
            return web.json_response({"status": {"token": "token-root"}}, status=201)
        if not request.path.startswith(proxy_path(self.namespace)):
            return web.Response(status=404, body=NotFound("404 page not found").status.encode())
        if self.elsewhere:
            self.elsewhere -= 1
            status = Unavailable("elsewhere", reason=NOT_LEADER).status
            return web.Response(status=503, body=status.encode())
        headers = {k: v for k, v in request.headers.items() if k != "Authorization"}
        url = self.archive + request.path_qs.partition("/proxy/fairlead/v1")[2]
        body = await request.read()
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=body, headers=headers) as found,
        ):
            return web.Response(status=found.status, body=await found.read())


@asynccontextmanager
async def proxied(
    more: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Proxy, str]]:
    async with archive(Reviewer(), **(more or {})) as url:
        proxy = Proxy(url, **options)
        runner = web.ServerRunner(web.Server(proxy.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield proxy, f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


async def history_of(connection: Connection, namespace: str) -> list[str]:
    """Return what the command reads, in a thread as it is blocking."""

    def read() -> list[str]:
        lines = Archive(Api(connection)).record_lines(Book.JOBS, {"namespace": namespace})
        return [msgspec.json.decode(line)["namespace"] for line in lines]

    return await asyncio.to_thread(read)


async def test_a_token_goes_with_the_question_and_decides() -> None:
    async with proxied(elsewhere=3) as (proxy, url):
        ann = Connection(url, "a kubeconfig", token="token-ann")
        assert await history_of(ann, "a") == ["a"]
        assert len(proxy.asked) == 4
        with pytest.raises(NoArchive, match="ann may not list"):
            await history_of(ann, "b")
        found = await asyncio.to_thread(Archive(Api(ann)).logs, ("a", "train"), 2)
        assert [log.text for log in found] == [b"of a"]


async def test_what_was_decided_about_the_fleet_is_shown_to_those_who_may_list_node_pools() -> None:
    def read(connection: Connection, **query: str) -> list[str]:
        lines = Archive(Api(connection)).record_lines(Book.FLEET, query)
        return [msgspec.json.decode(line)["action"] for line in lines]

    async with proxied() as (_, url):
        root = Connection(url, "a kubeconfig", token="token-root")
        assert await asyncio.to_thread(read, root) == ["Remove", "Launch"]
        assert await asyncio.to_thread(read, root, pool="h100", action="Launch") == ["Launch"]
        with pytest.raises(NoArchive, match="query parameter limit"):
            await asyncio.to_thread(read, root, limit="0")
        ann = Connection(url, "a kubeconfig", token="token-ann")
        with pytest.raises(NoArchive, match=r"ann may not list nodepools\.fairlead\.dev"):
            await asyncio.to_thread(read, ann)


async def test_an_administrator_with_a_certificate_takes_a_token_of_the_archives_account() -> None:
    async with proxied() as (proxy, url):
        assert sorted(await history_of(Connection(url, "a kubeconfig"), "")) == ["a", "b"]
        assert proxy.asked[0] == f"POST {token_path(proxy.namespace)}"
        proxy.may_create_tokens = False
        with pytest.raises(NoArchive, match="it takes a token, a kubeconfig has none, and no oth"):
            await history_of(Connection(url, "a kubeconfig"), "")


async def test_a_leader_that_is_never_found_ends_the_question() -> None:
    async with proxied(elsewhere=1_000) as (proxy, url):
        with pytest.raises(NoArchive, match="elsewhere"):
            await history_of(Connection(url, "a kubeconfig", token="token-ann"), "a")
        assert len(proxy.asked) == TRIES_MAX


async def test_a_user_that_another_plays_is_not_asked_for() -> None:
    async with proxied() as (proxy, url):
        played = Connection(url, "a kubeconfig", token="token-root", impersonate_user="ann")
        with pytest.raises(NoArchive, match="impersonated"):
            await history_of(played, "a")
        assert proxy.asked == []
