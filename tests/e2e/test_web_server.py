"""The page's server over real sockets: who may come in, what strangers and hostile objects can do,
what is bounded, and that pages stay current.
"""

from __future__ import annotations

import asyncio
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError
from msgspec.structs import replace
from tests.e2e.web_world import KEY, code_of, create, page_of
from tests.patience import PATIENCE_SECONDS

from fairlead.api.jobs.job import Job, VerdictStatus
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import JOBS, NODES, Resource
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.outside.connections import ConnectionLimits
from fairlead.testing.builders import make_job, make_node, make_placement
from fairlead.web.server import WebLimits
from fairlead.web.session import LINK_SECONDS_MAX, SESSION_SECONDS_MAX
from fairlead.web.sources.rights import NOWHERE, Rights

pytestmark = pytest.mark.e2e
PAGES = ("/", "/jobs", "/jobs/default/train", "/arrays", "/cluster", "/nodes/n1", "/live?of=/",
         "/teams", "/teams/vision", "/fleet", "/doctor", "/usage", "/usage.csv",
         "/decisions", "/decisions/7/file", "/network", "/runs", "/runs/show",
         "/logs/default/train", "/nowhere")  # fmt: skip
SCRIPT = "<script>alert(1)</script>"
BYTES_MAX = 300_000
LIMITS = WebLimits(
    requests_max=8, streams_max=3, stop_seconds_max=0.5,
    connections=ConnectionLimits(64, 6, stranger_seconds_max=0.5, stranger_seconds_min=0.05),
)  # fmt: skip


class SteppedClock:
    """Wall time that a test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return SystemClock().now() + self.ahead


def of(job: Job, user: str) -> Job:
    meta = job.metadata
    return replace(job, metadata=replace(meta, annotations={SUBMITTED_BY: user}))


def world() -> Iterator[tuple[Resource[Any], Any]]:
    """Two nodes; a job of ada's that runs, and one that waits."""
    for name in ("n1", "n2"):
        yield NODES, make_node(name, gpus=8)
    running = make_job("train", gpus=8, placement=make_placement(["n1"]),
                       status={"state": "Running"})  # fmt: skip
    waiting = make_job(
        "big", count=4, gpus=8, status={"state": "Waiting"},
        verdict=VerdictStatus("Waiting", "InsufficientCapacity",
                              {"resource": "nvidia.com/gpu", "asked": 32, "free": 8, "total": 16,
                               "short": 24}),
    )  # fmt: skip
    yield JOBS, of(running, "ada")
    yield JOBS, of(waiting, "ada")


async def test_a_link_opens_the_page_once_and_its_cookie_is_for_this_site_alone() -> None:
    async with page_of(world()) as browser:
        link = browser.link()
        answer, text = await browser.get(link.removeprefix(browser.url))
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert code_of(link) not in text
        assert (await browser.get(link.removeprefix(browser.url)))[0].status == 401
        await browser.sign_in()
        assert "train" in await browser.page("/")


async def test_no_page_is_shown_without_a_session() -> None:
    async with page_of(world()) as browser:
        for path in PAGES:
            answer, text = await browser.get(path)
            assert answer.status == 401, path
            assert "train" not in text.replace(path, ""), path
            assert "fairlead web --url" in text
        await browser.sign_in()
        assert (await browser.get("/jobs/default/train"))[0].status == 200


@pytest.mark.parametrize("value", ["", "x", "x" * 100_000, "é", "../..", '" OR 1=1'])
async def test_a_forged_cookie_is_no_session(value: str) -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        name = browser.cookie.partition("=")[0]
        browser.cookie = f"{name}={value}"
        try:
            answer, _ = await browser.get("/")
        except ClientError:  # a head that is too long ends the connection
            return
        assert answer.status in (400, 401)


async def test_links_and_sessions_end_with_time() -> None:
    clock = SteppedClock()
    async with page_of(world(), clock=clock) as browser:
        late = browser.link()
        await browser.sign_in()
        clock.ahead += LINK_SECONDS_MAX + 1
        assert (await browser.get(late.removeprefix(browser.url)))[0].status == 401
        assert (await browser.get("/"))[0].status == 200
        clock.ahead += SESSION_SECONDS_MAX + 1
        assert (await browser.get("/"))[0].status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.nip.io"]
)
async def test_a_name_that_resolves_to_this_machine_is_not_this_site(host: str) -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        given = host.format(port=browser.server.port)
        answer, text = await browser.get("/", Host=given)
        assert answer.status == 421
        assert "train" not in text
        own = f"localhost:{browser.server.port}"
        assert (await browser.get("/", Host=own))[0].status == 200


async def test_requests_that_pages_of_other_origins_send_are_refused() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        others: list[dict[str, str]] = [
            {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
            {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
            {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"},
            {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate",
             "Sec_Fetch_Dest": "iframe"},
        ]  # fmt: skip
        for headers in others:
            answer, _ = await browser.get("/jobs", **headers)
            assert answer.status == 403, headers
        assert (await browser.get("/jobs", Origin=browser.url))[0].status == 200
        assert (await browser.get("/jobs", Sec_Fetch_Site="same-origin"))[0].status == 200


async def test_only_who_has_the_key_of_the_record_gets_a_link_and_nothing_else_is_posted() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()

        async def post(path: str, **headers: str) -> tuple[int, str]:
            url = browser.url + path
            async with browser.session.post(url, headers=browser.headers(**headers)) as answer:
                return answer.status, await answer.text()

        assert (await post("/link"))[0] == 403
        assert (await post("/link", Authorization="Bearer wrong"))[0] == 403
        key = f"Bearer {KEY}"
        assert (await post("/link", Authorization=key, Origin="http://evil.example"))[0] == 403
        status, link = await post("/link", Authorization=key)
        assert status == 200
        assert (await browser.get(link.removeprefix(browser.url)))[0].status == 200
        assert (await post("/jobs"))[0] == 405
        assert (await post("/jobs/default/train"))[0] == 405


async def test_a_change_is_made_only_once_it_was_confirmed_on_a_page_of_the_session() -> None:
    async with page_of(world()) as browser, page_of(world()) as other:
        await browser.sign_in()
        await other.sign_in()
        changes, path = browser.questions.changes, "/change/cancel/default/train"

        async def post(form: str, *, at: str = path, **headers: str) -> int:
            async with browser.session.post(
                browser.url + at, data=form, headers=browser.headers(**headers),
                allow_redirects=False,
            ) as answer:  # fmt: skip
                return answer.status

        preview = await browser.page(path)
        assert "1 member on 1 node stop; 8 GPUs are given back" in preview
        assert "no checkpoint" in preview
        token, foreign = csrf_of(preview), csrf_of(await other.page(path))
        own = browser.url
        assert await post(f"csrf={token}") == 403  # a browser says where a form comes from
        assert await post(f"csrf={token}", Origin="http://evil.example") == 403
        assert await post(f"csrf={token}", Origin=own, Sec_Fetch_Site="cross-site") == 403
        assert await post("", Origin=own) == 403
        assert await post(f"csrf={foreign}", Origin=own) == 403
        assert await post(f"csrf={token}" + "&x=1" * 2_000, Origin=own) == 413
        assert await post(f"csrf={token}", at="/change/delete/default/train", Origin=own) == 404
        cookie, browser.cookie = browser.cookie, ""
        assert await post(f"csrf={token}", Origin=own) == 401
        browser.cookie = cookie
        assert (await browser.get(path))[0].status == 200
        assert changes == []
        assert await post(f"csrf={token}", Origin=own) == 303
        (order,) = changes
        assert (order.change.verb, order.namespace, order.name) == ("cancel", "default", "train")
        browser.questions.refusal = "jobs may not be patched"
        assert await post(f"csrf={token}", Origin=own) == 409


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="([\w-]+)"', page)
    assert found is not None
    return found[1]


async def test_every_answer_forbids_inline_scripts_frames_and_other_sites() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        for path in (*PAGES, "/static/page.js", "/static/style.css", "/login?code=x"):
            if path.startswith(("/live", "/logs")):
                async with browser.events(path) as stream:
                    headers = stream.answer.headers
            else:
                answer, text = await browser.get(path)
                headers = answer.headers
                assert not re.search(r"<script(?! src=\"/static/)|\son\w+=|\sstyle=", text), path
                if "static" not in path:
                    assert "//" not in re.sub(r"href=\"\"", "", text.split("<body", 1)[-1]), path
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"


def hostile_world() -> Iterator[tuple[Resource[Any], Any]]:
    """Objects whose every text of others is HTML or controls terminals."""
    evil = f"{SCRIPT}\"'><img src=x onerror=alert(1)>\x1b]0;owned\x07\x9b31m"
    node = make_node("n1", gpus=8, unschedulable=True, labels={"fairlead.dev/pool": SCRIPT})
    notes = {"fairlead.dev/cordoned-by": evil, "fairlead.dev/health": evil}
    yield NODES, replace(node, metadata=replace(node.metadata, annotations=notes))
    verdict = VerdictStatus("Waiting", "InsufficientCapacity", {"resource": evil, "x": evil})
    yield JOBS, of(make_job(SCRIPT, verdict=verdict, status={"state": evil}), evil)
    yield JOBS, of(make_job("javascript:alert(1)", namespace=SCRIPT), "ada")
    placed = make_job("hit", placement=make_placement(["n1"]), status={"state": "Running"},
                      spec={"team": evil})  # fmt: skip
    yield JOBS, of(placed, evil)


async def test_texts_of_others_are_shown_as_text_wherever_they_come_from() -> None:
    async with page_of(hostile_world(), user=SCRIPT) as browser:
        browser.questions.text = f"{SCRIPT}\x1b[2J"
        await browser.sign_in()
        job = "/jobs/default/%3Cscript%3Ealert(1)%3C%2Fscript%3E"
        query = f"/jobs?q={SCRIPT}&user=%22%3E{SCRIPT}&state={SCRIPT}&node={SCRIPT}"
        for path in ("/", "/jobs", job, "/jobs/default/hit", "/cluster", "/nodes/n1", query,
                     f"/jobs/default/{SCRIPT}", f"/{SCRIPT}", f"/nodes/{SCRIPT}"):  # fmt: skip
            _, text = await browser.get(path)
            assert SCRIPT not in text, path
            assert "<img" not in text, path
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), path
            assert 'href="javascript:' not in text, path
        shown = await browser.page("/jobs")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
        assert r"\x1b]0;owned\x07" in shown


async def test_a_log_full_of_html_and_escapes_arrives_as_lines_of_text() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        async with browser.events("/logs/default/train?tail=10&task=worker-0") as stream:
            await browser.questions.pieces.put(
                b"\x1b]0;owned\x07<script>alert(1)</script>\n\x1b[31mred\x1b[0m \x1b[2Jplain\r\n"
                b"10%\r20%\r30%\n\xff\xfe unended"
            )
            name, lines = await stream.next("lines")
            assert name == "lines"
            assert "<script" not in lines
            assert "&lt;script&gt;" in lines
            assert '<span class="c1">red</span>' in lines
            assert "owned" not in lines
            assert "10%" not in lines
            assert "30%" in lines
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", lines)
            await browser.questions.pieces.put(None)
            assert "unended" in (await stream.next("lines"))[1]
            assert (await stream.next("end"))[0] == "end"
        (query,) = browser.questions.queries
        assert (query.follow, query.tail, query.task) == (True, 10, "worker-0")


async def test_a_log_is_followed_for_as_long_as_somebody_looks_and_not_by_too_many() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        logs = browser.questions
        async with browser.events("/logs/default/train"):
            await logs.begun.get()
            async with browser.events("/logs/default/train"):
                await logs.begun.get()
                async with browser.events("/logs/default/train") as third:
                    assert (await third.next())[0] == "gone"
        async with asyncio.timeout(PATIENCE_SECONDS):
            await logs.ended.get()
            await logs.ended.get()
        assert logs.open_logs == 0


async def test_a_change_reaches_who_looks_within_a_second_and_nobody_else_costs_a_page() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        digest = re.search(r'data-digest="(\w+)"', await browser.page("/jobs"))
        assert digest is not None
        async with browser.events(f"/live?of=/jobs%3Fq%3Dnew&seen={digest[1]}") as stream:
            assert "No jobs match" in (await stream.next("main"))[1]
            await stream.next("alive")
            loop = asyncio.get_running_loop()
            began = loop.time()
            await create(browser.client, JOBS, of(make_job("new-one"), "ada"))
            _, html = await stream.next("main")
            assert "new-one" in html
            assert loop.time() - began < 1.0
            await browser.client.delete(JOBS, "new-one", namespace="default")
            assert "No jobs match" in (await stream.next("main"))[1]
        assert browser.questions.asked == []


async def test_a_page_that_is_gone_and_a_session_that_has_ended_end_their_streams() -> None:
    clock = SteppedClock()
    async with page_of(world(), clock=clock) as browser:
        await browser.sign_in()
        async with browser.events("/live?of=/nodes/n2") as stream:
            await stream.next("alive")
            await browser.client.delete(NODES, "n2")
            assert (await stream.next("gone", "closed"))[0] == "gone"
        async with browser.events("/live?of=/nodes/n1") as stream:
            await stream.next("alive")
            clock.ahead += SESSION_SECONDS_MAX + 1
            await browser.client.patch(NODES, "n1", {"spec": {"unschedulable": True}})
            assert (await stream.next("expired", "main"))[0] == "expired"


async def test_streams_are_bounded_and_the_others_go_on() -> None:
    async with page_of(world(), limits=LIMITS) as browser:
        await browser.sign_in()
        async with (
            browser.events("/live?of=/") as one, browser.events("/live?of=/") as two,
            browser.events("/live?of=/") as three,
        ):  # fmt: skip
            for each in (one, two, three):
                await each.next("alive")
            assert (await browser.get("/live?of=/"))[0].status == 503
            assert (await browser.get("/"))[0].status == 200
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await browser.get("/static/none"))[0].status != 404:
                pass
            while True:
                async with browser.events("/live?of=/") as again:
                    if again.answer.status == 200:
                        break


async def test_connections_that_never_ask_are_ended_and_keep_nobody_out() -> None:
    async with page_of(world(), limits=LIMITS) as browser:
        await browser.sign_in()
        idle = [await asyncio.open_connection("127.0.0.1", browser.server.port) for _ in range(60)]
        for number, (_, writer) in enumerate(idle):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" if number % 2 else b"")
        assert (await browser.get("/"))[0].status == 200
        async with asyncio.timeout(PATIENCE_SECONDS):
            for reader, writer in idle:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1 << 20)
                writer.close()
        assert (await browser.get("/"))[0].status == 200


@pytest.mark.parametrize(
    "path", ["/" + "a" * 2_000, "/jobs?" + "q=1&" * 40, "/jobs?q=" + "x" * 5_000,
             "/jobs?page=99999999999999", "/jobs?page=-1", "/jobs?page=٣", "/%00", "/%ff%fe",
             "/jobs/a/b/c/d", "/arrays/default/none", "/nodes/none", "/static/..%2fserver.py",
             "/static/../server.py", "/logs/a", "/live?of=/nowhere"],
)  # fmt: skip
async def test_a_strange_address_is_answered_and_never_a_fault(path: str) -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        answer, text = await browser.get(path)
        assert answer.status in (200, 400, 404, 414), text
        assert "import annotations" not in text
        assert "fault of fairlead" not in text


async def test_what_may_not_be_listed_is_said_and_not_shown_as_nothing() -> None:
    here = frozenset({"default"})
    rights = Rights(here, here, NOWHERE, nodes=False, reports=False, teams=False)
    async with page_of(world(), rights=rights) as browser:
        await browser.sign_in()
        assert "You may not list nodes" in await browser.page("/cluster")
        home = await browser.page("/")
        assert "GPUs free" not in home
        assert "train" in home
        answer, text = await browser.get("/nodes/n1")
        assert answer.status == 404
        assert "you may not list nodes" in text


def full_world() -> Iterator[tuple[Resource[Any], Any]]:
    """10,000 jobs on 2,048 nodes in 16 blocks of 16 racks."""
    for number in range(2_048):
        labels = {"fairlead.dev/block": f"block-{number // 128}",
                  "fairlead.dev/rack": f"rack-{number // 8}"}  # fmt: skip
        yield NODES, make_node(f"node-{number:04d}", gpus=8, labels=labels)
    verdict = VerdictStatus("Waiting", "InsufficientCapacity",
                            {"resource": "nvidia.com/gpu", "asked": 32, "free": 8, "total": 16,
                             "short": 24})  # fmt: skip
    for number in range(10_000):
        name, user = f"train-{number:05d}", f"user-{number % 50}"
        if number < 2_000:
            placed = make_placement([f"node-{number:04d}"])
            job = make_job(name, gpus=8, placement=placed, status={"state": "Running"})
        else:
            job = make_job(name, gpus=8, count=4, verdict=verdict, status={"state": "Waiting"})
        yield JOBS, of(job, user)


async def test_pages_of_a_full_cluster_are_small_and_say_what_is_there() -> None:
    async with page_of(full_world(), user="user-7") as browser:
        await browser.sign_in()
        pages = {path: await browser.page(path)
                 for path in ("/", "/jobs", "/jobs?q=train-09999", "/cluster", "/jobs?page=50",
                              "/cluster?block=block-3", "/nodes/node-0000")}  # fmt: skip
        sizes = {path: len(text.encode()) for path, text in pages.items()}
        assert max(sizes.values()) < BYTES_MAX, sizes
        assert "8,000" in pages["/"]
        assert "10,000" in pages["/jobs"]
        assert "train-09999" in pages["/jobs?q=train-09999"]
        assert "of 1 " in pages["/jobs?q=train-09999"].replace(",", "")
        assert pages["/cluster?block=block-3"].count('class="tile ') == 128
        assert "train-00000" in pages["/nodes/node-0000"]


async def test_pages_have_landmarks_headings_and_tables_with_headers() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        for path in ("/", "/jobs", "/jobs/default/train", "/arrays", "/cluster", "/nodes/n1",
                     "/teams", "/fleet", "/network", "/doctor", "/decisions",
                     "/usage", "/runs", "/runs/show"):  # fmt: skip
            text = await browser.page(path)
            for landmark in ("<header", "<nav aria-label", "<main", "<footer", 'lang="en"'):
                assert landmark in text, (path, landmark)
            assert text.count("<h1") == 1, path
            tables = re.findall(r"<table.*?</table>", text, re.DOTALL)
            for table in tables:
                assert "aria-label=" in table
                assert '<th scope="col"' in table
            assert "fairlead " in text.partition('id="command">')[2][:80], path


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


_FLOOD = """
import resource, socket, sys
count, port = int(sys.argv[1]), int(sys.argv[2])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, most))
held = []
for number in range(count):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    held.append(one)
print("flooding", flush=True)
sys.stdin.read()
"""


async def test_ten_thousand_connections_are_refused_in_bounds_and_disturb_nobody_who_is_there() -> (
    None
):
    count = 10_000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count + 100:
        pytest.skip("a process may not have so many connections here")
    async with page_of(world()) as browser:
        await browser.sign_in()
        async with browser.events("/live?of=/jobs") as stream:
            await stream.next("main")
            files = open_files()
            flood = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _FLOOD, str(count), str(browser.server.port),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert flood.stdout is not None
            try:
                assert await flood.stdout.readline() == b"flooding\n"
                for _ in range(50):  # on the connection that it has
                    assert (await browser.get("/jobs"))[0].status == 200
                most = open_files() - files
                assert 0 < most <= WebLimits().connections.strangers_max + 8
                await create(browser.client, JOBS, of(make_job("meanwhile"), "ada"))
                assert "meanwhile" in (await stream.next("main"))[1]
            finally:
                flood.kill()
                await flood.wait()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await browser.get("/"))[0].status == 200
