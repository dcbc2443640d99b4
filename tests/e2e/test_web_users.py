"""The page for the users of a cluster: each sees what his rights allow and no more, through pages,
live updates and addresses; and what strangers and hostile pages can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.e2e.users_world import URL, Grants, UserBrowser, page_for_users
from tests.e2e.web_world import create
from tests.patience import PATIENCE_SECONDS

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, JobArraySpec
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import JOB_ARRAYS, JOBS, NODES, PODS, Resource
from fairlead.app.queries.access_reviews import KEEP_SECONDS, SOURCE_RATE
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.outside.connections import ConnectionLimits
from fairlead.testing.builders import make_job, make_node, make_placement, make_pod
from fairlead.web.server import WebLimits
from fairlead.web.session import SESSION_SECONDS_MAX
from fairlead.web.users.entrance import COOKIE, OWN_SESSIONS_MAX, path_within
from fairlead.web.users.viewer import RIGHTS_SECONDS

pytestmark = pytest.mark.e2e
SECRET = "hidden-work"
USERS: dict[str, Grants] = {
    "ada": {("*", "a")},
    "bob": {("*", "b"), ("nodes", "")},
    "root": {("*", "")},
    "none": set(),
}


class SteppedClock:
    """Wall time that a test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return SystemClock().now() + self.ahead


class StoppedClock:
    """Wall time that stands still."""

    def now(self) -> float:
        return 1_000.0


def of(job: Job, user: str) -> Job:
    meta = job.metadata
    return replace(job, metadata=replace(meta, annotations={SUBMITTED_BY: user}))


def array_of(job: Job) -> JobArray:
    meta = ObjectMeta(f"{job.metadata.name}-array", namespace=job.metadata.namespace)
    return JobArray(metadata=meta, spec=JobArraySpec(template=job.spec, indices="0-3"))


def world() -> Iterator[tuple[Resource[Any], Any]]:
    """A job, an array and a pod of another tool in each of two namespaces, on one node."""
    yield NODES, make_node("n1", gpus=8)
    for space, name, user in (("a", "own-work", "ada"), ("b", SECRET, "bob")):
        placed = make_job(name, gpus=2, namespace=space, placement=make_placement(["n1"]),
                          status={"state": "Running"})  # fmt: skip
        yield JOBS, of(placed, user)
        yield JOB_ARRAYS, array_of(placed)
        yield PODS, make_pod(f"{name}-pod", namespace=space, node="n1")


ADDRESSES = (
    "/", "/jobs", "/jobs?namespace=b", "/jobs?user=bob", "/jobs?q=hidden", "/jobs?node=n1",
    "/arrays", "/cluster", "/nodes/n1", "/teams", "/fleet", "/network", "/doctor",
    "/usage?namespace=b", "/runs?namespace=b", "/runs?q=hidden",
)  # fmt: skip
NAMED = ("/change/cancel/b/{}", "/arrays/b/{}-array", "/jobs/b/{}", "/nodes/{}", "/teams/{}")


async def test_a_user_sees_nothing_of_a_namespace_that_he_may_not_list_at_any_address() -> None:
    async with page_for_users(USERS, world()) as page:
        ada, bob = await page.signed_in("ada"), await page.signed_in("bob")
        root, none = await page.signed_in("root"), await page.signed_in("none")
        for browser in (ada, none):
            for path in ADDRESSES:
                assert SECRET not in (await browser.get(path))[1], path
            for path in NAMED:  # as if it were not there
                found = [await browser.get(path.format(each)) for each in (SECRET, "no-such-one")]
                assert [answer.status for answer, _ in found] == [404, 404]
                assert found[0][1].replace(SECRET, "no-such-one") == found[1][1]
            pages = [(await browser.get(f"/runs/show?run=b/{each}"))[1].partition("<h1>")[2]
                     for each in (SECRET, "no-such-one")]  # fmt: skip
            assert pages[0].replace(SECRET, "no-such-one") == pages[1]
        assert SECRET in await bob.page("/jobs")
        assert "own-work" not in await bob.page("/jobs")
        assert "own-work" in await ada.page("/jobs")
        assert "own-work" in await root.page("/nodes/n1")
        assert "You may not list nodes" in await ada.page("/cluster")
        assert "own-work" not in await bob.page("/nodes/n1")
        assert SECRET in await bob.page("/nodes/n1")
        assert SECRET in await root.page("/change/cancel/b/hidden-work")


async def test_a_job_of_another_is_asked_for_as_the_user_and_refused_by_the_api_server() -> None:
    async with page_for_users(USERS, world()) as page:
        ada = await page.signed_in("ada")
        answer, text = await ada.get("/jobs/b/hidden-work")
        assert answer.status == 404
        assert "no answer from http://127.0.0.1:1" in text, "it asked with the user's token"


async def test_live_updates_show_each_user_his_own_and_end_with_the_right() -> None:
    clock = SteppedClock()
    async with page_for_users({**USERS}, world(), clock=clock) as page:
        ada, bob = await page.signed_in("ada"), await page.signed_in("bob")
        async with (
            ada.events("/live?of=/jobs%3Fnamespace%3Db") as hers,
            bob.events("/live?of=/jobs%3Fnamespace%3Db") as his,
        ):
            assert SECRET not in (await hers.next("main"))[1]
            assert SECRET in (await his.next("main"))[1]
            new = make_job("hidden-too", namespace="b", status={"state": "Waiting"})
            await create(page.client, JOBS, of(new, "ada"))
            assert "hidden-too" in (await his.next("main"))[1]
            page.client.users["bob"] = set()
            clock.ahead += KEEP_SECONDS + RIGHTS_SECONDS
            await page.client.patch(JOBS, "hidden-too", {"spec": {"hold": True}}, namespace="b")
            assert SECRET not in (await his.next("main"))[1]
            assert (await hers.next("alive"))[0] == "alive"
        assert "hidden-" not in (await ada.page("/"))


async def test_a_session_ends_with_its_token_and_with_time_and_by_signing_out() -> None:
    clock = SteppedClock()
    async with page_for_users({**USERS}, world(), clock=clock) as page:
        ada, bob, root = [await page.signed_in(name) for name in ("ada", "bob", "root")]
        async with ada.events("/live?of=/jobs") as stream:
            await stream.next("main")
            del page.client.users["ada"]
            clock.ahead += KEEP_SECONDS + 1
            await page.client.patch(NODES, "n1", {"spec": {"unschedulable": True}})
            assert (await stream.next("expired"))[0] == "expired"
        answer, text = await ada.get("/jobs?q=own")
        assert answer.status == 401
        assert "no longer valid" in text
        assert 'value="/jobs?q=own"' in text, "signing in leads back"
        assert (await bob.post("/logout", {"csrf": "wrong"}))[0].status == 403
        old = dict(bob.cookies)
        answer, _ = await bob.post("/logout", {"csrf": await bob.csrf("/")})
        assert (answer.status, answer.headers["Location"]) == (303, "/login")
        bob.cookies = old
        assert (await bob.get("/"))[0].status == 401
        assert (await root.get("/"))[0].status == 200
        clock.ahead += SESSION_SECONDS_MAX + 1
        assert (await root.get("/"))[0].status == 401


async def test_the_cookie_is_of_this_host_alone_and_new_with_each_sign_in() -> None:
    async with page_for_users(USERS, world()) as page:
        browser = page.browser()
        browser.cookies[COOKIE] = "given-to-the-browser-before"
        answer, _ = await browser.post("/login", {"token": "token-ada\n"})
        (cookie,) = answer.headers.getall("Set-Cookie")
        for part in ("__Host-fairlead=", "HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
            assert part in cookie
        assert "Domain" not in cookie
        assert "given-to" not in cookie
        first = dict(browser.cookies)
        await browser.sign_in("bob")
        assert browser.cookies != first
        browser.cookies = first
        assert (await browser.get("/"))[0].status == 401, "the session before has ended"


@pytest.mark.parametrize("token", ["", "token-unknown", "a b\x00", "x" * 19_999, "token-é", "'--"])
async def test_what_is_no_token_of_the_cluster_gives_no_session(token: str) -> None:
    async with page_for_users(USERS, world()) as page:
        browser = page.browser()
        answer, text = await browser.post("/login", {"token": token, "to": "/jobs?q=x"})
        assert answer.status == 401
        assert 'value="/jobs?q=x"' in text, "it leads back all the same"
        assert "You are not signed in" in text
        assert browser.cookies == {}
        assert token == "" or token not in text


async def test_guessed_tokens_cost_few_questions_and_keep_no_user_out() -> None:
    async with page_for_users(USERS, world(), clock=StoppedClock()) as page:
        ada, browser = await page.signed_in("ada"), page.browser()
        before, statuses = len(page.client.reviews), list[int]()
        for number in range(150):
            statuses.append((await browser.post("/login", {"token": f"guess-{number}"}))[0].status)
        assert statuses.count(401) == page.client.reviews[before:].count("token")
        assert statuses.count(401) < SOURCE_RATE.burst, "ada's token was one"
        assert statuses.count(429) == 150 - statuses.count(401)
        assert (await ada.get("/"))[0].status == 200
        await browser.sign_in("ada")  # a token that is known is no guess


@pytest.mark.parametrize(
    ("to", "place"),
    [("/jobs?q=x", "/jobs?q=x"), ("//evil.example/", "/evil.example"), ("/", "/"), ("", "/"),
     ("https://evil.example/", "/https%3A/evil.example"), ("/\\evil.example", "/%5Cevil.example"),
     ("javascript:alert(1)", "/javascript%3Aalert%281%29"),
     ("/%2f%2fevil.example", "/%2F%2Fevil.example"),
     ("/login?to=/login", "/"), ("/logout", "/"),
     ("/a\r\nSet-Cookie: x=1", "/a%0D%0ASet-Cookie%3A%20x%3D1"),
     ("/jobs?" + "q=1&" * 40, "/")],
)  # fmt: skip
def test_signing_in_leads_to_a_path_of_this_site_and_nowhere_else(to: str, place: str) -> None:
    assert path_within(to) == place


async def test_forms_that_other_sites_send_give_no_session_and_change_nothing() -> None:
    async with page_for_users(USERS, world()) as page:
        ada, form = await page.signed_in("ada"), {"token": "token-bob"}
        before = dict(ada.cookies)
        others: list[dict[str, str]] = [
            {"Origin": "https://evil.example"}, {"Origin": "null"},
            {"Origin": URL, "Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
            {"Origin": "http://page.example:8443.evil.example"},
        ]  # fmt: skip
        for headers in others:
            assert (await ada.post("/login", form, **headers))[0].status == 403, headers
        assert (await ada.ask("POST", "/login", form))[0].status == 403, "without an origin"
        assert (await ada.get("/login?token=token-bob"))[0].status == 200
        assert ada.cookies == before
        change = "/change/cancel/a/own-work"
        assert (await ada.post(change, {"csrf": ""}))[0].status == 403
        root = await page.signed_in("root")
        assert (await ada.post(change, {"csrf": await root.csrf(change)}))[0].status == 403
        assert (await ada.get("/", Host="evil.example"))[0].status == 421
        answer, text = await ada.post(change, {"csrf": await ada.csrf(change)})
        assert answer.status == 409
        assert "no answer from http://127.0.0.1:1" in text, "it was made with the user's token"


@pytest.mark.parametrize("value", ["", "x", "x" * 7_000, "é", '" OR 1=1', "__Host-fairlead"])
async def test_a_forged_cookie_is_no_session(value: str) -> None:
    async with page_for_users(USERS, world()) as page:
        await page.signed_in("ada")
        browser = page.browser()
        browser.cookies = {COOKIE: value}
        assert (await browser.get("/jobs"))[0].status in (400, 401)
        assert (await browser.get("/live?of=/"))[0].status in (400, 401)


async def test_one_user_fills_neither_the_sessions_nor_the_streams_of_the_others() -> None:
    limits = WebLimits(streams_max=6, own_streams_max=2, stop_seconds_max=0.5)
    async with page_for_users(USERS, world(), limits=limits) as page:
        bob, first = await page.signed_in("bob"), await page.signed_in("ada")
        latest = [await page.signed_in("ada") for _ in range(OWN_SESSIONS_MAX)][-1]
        assert (await first.get("/"))[0].status == 401, "the oldest of the same user goes"
        assert (await bob.get("/"))[0].status == 200
        async with latest.events("/live?of=/") as one, latest.events("/live?of=/") as two:
            await one.next("alive")
            await two.next("alive")
            assert (await latest.get("/live?of=/"))[0].status == 429
            async with bob.events("/live?of=/") as other:
                assert (await other.next("main"))[0] == "main"


async def test_slow_and_many_connections_without_a_session_keep_no_user_out() -> None:
    limits = WebLimits(
        stop_seconds_max=0.5,
        connections=ConnectionLimits(64, 8, stranger_seconds_max=0.5, stranger_seconds_min=0.05),
    )
    async with page_for_users(USERS, world(), limits=limits) as page:
        ada = await page.signed_in("ada")
        idle = [await asyncio.open_connection("127.0.0.1", page.server.port) for _ in range(60)]
        for number, (_, writer) in enumerate(idle):
            writer.write(b"\x16\x03\x01\x02" if number % 2 else b"")  # a handshake without an end
        assert (await ada.get("/"))[0].status == 200
        async with asyncio.timeout(PATIENCE_SECONDS):
            for reader, writer in idle:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1 << 20)
                writer.close()
        assert (await ada.get("/"))[0].status == 200


async def test_probes_are_answered_and_say_nothing_else() -> None:
    async with page_for_users(USERS, world()) as page:
        browser = page.browser()
        answer, text = await browser.get("/healthz", Host="10.0.0.7:8443")
        assert (answer.status, text) == (200, "ok\n")


async def test_rights_are_asked_for_once_in_a_while_however_much_is_looked_at() -> None:
    async with page_for_users(USERS, world()) as page:
        ada = await page.signed_in("ada")
        await ada.page("/jobs")
        before = len(page.client.reviews)
        for _ in range(20):
            await look_around(ada)
        assert len(page.client.reviews) == before


async def look_around(browser: UserBrowser) -> None:
    for path in ("/", "/jobs", "/arrays", "/cluster"):
        await browser.page(path)
